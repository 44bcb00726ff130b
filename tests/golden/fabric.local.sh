#!/usr/bin/env bash
# fabric: 2 processes on this machine. Rendered by ddpgen: change the spec and render again.
#   bash local.sh [ARG ARG...]   start, or go on from what is saved; arguments go to the training
#   bash local.sh --preflight    only check whether this machine can start it
#   Ctrl-C                       stop cleanly; a second Ctrl-C kills
# Exit code: 0 done, 1 failed, 2 wrong argument, 69 cannot start here, 75 stopped (start it again).
# shellcheck disable=SC1083,SC1091,SC2016 # braces are placeholders, single quotes are meant
[ -n "${BASH_VERSION:-}" ] || { echo 'ddpgen: this script needs bash: bash local.sh' >&2; exit 69; }
set -euo pipefail

# --- the bundle: where this script is, links followed --------------------------------------------
cd -P -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-local.sh}")")"
[ -f train/__main__.py ] || { echo "ddpgen: $PWD holds no train/: copy the whole bundle" >&2; exit 69; }

# --- the environment -----------------------------------------------------------------------------
unset PYTHONSAFEPATH # it hides the bundle's own train/
type -P -- python3 >/dev/null || {
  printf 'ddpgen: there is no Python called %s here (PATH=%s); set python: in the spec (PY001)\n' \
    python3 "$PATH" >&2; exit 69; }

# --- run: {name} is filled in by the supervisor, which prints the whole command ------------------
exec python3 -m train supervise local \
  --job=fabric --checkpoint-dir=../checkpoints/fabric --procs=2 --bits-may-differ -- \
  torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 --max-restarts=3 \
    --monitor-interval=0.1 -- \
  script code/train.py --epochs=10 -- "$@"
