"""The arguments that a spec gives a training script, compared with the options that the script's argparse has. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ddpgen.adopt.calls import Script, name_of, text_of, warning
from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.command import argument_words

# Actions of argparse that take no value.
_FLAGS = (
    "store_true", "store_false", "store_const", "append_const", "count", "help", "version", "BooleanOptionalAction",
)  # fmt: skip


class _Given(NamedTuple):
    """A word that the spec gives the script, at `field`.

    `option`: its name without `--`; "" for a word that is no option. `value`: the value of the option, or the whole
    word; None for an option without a value. `joined`: True if `=` joins option and value.
    """

    field: str
    option: str
    value: str | None
    joined: bool = False


def _given(train: Train) -> Iterator[_Given]:
    """Yield the words of `args`, whether a list or a mapping, and of `resume.args`."""
    args = train.args
    if isinstance(args, Mapping):
        words = [
            (f"train.args.{name}", word)
            for name, value in args.items()
            for word in argument_words(name, value, train.args_style)
        ]
    else:
        words = [(f"train.args[{i}]", word) for i, word in enumerate(args)]
    resume_words = [(f"train.resume.args[{i}]", word) for i, word in enumerate(train.resume.args)]
    for group in (words, resume_words):
        for i, (field, word) in enumerate(group):
            if word == "--":
                break
            name, joined, value = word.partition("=")
            following = group[i + 1][1] if i + 1 < len(group) else "--"
            if not name.startswith("--"):
                yield _Given(field, "", word)
            elif joined:
                yield _Given(field, name[2:], value, True)
            else:
                yield _Given(field, name[2:], None if following.startswith("--") else following)


def option_values(train: Train) -> Mapping[str, str]:
    """Return the values of the options by name, with _ for -. A word without an option is its own name."""
    return {
        each.option.replace("-", "_") or str(each.value): each.value or "" for each in _given(train)
    }


def reads_settings_file(values: Mapping[str, str]) -> bool:
    """True if one of the words is a file of settings, which nanoGPT's configurator runs."""
    return any(word.endswith(".py") for word in values)


class Option(NamedTuple):
    """One option of argparse.

    `flag`: it takes no value. `wants_value`: it fails without a value. `negated`: it has a form --no-NAME. `read`: int or
    float, if the script reads the value as such a number. `choices`: the values that it may have; () for any.
    """

    flag: bool = False
    wants_value: bool = False
    negated: bool = False
    read: type[int | float] | None = None
    choices: tuple[object, ...] = ()


class Options(NamedTuple):
    """The options of the script's one argparse parser, or its globals that arguments replace. `long`: by the name behind
    `--`. `needed`: the names of the arguments that have to be given."""

    long: Mapping[str, Option]
    needed: tuple[str, ...]

    def named(self, name: str, abbreviated: bool) -> Option | None:
        """Return the option that argparse takes `name` for; None for an unknown one, or one that may be several."""
        negated = {
            f"no-{n}": Option(flag=True) for n, option in self.long.items() if option.negated
        }
        known = {**self.long, **negated}
        meant = [option for n, option in known.items() if abbreviated and n.startswith(name)]
        return known.get(name) or (meant[0] if len(meant) == 1 else None)


def check(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the options that the script does not have, and the values that it cannot take."""
    options, args = options_of(script), job.train.args
    if options is None or (script.settings and reads_settings_file(option_values(job.train))):
        return
    for given in filter(lambda given: given.option, _given(job.train)):
        option = options.named(given.option, abbreviated=not script.settings)
        if option is None and given.option == "help":
            problem, remedy = (
                f"has {script.name} print its options, and train nothing",
                "leave it out",
            )
        elif option is None:
            remedy = did_you_mean(given.option.replace("_", "-"), options.long)
            problem = f"{script.name} has no option --{given.option}"
        else:
            problem, remedy = _value_fault(given, option, script.name)
        if problem:
            fields = (given.field, given.field.partition("[")[0])
            yield Conflict(fields, problem, remedy, fatal=False)
    for name in options.needed if isinstance(args, Mapping) else ():
        if name not in args:
            remedy = "add it; a list of words can say positional ones"
            yield warning("train.args", f"{script.name} wants {name}", remedy)


def _value_fault(given: _Given, option: Option, script: str) -> tuple[str, str]:
    """Return why argparse cannot take the option's value, and the remedy; two "" if it can."""
    name, value = given.option, given.value
    if option.flag and given.joined:
        problem = f"--{name} of {script} takes no value, and gets {show(value or '')}"
        return problem, f"write --{name} alone; in a mapping, true with args_style: flags"
    if value is None:
        wanted = f"{script} reads a value behind --{name}, and gets none"
        return (wanted, f"write --{name}=VALUE") if option.wants_value else ("", "")
    if option.flag or "{" in value:
        return "", ""
    try:
        parsed = option.read(value) if option.read else value
    except ValueError:
        assert option.read
        problem = f"{show(value)} is no {option.read.__name__}, and {script} reads --{name} as one"
        return problem, "correct it"
    if option.choices and parsed not in option.choices:
        problem = f"{script} has no choice {show(value)} for --{name}"
        return problem, did_you_mean(value, [*map(str, option.choices)])
    return "", ""


def options_of(script: Script) -> Options | None:
    """Return the script's options; None if it may have another parser, sub-commands or unknown options."""
    if script.settings:
        return Options(dict.fromkeys(script.settings, Option()), ())
    parsers = [call for call in script.calls if name_of(call.func) == "ArgumentParser"]
    if len(parsers) != 1 or "parse_args" not in script.called:
        return None
    if {"parse_known_args", "add_subparsers", "parse_args_into_dataclasses"} & script.called.keys():
        return None
    if any(keyword.arg == "parents" for keyword in parsers[0].keywords):
        return None
    long: dict[str, Option] = {}
    needed: list[str] = []
    for call in script.calls:
        if name_of(call.func) != "add_argument":
            continue
        words = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        nargs = text_of(keywords["nargs"]) if "nargs" in keywords else ""
        if not words or len(words) != len(call.args) or nargs in ("REMAINDER", "..."):
            return None  # a computed name, or an argument that takes the options behind it
        own = [str(word)[2:] for word in words if str(word).startswith("--")]
        long |= dict.fromkeys(own, _option(keywords))
        positional = not str(words[0]).startswith("-") and not nargs
        if positional or text_of(keywords.get("required", ast.Constant(""))) == "True":
            needed.append(own[0] if own else str(words[0]))
    return Options(long, tuple(needed))


def _option(keywords: Mapping[str | None, ast.expr]) -> Option:
    """Return the option that add_argument() makes of these keywords."""
    action, read = (
        text_of(keywords[name]) if name in keywords else "" for name in ("action", "type")
    )
    choices: tuple[object, ...] = ()
    if read in ("", "str", "int", "float"):
        match keywords.get("choices"):
            case ast.List(elts) | ast.Tuple(elts) | ast.Set(elts):
                choices = tuple(each.value for each in elts if isinstance(each, ast.Constant))
                choices = choices if len(choices) == len(elts) else ()
    numbers: Mapping[str, type[int | float]] = {"int": int, "float": float}
    wants_value = "nargs" not in keywords and action in ("", "store", "append")
    negated = action == "BooleanOptionalAction"
    return Option(action in _FLAGS, wants_value, negated, numbers.get(read), choices)
