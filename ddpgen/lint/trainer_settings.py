"""The settings of transformers' trainer that cannot work, or not as they are meant: in its calls and in `train.args`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from ddpgen.lint import huggingface, saves
from ddpgen.lint.calls import Script, constant, name_of, text_of, warning
from ddpgen.spec.fields import show
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

_TRAINER = frozenset([
    "model", "args", "data_collator", "train_dataset", "eval_dataset", "tokenizer", "processing_class", "model_init",
    "compute_loss_func", "compute_metrics", "callbacks", "optimizers", "optimizer_cls_and_kwargs",
    "preprocess_logits_for_metrics",
])  # fmt: skip
# A class of transformers → the keywords that any of its versions takes.
_KEYWORDS = {**huggingface.TABLES, "Trainer": _TRAINER, "Seq2SeqTrainer": _TRAINER}
_INTERVALS = frozenset(["no", "steps", "epoch"])
_ON = frozenset(["", "true", "1", "yes", "y", "t"])


def check(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the faults of the settings, each as a warning."""
    for call in script.calls:
        name = name_of(call.func)
        if name in _KEYWORDS and huggingface.transformers_name(call.func, script) == name:
            yield from _of_call(call, name, script)
    yield from _of_arguments(job, script)


def _of_call(call: ast.Call, name: str, script: Script) -> Iterator[Conflict]:
    known, options = _KEYWORDS[name], huggingface.TABLES.get(name, {})
    settings = {}
    for keyword in call.keywords:
        setting, place = keyword.arg or "", script.location(keyword.value)
        value = text_of(keyword.value) if isinstance(keyword.value, ast.Constant) else "?"
        choices = options.get(setting, huggingface.ANY).choices
        settings[setting] = value
        if setting and setting not in known:
            remedy = huggingface.hint(setting, known, "leave it out")
            yield warning("train.script", f"{place}: {name} has no setting {setting}", remedy)
        elif choices and constant(keyword.value) and value not in choices:
            remedy = huggingface.hint(value, map(str, choices))
            problem = f"{place}: {setting} has no choice {show(value)}"
            yield warning("train.script", problem, remedy)
    if options and "" not in settings:
        for _, problem, remedy in _clashes(settings, script):
            yield warning("train.script", f"{script.location(call)}: {problem}", remedy)


def _of_arguments(job: JobSpec, script: Script) -> Iterator[Conflict]:
    given = saves.trainer_settings(script, job)
    has_gpus = any(machine.gpus for machine in job.machines)
    names = ("use_cpu", "no_cuda") if has_gpus else ("fp16",)
    problem, remedy = "needs a GPU, and the job has none", "leave it out, or write gpus_per_node"
    if has_gpus:
        problem, remedy = "leaves the job's GPUs idle", "leave it out, or leave out gpus_per_node"
    for name in names:
        field, value = given.get(name, ("", "?"))
        if value.lower() in _ON and name not in script.changed:
            yield warning(field, f"{name} {problem}", remedy)
    options = huggingface.options_of(script)
    defaults = ("eval_strategy", "save_strategy", "load_best_model_at_end")
    own = options and any(options.long.get(n) is not huggingface.TRAINING[n] for n in defaults)
    settings = {name: value for name, (_, value) in given.items()}
    for name, problem, remedy in _clashes(settings, script) if options and not own else ():
        yield warning(given[name][0], problem, remedy)


def _clashes(settings: Mapping[str, str], script: Script) -> Iterator[tuple[str, str, str]]:
    """Yield settings that do not fit each other: the name of one, the problem and the remedy."""
    evaluates = settings.get("eval_strategy", settings.get("evaluation_strategy", "no"))
    strategy = settings.get("save_strategy", "steps")
    loads_best = settings.get("load_best_model_at_end", "?").lower() in _ON
    if loads_best and {evaluates, strategy} <= _INTERVALS and evaluates != strategy:
        problem = f"load_best_model_at_end needs equal strategies, and eval_strategy is {show(evaluates)} and save_strategy {show(strategy)}"
        remedy = f"set save_strategy to {evaluates}"
        if evaluates == "no":
            remedy = f"set eval_strategy to {strategy}"
        yield "load_best_model_at_end", problem, remedy
    last, first = settings.get("max_steps", ""), settings.get("save_steps", "")
    saves_by_itself = {"save", "save_state", "save_checkpoint"} & script.called.keys()
    if saves_by_itself or "should_save" in script.changed or strategy != "steps":
        return
    if last.isdecimal() and first.isdecimal() and int(first) > int(last) > 0:
        problem = f"save_steps is {first}, and max_steps {last}: a kill or a stop loses all that was trained"
        yield "save_steps", problem, f"set save_steps to {max(1, int(last) // 10)}"
