"""The texts sent to `bash -s`, here or on a login node, and the reading of their answers. Pure.

The same texts run on both, so a test on this machine tests a login node's text as well. Paths that begin with
./ start from the login directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpgen.driver.remote import DIRECTORY_FACTS, TOOLS, exports, quote, text

OUTPUT_MARK = "ddpgen-output"  # the output of login scripts comes before this line


def command(argv: Sequence[str], directory: str, variables: Mapping[str, str]) -> bytes:
    """Run a program in `directory` with these variables in its environment.

    The exit code is 127 if neither this shell nor a login shell finds the program. A login shell is the second try,
    because its PATH often has more directories.
    """
    words = " ".join(map(quote, argv))
    return text({"directory": directory}, TOOLS, exports(variables), f"set -- {words}\n", _COMMAND)


def checkpoint_facts(directory: str) -> bytes:
    """Print the facts of a checkpoint directory."""
    return text({"checkpoints": directory}, TOOLS, DIRECTORY_FACTS)


def stop(directory: str) -> bytes:
    """Ask for a clean stop in a checkpoint directory. A missing directory is an error."""
    return text({"directory": directory}, TOOLS, _STOP)


def check_secret_files(files: Mapping[str, str]) -> bytes:
    """Complain of a secret whose file is missing or empty, or may be read by others. A path begins with / or ~/."""
    words = " ".join(quote(f"{name}={file}") for name, file in files.items())
    return text({}, TOOLS, f"set -- {words}\n", _CHECK_SECRET_FILES)


def receive(bundle: str, logs: str) -> bytes:
    """Make the directories for a bundle and for the logs of its jobs."""
    return text({"bundle": bundle, "logs": logs}, TOOLS, _RECEIVE)


def tail(file: str, lines: int, follow: bool) -> bytes:
    """Print the last lines of a file, or of all files that match a name with *.

    The exit code is 66 if there is no such file. `follow`: print new lines as well, until the input of bash ends, and
    wait for a missing file.
    """
    directory, slash, name = file.rpartition("/")
    pattern = quote(directory + slash) + "*".join(quote(part) for part in name.split("*"))
    return text({"lines": str(lines)}, f"files=({pattern})\n", _FOLLOW if follow else _TAIL)


def program_output(output: bytes) -> str | None:
    """Return a program's output, without the lines before it; None if the program did not start."""
    text = "\n" + output.decode("utf-8", "replace")
    _, begun, rest = text.partition(f"\n{OUTPUT_MARK}\n")
    return rest if begun else None


_COMMAND = rf"""
cd -- "$directory" || exit 66
if type -P "$1" >/dev/null; then
  echo {OUTPUT_MARK}
  exec "$@" </dev/null
fi
exec bash -lc 'type -P "$1" >/dev/null || exit 127; echo {OUTPUT_MARK}; exec "$@"' ddpgen "$@" </dev/null
"""

_STOP = r"""
[ -d "$directory" ] || trouble "there is no $directory"
why=$( { : >"$directory/stop"; } 2>&1 ) || trouble "cannot create $directory/stop: ${why##*: }"
fact stop asked
"""

_CHECK_SECRET_FILES = r"""
for secret; do
  name=${secret%%=*} file=${secret#*=}
  case $file in '~/'*) path=$HOME/${file#??} ;; *) path=$file ;; esac
  [ -f "$path" ] && [ -r "$path" ] || trouble "the secret $name cannot be read from $file on $HOSTNAME; write it there"
  [ -s "$path" ] || trouble "the secret $name is missing: $file is empty on $HOSTNAME; write it there"
  mode=$(ls -ldL -- "$path")
  [ "${mode:4:6}" = ------ ] || trouble "the secret $name is in a file that others may read on $HOSTNAME; chmod 600 $file"
done
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

# The input of bash ends with the reader's process. Then tail is killed, so that it does not stay on the login node.
_FOLLOW = r"""
exec 3<&0
tail -n "$lines" -F -- "${files[@]}" &
tail=$!
{ cat <&3; kill "$tail"; } >/dev/null 2>&1 &
wait "$tail"
"""
