"""The options of a training script, read from the calls of its one argparse parser, or from its globals. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ddpgen.lint.calls import PLAIN_MODULES, Script, constant, imported, name_of, text_of

# Actions of argparse that take no value.
_FLAGS = (
    "store_true", "store_false", "store_const", "append_const", "count", "help", "version", "BooleanOptionalAction",
)  # fmt: skip
_ACTIONS = (*_FLAGS, "", "store", "append", "extend")
_NARGS = (None, "?", "*", "+")  # or a number
_ADDS = ("add_argument", "add_argument_group", "add_mutually_exclusive_group", "add_subparsers")
# Modules with a parser that is called as argparse's is, and reads more.
_OTHER_PARSERS = {"configargparse", "jsonargparse", "simple_parsing"}
HELP: tuple[str, ...] = ("-h", "--help")
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
# Settings with which two arguments may have one name, and attributes that take an argument away.
_OTHER_NAMES = {"conflict_handler", "prefix_chars", None}
_TAKES_AWAY = {"_actions", "_option_string_actions", "_remove_action", "conflict_handler"}


class Option(NamedTuple):
    """One argument of argparse.

    `flag`: it takes no value. `wants_value`: it fails without a value. `negated`: it has a form --no-NAME. `read`: int,
    float or bool, if the script makes one of the value. `choices`: the values that it may have; () for any. `nargs`:
    argparse's. `single`: of several, the last one counts. `on`: it is true if it is not given. `required`: it has to be
    given. `known`: the source shows what argparse makes of it.
    """

    flag: bool = False
    wants_value: bool = False
    negated: bool = False
    read: type[int | float] | None = None
    choices: tuple[object, ...] = ()
    nargs: int | str | None = None
    single: bool = False
    on: bool = False
    required: bool = False
    known: bool = True


class Options(NamedTuple):
    """The options of the script's one argparse parser, or its globals that arguments replace. `long`: by the name behind
    `--`. `needed`: the names of the arguments that have to be given. `arguments`: all of the parser, by their names with
    dashes; empty if the source does not show how they divide a list of words. `exact`: no name may be abbreviated.
    `drops`: the script drops the words that the parser does not know."""

    long: Mapping[str, Option]
    needed: tuple[str, ...]
    arguments: Mapping[tuple[str, ...], Option]
    exact: bool = False
    drops: bool = False

    def named(self, name: str, abbreviated: bool) -> Option | None:
        """Return the option that argparse takes `name` for; None for an unknown one, or one that may be several."""
        negated = {
            f"no-{n}": Option(flag=True) for n, option in self.long.items() if option.negated
        }
        known = {**self.long, **negated}
        abbreviated = abbreviated and not self.exact
        meant = [option for n, option in known.items() if abbreviated and n.startswith(name)]
        return known.get(name) or (meant[0] if len(meant) == 1 else None)


def options_of(script: Script) -> Options | None:
    """Return the script's options; None if it may have another parser, sub-commands or unknown options."""
    if script.settings:
        return Options(dict.fromkeys(script.settings, Option()), (), {})
    others = {"parse_known_args", "add_subparsers"} & script.called.keys()
    parser = the_parser(script)
    if parser is None or others or "parse_args" not in script.called:
        return None
    calls = [call for call in script.calls if name_of(call.func) == "add_argument"]
    return of_calls(parser, calls, script)


def known_options_of(script: Script) -> Options | None:
    """Return the options of a script that surely drops all words that its parser does not know; else None."""
    parser = the_parser(script)
    if parser is None or {"parse_args", "add_subparsers"} & script.called.keys():
        return None
    if not (_drops_words(script) and imported(script.tree) <= PLAIN_MODULES):
        return None
    calls = [call for call in script.calls if name_of(call.func) == "add_argument"]
    options = of_calls(parser, calls, script)
    return options and options._replace(drops=True)


def _drops_words(script: Script) -> bool:
    """True if the script reads only the options that its parser has."""
    nodes = [*script.nodes]
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    read |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    drops: list[ast.expr] = []
    for node in nodes:
        match node:
            case ast.Subscript(value, ast.Constant(0)):
                drops.append(value)
            case ast.Assign([ast.Tuple([_, ast.Name(rest)])], value) if rest not in read:
                drops.append(value)
    reads = [call for call in script.calls if name_of(call.func) == "parse_known_args"]
    return "argv" not in read and len(reads) == 1 and reads[0] in drops


def the_parser(script: Script) -> ast.Call | None:
    """Return the call that makes the script's one parser; None if it may have another, or one that reads more."""
    parsers = [call for call in script.calls if name_of(call.func) == "ArgumentParser"]
    if len(parsers) != 1 or "parse_args_into_dataclasses" in script.called:
        return None
    if is_handed_on(script) or _OTHER_PARSERS & imported(script.tree):
        return None
    settings = {keyword.arg for keyword in parsers[0].keywords}
    unusual = settings & {"parents", "prefix_chars", "fromfile_prefix_chars", None}
    return None if unusual else parsers[0]


def of_calls(parser: ast.Call, calls: Iterable[ast.Call], script: Script) -> Options | None:
    """Return the options that these calls of add_argument() give a parser; None if one of them does not show it."""
    helps = all(keyword.arg != "add_help" for keyword in parser.keywords)
    arguments = {HELP: Option(flag=True)} if helps else {}
    for call in sorted(calls, key=lambda call: call.lineno):
        names = tuple(str(each.value) for each in call.args if isinstance(each, ast.Constant))
        option = _option({keyword.arg: keyword.value for keyword in call.keywords})
        if not names or len(names) != len(call.args) or option.nargs in ("REMAINDER", "..."):
            return None  # a computed name, or an argument that takes the options behind it
        arguments[names] = option
    return _options(arguments, script)


def added_twice(script: Script) -> Iterator[tuple[ast.Call, str]]:
    """Yield each add_argument() with a name that its parser has already, and the name. Both stand in one block."""
    modules = imported(script.tree)
    attributes = {n.attr for n in script.nodes if isinstance(n, ast.Attribute)}
    if "argparse" not in modules or _OTHER_PARSERS & modules or _TAKES_AWAY & attributes:
        return
    for node in script.nodes:
        has: dict[ast.Call, set[str]] = {}
        for statement in (
            getattr(node, "body", ()) if isinstance(node, ast.stmt | ast.Module) else ()
        ):
            call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
            parser = _parser_of(call, script)
            if parser is None or not isinstance(call, ast.Call):
                continue
            helps = all(keyword.arg != "add_help" for keyword in parser.keywords)
            known = has.setdefault(parser, set(HELP if helps else ()))
            names = [name for name in map(constant, call.args) if name.startswith("-")]
            yield from ((call, name) for name in names if name in known)
            known.update(names)


def _parser_of(added: ast.expr | None, script: Script) -> ast.Call | None:
    """Return the call that makes the parser to which add_argument() always adds; None if it does not show."""
    if not isinstance(added, ast.Call) or name_of(added.func) != "add_argument":
        return None
    made: ast.expr | None = added
    while isinstance(made, ast.Call) and made not in script.at_times:
        if _OTHER_NAMES & {keyword.arg for keyword in made.keywords if made is not added}:
            return None
        if name_of(made.func) in ("ArgumentParser", "add_parser"):
            return made
        adds = made is added or name_of(made.func) in _GROUPS
        method = made.func
        made = script.value_of(method.value) if adds and isinstance(method, ast.Attribute) else None
    return None


def is_handed_on(script: Script, parser: str = "ArgumentParser") -> bool:
    """True if a function gets the parser, or adds to it in another way than argparse's."""
    names = {
        name
        for node in script.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if name_of(node.value.func) == parser
        for name in map(name_of, node.targets)
    }
    for call in script.calls:
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(isinstance(value, ast.Name) and value.id in names for value in values):
            return True
        method = call.func
        owner = name_of(method.value) if isinstance(method, ast.Attribute) else ""
        if owner in names and name_of(method).startswith("add_") and name_of(method) not in _ADDS:
            return True
    return False


def _options(arguments: Mapping[tuple[str, ...], Option], script: Script) -> Options:
    """Return the options of a parser with these arguments, by their names with dashes."""
    long: dict[str, Option] = {}
    needed = []
    for names, option in arguments.items():
        own = [name[2:] for name in names if name.startswith("--")]
        long |= dict.fromkeys(own if names != HELP else (), option)
        if option.required or (not names[0].startswith("-") and option.nargs is None):
            needed.append(own[0] if own else names[0])
    # A script that handles the words itself may take some away from argparse.
    handled = any(isinstance(n, ast.Attribute) and n.attr == "argv" for n in script.nodes)
    shown = not handled and all(option.known for option in arguments.values())
    return Options(long, tuple(needed), arguments if shown else {})


def _option(keywords: Mapping[str | None, ast.expr]) -> Option:
    """Return the option that add_argument() makes of these keywords."""
    action, read, required, on = (
        text_of(keywords[name]) if name in keywords else ""
        for name in ("action", "type", "required", "default")
    )
    choices: tuple[object, ...] = ()
    if read in ("", "str", "int", "float"):
        match keywords.get("choices"):
            case ast.List(elts) | ast.Tuple(elts) | ast.Set(elts):
                choices = tuple(each.value for each in elts if isinstance(each, ast.Constant))
                choices = choices if len(choices) == len(elts) else ()
    nargs: Any = None
    if "nargs" in keywords:
        value = keywords["nargs"]
        nargs = value.value if isinstance(value, ast.Constant) else name_of(value)
    numbers: Mapping[str, type[int | float]] = {"int": int, "float": float, "bool": bool}
    return Option(
        flag=action in _FLAGS,
        wants_value="nargs" not in keywords and action in ("", "store", "append"),
        negated=action == "BooleanOptionalAction",
        read=numbers.get(read),
        choices=choices,
        nargs=nargs,
        single=action in ("", "store"),
        on=on == "True",
        required=required == "True",
        known=action in _ACTIONS
        and None not in keywords
        and (nargs in _NARGS or isinstance(nargs, int)),
    )
