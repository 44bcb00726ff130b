"""The texts sent to `bash -s`, here or on a login node, and what they find out. Pure.

One text serves both: what is tried here is what runs there. Paths that begin with ./ start from the
login directory. Values enter through quote() only; each text is one { …; }, so that half of it after
a cut connection does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpgen.driver.remote import quote

BEGIN = "ddpgen-output"  # what comes before this line is a login script's chatter


def command(argv: Sequence[str], directory: str) -> bytes:
    """Run a program in `directory`; 127 when there is none."""
    return _text(_words(argv, directory), _COMMAND, "exit 127\n")


def command_at_login(argv: Sequence[str], directory: str) -> bytes:
    """The same over ssh, where the PATH may be a poor one: a login shell may know better."""
    return _text(_words(argv, directory), _COMMAND, _BY_LOGIN_SHELL)


def look(directory: str) -> bytes:
    """Find out what a checkpoint directory says."""
    return _text(f"directory={quote(directory)}\n", _FACT, _LOOK)


def rows(directory: str) -> bytes:
    """Print the newest rows of a checkpoint directory's metrics."""
    return _text(f"directory={quote(directory)}\n", _ROWS)


def stop(directory: str) -> bytes:
    """Ask for a clean stop in a checkpoint directory that is there."""
    return _text(f"directory={quote(directory)}\n", _FACT, _STOP)


def receive(bundle: str, logs: str) -> bytes:
    """Make room for a bundle, and for what its jobs say."""
    return _text(f"bundle={quote(bundle)}\nlogs={quote(logs)}\n", _FACT, _RECEIVE)


def tail(file: str, lines: int) -> bytes:
    """Print the last lines of a file, or of several: * in its name stands for anything."""
    return _text(f"files=({_pattern(file)})\nlines={lines}\n", _TAIL)


def follow(file: str, lines: int) -> bytes:
    """The same, and what is added to it until the input of bash ends."""
    return _text(f"files=({_pattern(file)})\nlines={lines}\n", _FOLLOW)


def said(output: bytes) -> str | None:
    """What a program said, without what came before it; None when it was never reached."""
    text = "\n" + output.decode("utf-8", "replace")
    _, begun, rest = text.partition(f"\n{BEGIN}\n")
    return rest if begun else None


def _words(argv: Sequence[str], directory: str) -> str:
    words = " ".join(quote(word) for word in argv)
    return f"cd -- {quote(directory)} || exit 66\nset -- {words}\n"


def _pattern(file: str) -> str:
    directory, slash, name = file.rpartition("/")
    return quote(directory + slash) + "*".join(quote(part) for part in name.split("*"))


def _text(*parts: str) -> bytes:
    body = "".join(part.lstrip("\n") for part in parts)
    return f"{{\nunset CDPATH\n{body}exit\n}}\n".encode("utf-8", "surrogateescape")


_COMMAND = rf"""
if type -P "$1" >/dev/null; then
  echo {BEGIN}
  exec "$@" </dev/null
fi
"""

_BY_LOGIN_SHELL = rf"""
exec bash -lc 'type -P "$1" >/dev/null || exit 127; echo {BEGIN}; exec "$@"' ddpgen "$@" </dev/null
"""

_FACT = r"""
fact() { printf 'ddpgen-fact %s %s\n' "$1" "$2"; }
trouble() { printf 'ddpgen: %s\n' "$*"; exit 69; }
first_line() {
  local line=''
  { read -r line <"$1"; } 2>/dev/null
  printf '%s\n' "$line"
}
"""

# The newest whole checkpoint: the marker is what makes a directory one.
_LOOK = r"""
[ -d "$directory" ] || { fact there no; exit 0; }
[ -r "$directory" ] && [ -x "$directory" ] || { fact there closed; exit 0; }
newest=''
for marker in "$directory"/step-*/checkpoint.json; do
  step=${marker%/*}
  step=${step##*/step-}
  case $step in *[!0-9]* | '') continue ;; esac
  [ -e "$marker" ] && [ "$((10#$step))" -ge "${newest:-0}" ] && newest=$((10#$step))
done
# Several on one line, with tabs between them: JSON holds none.
newest_rows() {
  tail -c 4194304 -- "$directory/metrics.jsonl" 2>/dev/null |
    grep "^{\"kind\": \"$1\"" | tail -n "$2" | tr '\n' '\t'
}
fact there yes
fact newest "$newest"
fact status "$(first_line "$directory/status")"
fact slurm-job "$(first_line "$directory/slurm-job")"
fact slurm-starts "$(first_line "$directory/slurm-starts")"
fact lock "$(tr '\n' ' ' 2>/dev/null <"$directory/lock")"
fact row "$(newest_rows step 50)"
fact eval "$(newest_rows eval 1)"
fact start "$(newest_rows start 1)"
# What a framework can go on from, rather than a file of it; else what the script has saved last.
saves=$directory/script/saves-0.jsonl
fact saved "$({ grep '"by": "[^"].*"whole": true' -- "$saves" || grep '"whole": true' -- "$saves"; } 2>/dev/null | tail -n 1)"
fact now "$(date +%s)"
[ ! -e "$directory/stop" ] || fact stop asked
"""

_ROWS = rf"""
echo {BEGIN}
[ -r "$directory/metrics.jsonl" ] && exec tail -c 262144 -- "$directory/metrics.jsonl"
"""

_STOP = r"""
[ -d "$directory" ] || trouble "there is no $directory"
why=$( { : >"$directory/stop"; } 2>&1 ) || trouble "cannot create $directory/stop: ${why##*: }"
fact stop asked
"""

_RECEIVE = r"""
type -P rsync >/dev/null ||
  trouble "there is no rsync on the login node (PATH=$PATH); ask for it, or launch there"
for place in "$bundle" "$logs"; do
  why=$(mkdir -p -- "$place" 2>&1) ||
    trouble "cannot make $place: ${why##*: }; correct dir in the spec, or the permissions there"
  [ -w "$place" ] && [ -x "$place" ] ||
    trouble "cannot write into $place; correct dir in the spec, or the permissions there"
done
fact ready yes
"""

_TAIL = rf"""
echo {BEGIN}
[ -e "${{files[0]}}" ] || exit 66
exec tail -n "$lines" -- "${{files[@]}}"
"""

# The end of the input is the end of whoever reads: nothing stays behind on the login node.
_FOLLOW = rf"""
echo {BEGIN}
tail -n "$lines" -F -- "${{files[@]}}" &
tail=$!
cat >/dev/null
kill "$tail" 2>/dev/null
"""
