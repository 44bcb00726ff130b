#!/usr/bin/env bash
# Train elastic on the hosts of hosts.json, from this terminal, over ssh. Rendered by ddpgen.
#   bash hosts/run.sh [--steps=50]   send the bundle to every host, start all, show what they say
#   bash hosts/run.sh --preflight    only check whether the hosts can start it
#   bash hosts/run.sh --status | --stop | --logs [HOST] | --fetch [DIR] | --help
#   Ctrl-C                           stop cleanly on all hosts; a second kills, a third leaves them
# DDPGEN_SSH is another command than `ssh`, with options of your own.
# Exit code: 0 done, 1 failed, 2 wrong argument, 69 cannot start, 75 stopped (the same command resumes).
[ -n "${BASH_VERSION:-}" ] || { echo 'ddpgen: this script needs bash: bash hosts/run.sh' >&2; exit 69; }
set -euo pipefail

bundle=$(readlink -f -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-hosts/run.sh}")")/..")
[ -d "$bundle/hosts/driver" ] || { echo "ddpgen: $bundle holds no hosts/driver/: copy all of it" >&2; exit 69; }
if type -P flock >/dev/null; then # `ddpgen render` does not replace a bundle that somebody holds
  exec 9<"$bundle" && flock -s -n 9 || true
fi
# The driver needs Python 3.10 on this machine, and nothing installed. The hosts use their own.
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
  exec "$python" "$bundle/hosts/driver" "$@"
done
echo "ddpgen: there is no Python 3.10 or newer here (PATH=$PATH); install one to drive the hosts" >&2
exit 69
