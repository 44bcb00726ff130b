#!/usr/bin/env bash
# One machine of spot: SkyPilot runs this on every machine of the task (see run: in sky.yaml).
#
# Exit code: 0 done, 1 failed, 2 a wrong argument, 69 cannot start here, 175 stopped for a preemption,
# 130 stopped by the user.
# Written by ddpgen: change the spec and render again, rather than this file.
#
# shellcheck disable=SC2016,SC2034 # single quotes are meant; each launcher needs other variables
[ -n "${BASH_VERSION:-}" ] || { echo 'ddpgen: this script needs bash: bash sky/node.sh' >&2; exit 69; }
set -euo pipefail
# The task's name, the same after every recovery, as a name of files.
task=${SKYPILOT_TASK_ID:-none}
task=${task//[^A-Za-z0-9_.-]/-}
[ -z "${task:64}" ] || task="${task:0:48}-$(printf '%s' "$task" | cksum | cut -d' ' -f1)"

# --- where we are -----------------------------------------------------------------------------
# All paths start from the directory of this script, so it runs from anywhere and may be copied.
# Links to it are followed: train/ and the checkpoints belong to the bundle, not to the link.
say() {
  # The terminal may be gone by now; that is no reason to fail.
  printf 'ddpgen: %s\n' "$*" >&2 2>/dev/null || true
}

script=${BASH_SOURCE[0]:-node.sh} # none for `bash <node.sh`: then it is to be the one here
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
  say "$bundle holds no train/, which belongs beside node.sh; copy the whole bundle, or link to it"
  exit 69
fi
if [ -z "${HOME:-}" ]; then
  say "HOME is not set, and the spec has a place below ~/; set it, or write the whole path there"
  exit 69
fi
# shellcheck disable=SC2034 # not needed when the spec names an absolute place for checkpoints
beside=${bundle%/*}
checkpoint_dir="$HOME"/.ddpgen/spot/"$task"
export DDPGEN_JOB=spot

# --- the machines of this task ----------------------------------------------------------------
# SkyPilot names them, first the head, and says which of them this is. Nobody exports RANK by hand.
if [ -z "${SKYPILOT_NODE_IPS:-}" ] || [ -z "${SKYPILOT_NODE_RANK:-}" ] || [ "$task" = none ]; then
  say "SkyPilot has not said which machine this is (SKYPILOT_NODE_IPS, SKYPILOT_NODE_RANK, SKYPILOT_TASK_ID); start it by sky jobs launch sky.yaml"
  exit 69
fi
read -r -d '' -a addresses <<<"$SKYPILOT_NODE_IPS" || true
node_rank=$SKYPILOT_NODE_RANK nodes=0 roster='' others=''
for at in "${addresses[@]}"; do
  roster="${roster}node$nodes $at"$'\n'
  [ "$nodes" -eq "$node_rank" ] || others="$others${others:+, }node$nodes ($at)"
  nodes=$((nodes + 1))
done
if [ "$nodes" -ne 2 ] || [ "$node_rank" -ge "$nodes" ]; then
  say "planned for 2 machine(s), and this is number $node_rank of $nodes; set nodes in the spec and render again"
  exit 69
fi
me=node$node_rank
head=node0 head_address=${addresses[0]} own_address=${addresses[$node_rank]}
first_rank=$((node_rank * 8))
world_size=$((nodes * 8))
is_head=false
[ "$node_rank" -ne 0 ] || is_head=true
peer=${addresses[1]:-}
driven='' preflight_only=''
if [ -z "${WANDB_API_KEY+given}" ]; then # SkyPilot drops what it was not given, without a word
  say "the secret WANDB_API_KEY is not set; launch with --secret WANDB_API_KEY, and have it in your environment"
  exit 69
fi
# The machines of one start meet under one name: the task's, and the number of its job on these machines.
launch="sky.$task.${SKYPILOT_INTERNAL_JOB_ID:-0}"
# And at a port that they all work out from it: SkyPilot's machines may be nodes of Slurm, which jobs share.
port=$(($(printf '%s' "$launch" | cksum | cut -d' ' -f1) % 1000 + 29500))
# Which start of the task this is on this machine: a later one takes its directory over.
export DDPGEN_SCHEDULER="sky $task $(($(date +%s) - 1600000000))"
export DDPGEN_LAUNCH="$launch"
export DDPGEN_SCRIPT='sky jobs launch sky.yaml'
read -r -d '' -a added <<<"${DDPGEN_ARGS:-}" || true
set -- ${added[@]+"${added[@]}"} "$@" # empty is unbound before bash 4.4
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

# --- stopping ---------------------------------------------------------------------------------
# A file, not a signal: the processes look for it after each step, agree, write a checkpoint, wait until the
# bucket has it, and end by themselves. Its first line says why, and decides what SkyPilot is told.
launching='' torchrun='' stop_requests=0
not_begun() {
  say "$me: stopped before the training began"
  exit 175
}
cut_short() { # CODE. A signal to all of the group may end a command that is just being started: it is a stop
  # Who signals one process after the other may not have come to this one yet.
  [ "$1" -lt 128 ] || [ "$stop_requests" -gt 0 ] || sleep 1 || true
  [ "$1" -lt 128 ] || [ "$stop_requests" -eq 0 ] || not_begun
  exit "$1"
}
# shellcheck disable=SC2329 # called by the trap below
has_met() { # Whether the processes of this start have met the other machines'.
  met=''
  { read -r met _ <"$checkpoint_dir/nodes/$me/launch"; } 2>/dev/null || true
  [ "$met" = "${attempt:-none}" ]
}
# shellcheck disable=SC2329 # called by the traps below
on_signal() { # A machine that shuts down, or `sky cancel`, after which no exit code counts
  stop_requests=1
  if [ -n "$launching" ] && [ ! -e "$DDPGEN_STOP_FILE" ]; then
    say "$me: $1: asking for a clean stop after the current step"
    printf 'signal: %s\n' "$1" >"$DDPGEN_STOP_FILE.$$" && mv -- "$DDPGEN_STOP_FILE.$$" "$DDPGEN_STOP_FILE" || true
  fi
  # Nobody looks for the file before the processes of all machines have met.
  [ -z "$torchrun" ] || has_met || kill -KILL "$torchrun" 2>/dev/null || true
}
trap 'on_signal TERM' TERM
trap 'on_signal INT' INT
trap 'on_signal HUP' HUP
# Whoever reads our output may go away; the job goes on, and so does this script.
trap '' PIPE

if [ ! -e "$HOME"/.ddpgen/env-5b719bcaf931/installed.txt ]; then
  say "$me: sky/setup.sh has not made the environment of the spec's requirements on this machine; its words are further above"
  exit 69
fi
# --- the interpreter --------------------------------------------------------------------------
python="$HOME"/.ddpgen/env-5b719bcaf931/bin/python
tell_head() { # The others hear from it that this host has no Python; bash has to say so.
  [ "$is_head" = false ] || return 0
  (
    for _ in 1 2 3 4 5 6 7 8; do
      if exec 7<>"/dev/tcp/$head_address/$port"; then
        IFS= read -r -t 2 _ <&7 || true
        printf '{"kind":"cannot","job":"%s","host":"%s"}\n' spot "$me" >&7
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

# --- what you added to the command ------------------------------------------------------------
# Looked at once, here: a wrong option would otherwise be met by every process at every restart.
if [ $# -gt 0 ]; then
  options=$(trap '' INT TERM HUP && "$python" -m train check \
    --workload=gpt \
  --steps=20000 \
  --global-batch-size=512 \
  --micro-batch-size=8 \
    "$@") || cut_short $?
  if [ -n "$options" ]; then # --help was among them
    printf '%s\n' "$options"
    exit 0
  fi
fi

# --- the bucket -------------------------------------------------------------------------------
# Where nothing is mounted, everything would be written to the machine's own disk, without a word.
store=/checkpoints/spot
mounted=/checkpoints
if type -P mountpoint >/dev/null && ! mountpoint -q -- "$mounted"; then
  say "$me: the bucket s3://my-checkpoints is not mounted at $mounted; sky jobs logs --controller ID (or sky logs --provision CLUSTER) says why"
  exit 69
fi
export DDPGEN_CHECKPOINT_STORE="$store"

# --- preflight --------------------------------------------------------------------------------
# Every host looks at itself and checks in with the head, in any order; whatever is wrong is named
# on every host's terminal, and nothing is started.
if [ "$stop_requests" -eq 0 ]; then
  [ "$is_head" = false ] || [ -z "$others" ] || say "$me is the head, at $head_address:$port; expecting $others"
  "$python" \
  -m train preflight \
  --job=spot \
  --checkpoint-dir="$checkpoint_dir" \
  --procs=8 \
  --backend=nccl \
  --gpus=8 \
  --same-bits \
  --me="$me" \
  --head="$head_address" \
  --port="$port" \
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

# What an earlier start on this machine was asked, and which turn at the bucket it had, is not this one's.
rm -f -- "$checkpoint_dir/stop" "$checkpoint_dir/store-turn"
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

# --- launch -----------------------------------------------------------------------------------
# The cloud's word that it takes this machine back becomes a stop file; where there is no such word, it
# ends at once.
"$python" -m train notice --stop-file="$DDPGEN_STOP_FILE" --pid=$$ </dev/null &
launching=1
[ "$stop_requests" -eq 0 ] || not_begun
# `leash` has torchrun end when this script is killed. SkyPilot signals every process below its shell: there
# TERM is ignored, so that a step and its checkpoint are finished (see above).
(
  trap '' TERM
  exec "$python" -m train leash -- \
    "$python" \
  -m torch.distributed.run \
  --nnodes="$nodes" \
  --nproc-per-node=8 \
  --rdzv-backend=c10d \
  --rdzv-endpoint="$head_address":"$port" \
  --rdzv-id="$launch" \
  --rdzv-conf=is_host="$is_head",join_timeout=120 \
  --local-addr="$address" \
  --max-restarts=3 \
  --monitor-interval=0.1 \
  --signals-to-handle=SIGINT,SIGHUP,SIGQUIT \
  -m train run \
  --workload=gpt \
  --steps=20000 \
  --global-batch-size=512 \
  --micro-batch-size=8 \
  --optimizer=adamw \
  --lr=0.0006 \
  --weight-decay=0.0 \
  --momentum=0.9 \
  --schedule=cosine \
  --warmup-steps=500 \
  --grad-clip=1.0 \
  --seed=0 \
  --precision=bf16 \
  --reduction=tree \
  --comm-hook=none \
  --bucket-cap-mb=25.0 \
  --threads=1 \
  --data-workers=0 \
  --eval-every=0 \
  --log-every=10 \
  --backend=nccl \
  --world-size="$world_size" \
  --rendezvous-timeout=120s \
  --collective-timeout=300s \
  --checkpoint-dir="$checkpoint_dir" \
  --checkpoint-store=/checkpoints/spot \
  --checkpoint-every=auto:7200s \
  --checkpoint-keep=3 \
  --arg=depth=12 \
  --arg=heads=12 \
  --arg=seq_len=1024 \
  --arg=width=768 \
    "$@" </dev/null
) &
torchrun=$!

# --- how it ended on this machine -------------------------------------------------------------
torchrun_rc=0
while kill -0 "$torchrun" 2>/dev/null; do
  if [ "$stop_requests" -eq 0 ]; then
    wait "$torchrun" || true # returns early when a trap has run
  else
    sleep 0.1 || true
  fi
done
wait "$torchrun" 2>/dev/null || torchrun_rc=$?

# torchrun's exit code says 1 for nearly everything. What counts is the status line that the job wrote
# last: a word, the attempt it belongs to, the step, the reason.
verdict='' verdict_attempt='' verdict_step='' verdict_reason=''
read -r verdict verdict_attempt verdict_step verdict_reason <"$status_file" || true
[ "$verdict_attempt" = "$attempt" ] || verdict=another
at=" at step $verdict_step"
[ "$verdict_step" != 0 ] || at='' # a script of the user's own counts its steps itself
case $verdict in
  done)
    say "$me: done$at"
    exit 0
    ;;
  stopped)
    case $verdict_reason in
      preempted* | signal*) # the user's own stop is an object in the bucket, and never a signal
        say "$me: stopped$at, $verdict_reason; SkyPilot starts a managed job again"
        exit 175
        ;;
    esac
    say "$me: stopped$at (${verdict_reason:-user}); to go on: $DDPGEN_SCRIPT"
    exit 130
    ;;
  failed)
    say "$me: failed$at: ${verdict_reason:-no reason given}"
    exit 1
    ;;
esac
[ "$stop_requests" -eq 0 ] || has_met || not_begun
say "$me: torchrun ended with code $torchrun_rc and the job wrote no status; its last words are above"
exit 1
