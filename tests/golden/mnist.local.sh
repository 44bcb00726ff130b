#!/usr/bin/env bash
# Train mnist on this machine with 2 process(es).
#
#   bash local.sh               start, or go on from the newest checkpoint
#   bash local.sh --steps=50    arguments are added to the training command, where the last one wins
#   bash local.sh --preflight   only look whether it can start here, and say what is wrong
#   Ctrl-C                      stop cleanly after the current step; a second Ctrl-C kills
#
# Exit code: 0 done, 1 failed, 2 a wrong argument, 69 cannot start here, 75 stopped cleanly (the
# same command goes on).
# Written by ddpgen: change the spec and render again, rather than this file.
#
# shellcheck disable=SC2016 # what stands in single quotes is meant to arrive as it is
[ -n "${BASH_VERSION:-}" ] || { echo 'ddpgen: this script needs bash: bash local.sh' >&2; exit 69; }
set -euo pipefail

# --- where we are -----------------------------------------------------------------------------
# All paths start from the directory of this script, so it runs from anywhere and may be copied.
# Links to it are followed: train/ and the checkpoints belong to the bundle, not to the link.
say() {
  # The terminal may be gone by now; that is no reason to fail.
  printf 'ddpgen: %s\n' "$*" >&2 2>/dev/null || true
}

script=${BASH_SOURCE[0]:-local.sh} # none for `bash <local.sh`: then it is to be the one here
case $script in
  */*) ;;
  *) script=./$script ;;
esac
while [ -L "$script" ]; do
  link=$(readlink -- "$script")
  case $link in
    /*) script=$link ;;
    *) script=${script%/*}/$link ;;
  esac
done
CDPATH='' cd -P -- "${script%/*}/"
bundle=$PWD
if [ ! -f train/__main__.py ]; then
  say "$bundle holds no train/, which belongs beside local.sh; copy the whole bundle, or link to it"
  exit 69
fi
# shellcheck disable=SC2034 # not needed when the spec names an absolute place for checkpoints
beside=${bundle%/*}
checkpoint_dir="$beside"/checkpoints/mnist
export DDPGEN_JOB=mnist

# --- our own arguments ------------------------------------------------------------------------
preflight_only='' driven=''
if [ "${1:-}" = --preflight ]; then
  preflight_only=1
  shift
fi

# --- torchrun's own variables -----------------------------------------------------------------
# Each PET_… is a default of one of its options: left behind by a Kubernetes operator, PET_NNODES=2
# makes it wait for a second node that never comes.
unset "${!PET_@}"
# The bundle's own train/ is found through the working directory, which this setting would hide.
unset PYTHONSAFEPATH

# --- the network interface --------------------------------------------------------------------
# One machine: loopback needs no network, and works where the hostname does not resolve.
case $(uname -s) in
  Darwin) nic=lo0 ;;
  *) nic=lo ;;
esac

# --- pinned: each of these left to chance has cost somebody a night ---------------------------
# Left alone, gloo may pick docker0 or a VPN and hang.
export GLOO_SOCKET_IFNAME="$nic"
# `=` makes NCCL take the name exactly.
export NCCL_SOCKET_IFNAME='='"$nic"
# Threads per process: more than the cores allow is slow, and another number gives other bits.
export OMP_NUM_THREADS=1
# Restarted workers would read the dead ones' addresses from a shared store and fail.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# cuBLAS gives the same bits twice only like this.
export CUBLAS_WORKSPACE_CONFIG=:4096:8
# The last words of a crashed process are the ones needed.
export PYTHONUNBUFFERED=1

# --- the interpreter --------------------------------------------------------------------------
python=python3
if ! type -P -- "$python" >/dev/null; then # a program: `test` is a builtin, not a Python
  say "there is no Python called $python here (PATH=$PATH); set python: in the spec to one that has torch, and render again (PY001)"
  exit 69
fi

# --- stopping ---------------------------------------------------------------------------------
# A file, not a signal: torchrun turns every signal into exit code 1 and a race with its workers.
# They look for the file after each step, agree, write a checkpoint and end by themselves.
# From another window: touch "$DDPGEN_STOP_FILE", which is `stop` in the checkpoint directory.
launching='' # before that nobody looks for the file, and stopping is just not to launch
torchrun=''
stop_requests=0
killed=''
again="bash $(printf '%q' "$bundle/${script##*/}")"
# Whoever reads our output may go away (| head); the job goes on, and so does this script.
trap '' PIPE

not_begun() {
  say "stopped before the training began; to go on: $again"
  exit 75
}

cut_short() { # CODE. A signal to all of the group may end a command that is just being started: it is a stop
  # Who signals one process after the other may not have come to this one yet.
  [ "$1" -lt 128 ] || [ "$stop_requests" -gt 0 ] || sleep 1 || true
  [ "$1" -lt 128 ] || [ "$stop_requests" -eq 0 ] || not_begun
  exit "$1"
}

# shellcheck disable=SC2329 # called by the traps below
kill_job() {
  say "killing the job; the next start goes on from its newest checkpoint"
  killed=1
  [ -n "$torchrun" ] || return 0
  # bash itself says nothing of a job it has let go of. The workers ask the kernel to die with
  # torchrun, so none is left behind.
  disown "$torchrun" 2>/dev/null || true
  kill -KILL -- "-$torchrun" "$torchrun" 2>/dev/null || true
}

# shellcheck disable=SC2329 # called by the traps below
ask_to_stop() {
  if [ -z "$launching" ]; then
    stop_requests=1
    say "$1: stopping before the training begins"
    [ -z "$torchrun" ] || kill -TERM "$torchrun" 2>/dev/null || true # the preflight waits for somebody
    return 0
  fi
  # A closing terminal may send HUP twice; only a second Ctrl-C or TERM means "now".
  if [ "$stop_requests" -gt 0 ] && [ "$1" != HUP ]; then
    kill_job
    return 0
  fi
  stop_requests=1
  if : >"$DDPGEN_STOP_FILE"; then
    say "$1: asking for a clean stop after the current step; again to kill"
  else
    say "$1: cannot create $DDPGEN_STOP_FILE; ending torchrun instead"
    [ -z "$torchrun" ] || kill -TERM "$torchrun" 2>/dev/null || true
  fi
}
trap 'ask_to_stop INT' INT
trap 'ask_to_stop TERM' TERM
trap 'ask_to_stop HUP' HUP

# --- what you added to the command ------------------------------------------------------------
# Looked at once, here: a wrong option would otherwise be met by every process at every restart.
if [ $# -gt 0 ]; then
  options=$(trap '' INT TERM HUP && "$python" -m train check \
    --workload=mnist \
  --epochs=1.0 \
  --global-batch-size=128 \
  --micro-batch-size=32 \
    "$@") || cut_short $?
  if [ -n "$options" ]; then # --help was among them
    printf '%s\n' "$options"
    exit 0
  fi
fi

# --- preflight --------------------------------------------------------------------------------
# A look at this machine: what is wrong is named, and nothing is started.
if [ "$stop_requests" -eq 0 ]; then
  "$python" \
  -m train preflight \
  --job=mnist \
  --checkpoint-dir="$checkpoint_dir" \
  --procs=2 \
  --backend=gloo \
  --same-bits \
  --world-size=2 \
    ${driven:+--driven} ${preflight_only:+--only} </dev/null &
  torchrun=$!
  [ "$stop_requests" -eq 0 ] || kill -TERM "$torchrun" 2>/dev/null || true # asked for a moment ago
  checked=0
  while kill -0 "$torchrun" 2>/dev/null; do wait "$torchrun" || true; done
  wait "$torchrun" 2>/dev/null || checked=$?
  torchrun=''
  [ "$stop_requests" -eq 0 ] || not_begun
  [ "$checked" -eq 0 ] || exit "$checked"
fi
[ -z "$preflight_only" ] || exit 0

# --- one job per checkpoint directory ---------------------------------------------------------
# Takes the directory's lock, or says who holds it; removes an old stop file; writes the status
# `running` with a fresh attempt id, so that a crash before the first step is not taken for an
# earlier attempt's end. It is over in a moment, so a Ctrl-C waits for it.
status_file="$checkpoint_dir/status"
export DDPGEN_STOP_FILE="$checkpoint_dir/stop"
# `ddpgen render` does not replace a directory that somebody holds like this: restarts need its files.
if type -P flock >/dev/null; then
  exec 9<.
  flock -s -n 9 || true # torchrun inherits it
fi
attempt=$(
  trap '' INT TERM HUP
  "$python" -m train claim --checkpoint-dir="$checkpoint_dir" --pid=$$
) || cut_short $?
export DDPGEN_ATTEMPT="$attempt"
export DDPGEN_CHECKPOINT_DIR="$checkpoint_dir"
export DDPGEN_LAUNCHER_PID=$$

launching=1
[ "$stop_requests" -eq 0 ] || not_begun

# --- launch -----------------------------------------------------------------------------------
# `leash` gives torchrun a process group of its own, so that Ctrl-C reaches this script only (torchrun
# would kill the workers in mid-step), and has it end when this script is killed. To see what the
# training does without any of this, run the command below from `-m train` on, by hand.
"$python" -m train leash -- \
  "$python" \
  -m torch.distributed.run \
  --standalone \
  --nnodes=1 \
  --local-addr=127.0.0.1 \
  --nproc-per-node=2 \
  --max-restarts=3 \
  --monitor-interval=0.1 \
  -m train run \
  --workload=mnist \
  --epochs=1.0 \
  --global-batch-size=128 \
  --micro-batch-size=32 \
  --optimizer=adam \
  --lr=0.001 \
  --weight-decay=0.0 \
  --momentum=0.9 \
  --schedule=linear \
  --warmup-steps=0 \
  --seed=0 \
  --precision=fp32 \
  --reduction=tree \
  --comm-hook=none \
  --bucket-cap-mb=25.0 \
  --threads=1 \
  --data-workers=0 \
  --eval-every=200 \
  --log-every=20 \
  --backend=gloo \
  --world-size=2 \
  --rendezvous-timeout=120s \
  --collective-timeout=300s \
  --checkpoint-dir="$checkpoint_dir" \
  --checkpoint-every=60s \
  --checkpoint-keep=3 \
  --arg=batch_norm=true \
  "$@" </dev/null &
torchrun=$!

# --- how it ended -----------------------------------------------------------------------------
# `wait` returns early when a trap has run. After that this looks again and again instead: a second
# Ctrl-C that comes just before `wait` goes to sleep would not wake it.
torchrun_rc=0
while kill -0 "$torchrun" 2>/dev/null; do
  if [ "$stop_requests" -eq 0 ]; then
    wait "$torchrun" || true
  else
    sleep 0.1 || true
  fi
done
wait "$torchrun" 2>/dev/null || torchrun_rc=$?

# torchrun's exit code says 1 for nearly everything. What counts is the status line that the job
# wrote last: a word, the attempt it belongs to, the step, the reason.
verdict='' verdict_attempt='' verdict_step='' verdict_reason=''
read -r verdict verdict_attempt verdict_step verdict_reason <"$status_file" || true
[ "$verdict_attempt" = "$attempt" ] || verdict=another
at=" at step $verdict_step"
[ "$verdict_step" != 0 ] || at='' # a script of the user's own counts its steps itself
case $verdict in
  done)
    say "done$at; results are in $checkpoint_dir"
    exit 0
    ;;
  stopped)
    say "stopped$at; to go on: $again"
    exit 75
    ;;
  failed)
    say "failed$at: ${verdict_reason:-no reason given}"
    ;;
  running)
    if [ -n "$killed" ]; then
      say "killed; to go on from the newest checkpoint: $again"
      exit 1
    fi
    say "torchrun ended with code $torchrun_rc and the job wrote no status; its last words are above"
    ;;
  *)
    say "$status_file is not of this attempt ($attempt): another job has taken over"
    ;;
esac
say "to go on from the newest checkpoint: $again"
exit 1
