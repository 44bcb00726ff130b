"""The texts sent to `bash -s`, here or on a login node, and what they find out. Pure.

One text serves both: what is tried here is what runs there. Paths that begin with ./ start from the
login directory.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpgen.driver.remote import LOOK, TOOLS, quote, text

BEGIN = "ddpgen-output"  # what comes before this line is a login script's chatter


def command(argv: Sequence[str], directory: str) -> bytes:
    """Run a program in `directory`; 127 when there is none, also not for a login shell, whose PATH is
    often the better one."""
    words = " ".join(map(quote, argv))
    return text({"directory": directory}, TOOLS, f"set -- {words}\n", _COMMAND)


def look(directory: str) -> bytes:
    """Find out what a checkpoint directory says."""
    return text({"checkpoints": directory}, TOOLS, LOOK)


def stop(directory: str) -> bytes:
    """Ask for a clean stop in a checkpoint directory that is there."""
    return text({"directory": directory}, TOOLS, _STOP)


def receive(bundle: str, logs: str) -> bytes:
    """Make room for a bundle, and for what its jobs say."""
    return text({"bundle": bundle, "logs": logs}, TOOLS, _RECEIVE)


def tail(file: str, lines: int, follow: bool) -> bytes:
    """Print the last lines of a file, or of several: * in its name stands for anything; 66 when there is
    none. To `follow`: and what is added until the input of bash ends."""
    directory, slash, name = file.rpartition("/")
    pattern = quote(directory + slash) + "*".join(quote(part) for part in name.split("*"))
    return text({"lines": str(lines)}, f"files=({pattern})\n", _FOLLOW if follow else _TAIL)


def said(output: bytes) -> str | None:
    """What a program said, without what came before it; None when it was never reached."""
    whole = "\n" + output.decode("utf-8", "replace")
    _, begun, rest = whole.partition(f"\n{BEGIN}\n")
    return rest if begun else None


_COMMAND = rf"""
cd -- "$directory" || exit 66
if type -P "$1" >/dev/null; then
  echo {BEGIN}
  exec "$@" </dev/null
fi
exec bash -lc 'type -P "$1" >/dev/null || exit 127; echo {BEGIN}; exec "$@"' ddpgen "$@" </dev/null
"""

_STOP = r"""
[ -d "$directory" ] || trouble "there is no $directory"
why=$( { : >"$directory/stop"; } 2>&1 ) || trouble "cannot create $directory/stop: ${why##*: }"
fact stop asked
"""

_RECEIVE = r"""
type -P rsync >/dev/null ||
  trouble "there is no rsync on the login node (PATH=$PATH); ask for it, or launch there"
why=$(mkdir -p -- "$bundle" "$logs" 2>&1) ||
  trouble "cannot make $bundle: ${why##*: }; correct dir in the spec, or the permissions there"
"""

_TAIL = r"""
[ -e "${files[0]}" ] || exit 66
exec tail -n "$lines" -- "${files[@]}"
"""

# The input ends when the reader does, so that no tail is left on the login node.
_FOLLOW = r"""
exec 3<&0
tail -n "$lines" -F -- "${files[@]}" &
tail=$!
{ cat <&3; kill "$tail"; } >/dev/null 2>&1 &
wait "$tail"
"""
