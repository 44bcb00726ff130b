"""The files that a training script saves, compared with the job's places and with `resume`."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from ddpgen.bundle import code
from ddpgen.lint.arguments import given_words, option_values
from ddpgen.lint.calls import PLAIN_MODULES, Script, constant, imported, name_of, text_of, warning
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# A script that calls one of these saves files.
_SAVE_CALLS = frozenset([
    "save", "save_state", "save_checkpoint", "save_model", "save_pretrained", "save_file", "dump",
    "async_save", "fit", "Trainer", "savez",
])  # fmt: skip
# Functions that write a checkpoint, and functions that read one. `fit` and `Trainer` do both, so they count as reads.
_CHECKPOINT_WRITES = frozenset(["save", "save_state", "save_checkpoint", "save_file", "async_save"])
_CHECKPOINT_READS = frozenset([
    "load", "safe_open", "load_state", "load_checkpoint", "load_file", "load_state_dict", "from_pretrained", "fit", "Trainer",
])  # fmt: skip
# Modules whose `load` reads no checkpoint.
_NO_CHECKPOINTS = frozenset(
    ["json", "yaml", "pickle", "np", "numpy", "toml", "tomllib", "OmegaConf"]
)
# A trainer, and a setting of it with which it saves nothing.
_SWITCHED_OFF = (
    ("TrainingArguments", "save_strategy", "no"),
    ("Seq2SeqTrainingArguments", "save_strategy", "no"),
    ("Trainer", "enable_checkpointing", "False"),
)
# Parsers that read the words of the command line into settings of transformers' trainer, and the names of these settings.
_SETTINGS_PARSERS = frozenset(["HfArgumentParser", "TrlParser"])
_SETTINGS = re.compile(r"\w*TrainingArguments|(SFT|DPO|GRPO|KTO|PPO|Reward)Config")
_LIGHTNING = frozenset(["lightning", "pytorch_lightning"])
_OF_LIGHTNING = re.compile(r"(Logger|Checkpoint|Stopping|Monitor|Bar|Summary|Timer)$")
# Classes of Lightning whose first argument is a directory, and settings that choose one.
_PLACES = re.compile(r"(Logger|Checkpoint)$")
_PLACED_BY = frozenset(
    ["default_root_dir", "dirpath", "save_dir", "enable_checkpointing", "checkpoint_callback", None]
)
# A directory that a source or a pattern does not show, or that is no part of the working directory.
_UNSURE_PLACE = re.compile(r"[*?\[{~$]|^/|://")
# Objects that hold no words of the command line.
_OTHER_OWNER = re.compile("cfg|conf|self|hp")
_MOST_NAMES = 5  # from which a path is made, one by the other
_TRAINERS = ("Trainer", "Fabric")
# Functions that give a file another name.
_NAMES_ANEW = frozenset([
    "replace", "rename", "renames", "move", "symlink", "symlink_to", "link", "hardlink_to", "copy", "copy2", "copyfile",
    "copytree",
])  # fmt: skip


def check(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the script's checkpoints. `home`: the spec's directory."""
    yield from _saves(script, job, home)
    yield from _lost_saves(job, script)


def writes(script: Script) -> bool:
    """True if the script itself writes checkpoints."""
    return any(map(_writes, script.calls)) and not {"fit", "Trainer"} & script.called.keys()


def loads(call: ast.Call) -> bool:
    """True if the call reads a checkpoint. json, pickle and numpy have a function `load` as well."""
    owner = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    name = name_of(call.func)
    return name in ("load_state", "load_checkpoint", "load_file") or (
        name == "load" and owner not in _NO_CHECKPOINTS
    )


def _saves(script: Script, job: JobSpec, home: Path) -> Iterator[Conflict]:
    yield from _switched_off(script, job)
    resume, folder = job.train.resume, posixpath.dirname(job.train.user_file)
    imports = imported(script.tree)
    modules = [posixpath.join(folder, name) for name in sorted(imports)]
    if "" in imports or any(
        code.find(job.code, home, path) for name in modules for path in (name, f"{name}.py")
    ):
        return
    writes = sorted(call.lineno for call in script.calls if _writes(call))
    if writes and not _CHECKPOINT_READS & script.called.keys():
        problem = f"{script.name}:{writes[0]} saves, and nothing loads that: a start after a kill would be refused"
        remedy = "load the newest checkpoint at the start, or write resume: scratch to start over each time"
        if resume.begin == "auto" and not resume.exists:
            yield warning("train.script", problem, remedy)
    elif writes and resume.exists:
        yield from _other_names(script, job)
    elif not _SAVE_CALLS & script.called.keys() and imports <= PLAIN_MODULES:
        problem = f"{script.name} saves nothing: a kill or a stop loses all that was trained"
        remedy = "save a checkpoint now and then, and load it at the start"
        yield warning("train.script", problem, remedy)


def _switched_off(script: Script, job: JobSpec) -> Iterator[Conflict]:
    """Yield the setting with which a trainer saves no checkpoint, in a script that saves none by itself."""
    if _CHECKPOINT_WRITES & script.called.keys() or "save_model" in script.called:
        return
    settings = trainer_settings(script, job)
    field, value = settings.get("save_strategy", ("", ""))
    trains = "do_train" in settings or not {"do_eval", "do_predict"} & settings.keys()
    if value == "no" and trains:
        problem = f"has {script.name} save nothing: a kill or a stop loses all that was trained"
        yield warning(field, problem, "leave it out, so that checkpoints are saved")
    trainers = [call for call in script.calls if name_of(call.func) in _TRAINERS]
    off = [call for call in trainers if any(k.arg == "enable_checkpointing" for k in call.keywords)]
    for call in script.calls if len(off) in (0, len(trainers)) else ():
        for keyword in call.keywords:
            setting = (name_of(call.func), keyword.arg, text_of(keyword.value))
            if setting in _SWITCHED_OFF:
                problem = f"{script.location(keyword.value)}: {keyword.arg}={ast.unparse(keyword.value)}: a kill or a stop loses all that was trained"
                yield warning(
                    "train.script", problem, "leave it out, so that checkpoints are saved"
                )


def _other_names(script: Script, job: JobSpec) -> Iterator[Conflict]:
    """Yield a warning if the patterns name files, and the source shows that the script saves none of these."""
    patterns = job.train.resume.exists
    if _NAMES_ANEW & script.called.keys():
        return
    writes = [call for call in script.calls if name_of(call.func) in _CHECKPOINT_WRITES]
    names = [posixpath.basename(saved_name(call, script)) for call in writes]
    wanted = [posixpath.basename(pattern) for pattern in patterns]
    shown = all(re.search(r"\w.*\.\w+$", name) for name in (*names, *wanted))
    if shown and not any(_may_match(name, each) for name in names for each in wanted):
        problem = f"matches none of the files that {script.name} saves, like {names[0]}"
        yield warning("train.resume.exists", problem, f"write {names[0]}")
        return
    below = _relative_places(job, script)
    saved = [
        posixpath.normpath(_filled(saved_path(call), saved_name(call, script), script, below))
        for call in writes
    ]
    places = {posixpath.dirname(path) for path in saved}
    elsewhere = {posixpath.dirname(posixpath.normpath(each)) for each in patterns}
    if any(map(_UNSURE_PLACE.search, places | elsewhere)) or "chdir" in script.called:
        return
    # A pattern without a suffix may name a directory.
    shown = all(posixpath.splitext(name)[1] for name in (*names, *wanted))
    if shown and saved and "." not in saved and places.isdisjoint(elsewhere):
        problem = f"names another directory than that of {saved[0]}, which {script.name} saves"
        yield warning("train.resume.exists", problem, f"write {saved[0]}")


def _may_match(name: str, pattern: str) -> bool:
    """False if no file is both: each * in the name stands for a text that the source does not show."""
    if re.search(r"[\[{]", pattern):
        return True
    begin, _, _ = name.partition("*")
    _, _, end = name.rpartition("*")
    wanted_begin, _, _ = pattern.partition("*")
    _, _, wanted_end = pattern.rpartition("*")
    if "*" not in name or "*" not in pattern:
        return fnmatch(name, pattern) or fnmatch(pattern, name)
    return (begin.startswith(wanted_begin) or wanted_begin.startswith(begin)) and (
        end.endswith(wanted_end) or wanted_end.endswith(end)
    )


def _lost_saves(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the first save into a working directory that is lost with its machine."""
    if job.persists(job.train.workdir or "") or job.train.resume.exists:
        return
    if "chdir" in script.called or script.settings.keys() & option_values(job.train).keys():
        return
    settings = trainer_settings(script, job)
    field, place = settings.get("output_dir", ("", ""))
    if place and not re.match(r"[/~{]", place) and "push_to_hub" not in settings:
        problem = (
            f"{script.name} saves {place} into the working directory, which goes with the machine"
        )
        yield warning(field, problem, f"write {{checkpoint_dir}}/{posixpath.normpath(place)}")
        return
    below = _relative_places(job, script)
    for call in script.calls:
        output = _output_dir(call)
        path, name = saved_path(call) or output, saved_name(call, script) or constant(output)
        name = _filled(path, name, script, below)
        if name and not name.startswith(("/", "~", "*")):
            problem = f"{script.location(call)} saves {name} into the working directory, which goes with the machine"
            remedy = "save below the directory that the variable DDPGEN_CHECKPOINT_DIR names"
            yield warning("train.script", problem, remedy)
            return
    if trainer := _default_trainer(script):
        problem = f"{script.location(trainer)} saves into the working directory, which goes with the machine"
        remedy = 'write default_root_dir=os.environ["DDPGEN_CHECKPOINT_DIR"] there'
        yield warning("train.script", problem, remedy)


def _default_trainer(script: Script) -> ast.Call | None:
    """Return the call of a Lightning trainer that saves to its default place; None without one."""
    trainer, modules = script.called.get("Trainer"), imported(script.tree)
    by_itself = not _CHECKPOINT_WRITES & script.called.keys() and "fit" in script.called
    if not (trainer and by_itself and _LIGHTNING & modules) or "hydra" in modules:
        return None
    keywords = {keyword.arg for call in script.calls for keyword in call.keywords}
    placed = any(call.args and _PLACES.search(name_of(call.func)) for call in script.calls)
    if placed or keywords & _PLACED_BY or not _is_of_lightning(trainer, script):
        return None
    parts = [k.value for k in trainer.keywords if k.arg in ("callbacks", "logger")]
    plain = (part.elts if isinstance(part, ast.List) else [part] for part in parts)
    return trainer if all(map(_is_plain, (each for group in plain for each in group))) else None


def _is_of_lightning(trainer: ast.Call, script: Script) -> bool:
    """True if the script does not import the trainer's class from a module of its own."""
    froms = [node for node in script.nodes if isinstance(node, ast.ImportFrom)]
    return isinstance(trainer.func, ast.Attribute) or any(
        (node.module or "").partition(".")[0] in _LIGHTNING
        and "Trainer" in [alias.asname or alias.name for alias in node.names]
        for node in froms
    )


def _is_plain(part: ast.expr) -> bool:
    """True for a constant, and for a call of a callback or logger that Lightning has."""
    return isinstance(part, ast.Constant) or (
        isinstance(part, ast.Call) and bool(_OF_LIGHTNING.search(name_of(part.func)))
    )


def trainer_settings(script: Script, job: JobSpec) -> Mapping[str, tuple[str, str]]:
    """Return the settings of transformers' trainer that the job's arguments give: the fields and values, by name."""
    names = {name_of(node) for node in script.nodes if isinstance(node, ast.expr)}
    if not (_SETTINGS_PARSERS & script.called.keys() and any(map(_SETTINGS.fullmatch, names))):
        return {}
    return {
        given.option.replace("-", "_"): (given.field, given.value or "")
        for given in given_words(job.train)
    }


def _relative_places(job: JobSpec, script: Script) -> Mapping[str, str]:
    """Return the arguments of the parser that are surely relative paths, by name."""
    words = {each.value for each in script.nodes if isinstance(each, ast.Constant)}
    short = any(re.match("-[A-Za-z]", str(word)) for word in job.train.args)
    if "DDPGEN_CHECKPOINT_DIR" in words or short:
        return {}
    given, places = option_values(job.train), {}
    for option, default in script.defaults.items():
        value = given.get(option, constant(default))
        if value and option not in script.changed and not re.match(r"[/~{$]|\w+://", value):
            places[option] = value
    return places


def _output_dir(call: ast.Call) -> ast.expr | None:
    """Return the directory that a call gives to a trainer of transformers; None for another call."""
    if name_of(call.func) not in ("TrainingArguments", "Seq2SeqTrainingArguments"):
        return None
    return next(
        (k.value for k in call.keywords if k.arg == "output_dir"), next(iter(call.args), None)
    )


def parts_of(path: ast.expr) -> list[ast.expr]:
    """Return the parts that a path is joined from. The first one is itself no joined path."""
    parts: list[ast.expr] = []
    while True:
        match path:
            case ast.Call(func=func, args=[first, *rest]) if name_of(func) in ("join", "Path"):
                parts = [*rest, *parts]
            case ast.BinOp(first, ast.Div() | ast.Add(), right):
                parts = [right, *parts]
            case ast.JoinedStr([_, *_] as values):
                inner = [v.value if isinstance(v, ast.FormattedValue) else v for v in values]
                first, *rest = inner
                parts = [*rest, *parts]
            case _:
                return [path, *parts]
        path = first


def _filled(path: ast.expr | None, name: str, script: Script, below: Mapping[str, str]) -> str:
    """Return the name of a path with the argument in front filled in; "" if the source does not show it.

    `below`: the arguments and their values.
    """
    whole = script.value_of(path) if path else None
    first = parts_of(whole)[0] if whole else None
    if not isinstance(first, ast.Attribute) or first.attr not in below:
        return name
    if _OTHER_OWNER.match(name_of(first.value)):
        return ""
    if name.startswith("*/"):
        return posixpath.join(below[first.attr], name[2:])
    return below[first.attr] if whole is first else ""


def saved_name(call: ast.Call, script: Script) -> str:
    """Return the path that this call saves, with * for computed parts; "" if the source does not show it."""
    path = saved_path(call)
    text = _path_text(path, script, frozenset()) if path else ""
    return text if text.strip("*/") else ""


def saved_path(call: ast.Call) -> ast.expr | None:
    """Return the path that this call saves; None for another call."""
    return call.args[1] if _writes(call) and len(call.args) >= 2 else None


def _writes(call: ast.Call) -> bool:
    """True if the call writes a checkpoint. Pictures have a function `save` as well, with the path first."""
    name, function = name_of(call.func), call.func
    if call.args and isinstance(call.args[0], (ast.Constant, ast.JoinedStr)):
        return False
    if name == "save" and isinstance(function, ast.Attribute):
        owner = name_of(function.value)
        return owner in ("torch", "th", "accelerator") or len(call.args) + len(call.keywords) != 1
    return name in _CHECKPOINT_WRITES


def _path_text(path: ast.expr, script: Script, followed: frozenset[str]) -> str:
    """Return a path as text; "" if the source does not show it. `followed`: the names that led here."""

    def joined(separator: str, parts: Iterable[ast.expr]) -> str:
        return separator.join(_path_text(part, script, followed) or "*" for part in parts)

    match path:
        case ast.Constant():
            return constant(path)
        case ast.Name(name) if name not in followed and len(followed) < _MOST_NAMES:
            value = script.assigned.get(name) if script.is_fixed(name) else None
            return _path_text(value, script, followed | {name}) if value else ""
        case ast.JoinedStr(values):
            return joined("", (v.value if isinstance(v, ast.FormattedValue) else v for v in values))
        case ast.BinOp(ast.Name() | ast.Call() | ast.Attribute() as left, operator, right):
            separators = {ast.Div: "/", ast.Add: ""}
            separator = separators.get(type(operator))
            return "" if separator is None else joined(separator, (left, right))
        case ast.Call(function, args) if name_of(function) in ("join", "Path"):
            return joined("/", args)
    return ""
