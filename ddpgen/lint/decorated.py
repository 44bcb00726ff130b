"""The command lines that a decorator makes, click's and hydra's, compared with the arguments of the spec. Pure."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ddpgen.bundle import code
from ddpgen.errors import FileTroubleError
from ddpgen.lint.arguments import Given, compare, given_words
from ddpgen.lint.calls import Script, constant, imported, name_of, text_of, warning
from ddpgen.lint.parser import Option, Options
from ddpgen.lint.source import python_file
from ddpgen.spec.fields import did_you_mean
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# The options of hydra itself, without their dashes.
_OF_HYDRA = (
    "help", "hydra-help", "version", "cfg", "resolve", "package", "run", "multirun", "shell-completion",
    "config-path", "config-name", "config-dir", "experimental-rerun", "info",
)  # fmt: skip
_OVERRIDE = re.compile(r"[^=]*=|[-~]|$")
# Words by which hydra finds its configuration elsewhere.
_ELSEWHERE = {"config-path", "config-dir", "-cp", "-cd", "-cn", "hydra.searchpath"}
_OTHER_CONFIG = re.compile(rb"ConfigStore|hydra_zen|SearchPath")
# Decorators that leave a command's options as they are.
_HARMLESS = {"command", "pass_context", "version_option", "help_option", "record"}
_NUMBERS: Mapping[str, type[int | float]] = {
    "int": int,
    "float": float,
    "INT": int,
    "FLOAT": float,
}
# Settings of an option by which click reads the words in another way, or finds a value elsewhere.
_UNUSUAL = {"cls", "callback", "flag_value", "prompt", None}


def check(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the options that the script does not have, and the values that it cannot take. `home`: the spec's directory."""
    modules, argv = imported(script.tree), (n for n in script.nodes if isinstance(n, ast.Attribute))  # fmt: skip
    if "ArgumentParser" in script.called or any(node.attr == "argv" for node in argv):
        return
    if "click" in modules and (options := _options_of(script)):
        yield from compare(job.train, script, options)
    elif "hydra" in modules:
        mains = [d for _, d in _decorators(script) if ast.unparse(d).startswith("hydra.main")]
        if mains:
            yield from _of_hydra(job, script)
        if len(mains) == 1 and isinstance(mains[0], ast.Call):
            yield from _config(job, script, mains[0], home)


def _of_hydra(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the first word that hydra does not take."""
    words = [*given_words(job.train)]
    for before, given, after in zip([None, *words], words, [*words[1:], None], strict=False):
        word = given.value or ""
        if given.option and not any(name.startswith(given.option) for name in _OF_HYDRA):
            word = f"{given.option}={'true' if given.value is None else given.value}"
            problem = f"{script.name} is run by hydra, which has no option --{given.option}"
            own = given.option.replace("_", "-")
            remedy = f"write args as a list of words: {word}"
            yield warning(given.field, problem, f"write --{own}" if own in _OF_HYDRA else remedy)
            return
        if given.option or _OVERRIDE.match(word) or (before and _may_take_value(before)):
            continue
        problem = f"{script.name} is run by hydra, and {word} is no override"
        value = (after.value if after and not after.option else None) or "VALUE"
        value = "VALUE" if _OVERRIDE.match(value) else value
        yield warning(given.field, problem, f"write {word}={value} as one word")
        return


def _may_take_value(given: Given) -> bool:
    """True for an option that is not joined with its value."""
    short = (given.value or "").startswith("-") and "=" not in (given.value or "")
    return not given.joined if given.option else short


def _config(job: JobSpec, script: Script, main: ast.Call, home: Path) -> Iterator[Conflict]:
    """Yield a warning if `code` lacks the directory of hydra's configuration, or its primary file."""
    given = dict(zip(("config_path", "config_name"), main.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in main.keywords if keyword.arg}
    folder, name = constant(given.get("config_path")), constant(given.get("config_name"))
    words = {w.option or str(w.value).partition("=")[0]: w for w in given_words(job.train)}
    field = "train.script"
    if "config-name" in words:
        field, name = words["config-name"].field, words["config-name"].value or ""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(job.train.user_file), folder))
    elsewhere = _ELSEWHERE & words.keys() or ":" in folder or place.startswith(("/", ".."))
    beside, files = python_file(job, home), _files(job, home)
    if not folder or not name or elsewhere or "{" in name or not beside or files is None:
        return
    in_folder = [posixpath.relpath(each, place) for each in files if each.startswith(f"{place}/")]
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    if in_folder and file not in in_folder:
        known = [each.removesuffix(".yaml") for each in in_folder if each.endswith(".yaml")]
        problem = f"hydra looks for {file} in {folder}, and code has no such file"
        remedy = did_you_mean(name, sorted(known), "create it, or correct the name")
        yield warning(field, problem, remedy)
    elif not in_folder and (beside.parent / folder).is_dir():
        problem = f"{script.name} reads its configuration from {folder}, which is not in code ({', '.join(job.code)})"
        yield warning("code", problem, "add it, or name the directory")


def _files(job: JobSpec, home: Path) -> Iterable[str] | None:
    """Return the files of `code`; None if one of them may give hydra a configuration without a file."""
    try:
        files = code.find(job.code, home, ".")
        python = [file.read_bytes() for name, file in files.items() if name.endswith(".py")]
    except (FileTroubleError, OSError):
        return None
    return None if any(map(_OTHER_CONFIG.search, python)) else files


def _decorators(script: Script) -> Iterator[tuple[ast.FunctionDef, ast.expr]]:
    """Yield each decorator of a function."""
    for node in script.nodes:
        if isinstance(node, ast.FunctionDef):
            yield from ((node, decorator) for decorator in node.decorator_list)


def _options_of(script: Script) -> Options | None:
    """Return the options of the script's one click command, if the script calls it with the words of its command line."""
    decorators = [*_decorators(script)]
    commands = [f for f, d in decorators if _name(d) == "command"]
    called = script.called.get(commands[0].name) if len(commands) == 1 else None
    if called is None or called.args or called.keywords:
        return None
    long: dict[str, Option] = {}
    needed: list[str] = []
    for _, decorator in (each for each in decorators if each[0] is commands[0]):
        call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if (
            _name(decorator) in _HARMLESS
            and not {"cls", "context_settings", None} & keywords.keys()
        ):
            continue
        names = [constant(each) for each in call.args]
        if _name(decorator) not in ("option", "argument") or not all(names) or _UNUSUAL & keywords.keys():  # fmt: skip
            return None
        option = _option(keywords, any("/" in name for name in names))
        own = [n.strip()[2:] for name in names for n in name.split("/") if n.strip().startswith("--")]  # fmt: skip
        long |= dict.fromkeys(own, option)
        if option.required and own:
            needed.append(own[0])
    return Options(long, tuple(needed), {}, exact=True) if long else None


def _name(decorator: ast.expr) -> str:
    return name_of(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _option(keywords: Mapping[str | None, ast.expr], switches: bool) -> Option:
    """Return the option that click makes of these keywords. `switches`: its names have a / between them."""
    kind, default, nargs = (keywords.get(name) for name in ("type", "default", "nargs"))
    number = _NUMBERS.get(name_of(kind)) if kind else None
    if kind is None and isinstance(default, ast.Constant):
        number = _NUMBERS.get(type(default.value).__name__)
    on = {name for name, value in keywords.items() if name and text_of(value) == "True"}
    return Option(
        flag=switches or bool({"is_flag", "count"} & on),
        read=number,
        choices=_choices(kind),
        nargs=nargs.value
        if isinstance(nargs, ast.Constant) and isinstance(nargs.value, int)
        else None,
        single="multiple" not in on,
        required="required" in on and default is None and "envvar" not in keywords,
    )


def _choices(kind: ast.expr | None) -> tuple[str, ...]:
    """Return the texts of click.Choice(); () if it takes others."""
    match kind:
        case ast.Call(function, [ast.List(values) | ast.Tuple(values)], []) if name_of(function) == "Choice":  # fmt: skip
            return tuple(map(constant, values)) if all(map(constant, values)) else ()
    return ()
