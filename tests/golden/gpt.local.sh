#!/usr/bin/env bash
# gpt: 2 processes on this machine. Rendered by ddpgen: change the spec and render again.
#   bash local.sh [--steps=50]   start or resume the job; arguments go to the training
#   bash local.sh --preflight    only check whether this machine can start it
#   Ctrl-C                       stop cleanly; a second Ctrl-C kills
# Exit code: 0 done, 1 failed, 2 wrong argument, 69 cannot start here, 75 stopped (the same command resumes).
# shellcheck disable=SC1083,SC1091,SC2016 # braces are placeholders, single quotes are meant
[ -n "${BASH_VERSION:-}" ] || { echo 'ddpgen: this script needs bash: bash local.sh' >&2; exit 69; }
set -euo pipefail

# --- the bundle: where this script is, symbolic links followed -----------------------------------
cd -P -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-local.sh}")")"
[ -f train/__main__.py ] || { echo "ddpgen: $PWD holds no train/: copy the whole bundle" >&2; exit 69; }

# --- the environment -----------------------------------------------------------------------------
unset PYTHONSAFEPATH # it hides the bundle's own train/
type -P -- python3 >/dev/null || {
  printf 'ddpgen: there is no Python called %s here (PATH=%s); set python: in the spec (PY001)\n' \
    python3 "$PATH" >&2; exit 69; }

# --- run: {name} is filled in by the supervisor, which prints the whole command ------------------
exec python3 -m train supervise local \
  --job=gpt --checkpoint-dir=../checkpoints/gpt --procs=2 -- \
  torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 --max-restarts=3 \
    --monitor-interval=0.1 -- \
  run --workload=gpt --steps=400 --global-batch-size=16 --micro-batch-size=2 --lr=0.002 \
    --weight-decay=0.01 --schedule=cosine --warmup-steps=40 --grad-clip=1.0 --seed=1337 --eval-every=200 \
    --backend=gloo --checkpoint-every='50 steps' --checkpoint-dir={checkpoint_dir} --arg=depth=4 \
    --arg=dropout=0.1 --arg=heads=4 --arg=seq_len=128 --arg=width=128 -- "$@"
