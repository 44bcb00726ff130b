#!/usr/bin/env bash
# Makes a machine ready for spot-cpu. SkyPilot runs it on every new machine, maybe twice on one.
# Written by ddpgen: change the spec and render again, rather than this file.
set -euo pipefail

say() { printf 'ddpgen: %s\n' "$*" >&2; }
if [ -z "${HOME:-}" ]; then
  say "HOME is not set, and what is installed goes below it"
  exit 69
fi
# --- the spec's requirements ------------------------------------------------------------------
# An environment for this list alone: made once, found again, and never half made.
environment="$HOME"/.ddpgen/env-5b719bcaf931
requirements='
torch==2.13.0
numpy==2.2.6
'
mkdir -p -- "${environment%/*}"
if type -P flock >/dev/null; then
  exec 9>"$environment.lock" # machines may share their home
  flock 9
fi
if [ ! -e "$environment/installed.txt" ]; then
  rm -rf -- "$environment"
  python3 -m venv "$environment" || {
    say "no virtual environment could be made with python3; on Debian and Ubuntu that takes python3-venv (setup: [sudo apt-get install -y python3-venv])"
    exit 69
  }
  printf '%s' "$requirements" >"$environment/requirements.txt"
  "$environment/bin/python" -m pip install --no-input --disable-pip-version-check --quiet -r "$environment/requirements.txt" || {
    say "pip could not install the spec's requirements; its words are above"
    exit 69
  }
  "$environment/bin/python" -m pip freeze --disable-pip-version-check >"$environment/freeze.new"
  mv -- "$environment/freeze.new" "$environment/installed.txt"
fi
say "in $environment: $(tr '\n' ' ' <"$environment/installed.txt")"
