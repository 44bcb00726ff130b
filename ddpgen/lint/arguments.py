"""The arguments that a spec gives a training script, compared with the options that the script's argparse has. Pure."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

from ddpgen.bundle import code
from ddpgen.lint import huggingface
from ddpgen.lint.calls import Script, constant, name_of, warning
from ddpgen.lint.parser import HELP, Option, Options, added_twice, known_options_of, options_of
from ddpgen.spec.fields import did_you_mean, show, similar
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.command import argument_words

# The supervisor fills in these names (train/launch/words.py). In resume.args it also fills in `newest`.
PLACEHOLDERS = ("checkpoint_dir", "job", "attempt", "world_size", "port", "array_index")
_FILLED = re.compile(rf"\{{({'|'.join((*PLACEHOLDERS, 'newest'))})\}}")
_FALSE = ("false", "no", "off", "0", "none", "null")
_LONG_DASHES = "\u2012 \u2013 \u2014 \u2212"  # a text processor makes them of --

# torch.distributed.launch adds this option to the arguments, and ddpgen does not.
_LOCAL_RANK = ("--local_rank", "--local-rank")
_READ_LOCAL_RANK = 'no value is right for all processes: have it read int(os.environ["LOCAL_RANK"])'


class Given(NamedTuple):
    """A word that the spec gives the script, at `field`.

    `option`: its name without `--`; "" for a word that is no option. `value`: the value of the option, or the whole
    word; None for an option without a value. `joined`: True if `=` joins option and value.
    """

    field: str
    option: str
    value: str | None
    joined: bool = False


def given_words(train: Train) -> Iterator[Given]:
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
                yield Given(field, "", word)
            elif joined:
                yield Given(field, name[2:], value, True)
            else:
                yield Given(field, name[2:], None if following.startswith("--") else following)


def numbered_words(train: Train) -> list[tuple[str, object]]:
    """Return the values of `args` and the words of `command` behind the program, each with its field."""
    args = train.args.items() if isinstance(train.args, Mapping) else enumerate(train.args)
    return [
        *((f"train.args.{n}" if isinstance(n, str) else f"train.args[{n}]", v) for n, v in args),
        *((f"train.command[{i}]", word) for i, word in enumerate(train.command[1:], 1)),
    ]


def option_values(train: Train) -> Mapping[str, str]:
    """Return the values of the options by name, with _ for -. A word without an option is its own name."""
    return {
        each.option.replace("-", "_") or str(each.value): each.value or ""
        for each in given_words(train)
    }


def reads_settings_file(values: Mapping[str, str]) -> bool:
    """True if one of the words is a file of settings, which nanoGPT's configurator runs."""
    return any(word.endswith(".py") for word in values)


def check(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the options that the script does not have, and the values that it cannot take. `home`: the spec's directory."""
    for call, name in added_twice(script):
        problem = f"{script.location(call)} adds {name} to a parser that has it, and argparse refuses that"
        yield warning("train.script", problem, "leave one of them out")
    options = options_of(script) or known_options_of(script) or huggingface.options_of(script)
    if options is None or (script.settings and reads_settings_file(option_values(job.train))):
        return
    if isinstance(options, huggingface.Fields):
        words = [each.value or "" for each in given_words(job.train) if not each.option]
        if huggingface.reads_file(script, words):
            return
    # HfArgumentParser reads more words from a file of this name.
    more = f"{PurePosixPath(job.train.user_file).with_suffix('.args')}"
    yield from compare(job.train, script, options, not code.find(job.code, home, more))


def compare(
    train: Train, script: Script, options: Options, alone: bool = True
) -> Iterator[Conflict]:
    """Yield the faults of the arguments of the spec, if these are the options of the script.

    `alone`: the script reads no more of them from a file.
    """
    args, faults = train.args, list(_of_options(train, script, options))
    yield from faults
    if isinstance(args, Mapping):
        yield from _of_mapping(train, script, options)
        if alone or not isinstance(options, huggingface.Fields):
            yield from _missing(train, script, options)
    elif isinstance(options, huggingface.Fields):
        if alone and "--" not in args:
            yield from _missing(train, script, options)
    elif options.arguments and not (faults or options.drops or "--" in args):
        yield from _of_words(args, script, options)


def _missing(train: Train, script: Script, options: Options) -> Iterator[Conflict]:
    """Yield the options that have to be given, and that the job does not give."""
    given = [options.named(each.option, True) for each in given_words(train) if each.option]
    names = train.args if isinstance(train.args, Mapping) else ()
    for name in options.needed:
        option = options.long.get(name)
        if name not in names and not any(each is option for each in given if option):
            remedy = "add it; a list of words can say positional ones"
            remedy = "add it" if isinstance(options, huggingface.Fields) else remedy
            remedy = _READ_LOCAL_RANK if f"--{name}" in _LOCAL_RANK else remedy
            yield warning("train.args", f"{script.name} wants {name}", remedy)


def _of_options(train: Train, script: Script, options: Options) -> Iterator[Conflict]:
    """Yield the faults that each option has by itself."""
    for given in filter(lambda given: given.option, given_words(train)):
        option = options.named(given.option, abbreviated=not script.settings)
        if option is None and options.drops:
            problem, remedy = _dropped(given.option, options, script.name)
        elif option is None:
            problem, remedy = _unknown(given.option, options, script.name)
        elif script.settings:
            problem, remedy = _setting_fault(given, script)
        else:
            problem, remedy = _value_fault(given, option, script.name)
        if problem:
            fields = (given.field, given.field.partition("[")[0])
            yield Conflict(fields, problem, remedy, fatal=False)


def _unknown(name: str, options: Options, script: str) -> tuple[str, str]:
    """Return what an unknown option does, and the remedy."""
    if name == "help":
        return f"has {script} print its options, and train nothing", "leave it out"
    remedy = did_you_mean(name.replace("_", "-"), options.long)
    if isinstance(options, huggingface.Fields):
        fields = [each for each in options.long if "-" not in each]
        remedy = huggingface.hint(name.replace("-", "_"), fields, "correct it, or leave it out")
    if name.startswith("no-") and name[3:] in options.long:
        remedy = "leave it out"
        if isinstance(options, huggingface.Fields):
            remedy = f"write --{name[3:]}=False; in a mapping, args_style: equals"
    return f"{script} has no option --{name}", remedy


def _dropped(name: str, options: Options, script: str) -> tuple[str, str]:
    """Return that the script drops a misspelt option, and the remedy; two "" for one that may be meant for another."""
    meant = similar(name.replace("_", "-"), options.long, 0.55)
    if not meant:
        return "", ""
    return f"{script} has no option --{name}, and drops it silently", f"did you mean {meant}?"


def _value_fault(given: Given, option: Option, script: str) -> tuple[str, str]:
    """Return why argparse cannot take the option's value, and the remedy; two "" if it can."""
    name, value = given.option, given.value
    if option.flag and given.joined:
        problem = f"--{name} of {script} takes no value, and gets {show(value or '')}"
        remedy = f"write --{name} alone; in a mapping, true with args_style: flags"
        if str(value).lower() in _FALSE:
            remedy = "leave it out"
            if option.negated:
                remedy = f"write --no-{name}; in a mapping, false with args_style: no-prefix"
        return problem, remedy
    if value is None:
        wanted = f"{script} reads a value behind --{name}, and gets none"
        return (wanted, f"write --{name}=VALUE") if option.wants_value else ("", "")
    return ("", "") if option.flag else _reading_fault(value, option, f"--{name}", script)


def _reading_fault(value: str, option: Option, name: str, script: str) -> tuple[str, str]:
    """Return why the script cannot read the value, and the remedy; two "" if it can."""
    if _FILLED.search(value):
        return "", ""
    if option.read is bool and value.lower() in _FALSE:
        problem = f"{show(value)} becomes True, because {script} reads {name} with type=bool"
        return problem, 'write "", the one text that bool() makes False of'
    try:
        parsed = option.read(value) if option.read else value
    except ValueError:
        assert option.read
        problem = f"{show(value)} is no {option.read.__name__}, and {script} reads {name} as one"
        return (
            problem,
            "write true or false" if option.read is huggingface.Boolean else "correct it",
        )
    if option.choices and parsed not in option.choices:
        problem = f"{script} has no choice {show(value)} for {name}"
        return problem, huggingface.hint(value, map(str, option.choices))
    return "", ""


def _setting_fault(given: Given, script: Script) -> tuple[str, str]:
    """Return why nanoGPT's configurator refuses the word, and the remedy; two "" if it does not, or for other loops."""
    name, value, default = given.option, given.value or "", script.settings.get(given.option)
    one_word, same_type = _of_configurator(script)
    if one_word and not given.joined:
        problem = f"nanoGPT's configurator reads --{name}=VALUE as one word, and gets --{name}"
        return problem, f"write --{name}=VALUE; in a mapping, args_style: equals"
    try:
        parsed = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        parsed = value
    if "{" in value or not isinstance(default, ast.Constant) or type(parsed) is type(default.value):
        return "", ""
    if not (same_type and given.joined):
        return "", ""
    kind = type(default.value).__name__
    problem = (
        f"{show(value)} is no {kind}, and nanoGPT's configurator takes no other type for {name}"
    )
    return problem, f"write one, like {default.value!r}"


def _of_configurator(script: Script) -> tuple[bool, bool]:
    """Return if the script refuses a word without `=`, and if a value has to be of its global's type."""
    if "exec" in script.called and "configurator.py" in ast.unparse(script.called["exec"]):
        return True, True
    splits = same_type = False
    for node in script.nodes:
        match node:
            case ast.Assign([ast.Tuple([_, _])], ast.Call(ast.Attribute(attr="split"), [ast.Constant("="), *_])):  # fmt: skip
                splits = splits or node not in script.at_times
            case ast.Assert(ast.Compare(ast.Call(ast.Name("type"), [ast.Name(name)]), [ast.Eq() | ast.Is()], [right])):  # fmt: skip
                is_global = ast.unparse(right).startswith("type(globals()[")
                same_type = is_global and _is_literal(name, script)
    compared = (n.left for n in script.nodes if isinstance(n, ast.Compare))
    return splits and "=" not in map(constant, compared), same_type


def _is_literal(name: str, script: Script) -> bool:
    """True if the script gives the name only the value of literal_eval(), or of another name."""
    values = [n.value for n in script.nodes if isinstance(n, ast.Assign) and name in map(name_of, n.targets)]  # fmt: skip
    functions = {name_of(value.func) for value in values if isinstance(value, ast.Call)}
    return functions == {"literal_eval"} and all(isinstance(v, (ast.Call, ast.Name)) for v in values)  # fmt: skip


def _of_mapping(train: Train, script: Script, options: Options) -> Iterator[Conflict]:
    """Yield the entries of a mapping whose words the script reads otherwise than they are meant."""
    assert isinstance(train.args, Mapping)
    for name, value in train.args.items():
        option = options.named(name, abbreviated=True) or Option()
        count = len(value) if isinstance(value, list) else 1
        wanted = option.nargs if isinstance(option.nargs, int) else 1
        problem = ""
        if option.single and max(count, wanted) > 1:
            problem = f"{script.name} reads one --{name}, and gets {count}"
            remedy = "write one value; a sweep trains with each of several"
            if option.nargs not in (None, "?", 1):
                problem = f"{script.name} reads the values behind one --{name}, and a mapping writes --{name}= before each"
                remedy = f"write args as a list of words, --{name} and then its values"
        elif value is False and train.args_style == "flags" and _stays_on(option):
            problem = f"is left out by args_style: flags, and then {script.name} has --{name} on"
            remedy = f"write args_style: {'no-prefix' if option.negated else 'equals'}"
        if problem:
            yield warning(f"train.args.{name}", problem, remedy)


def _stays_on(option: Option) -> bool:
    """True if the option is on without a word, and a word of its own puts it off."""
    return option.on and (option.negated or option.read is huggingface.Boolean)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _of_words(words: Sequence[str], script: Script, options: Options) -> Iterator[Conflict]:
    """Yield the faults of a list of words, if the long options in it are right."""
    try:
        seen, others = divided(words, options)
    except ValueError as error:
        yield warning(
            "train.args", f"{script.name} would refuse the words: {error}", "correct them"
        )
        return
    if HELP in seen:
        problem, remedy = _unknown("help", options, script.name)
        yield warning(_place("-h", words), problem, remedy)
        return
    faults = list(_mistyped(words, others, script.name, options))
    for names, values in seen.items() if not faults else ():
        for value in values:
            problem, remedy = _reading_fault(value, options.arguments[names], names[0], script.name)
            if problem:
                yield warning("train.args", problem, remedy)
    yield from faults or _of_positionals(words, others, script.name, options)
    for names, option in options.arguments.items():
        if option.required and names not in seen and not faults:
            remedy = _READ_LOCAL_RANK if names[-1] in _LOCAL_RANK else "add it"
            yield warning("train.args", f"{script.name} wants {names[-1]}", remedy)


def divided(
    words: Sequence[str], options: Options, others_as: str = ""
) -> tuple[dict[tuple[str, ...], list[str]], list[str]]:
    """Return the options in `words` with their values, by their names, and the other words. Raises ValueError.

    `others_as`: argparse's nargs for words that are no options; then those alone are the other words.
    """
    parser = _Parser(add_help=False, conflict_handler="resolve")
    for names, option in options.arguments.items():
        how: dict[str, Any] = {"action": "store_true"} if option.flag else {"nargs": option.nargs}
        if option.negated:
            how = {"action": argparse.BooleanOptionalAction}
        if names[0].startswith("-"):
            parser.add_argument(*names, dest=" ".join(names), default=argparse.SUPPRESS, **how)
    if others_as:
        parser.add_argument("others", nargs=others_as, default=[]).required = False
    seen, others = parser.parse_known_args(words)
    others = vars(seen).pop("others", others)
    values = {
        tuple(names.split(" ")): value if isinstance(value, list) else [value]
        for names, value in vars(seen).items()
    }
    return {
        names: [v for v in all_ if isinstance(v, str)] for names, all_ in values.items()
    }, others


def _mistyped(
    words: Sequence[str], others: Sequence[str], script: str, options: Options
) -> Iterator[Conflict]:
    """Yield the words that are meant as options, and that the script does not have."""
    known = [name for names in options.arguments for name in names if name.startswith("-")]
    for word in others:
        name = word.partition("=")[0]
        if re.match(r"-[^\d.\s]\S*$", word):
            remedy = did_you_mean(name, known)
            yield warning(_place(word, words), f"{script} has no option {name}", remedy)
        elif word[:1] in _LONG_DASHES.split() and options.named(name[1:], abbreviated=False):
            problem = f"{word!a} begins with a long dash, which makes no option"
            yield warning(_place(word, words), problem, f"write --{word[1:]}")


def _place(word: str, words: Sequence[str]) -> str:
    return f"train.args[{words.index(word)}]" if word in words else "train.args"


def _of_positionals(
    words: Sequence[str], others: Sequence[str], script: str, options: Options
) -> Iterator[Conflict]:
    """Yield the faults of the words that are no options, and of those that are missing."""
    declared = {n[0]: each for n, each in options.arguments.items() if not n[0].startswith("-")}
    one_each = all(option.nargs is None for option in declared.values())
    if all(option.nargs in (None, "?") for option in declared.values()):
        for word in others[len(declared) :][:1]:
            remedy = "leave it out, or write its option before it"
            problem = f"{script} has no argument for {show(word)}"
            yield warning(_place(word, words), problem, remedy)
            return
    for (name, option), word in zip(declared.items(), others, strict=False):
        problem, remedy = _reading_fault(word, option, name, script) if one_each else ("", "")
        if problem:
            yield warning(_place(word, words), problem, remedy)
    for name in [n for n, option in declared.items() if option.nargs is None][len(others) :]:
        yield warning("train.args", f"{script} wants {name}", "add it")
