#!/usr/bin/env bash
# elastic, host node3: 1 process. Rendered by ddpgen: change the spec and render again.
# `bash hosts/run.sh` starts all hosts over ssh. By hand, in any order and with the same arguments on each:
#   bash hosts/node3.sh [--head=NAME] [--hosts=A,B] [--preflight] [--steps=50]
# --head: meet there instead of at the first of hosts.json; --hosts: only these take part; --preflight: only
# check; what follows is added to the training. Ctrl-C stops all hosts cleanly, a second kills.
# Exit code: 0 done, 1 failed, 2 wrong argument, 69 cannot start here, 75 stopped (the same command resumes).
# shellcheck disable=SC1083,SC1091,SC2016 # braces are placeholders, single quotes are meant
[ -n "${BASH_VERSION:-}" ] || { echo "ddpgen: this script needs bash: bash $0" >&2; exit 69; }
set -euo pipefail

# --- the bundle: the directory above this script's, symbolic links followed ----------------------
cd -P -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-hosts/node3.sh}")")/.."
[ -f train/__main__.py ] || { echo "ddpgen: $PWD holds no train/: copy the whole bundle" >&2; exit 69; }

# --- the environment -----------------------------------------------------------------------------
unset PYTHONSAFEPATH # it hides the bundle's own train/
type -P -- python3 >/dev/null || {
  printf 'ddpgen: there is no Python called %s here (PATH=%s); set python: in the spec (PY001)\n' \
    python3 "$PATH" >&2; exit 69; }

# --- run: {name} is filled in by the supervisor, which prints the whole command ------------------
exec python3 -m train supervise host --me=node3 \
  --job=elastic --checkpoint-dir=../checkpoints/elastic --port=29500 --collective-timeout=30s -- \
  torchrun --nnodes={nodes} --rdzv-backend=c10d --rdzv-endpoint={head}:{port} --rdzv-id={launch} \
    --rdzv-conf=is_host={is_head},join_timeout=120,last_call_timeout=5 --local-addr={address} \
    --nproc-per-node=1 --max-restarts=1000 --monitor-interval=0.1 -- \
  run --workload=toy --steps=5000 --global-batch-size=48 --micro-batch-size=8 --optimizer=sgd \
    --lr=0.05 --log-every=100 --backend=gloo --balance --digest --collective-timeout=30s \
    --checkpoint-every='20 steps' --elastic --checkpoint-dir={checkpoint_dir} -- "$@"
