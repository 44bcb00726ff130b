"""The command lines that a decorator makes, click's and hydra's, compared with the arguments of the spec. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from ddpgen.lint.arguments import compare, given_words
from ddpgen.lint.calls import Script, constant, imported, name_of, text_of, warning
from ddpgen.lint.parser import Option, Options
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# The options of hydra itself, without their dashes.
_OF_HYDRA = (
    "help", "hydra-help", "version", "cfg", "resolve", "package", "run", "multirun", "shell-completion",
    "config-path", "config-name", "config-dir", "experimental-rerun", "info",
)  # fmt: skip
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


def check(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the options that the script does not have, and the values that it cannot take."""
    modules, argv = imported(script.tree), (n for n in script.nodes if isinstance(n, ast.Attribute))  # fmt: skip
    if "ArgumentParser" in script.called or any(node.attr == "argv" for node in argv):
        return
    if "click" in modules and (options := _options_of(script)):
        yield from compare(job.train, script, options)
    elif "hydra" in modules and any(ast.unparse(d).startswith("hydra.main") for _, d in _decorators(script)):  # fmt: skip
        yield from _of_hydra(job, script)


def _of_hydra(job: JobSpec, script: Script) -> Iterator[Conflict]:
    for given in given_words(job.train):
        if given.option and not any(name.startswith(given.option) for name in _OF_HYDRA):
            word = f"{given.option}={'true' if given.value is None else given.value}"
            problem = f"{script.name} is run by hydra, which has no option --{given.option}"
            own = given.option.replace("_", "-")
            remedy = f"write args as a list of words: {word}"
            yield warning(given.field, problem, f"write --{own}" if own in _OF_HYDRA else remedy)
            return


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
