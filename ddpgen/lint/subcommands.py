"""The sub-commands and the exclusive groups of a script's argparse, compared with the arguments of the spec. Pure."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ddpgen.lint.arguments import compare, divided, given_words
from ddpgen.lint.calls import Script, constant, name_of, text_of, warning
from ddpgen.lint.parser import Options, of_calls, options_of, the_parser
from ddpgen.spec.fields import did_you_mean
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.rules import Conflict

_WORD = re.compile(r"^train\.args\[(\d+)\]")
_COMMANDS = "?"  # the owner of add_parser()
# Settings of a sub-command's parser that change no option of it.
_HARMLESS = {"help", "description", "epilog", "usage", "prog", "formatter_class"}


class _Commands(NamedTuple):
    """The options before the sub-command, and of each sub-command. `required`: one has to be given."""

    before: Options
    each: Mapping[str, Options]
    required: bool


def check(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the faults of the sub-command that the arguments name, and the arguments that exclude each other."""
    commands = _commands_of(script) if "add_subparsers" in script.called else None
    if commands and isinstance(job.train.args, Mapping) and commands.required:
        problem = f"{script.name} wants a sub-command ({', '.join(commands.each)}), and a mapping has options alone"
        remedy = "write args as a list of words: the sub-command, and then its options"
        yield warning("train.args", problem, remedy)
    elif commands and not (faults := [*_of_options(job.train, script, commands)]):
        yield from _of_words(job.train, script, commands)
    elif commands:
        yield faults[0]
    if options := options_of(script):
        yield from _exclusive(job.train, script, options)


def _of_options(train: Train, script: Script, commands: _Commands) -> Iterator[Conflict]:
    """Yield the options that stand before the sub-command, and that only a sub-command has."""
    for given in given_words(train):
        is_command = given.value in commands.each or given.field == "train.args[0]"
        if (is_command and not given.option) or "resume" in given.field:
            return
        behind = [n for n, o in commands.each.items() if o.named(given.option, abbreviated=False)]
        if given.option and behind and not commands.before.named(given.option, abbreviated=True):
            problem = f"{script.name} has --{given.option} only behind a sub-command ({', '.join(behind)})"
            remedy = f"write args as a list of words, with {behind[0]} before --{given.option}"
            yield warning(given.field, problem, remedy)


def _of_words(train: Train, script: Script, commands: _Commands) -> Iterator[Conflict]:
    """Yield the faults of the sub-command in a list of words, and of the words behind it."""
    words = [str(word) for word in train.args]
    if isinstance(train.args, Mapping) or "--" in words or not commands.before.arguments:
        return
    try:
        _, rest = divided(words, commands.before, argparse.PARSER)
    except ValueError:
        return
    first = len(words) - len(rest) + 1
    if rest and rest[0] in commands.each:
        own = replace(train, args=tuple(rest[1:]))
        for fault in compare(own, script, commands.each[rest[0]]):
            fields = (
                _WORD.sub(lambda m: f"train.args[{int(m[1]) + first}]", f) for f in fault.fields
            )
            yield fault._replace(fields=tuple(fields))
    elif rest:
        problem = f"{script.name} has no sub-command {rest[0]}"
        yield warning(f"train.args[{first - 1}]", problem, did_you_mean(rest[0], commands.each))
    elif commands.required:
        remedy = f"write one of {', '.join(commands.each)}"
        yield warning("train.args", f"{script.name} wants a sub-command", remedy)


def _commands_of(script: Script) -> _Commands | None:
    """Return the sub-commands of the script; None if its source does not show which options belong to which."""
    adds = [c for c in script.calls if name_of(c.func) in ("add_argument", "add_parser")]
    loops = (node for node in script.nodes if isinstance(node, (ast.For, ast.While)))
    unclear = script.at_times | script.below(loops)
    parser, calls = the_parser(script), _calls_of(script)
    if parser is None or "parse_args" not in script.called or not unclear.isdisjoint(adds):
        return None
    if len(calls) == 1 or sum(map(len, calls.values())) + len(calls) - 1 != len(adds):
        return None
    options = {name: of_calls(parser, own, script) for name, own in calls.items()}
    shown = {name: each for name, each in options.items() if each is not None}
    before = shown.pop("", None)
    if before is None or len(shown) != len(calls) - 1:
        return None
    if any(not names[0].startswith("-") for names in before.arguments):
        return None
    asks = (k for call in script.calls for k in call.keywords if name_of(call.func) == "add_subparsers")  # fmt: skip
    required = any(k.arg == "required" and text_of(k.value) == "True" for k in asks)
    return _Commands(before, shown, required or "required" in script.changed)


def _calls_of(script: Script) -> dict[str, list[ast.Call]]:
    """Return the calls of add_argument() for each sub-command; by "" those for the options before it."""
    owners: dict[str, str] = {}
    calls: dict[str, list[ast.Call]] = {"": []}
    for node in _statements(script.tree):
        call, owner = node.value, _owner(node.value, owners)
        if not isinstance(call, ast.Call) or owner is None:
            continue
        if name_of(call.func) == "add_argument":
            calls.get(owner, []).append(call)
        elif name_of(call.func) == "add_parser" and {k.arg for k in call.keywords} <= _HARMLESS:
            calls[owner] = []
        if isinstance(node, ast.Assign):
            owners |= dict.fromkeys(map(name_of, node.targets), owner)
    return calls


def _statements(tree: ast.Module) -> list[ast.Assign | ast.Expr]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.Expr)))
    return sorted(nodes, key=lambda node: node.lineno)


def _owner(call: ast.expr, owners: Mapping[str, str]) -> str | None:
    """Return the sub-command whose parser an expression makes or changes; "" for the first parser."""
    match call:
        case ast.Name(name):
            return owners.get(name)
        case ast.Call(ast.Attribute(value, "add_parser"), [ast.Constant(str(command))]):
            return command if _owner(value, owners) == _COMMANDS else None
        case ast.Call(ast.Attribute(value, "add_subparsers")):
            return _COMMANDS if _owner(value, owners) == "" else None
        case ast.Call(ast.Attribute(value, "add_argument" | "add_argument_group" | "add_mutually_exclusive_group")):  # fmt: skip
            return _owner(value, owners)
        case ast.Call(function):
            return "" if name_of(function) == "ArgumentParser" else None
    return None


def _exclusive(train: Train, script: Script, options: Options) -> Iterator[Conflict]:
    """Yield a second argument of an exclusive group, and a required group without an argument."""
    words = [*given_words(train)]
    short = any(str(given.value).startswith("-") for given in words if not given.option)
    for names, required in _groups(script):
        members = {name: options.long[name] for name in names if name in options.long}
        given: dict[str, str] = {}
        for word in words:
            meant = options.named(word.option, abbreviated=True) if word.option else None
            name = next((n for n, option in members.items() if option is meant), "")
            default = script.defaults.get(name.replace("-", "_"))
            if name and not (
                default and text_of(default) == word.value
            ):  # argparse takes that for none
                given.setdefault(name, word.field)
        shown = ", ".join(f"--{name}" for name in names)
        if len(given) > 1:
            problem = f"{script.name} takes one of {shown}, and gets {len(given)}"
            yield warning([*given.values()][1], problem, "leave the others out")
        elif required and not (given or short) and len(members) == len(names):
            yield warning("train.args", f"{script.name} wants one of {shown}", "add one")


def _groups(script: Script) -> list[tuple[list[str], bool]]:
    """Return the names of the options of each exclusive group, and if one of them has to be given."""
    groups: list[tuple[list[str], bool]] = []
    by_name: dict[str, list[str]] = {}
    for node in _statements(script.tree):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(attr="add_mutually_exclusive_group"), keywords=keywords)):  # fmt: skip
                required = any(k.arg == "required" and text_of(k.value) == "True" for k in keywords)
                by_name[name] = []
                groups.append((by_name[name], required))
            case ast.Assign([ast.Name(name)]):
                by_name.pop(name, None)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "add_argument"), args)) if name in by_name:  # fmt: skip
                by_name[name].append(constant(args[-1] if args else None).lstrip("-"))
    return groups
