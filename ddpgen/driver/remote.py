"""The texts sent to `bash -s` on a host. Pure.

Owns every word of shell that runs on a host and is not in the bundle. Each text is one { …; }. So bash
runs it only when it has all of it, and half a text of a lost connection has no effect. bash 3.2 is enough.
Values enter only through quote().
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .plan import Plan, PlannedHost

FACT = "ddpgen-fact"
QUIET = "let its ~/.bashrc begin with `[[ $- == *i* ]] || return`"


def quote(text: str) -> str:
    """Return `text` as one word of bash, byte for byte. Raise ValueError for a NUL."""
    if "\0" in text:
        raise ValueError("a NUL character cannot be passed to a program")
    return "'" + text.replace("'", "'\\''") + "'"


def facts(output: bytes) -> dict[str, str]:
    """Return the facts in the output of a text, without the output of login scripts."""
    lines = output.decode("utf-8", "replace").split("\n")
    matches = (re.fullmatch(FACT + r" (\S+) ?(.*)", line.rstrip("\r")) for line in lines)
    return {match[1]: match[2] for match in matches if match}


def troubles(output: bytes) -> str:
    """Return the complaints in the output of a text, or ""."""
    lines = output.decode("utf-8", "replace").split("\n")
    complaints = [line.removeprefix("ddpgen: ") for line in lines if line.startswith("ddpgen: ")]
    return "; ".join(complaints)


def prepare(plan: Plan, host: PlannedHost, need_kib: int) -> bytes:
    """Check that the host can take the bundle, and make its directory."""
    return text({**_values(plan, host), "need": str(need_kib)}, TOOLS, _NEWEST, _PREPARE)


def status(plan: Plan, host: PlannedHost) -> bytes:
    """Find out the state of this host and of its checkpoint directory."""
    return text(_values(plan, host), TOOLS, _RUNS, _HOST_FACTS, DIRECTORY_FACTS)


def stop(plan: Plan, host: PlannedHost) -> bytes:
    """Ask for a clean stop."""
    return text(_values(plan, host), TOOLS, _RUNS, _STOP)


def start(
    plan: Plan, host: PlannedHost, environment: Mapping[str, str], arguments: Iterable[str]
) -> bytes:
    """Become the host's script. The script inherits the rest of the input, which is the driver's connection."""
    words = " ".join(quote(word) for word in (host.script, *arguments))
    values = {**_values(plan, host), "script": host.script}
    return text(
        values,
        TOOLS,
        f"{exports(environment)}{_RECORD_STARTER}{_ENTER_BUNDLE}exec bash -- {words}\n",
    )


def exports(variables: Mapping[str, str]) -> str:
    """Return the lines that put variables into the environment."""
    return "".join(f"export {name}={quote(value)}\n" for name, value in variables.items())


def install(plan: Plan, host: PlannedHost) -> bytes:
    """Become the host's script, which only installs the packages of the version lock."""
    values = {**_values(plan, host), "script": host.script}
    return text(values, TOOLS, f'{_ENTER_BUNDLE}exec bash -- "$script" --install </dev/null\n')


def run_in(directory: str) -> str:
    """Return the beginning of a line that runs a command in `directory`. The command and `; }` complete it."""
    return f"{{ unset CDPATH; cd -- {quote(directory)} || exit; exec "


def _values(plan: Plan, host: PlannedHost) -> dict[str, str]:
    return {
        "host": host.name,
        "bundle": plan.bundle(host),
        "checkpoints": plan.checkpoints(host),
    }


def text(values: Mapping[str, str], *parts: str) -> bytes:
    """Return one text: it sets variables to these values and then runs the parts, each on lines of its own."""
    assignments = "".join(f"{name}={quote(value)}\n" for name, value in values.items())
    body = "".join(part.lstrip("\n") for part in parts)
    return f"{{ ddpgen_whole=yes\n{assignments}{body}exit\n}}\n".encode("utf-8", "surrogateescape")


TOOLS = rf"""
unset CDPATH
fact() {{ printf 'ddpgen-fact %s %s\n' "$1" "$2"; }}
trouble() {{ printf 'ddpgen: %s\n' "$*"; exit 69; }}
# Where a login file reads, the first line is gone; rsync would wait for the rest of its own.
[ "${{ddpgen_whole-}}" = yes ] || trouble "the login shell there read our first line, as by 'read': "{quote(QUIET)}
"""

# Prints the step of the newest whole checkpoint, if there is one. A directory with a marker is a checkpoint.
_NEWEST = r"""
newest() {
  local marker step best=''
  for marker in "$checkpoints"/step-*/checkpoint.json; do
    step=${marker%/*}
    step=${step##*/step-}
    case $step in *[!0-9]* | '') continue ;; esac
    [ -e "$marker" ] && [ "$((10#$step))" -ge "${best:-0}" ] && best=$((10#$step))
  done
  echo "$best"
}
"""

_PREPARE = r"""
# Which driver started what runs here, if one did: the process is still the one it wrote down.
starter() {
  local pid by
  { read -r pid by <"$checkpoints/nodes/$host/started-by"; } 2>/dev/null || return
  { [ -d "/proc/$pid" ] || kill -0 "$pid"; } 2>/dev/null && printf '%s\n' "$by"
}
type -P rsync >/dev/null ||
  trouble "there is no rsync on this host (PATH=$PATH); install it (apt, dnf or brew install rsync)"
[ ! -e "$bundle" ] || [ -d "$bundle" ] ||
  trouble "$bundle is not a directory; move it away, or give this host another dir"
why=$(mkdir -p -- "$bundle" 2>&1) ||
  trouble "cannot make $bundle: ${why##*: }; correct dir in the spec, or the permissions there"
[ -w "$bundle" ] && [ -x "$bundle" ] ||
  trouble "cannot write into $bundle; correct dir in the spec, or the permissions there"
if [ ! -e "$bundle/bundle.json" ]; then
  # Looked at again: where hosts share it, another's look may have made it this moment.
  [ -z "$(ls -A -- "$bundle")" ] || [ -e "$bundle/bundle.json" ] ||
    trouble "$bundle holds files and no bundle.json, so they are not ours to replace; move them away, or give this host another dir"
  # What comes next may be cut short; what has come is ours to replace all the same.
  why=$( { : >"$bundle/bundle.json"; } 2>&1 ) || trouble "cannot write into $bundle: ${why##*: }; make room there, or give this host another dir"
fi

# The job's script and torchrun hold the directory by a shared lock as long as they live. Another look
# like this one, where hosts share it, holds it for a moment only.
if type -P flock >/dev/null; then
  for again in 1 2 3 4 5 6 7 8 9 10; do
    ( flock -n -x 9 ) 9<"$bundle"
    case $? in
      0) break ;;
      1) [ "$again" -lt 10 ] && sleep 0.2 || { fact in-use yes; fact by "$(starter)"; } ;;
      *) break ;; # no locks here
    esac
  done
fi

# Room for all of it, less what is there already. (df may print names with blanks: look for the
# numbers.)
room=$(df -Pk -- "$bundle" 2>/dev/null)
have=$(du -sk -- "$bundle" 2>/dev/null)
have=${have%%[!0-9]*}
numbers='[0-9]+ +[0-9]+ +([0-9]+) +[0-9]+%'
if [[ $room =~ $numbers ]]; then
  room=${BASH_REMATCH[1]}
  [ $((room + ${have:-0})) -ge "$need" ] ||
    trouble "$bundle has room for $room KiB and needs $need; make room, or give this host another dir"
fi
fact newest "$(newest)"
fact ready yes
"""

_RECORD_STARTER = r"""
# The script becomes its supervisor, so that has this process id as well. What cannot be written here, the
# preflight names.
{ mkdir -p -- "$checkpoints/nodes/$host" &&
  printf '%s %s\n' "$$" "$DDPGEN_STARTED_BY" >"$checkpoints/nodes/$host/started-by"; } 2>/dev/null
"""

_ENTER_BUNDLE = r"""
cd -- "$bundle" || trouble "cannot enter $bundle, which was there a moment ago; start again"
[ -f "$script" ] || trouble "$bundle holds no $script; start again"
"""

# Tells whether this host's script runs. The node's lock has the id of its process, which is the supervisor by now.
# The command line must be a supervisor's, because after a reboot another process may have the id.
_RUNS = r"""
runs() {
  local lock=$checkpoints/nodes/$host/lock pid args=''
  [ -e "$lock" ] || { echo no; return; }
  pid=$(tr -d '[:space:]' <"$lock" 2>/dev/null)
  pid=${pid#*'"launcher":['}
  pid=${pid%%[!0-9]*}
  [ -n "$pid" ] || { echo unknown; return; }
  if [ -d /proc/self ]; then
    args=$( { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null )
  else
    args=$(ps -p "$pid" -o args= 2>/dev/null)
  fi
  case $args in
    *" supervise host --me=$host "*) echo yes ;;
    *) echo no ;;
  esac
}
"""

_HOST_FACTS = r"""
fact runs "$(runs)"
fact node "$( { head -n 1 -- "$checkpoints/nodes/$host/status"; } 2>/dev/null)"
"""

# Prints the facts of a checkpoint directory.
DIRECTORY_FACTS = (
    _NEWEST
    + r"""
first_line() {
  local line=''
  { read -r line <"$1"; } 2>/dev/null
  printf '%s\n' "$line"
}
[ -d "$checkpoints" ] || { fact there no; exit 0; }
[ -r "$checkpoints" ] && [ -x "$checkpoints" ] || { fact there closed; exit 0; }
fact there yes
fact newest "$(newest)"
fact status "$(first_line "$checkpoints/status")"
fact slurm-job "$(first_line "$checkpoints/slurm-job")"
fact slurm-starts "$(first_line "$checkpoints/slurm-starts")"
fact bad-nodes "$(tail -n 200 -- "$checkpoints/bad-nodes" 2>/dev/null | tr '\n' '\t')"
fact lock "$(tr '\n' ' ' 2>/dev/null <"$checkpoints/lock")"
fact point "$(first_line "$checkpoints/point.json")"
fact progress "$(first_line "$checkpoints/progress.json")"
fact saves "$(tail -n 100 -- "$checkpoints/script/saves-0.jsonl" 2>/dev/null | tr '\n' '\t')"
fact now "$(date +%s)"
[ ! -e "$checkpoints/stop" ] || fact stop asked
"""
)

_STOP = r"""
[ -d "$checkpoints" ] || { fact stop nothing; exit 0; }
why=$( { : >"$checkpoints/stop"; } 2>&1 ) ||
  trouble "cannot create $checkpoints/stop: ${why##*: }; correct that, or kill the job from where it was started"
fact stop asked
fact runs "$(runs)"
"""
