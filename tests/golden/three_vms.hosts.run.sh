#!/usr/bin/env bash
# Train three_vms on several hosts, from this terminal, over ssh.
#
#   bash hosts/run.sh               send the bundle to every host, start all of them, show what they say
#   bash hosts/run.sh --steps=50    arguments are added to the training command, where the last one wins
#   bash hosts/run.sh --preflight   only look whether the hosts can start it, and say what is wrong
#   bash hosts/run.sh --status      how every host stands
#   bash hosts/run.sh --stop        ask for a clean stop after the current step
#   bash hosts/run.sh --logs [HOST] the newest launch's output, kept on this machine
#   bash hosts/run.sh --fetch [DIR] bring the newest checkpoints and the metrics home
#   Ctrl-C                          stop cleanly on all hosts; a second Ctrl-C kills, a third leaves them
#
# The hosts, and how ssh reaches each (your ssh_config, known_hosts and agent are in force):
#   vm1: ssh vm1
#   vm2: ssh vm2
#   vm3: ssh vm3
#
# Without this script: each host's own is in the bundle there, to be started by hand in any order.
# DDPGEN_SSH: another command than `ssh`, with options of your own.
# Exit code: 0 done, 1 failed, 2 a wrong argument, 69 could not start, 75 stopped cleanly (the same
# command goes on).
# Written by ddpgen: change the spec and render again, rather than this file.
[ -n "${BASH_VERSION:-}" ] || { echo 'ddpgen: this script needs bash: bash hosts/run.sh' >&2; exit 69; }
set -euo pipefail

# --- where we are -----------------------------------------------------------------------------
# Links to this script are followed: the driver lies beside the script itself.
script=${BASH_SOURCE[0]:-hosts/run.sh} # none for `bash <hosts/run.sh`: then it is to be the one here
case $script in
  /*) ;;
  *) script=./$script ;;
esac
while [ -L "$script" ]; do
  link=$(readlink -- "$script")
  case $link in
    /*) script=$link ;;
    *) script=${script%/*}/$link ;;
  esac
done
if [ ! -f "${script%/*}/driver/__main__.py" ]; then
  echo "ddpgen: ${script%/*} holds no driver/; copy the whole bundle, or link to it" >&2
  exit 69
fi

# `ddpgen render` does not replace a directory that somebody holds like this: the hosts may need it again.
if type -P flock >/dev/null; then
  exec 9<"${script%/*}/.."
  flock -s -n 9 || true # the driver inherits it
fi

# --- drive ------------------------------------------------------------------------------------
# The driver needs Python 3.10 on this machine, and nothing installed. The hosts use their own.
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    exec "$python" "${script%/*}/driver" "$@"
  fi
done
echo "ddpgen: there is no Python 3.10 or newer here (PATH=$PATH); install one to drive the hosts" >&2
exit 69
