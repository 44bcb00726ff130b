#!/usr/bin/env bash
# Host node3 of elastic: 1 process(es) of 3, on 3 host(s).
#
# `bash hosts/run.sh` starts all hosts at once, from any machine that reaches them by ssh. By hand, each
# in a terminal of its own and in any order:
#
#   bash hosts/node3.sh
#     --head=NAME   meet at another host than node1 (on all hosts the same)
#     --hosts=A,B   only these take part (on all hosts the same)
#     --preflight   only look whether the hosts can start it, and say what is wrong
#     --steps=50    what comes after these is added to the training command (on all hosts the same)
#   Ctrl-C          stop all hosts cleanly after the current step; a second Ctrl-C kills here
#
# Exit code: 0 done, 1 failed, 2 a wrong argument, 69 cannot start here, 75 stopped cleanly (the
# same command goes on).
# Written by ddpgen: change the spec and render again, rather than this file.
#
# shellcheck disable=SC2016,SC2034 # single quotes are meant; each launcher needs other variables
[ -n "${BASH_VERSION:-}" ] || { echo 'ddpgen: this script needs bash: bash hosts/node3.sh' >&2; exit 69; }
set -euo pipefail

# --- where we are -----------------------------------------------------------------------------
# All paths start from the directory of this script, so it runs from anywhere and may be copied.
# Links to it are followed: train/ and the checkpoints belong to the bundle, not to the link.
say() {
  # The terminal may be gone by now; that is no reason to fail.
  printf 'ddpgen: %s\n' "$*" >&2 2>/dev/null || true
}

script=${BASH_SOURCE[0]:-node3.sh} # none for `bash <node3.sh`: then it is to be the one here
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
CDPATH='' cd -P -- "${script%/*}/.."
bundle=$PWD
if [ ! -f train/__main__.py ]; then
  say "$bundle holds no train/, which belongs beside node3.sh; copy the whole bundle, or link to it"
  exit 69
fi
# shellcheck disable=SC2034 # not needed when the spec names an absolute place for checkpoints
beside=${bundle%/*}
checkpoint_dir="$beside"/checkpoints/elastic
export DDPGEN_JOB=elastic

# --- the hosts, and which ranks are this one's -------------------------------------------------
# Name, address for the others, processes. Every host counts ranks from the same lines (the head's
# first, then in this order), so nobody exports RANK by hand and no rank is there twice.
me=node3
hosts='
node1 node1 1
node2 node2 1
node3 node3 1
'
head=node1
port=29500
taking_part=node1,node2,node3
driven='' preflight_only=''
while [ $# -gt 0 ]; do
  case $1 in
    --head=*) head=${1#*=} ;;
    --hosts=*) taking_part=${1#*=} ;;
    --driven) driven=1 ;; # by hosts/run.sh, which speaks through our standard input
    --preflight) preflight_only=1 ;;
    *) break ;;
  esac
  shift
done

own_address='' node_rank='' first_rank=0 world_size=0 host_count=0 head_address='' others='' peer='' roster=''
take_ranks() { # NAME ADDRESS PROCESSES
  if [ "$1" = "$me" ]; then
    own_address=$2 node_rank=$host_count first_rank=$world_size
  else
    others="$others${others:+, }$1" peer=$2
  fi
  [ "$1" != "$head" ] || head_address=$2
  roster="$roster$1 $2"$'\n'
  host_count=$((host_count + 1)) world_size=$((world_size + $3))
}
for turn in head others; do
  while read -r name at processes; do
    case ",$taking_part," in *",$name,"*) ;; *) continue ;; esac
    [ -n "$name" ] || continue
    if [ "$turn" = head ]; then
      [ "$name" != "$head" ] || take_ranks "$name" "$at" "$processes"
    else
      [ "$name" = "$head" ] || take_ranks "$name" "$at" "$processes"
    fi
  done <<<"$hosts"
done
known=$(printf '%s\n' "$hosts" | sed 's/ .*//' | tr '\n' ' ')
listed=$(printf '%s,' "$taking_part" | tr -cd , | wc -c)
if [ "$((listed))" -ne "$host_count" ]; then
  say "--hosts=$taking_part: names a host twice, or one that is not there; the hosts are$known"
  exit 2
fi
if [ -z "$node_rank" ]; then
  say "--hosts=$taking_part: without $me, this host has nothing to do; name it too"
  exit 2
fi
if [ -z "$head_address" ]; then
  say "--head=$head: takes no part; name one of $taking_part"
  exit 2
fi
# As few as 2 can go on; hosts that are lost may come back.
nodes=$((host_count < 2 ? host_count : 2)):$host_count
is_head=false
[ "$me" != "$head" ] || is_head=true
# Two runs that meet at one place under one name would merge without a word: the driver gives each of
# its launches a name of its own.
launch=${DDPGEN_LAUNCH:-elastic}

# --- torchrun's own variables -----------------------------------------------------------------
# Each PET_… is a default of one of its options: left behind by a Kubernetes operator, PET_NNODES=2
# makes it wait for a second node that never comes.
unset "${!PET_@}"
# The bundle's own train/ is found through the working directory, which this setting would hide.
unset PYTHONSAFEPATH

# --- the interpreter --------------------------------------------------------------------------
python=python3
tell_head() { # The others hear from it that this host has no Python; bash has to say so.
  [ "$is_head" = false ] || return 0
  (
    for _ in 1 2 3 4 5 6 7 8; do
      if exec 7<>"/dev/tcp/$head_address/$port"; then
        IFS= read -r -t 2 _ <&7 || true
        printf '{"kind":"cannot","job":"%s","host":"%s"}\n' elastic "$me" >&7
        exit 0
      fi
      sleep 0.5 # it may be about to start
    done
  ) 2>/dev/null &
  telling=$!
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 "$telling" 2>/dev/null || return 0
    sleep 0.5
  done
  kill "$telling" 2>/dev/null || true
}
if ! type -P -- "$python" >/dev/null; then # a program: `test` is a builtin, not a Python
  say "there is no Python called $python here (PATH=$PATH); set python: in the spec to one that has torch, and render again (PY001)"
  tell_head
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
again="bash $(printf '%q' "$bundle/hosts/${script##*/}")"
[ -z "$driven" ] || again='the same command' # the driver's
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

# shellcheck disable=SC2329 # called by the traps below, too
has_met() { # Whether the processes of this start have met the other hosts'.
  met=''
  { read -r met _ <"$checkpoint_dir/nodes/$me/launch"; } 2>/dev/null || true
  [ "$met" = "$attempt" ]
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
    # Nobody looks for the file before all hosts have met, which may never be.
    if [ -n "$torchrun" ] && ! has_met; then
      say "$1: stopping before the training begins"
      kill -TERM "$torchrun" 2>/dev/null || true
      return 0
    fi
    say "$1: asking for a clean stop after the current step; again to kill"
  else
    say "$1: cannot create $DDPGEN_STOP_FILE; ending torchrun instead"
    [ -z "$torchrun" ] || kill -TERM "$torchrun" 2>/dev/null || true
  fi
}
trap 'ask_to_stop INT' INT
trap 'ask_to_stop TERM' TERM
trap 'ask_to_stop HUP' HUP

if [ -n "$driven" ]; then
  # The driver's words arrive on standard input: a beat now and then, `stop`, `kill`. When they stay
  # away, the driver or the network is gone: then this host stops by itself and leaves nothing behind.
  # It waits for a clean stop as long as a step may take.
  trap 'stop_requests=1 && kill_job' USR1
  exec 8<&0 </dev/null
  "$python" -m train driven --pid=$$ --patience=30s <&8 &
  exec 8<&-
fi

# --- what you added to the command ------------------------------------------------------------
# Looked at once, here: a wrong option would otherwise be met by every process at every restart.
if [ $# -gt 0 ]; then
  options=$(trap '' INT TERM HUP && "$python" -m train check \
    --workload=toy \
  --steps=5000 \
  --global-batch-size=48 \
  --micro-batch-size=8 \
    "$@") || cut_short $?
  if [ -n "$options" ]; then # --help was among them
    printf '%s\n' "$options"
    exit 0
  fi
fi

# --- preflight --------------------------------------------------------------------------------
# Every host looks at itself and checks in with the head, in any order; whatever is wrong is named
# on every host's terminal, and nothing is started.
if [ "$stop_requests" -eq 0 ]; then
  [ "$is_head" = false ] || [ -z "$others" ] || say "$me is the head, at $head_address:$port; expecting $others"
  "$python" \
  -m train preflight \
  --job=elastic \
  --checkpoint-dir="$checkpoint_dir" \
  --procs=1 \
  --backend=gloo \
  --same-bits \
  --me="$me" \
  --head="$head_address" \
  --port=29500 \
  --node-rank="$node_rank" \
  --nodes="$nodes" \
  --world-size="$world_size" \
  --roster="$roster" \
  --timeout=120s \
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
# What is this host's own lies below nodes/, so that it does not matter whether the hosts share the
# directory or each has one of its own.
status_file="$checkpoint_dir/nodes/$me/status"
export DDPGEN_STOP_FILE="$checkpoint_dir/stop"
# `ddpgen render` does not replace a directory that somebody holds like this: restarts need its files.
if type -P flock >/dev/null; then
  exec 9<.
  flock -s -n 9 || true # torchrun inherits it
fi
attempt=$(
  trap '' INT TERM HUP
  "$python" -m train claim --checkpoint-dir="$checkpoint_dir" --pid=$$ --node="$me"
) || cut_short $?
export DDPGEN_ATTEMPT="$attempt"
export DDPGEN_CHECKPOINT_DIR="$checkpoint_dir"
export DDPGEN_LAUNCHER_PID=$$
export DDPGEN_NODE="$me"
export DDPGEN_NODE_DIR="$checkpoint_dir/nodes/$me"

# --- the network interface --------------------------------------------------------------------
# The one of the spec, or else the one by which this host reaches the head; and its address. On the
# head it is also tried here whether the port is free.
nic=''
if [ "$is_head" = true ]; then
  found=$(trap '' INT TERM HUP && "$python" -m train where --is-head --head="$head_address" --port="$port" \
    ${nic:+"--nic=$nic"} ${peer:+"--peer=$peer"}) || cut_short $?
else
  found=$(trap '' INT TERM HUP && "$python" -m train where --head="$head_address" --port="$port" \
    ${nic:+"--nic=$nic"}) || cut_short $?
fi
nic=${found% *}
address=${found##* }
say "$me: interface $nic, address $address"

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
# Else torch warns at every connection from an address without a name, and hides the rest.
export TORCH_CPP_LOG_LEVEL=ERROR
# The last words of a crashed process are the ones needed.
export PYTHONUNBUFFERED=1

launching=1
[ "$stop_requests" -eq 0 ] || not_begun

# --- launch -----------------------------------------------------------------------------------
# `leash` gives the launcher a process group of its own, so that Ctrl-C reaches this script only (it
# would kill the workers in mid-step), and has it end when this script is killed. To see what the
# training does without any of this, run the command below from `-m train` on, by hand.
"$python" -m train leash -- \
  "$python" \
  -m torch.distributed.run \
  --nnodes="$nodes" \
  --nproc-per-node=1 \
  --rdzv-backend=c10d \
  --rdzv-endpoint="$head_address":29500 \
  --rdzv-id="$launch" \
  --rdzv-conf=is_host="$is_head",join_timeout=120,last_call_timeout=15 \
  --local-addr="$address" \
  --max-restarts=1000 \
  --monitor-interval=0.1 \
  -m train run \
  --workload=toy \
  --steps=5000 \
  --global-batch-size=48 \
  --micro-batch-size=8 \
  --optimizer=sgd \
  --lr=0.05 \
  --weight-decay=0.0 \
  --momentum=0.9 \
  --schedule=constant \
  --warmup-steps=0 \
  --seed=0 \
  --precision=fp32 \
  --reduction=tree \
  --comm-hook=none \
  --bucket-cap-mb=25.0 \
  --threads=1 \
  --data-workers=0 \
  --eval-every=0 \
  --log-every=100 \
  --backend=gloo \
  --elastic \
  --rendezvous-timeout=120s \
  --collective-timeout=30s \
  --checkpoint-dir="$checkpoint_dir" \
  --checkpoint-every='20 steps' \
  --checkpoint-keep=3 \
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
    # Without a shared directory the checkpoints are where rank 0 ran.
    if [ -d "$checkpoint_dir/$(printf 'step-%09d' "$verdict_step")" ]; then
      say "done$at; results are in $checkpoint_dir"
    else
      say "done$at; results are on the host of rank 0"
    fi
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
    if [ "$stop_requests" -gt 0 ] && [ -z "$killed" ] && ! has_met; then
      not_begun
    fi
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
