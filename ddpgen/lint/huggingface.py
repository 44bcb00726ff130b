"""The options that HfArgumentParser makes of a script's dataclasses and of transformers' TrainingArguments. Pure.

A table has the names of all versions of transformers from 4.20 on, because the hosts may have any of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from ddpgen.lint.calls import Script, constant, name_of, text_of
from ddpgen.lint.parser import Option, Options, is_handed_on
from ddpgen.spec.fields import did_you_mean

_TRUE = frozenset(["yes", "true", "t", "y", "1"])
_FALSE = frozenset(["no", "false", "f", "n", "0"])


class Boolean(int):
    """A bool as HfArgumentParser reads it."""

    def __new__(cls, text: str) -> Boolean:
        """Raises ValueError for a text that means neither true nor false."""
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(text)
        return super().__new__(cls, text.lower() in _TRUE)


ANY = Option()  # takes all values
_TEXT = Option(wants_value=True, single=True)
_INTS = """
    data_seed dataloader_num_workers dataloader_prefetch_factor ddp_bucket_cap_mb ddp_timeout eval_accumulation_steps
    fsdp_min_num_params gradient_accumulation_steps local_rank max_steps past_index per_device_eval_batch_size
    per_device_train_batch_size per_gpu_eval_batch_size per_gpu_train_batch_size save_total_limit seed
    torch_empty_cache_steps tpu_num_cores
"""
_FLOATS = """
    adam_beta1 adam_beta2 adam_epsilon eval_delay eval_steps label_smoothing_factor learning_rate logging_steps
    max_grad_norm neftune_noise_alpha num_train_epochs save_steps warmup_ratio warmup_steps weight_decay
"""
# Those that are True by themselves, and all others.
_ON = """
    dataloader_in_order dataloader_pin_memory eval_do_concat_batches log_on_each_node logging_nan_inf_filter
    remove_unused_columns save_safetensors skip_memory_metrics
"""
_OFF = """
    adafactor auto_find_batch_size batch_eval_metrics bf16 bf16_full_eval
    dataloader_drop_last dataloader_persistent_workers do_eval do_predict do_train enable_jit_checkpoint eval_on_start
    eval_use_gather_object fp16 fp16_full_eval full_determinism gradient_checkpointing group_by_length hub_always_push
    ignore_data_skip include_inputs_for_metrics jit_mode_eval load_best_model_at_end logging_first_step no_cuda
    overwrite_output_dir prediction_loss_only push_to_hub restore_callback_states_from_checkpoint save_on_each_node
    save_only_model torch_compile tpu_metrics_debug use_cache use_cpu use_ipex use_legacy_prediction_loop
    use_liger_kernel use_mps_device
"""
# A bool whose default is None has no form without a value.
_BOOLS_OR_NONE = (
    "ddp_broadcast_buffers ddp_find_unused_parameters disable_tqdm greater_is_better tf32"
)
_OTHERS = """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs average_tokens_across_devices
    dataloader_multiprocessing_context ddp_backend ddp_static_graph debug deepspeed dispatch_batches fp16_backend
    fp16_opt_level fsdp fsdp_config fsdp_transformer_layer_cls_to_wrap gradient_checkpointing_kwargs
    half_precision_backend hub_model_id hub_private_repo hub_revision hub_token include_for_metrics
    include_num_input_tokens_seen include_tokens_per_second label_names length_column_name liger_kernel_config
    logging_dir lr_scheduler_kwargs metric_for_best_model mp_parameters optim_args optim_target_modules output_dir
    parallelism_config project push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope report_to
    resume_from_checkpoint run_name sharded_ddp split_batches torch_compile_backend torch_compile_mode torchdynamo
    tp_size trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy xpu_backend
"""
_INTERVALS = "no steps epoch"
_LEVELS = "detail debug info warning error critical passive"
_CHOICES: Mapping[str, str] = {
    "eval_strategy": _INTERVALS,
    "evaluation_strategy": _INTERVALS,
    "logging_strategy": _INTERVALS,
    "save_strategy": f"{_INTERVALS} best",
    "hub_strategy": "end every_save checkpoint all_checkpoints",
    "log_level": _LEVELS,
    "log_level_replica": _LEVELS,
    "lr_scheduler_type": """
        linear cosine cosine_with_restarts polynomial constant constant_with_warmup inverse_sqrt reduce_lr_on_plateau
        cosine_with_min_lr cosine_warmup_with_min_lr warmup_stable_decay greedy
    """,
    "optim": """
        adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adamw_torch_4bit adamw_torch_8bit adamw_hf
        adamw_apex_fused adamw_anyprecision adamw_bnb_8bit adamw_8bit adafactor adagrad ademamix ademamix_8bit sgd
        lion_8bit lion_32bit paged_adamw_32bit paged_adamw_8bit paged_ademamix_32bit paged_ademamix_8bit
        paged_lion_32bit paged_lion_8bit rmsprop rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit galore_adamw
        galore_adamw_8bit galore_adafactor galore_adamw_layerwise galore_adamw_8bit_layerwise
        galore_adafactor_layerwise lomo adalomo grokadamw schedule_free_radam schedule_free_adamw schedule_free_sgd
        apollo_adamw apollo_adamw_layerwise stable_adamw
    """,
}


def _read(kind: type[int | float]) -> Option:
    return _TEXT._replace(read=kind)


def _one_of(words: tuple[object, ...]) -> Option:
    return _TEXT._replace(choices=words)


def _bool(on: bool) -> Option:
    return Option(read=Boolean, nargs="?", single=True, on=on)


TRAINING: Mapping[str, Option] = {
    **{name: _read(int) for name in _INTS.split()},
    **{name: _read(float) for name in _FLOATS.split()},
    **{name: _bool(True) for name in _ON.split()},
    **{name: _bool(False) for name in _OFF.split()},
    **{name: _read(Boolean) for name in _BOOLS_OR_NONE.split()},
    **{name: _one_of(tuple(words.split())) for name, words in _CHOICES.items()},
    **dict.fromkeys(_OTHERS.split(), ANY),
}
SEQ2SEQ: Mapping[str, Option] = {
    **TRAINING,
    "sortish_sampler": _bool(False),
    "predict_with_generate": _bool(False),
    "generation_max_length": _read(int),
    "generation_num_beams": _read(int),
    "generation_config": ANY,
}
TABLES = {"TrainingArguments": TRAINING, "Seq2SeqTrainingArguments": SEQ2SEQ}
# A word of other trainers → the word that transformers has for it.
MEANT = {
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "lr": "learning_rate",
    "adamw": "adamw_torch",
}
_FILE_READERS = frozenset(["parse_json_file", "parse_yaml_file"])
# A script with one of these may take other words than those of its dataclasses.
_READS_OTHERS = frozenset(["ArgumentParser", "add_argument", "parse_known_args", "parse_dict"])
_NO_METADATA_OF_ARGPARSE = frozenset(["help", "choices"])


def hint(word: str, known: Iterable[str], fallback: str = "") -> str:
    """Return the remedy for an unknown word, as did_you_mean() does."""
    known = [*known]
    meant = MEANT.get(word)
    return f"did you mean {meant}?" if meant in known else did_you_mean(word, known, fallback)


class Fields(Options):
    """The options of a script's HfArgumentParser, by the names of the dataclasses' fields, with _ and with -."""

    def named(self, name: str, abbreviated: bool) -> Option | None:
        """Return the option that the parser takes `name` for. One that may be several takes all values here: of
        these, the version of the hosts may have only one."""
        meant = [option for n, option in self.long.items() if abbreviated and n.startswith(name)]
        if MEANT.get(name) in self.long:
            return self.long.get(name)
        same = all(option is meant[0] for option in meant)
        return self.long.get(name) or ((meant[0] if same else ANY) if meant else None)


def options_of(script: Script) -> Fields | None:
    """Return the options of the script's HfArgumentParser; None if it may have others."""
    parsers = [each for each in script.calls if name_of(each.func) == "HfArgumentParser"]
    if len(parsers) != 1 or transformers_name(parsers[0].func, script) != "HfArgumentParser":
        return None
    keywords = {keyword.arg: keyword.value for keyword in parsers[0].keywords}
    given = [*parsers[0].args, *([keywords.pop("dataclass_types")] if "dataclass_types" in keywords else [])]  # fmt: skip
    if len(given) != 1 or keywords.keys() - {"description"} or _may_read_others(script):
        return None
    classes = given[0].elts if isinstance(given[0], (ast.Tuple, ast.List)) else given
    fields: dict[str, Option] = {}
    for each in classes:
        of_class = _fields(each, script)
        if of_class is None:
            return None
        fields |= of_class
    long: dict[str, Option] = {}
    for name, option in fields.items():
        off = f"no_{name}"
        long |= dict.fromkeys((name, name.replace("_", "-")), option)
        if option.read is Boolean and option.on:
            long |= dict.fromkeys((off, off.replace("_", "-")), Option(flag=True))
    return Fields(long, tuple(name for name, option in fields.items() if option.required), {})


def _may_read_others(script: Script) -> bool:
    """True if the script may read words of the command line that are no fields of its dataclasses.

    A script may also read a file that its one word names, as the examples of transformers do; reads_file() sees that.
    """
    reads = [c for c in script.calls if name_of(c.func) == "parse_args_into_dataclasses"]
    bare = all(not c.args and {k.arg for k in c.keywords} <= {"look_for_args_file"} for c in reads)
    if not reads or not bare or _READS_OTHERS & script.called.keys():
        return True
    files = [call for call in script.calls if name_of(call.func) in _FILE_READERS]
    tests = [node.test for node in script.nodes if isinstance(node, ast.If)]
    usual = {node for part in (*files, *tests) for node in ast.walk(part) if _is_argv(node)}
    if any(_is_argv(node) and node not in usual for node in script.nodes):
        return True
    if not all(any(map(_is_argv, ast.walk(call))) for call in files):
        return True
    return is_handed_on(script, "HfArgumentParser")


def _is_argv(node: ast.AST) -> bool:
    return isinstance(node, ast.expr) and name_of(node) == "argv"


def reads_file(script: Script, words: list[str]) -> bool:
    """True if one of the words may be a file from which the script reads its settings."""
    named = any(word.endswith((".json", ".yaml", ".yml")) for word in words)
    return named and bool(_FILE_READERS & script.called.keys())


def transformers_name(node: ast.expr, script: Script) -> str:
    """Return the name that an expression surely has in transformers; "" if it may be of another module."""
    names: dict[str, str] = {}
    modules: set[str] = set()
    others: set[str] = set()
    for each in script.nodes:
        if isinstance(each, ast.ImportFrom):
            is_transformers = (each.module or "").partition(".")[
                0
            ] == "transformers" and not each.level
            bound = {alias.asname or alias.name: alias.name for alias in each.names}
            names |= bound if is_transformers else {}
            others |= set() if is_transformers else bound.keys()
        elif isinstance(each, ast.Import):
            modules |= {a.asname or a.name for a in each.names if a.name == "transformers"}
        elif isinstance(each, (ast.ClassDef, ast.FunctionDef)):
            others.add(each.name)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            others.add(each.id)
    match node:
        case ast.Name(name) if name not in others:
            return names.get(name, "")
        case ast.Attribute(ast.Name(module), name) if module in modules - others:
            return name
    return ""


def _fields(
    node: ast.expr, script: Script, above: int | None = None
) -> Mapping[str, Option] | None:
    """Return the fields of a dataclass; None if the source does not show all. `above`: the line of a class below it."""
    if known := TABLES.get(transformers_name(node, script)):
        return known
    classes = _classes(node, script)
    if len(classes) != 1 or (above and classes[0].lineno >= above):
        return None
    (found,) = classes
    decorators = [each.func if isinstance(each, ast.Call) else each for each in found.decorator_list]  # fmt: skip
    if [*map(name_of, decorators)] != ["dataclass"] or found.keywords:
        return None
    if "aliases" in {constant(n) if isinstance(n, ast.Constant) else getattr(n, "arg", "") for n in ast.walk(found)}:  # fmt: skip
        return None
    fields: dict[str, Option] = {}
    for base in reversed(found.bases):
        inherited = _fields(base, script, found.lineno)
        if inherited is None:
            return None
        fields |= inherited
    for each in found.body:
        if not isinstance(each, ast.AnnAssign) or "ClassVar" in ast.unparse(each.annotation):
            continue
        if {"InitVar", "KW_ONLY"} & {*map(name_of, _expressions(each.annotation))}:
            return None
        name, option = name_of(each.target), _field(each, script)
        fields = {n: other for n, other in fields.items() if n != name}
        fields |= {name: option} if option else {}
    return fields


def _classes(node: ast.expr, script: Script) -> list[ast.ClassDef]:
    """Return the classes of the script that have the name which `node` is."""
    wanted = node.id if isinstance(node, ast.Name) else ""
    return [n for n in script.nodes if isinstance(n, ast.ClassDef) and n.name == wanted]


def _expressions(node: ast.AST) -> list[ast.expr]:
    return [each for each in ast.walk(node) if isinstance(each, ast.expr)]


def _field(node: ast.AnnAssign, script: Script) -> Option | None:
    """Return the option of a field; None for a field without one."""
    keywords: dict[str | None, ast.expr] = {"default": node.value} if node.value else {}
    if isinstance(node.value, ast.Call) and name_of(node.value.func) == "field":
        keywords = {keyword.arg: keyword.value for keyword in node.value.keywords}
    if "init" in keywords:
        return None if text_of(keywords["init"]) == "False" else ANY
    default = text_of(keywords["default"]) if "default" in keywords else ""
    metadata = keywords.get("metadata", ast.Dict([], []))
    option = _option(node.annotation, script, default)
    entries = {}
    if isinstance(metadata, ast.Dict):
        entries = {constant(k): v for k, v in zip(metadata.keys, metadata.values, strict=True)}
    if not isinstance(metadata, ast.Dict) or entries.keys() - _NO_METADATA_OF_ARGPARSE:
        option = ANY
    elif "choices" in entries and option is _TEXT:
        option = _one_of(_texts(getattr(entries["choices"], "elts", [])))
    needed = not keywords.keys() & {"default", "default_factory", None}
    is_bool = "bool" in map(name_of, _expressions(node.annotation))
    return option._replace(required=needed and not is_bool)


def _option(annotation: ast.expr, script: Script, default: str) -> Option:
    """Return the option for values of this type; ANY if the type is not known. `default`: the field's, as text."""
    match annotation:
        case ast.Subscript(
            ast.Name("Optional") | ast.Attribute(attr="Optional"), inner
        ) | ast.BinOp(inner, ast.BitOr(), ast.Constant(None)):
            option = _option(inner, script, default)
            has_default = default in ("True", "False")
            return option if option.read is not Boolean or has_default else _read(Boolean)
        case ast.Name("bool"):
            return _bool(default == "True")
        case ast.Name("str"):
            return _TEXT
        case ast.Name("int"):
            return _read(int)
        case ast.Name("float"):
            return _read(float)
        case ast.Subscript(kind, inner) if name_of(kind) == "Literal":
            return _one_of(_texts(inner.elts if isinstance(inner, ast.Tuple) else [inner]))
        case ast.Name():
            classes = _classes(annotation, script)
            if len(classes) == 1 and "Enum" in "".join(map(name_of, classes[0].bases)):
                values = [n.value for n in classes[0].body if isinstance(n, ast.Assign)]
                return _one_of(_texts(values))
    return ANY


def _texts(values: list[ast.expr]) -> tuple[object, ...]:
    """Return the values of constants as texts; () if one is no constant."""
    known = all(isinstance(value, ast.Constant) for value in values)
    return tuple(map(text_of, values)) if known else ()
