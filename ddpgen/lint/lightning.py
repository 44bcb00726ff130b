"""A script's trainer of Lightning: settings that it does not have, and callbacks that wait for what nothing logs."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from ddpgen.lint.calls import Script, constant, imported, name_of, warning
from ddpgen.spec.fields import did_you_mean, similar
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# Settings of the Trainer that Lightning 2 has no more → the remedy.
_REMOVED = {
    "gpus": 'write accelerator="gpu" and devices',
    "tpu_cores": 'write accelerator="tpu" and devices',
    "num_processes": "write devices",
    "auto_select_gpus": "leave it out",
    "distributed_backend": "write strategy",
    "resume_from_checkpoint": "write trainer.fit(..., ckpt_path=PATH)",
    "checkpoint_callback": "write enable_checkpointing",
    "weights_summary": "write enable_model_summary",
    "progress_bar_refresh_rate": "write callbacks=[TQDMProgressBar(refresh_rate=N)]",
    "replace_sampler_ddp": "write use_distributed_sampler",
    "amp_backend": "write precision",
    "terminate_on_nan": "write detect_anomaly",
    "auto_lr_find": "call Tuner(trainer).lr_find(model)",
    "auto_scale_batch_size": "call Tuner(trainer).scale_batch_size(model)",
    "track_grad_norm": "log it in on_before_optimizer_step",
}
_SETTINGS = [
    "accelerator", "strategy", "devices", "num_nodes", "precision", "logger", "callbacks", "fast_dev_run",
    "max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "limit_train_batches", "limit_val_batches",
    "limit_test_batches", "limit_predict_batches", "overfit_batches", "val_check_interval", "check_val_every_n_epoch",
    "num_sanity_val_steps", "log_every_n_steps", "enable_checkpointing", "enable_progress_bar", "enable_model_summary",
    "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "deterministic", "benchmark",
    "inference_mode", "use_distributed_sampler", "profiler", "detect_anomaly", "barebones", "plugins",
    "sync_batchnorm", "reload_dataloaders_every_n_epochs", "default_root_dir", "model_registry",
    "enable_autolog_hparams", "prepare_data_per_node", "process_position", "truncated_bptt_steps",
]  # fmt: skip
# The values that Lightning 2.0 to 2.6 know, with those of its plug-ins.
_VALUES: Mapping[str, Sequence[str]] = {
    "precision": [
        "16-mixed", "bf16-mixed", "32-true", "16-true", "bf16-true", "64-true", "16", "32", "64", "bf16",
        "transformer-engine", "transformer-engine-float16",
    ],
    "accelerator": ["auto", "cpu", "gpu", "cuda", "mps", "tpu", "hpu", "ipu", "npu", "xpu"],
    "strategy": [
        "auto", "ddp", "fsdp", "deepspeed", "single_device", "fsdp_cpu_offload",
        *(f"ddp{starts}{finds}" for starts in ("", "_spawn", "_fork", "_notebook")
          for finds in ("", "_find_unused_parameters_false", "_find_unused_parameters_true")),
        *(f"deepspeed_stage_{stage}" for stage in ("1", "2", "3", "2_offload", "3_offload", "3_offload_nvme")),
        "xla", "xla_debug", "single_xla", "single_tpu", "tpu_spawn", "tpu_spawn_debug", "hpu_parallel", "hpu_single",
        "ipu_strategy",
    ],
}  # fmt: skip
_OF_FABRIC = ("dp", "deepspeed_stage_1_offload", "xla_fsdp")
_OFTEN = {"precision": '"16-mixed", "bf16-mixed" or "32-true"', "accelerator": '"auto"', "strategy": '"ddp" or "fsdp"'}  # fmt: skip
# Other libraries' names of a precision.
_PRECISIONS = {
    **dict.fromkeys(("fp16", "float16", "half", "mixed", "amp"), "16-mixed"),
    **dict.fromkeys(("bfloat16", "bf16-amp"), "bf16-mixed"),
    **dict.fromkeys(("fp32", "float32", "float", "full"), "32-true"),
    **dict.fromkeys(("fp64", "float64", "double"), "64-true"),
}
_LIKENESS = 0.85  # of a misspelt setting; a newer one is another word
_VERSION_1 = re.compile(r"lightning\s*((==|~=|<=?)\s*1\b|[^'\"]*<\s*2\b)")
_VERSION_2 = re.compile(r"lightning\s*(==|~=|>=)\s*2\b")
# Names of Lightning 1 alone.
_OLD = re.compile("from_argparse_args|add_argparse_args|(training|validation|test)_epoch_end$")
# Callbacks with a name to watch, and the position of that argument.
_WATCHING = {"ModelCheckpoint": 2, "EarlyStopping": 0}
# Modules that bring no callback of the user's.
_KNOWN_MODULES = {
    *sys.stdlib_module_names, "numpy", "torch", "torchvision", "torchmetrics", "tqdm", "lightning", "pytorch_lightning",
}  # fmt: skip
_LOGS = ("log", "log_dict")
_OTHER_LOGS = (
    "math",
    "torch",
    "np",
    "numpy",
    "wandb",
    "run",
    "experiment",
    "logger",
)  # with a function log()


def check(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the likely faults of the trainer and of its callbacks."""
    modules = imported(script.tree) & {"lightning", "pytorch_lightning"}
    if not modules:
        return
    version = str(asdict(job))
    names = {str(getattr(n, "name", getattr(n, "attr", ""))) for n in script.nodes}
    is_new = _VERSION_2.search(version) or "lightning" in modules
    if is_new and not _VERSION_1.search(version) and not any(map(_OLD.match, names)):
        yield from _settings(script)
        yield from _values(script)
        yield from _watched(script)


def _settings(script: Script) -> Iterator[Conflict]:
    """Yield the settings of Lightning 1, and those that are misspelt."""
    trainers = _trainers(script, "Trainer")
    for call in (call for call in script.calls if ast.unparse(call.func) in trainers):
        for name in (keyword.arg or "" for keyword in call.keywords):
            problem = f"{script.location(call)}: Lightning 2 has no Trainer({name}=)"
            if name in _REMOVED:
                yield warning("train.script", problem, _REMOVED[name])
            elif name not in _SETTINGS and similar(name, _SETTINGS, _LIKENESS):
                yield warning("train.script", problem, did_you_mean(name, _SETTINGS))


def _values(script: Script) -> Iterator[Conflict]:
    """Yield the constant settings of a Trainer or a Fabric with a value that Lightning does not know."""
    # Another package may register more accelerators and strategies.
    closed = imported(script.tree) <= _KNOWN_MODULES and "register" not in script.called
    names = [*_VALUES] if closed else ["precision"]
    for kind, more in (("Trainer", ()), ("Fabric", _OF_FABRIC)):
        classes = _trainers(script, kind)
        made = [each for each in script.calls if ast.unparse(each.func) in classes]
        settings = [(each, keyword) for each in made for keyword in each.keywords]
        for call, setting in settings:
            value = getattr(script.value_of(setting.value), "value", None)
            if setting.arg not in names or type(value) not in (str, int):
                continue
            known = [*_VALUES[setting.arg], *more]
            word = str(value).lower() if setting.arg == "strategy" else str(value)
            if word not in known:
                problem = f"{script.location(call)}: Lightning has no {setting.arg}={value!r}"
                remedy = did_you_mean(word, known, f"write {_OFTEN[setting.arg]}")
                if setting.arg == "precision" and word.lower() in _PRECISIONS:
                    remedy = f'write "{_PRECISIONS[word.lower()]}"'
                yield warning("train.script", problem, remedy)


def _trainers(script: Script, name: str) -> set[str]:
    """Return the expressions that mean Lightning's class of this name, such as `L.Trainer`."""
    trainers: set[str] = set()
    for node in script.nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                full, own = (
                    f"{getattr(node, 'module', '')}.{alias.name}",
                    alias.asname or alias.name,
                )
                if full.lstrip(".").startswith(("lightning", "pytorch_lightning")):
                    trainers.add(own if alias.name == name else f"{own}.{name}")
    return trainers


def _watched(script: Script) -> Iterator[Conflict]:
    """Yield the names that a callback watches, and that the one module of the script never logs."""
    logged = _logged(script)
    if not logged:
        return
    for call in script.calls:
        position = _WATCHING.get(name_of(call.func))
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if position is None or {"strict", None} & keywords.keys():
            continue
        value = keywords.get("monitor", (*call.args, *[None] * 3)[position])
        name = constant(value).partition("/dataloader_idx_")[0]
        plain = re.sub("_(step|epoch)$", "", name)
        if name and not ({name, plain} & logged or name in ("epoch", "step") or name[:3] == "lr-"):
            problem = (
                f"{script.location(call)} watches {name}, and {script.name} logs no such value"
            )
            yield warning("train.script", problem, did_you_mean(name, sorted(logged)))


def _logged(script: Script) -> set[str]:
    """Return the names that the script logs; none if it may log others, or trains a module of another file."""
    classes = [node for node in script.nodes if isinstance(node, ast.ClassDef)]
    if not imported(script.tree) <= _KNOWN_MODULES:
        return set()
    own = {c.name for c in classes if [*map(name_of, c.bases)] == ["LightningModule"]}
    fits = [call for call in script.calls if name_of(call.func) == "fit"]
    models = [script.value_of(call.args[0]) for call in fits if call.args]
    if not fits or len(models) != len(fits):
        return set()
    if not all(isinstance(model, ast.Call) and name_of(model.func) in own for model in models):
        return set()
    names: set[str] = set()
    for call in script.calls:
        if name_of(call.func) in _LOGS and isinstance(call.func, ast.Attribute):
            if name_of(call.func.value) in _OTHER_LOGS:
                continue
            first = call.args[0] if call.args else None
            shown = first.keys if isinstance(first, ast.Dict) else [first]
            if not all(map(constant, shown)):
                return set()
            names |= set(map(constant, shown))
    return names
