"""The completion scripts of bash, zsh and fish, and the types of parameters whose words a shell completes.

A script hands the command line to `ddpgen`, which prints one line for each possible word: its type, the word and its
help, with tabs between them. The types `file` and `dir` leave the word to the shell, which knows about quotes and `~`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)


class _Completion(ShellComplete):
    """The part that the shells share."""

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type}\t{item.value}\t{item.help or ''}"


class _Bash(_Completion, BashComplete):
    """Bash's own list of words ends a word at each `=`, so the script hands over the whole line."""

    source_template = """\
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=$'\\t' read -r type value _; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                [[ $value != *= ]] || compopt -o nospace
                COMPREPLY+=("$value")
                ;;
        esac
    done < <(COMP_WORDS="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words, incomplete


class _Zsh(_Completion, ZshComplete):
    source_template = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local type value help
    local -a plain partial described files
    (( $+commands[%(prog_name)s] )) || return 1
    while IFS=$'\\t' read -r type value help; do
        case $type in
            dir) files=(-/) ;;
            file) files=(-f) ;;
            plain)
                if [[ $value == *= ]]; then
                    partial+=("$value")
                elif [[ -n $help ]]; then
                    described+=("${value//:/\\\\:}:$help")
                else
                    plain+=("$value")
                fi
                ;;
        esac
    done < <(COMP_WORDS="${(F)words}" COMP_CWORD=$((CURRENT-1)) %(complete_var)s=zsh_complete %(prog_name)s)
    [[ $PREFIX != --*=* ]] || compset -P 1 '*='
    (( ! $#described )) || _describe -V unsorted described -U -i "$IPREFIX"
    (( ! $#partial )) || compadd -U -i "$IPREFIX" -S '' -V unsorted -a partial
    (( ! $#plain )) || compadd -U -i "$IPREFIX" -V unsorted -a plain
    (( ! $#files )) || _path_files $files
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""


class _Fish(_Completion, FishComplete):
    source_template = """\
function %(complete_func)s
    set -l option (string match -r -- '^--[^=]*=' (commandline -ct); or echo)
    set -l word (string replace -- $option '' (commandline -ct))
    for line in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -ct) \
%(prog_name)s)
        set -l item (string split \\t -- $line)
        switch $item[1]
            case dir
                for path in (__fish_complete_directories $word)
                    echo $option$path
                end
            case file
                for path in (complete -C "'' $word")
                    echo $option$path
                end
            case plain
                echo $option$item[2]\\t$item[3]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


SHELLS: Mapping[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}
for _name, _shell in SHELLS.items():
    add_completion_class(_shell, _name)


def beginning(incomplete: str, words: Iterable[str]) -> list[CompletionItem]:
    """Return the words that begin with `incomplete`."""
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class Code(click.types.StringParamType):
    """A code of the troubleshooting guide."""

    name = "code"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        from ddpgen import guide
        from ddpgen.resources import document

        return [
            CompletionItem(code, help=section.title)
            for code, section in guide.sections(document(guide.GUIDE)).items()
            if code.startswith(incomplete.upper())
        ]


class ProfileName(click.types.StringParamType):
    """The name of a profile for the spec of the command line."""

    name = "profile"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        from ddpgen.site import profiles

        return beginning(incomplete, profiles.known(_spec(ctx)))


class LoginHost(click.types.StringParamType):
    """A destination of ssh, by its name in ~/.ssh/config."""

    name = "host"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        try:
            config = Path("~/.ssh/config").expanduser().read_text("utf-8", "replace")
        except OSError:
            return []
        lines = (line.replace("=", " ", 1).split() for line in config.splitlines())
        names = [
            name for first, *rest in filter(None, lines) if first.lower() == "host" for name in rest
        ]
        return beginning(incomplete, (name for name in names if not set(name) & set("*?!")))


def hosts_of(ctx: Any) -> list[str]:
    """Return the names of the hosts in the command line's spec; [] if the spec cannot be read."""
    from ddpgen import api
    from ddpgen.errors import DdpgenError

    try:
        readings = api.read(_spec(ctx)).readings.values()
    except (DdpgenError, OSError):
        return []
    machines = [machine.name for reading in readings for machine in reading.job.machines]
    return list(dict.fromkeys(filter(None, machines)))


def _spec(ctx: Any) -> str:
    """Return the first word of the command line that is no option; "" without one."""
    given = ctx.params.get("spec") or next(iter(ctx.params.get("specs") or ()), None)
    # click leaves the words in ctx.args, if the line ends in an option without its value.
    return str(given or next(iter(ctx.args), ""))
