#!/usr/bin/env bash
# Make .venv hold exactly what requirements-dev.lock and pyproject.toml ask for. Called by make.
# With the argument sky: .venv-sky, what requirements-sky.lock asks for, and nothing of this checkout.
# With the argument docs: .venv-docs, what requirements-docs.lock asks for, to build the site.
# With the argument frameworks: .venv-frameworks, what requirements-frameworks.lock asks for, beside .venv's torch.
# With the argument torch==2.4.0: .venv-torch==2.4.0, that torch, or whatever pip understands, with what the
# tests of train/ need.
#
# Takes a tenth of a second when there is nothing to do. The stamp is written last, so an install that
# was interrupted (Ctrl-C, full disk, lost network) has none and is done over from an empty directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

part=${1:-dev} uv=0.13.9
venv=.venv inputs=(requirements-dev.lock pyproject.toml tools/venv.sh)
case $part in
sky) venv=.venv-sky inputs=(requirements-sky.lock tools/venv.sh) ;;
docs) venv=.venv-docs inputs=(requirements-docs.lock tools/venv.sh) ;;
frameworks) venv=.venv-frameworks inputs=(requirements-*.lock tools/venv.sh) ;;
torch*) venv=.venv-$part inputs=(tools/venv.sh) ;;
esac

say() { printf '\033[1m[set-up] %s\033[0m\n' "$*"; }
fail() {
  printf '[set-up] %s\n' "$@" >&2
  exit 69
}

# Two makes in one checkout: the second waits here and then finds the work done.
if command -v flock >/dev/null; then
  exec 9>"$venv.lock"
  if ! flock --nonblock 9; then
    say "another make is setting up $venv; waiting for it"
    flock 9
  fi
fi

# What a user's shell or pip.conf may set and what would install elsewhere than into this environment.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1

# Run by the environment's own Python: that it runs at all is part of the question. The directory is in it
# because the scripts of a virtual environment carry its absolute path and break when it is moved.
stamp() {
  "$venv/bin/python" - "${inputs[@]}" <<'PYTHON'
import hashlib, os, sys
state = hashlib.sha256(f"{sys.version}\0{os.getcwd()}\0".encode())
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        state.update(file.read() + b"\0")
print(state.hexdigest())
PYTHON
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3.10 or newer found (looked at PYTHON, python3, python3.13 … python3.10)" \
    "install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3"
}

if [[ -f $venv/.stamp ]] && [[ "$(stamp 2>/dev/null)" == "$(<"$venv/.stamp")" ]]; then
  exit 0
fi

if [[ -f $venv/.stamp ]] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 9>&-; then
  rm "$venv/.stamp"
  say "1/3 $venv is there, but its requirements changed"
else
  python=$(find_python)
  "$python" -c 'import ensurepip, venv' 2>/dev/null || fail \
    "$python cannot create virtual environments: its venv or ensurepip module is missing" \
    "install it (Debian, Ubuntu: apt install python3-venv) and type the same command again"
  say "1/3 creating $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
fi

# Install the packages of a lock file. uv takes a fifth of pip's time. Where it cannot be installed, or cannot reach
# the index, pip does the work. Bytecode is made now, because SkyPilot's rig runs programs that may not write any.
# 9>&-: what pip may leave running in the background must not hold our lock.
install() {
  local python=$venv/bin/python settings each value
  # uv does not read the settings of pip, which say where the packages of this machine come from.
  settings=$("$python" -m pip config list)
  for each in SSL_CERT_FILE=cert UV_DEFAULT_INDEX=index-url UV_FIND_LINKS=find-links; do
    value=$(sed -n "s/^\(global\|:env:\)\.${each#*=}='\(.*\)'$/\2/p" <<<"$settings" | tail -n 1)
    if [[ -n $value ]]; then export "${each%%=*}=$value"; fi
  done
  if "$python" -m pip install --quiet --target "$venv/.uv" "uv==$uv" 9>&- &&
    "$venv/.uv/bin/uv" pip install --compile-bytecode --python "$python" --requirement "$1" 9>&-; then
    return
  fi
  say "uv cannot do it here; pip does"
  "$python" -m pip install --requirement "$1" 9>&-
}

if [[ $part == sky ]]; then
  say "2/3 installing the pinned packages: SkyPilot is a hundred of them"
  install requirements-sky.lock
elif [[ $part == docs ]]; then
  say "2/3 installing mkdocs"
  install requirements-docs.lock
elif [[ $part == frameworks ]]; then
  say "2/3 installing the frameworks that scripts are written with"
  packages=lib/python$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages
  # torch is large: it is .venv's.
  echo "$PWD/.venv/$packages" >"$venv/$packages/dev.pth"
  "$venv/bin/python" -m pip install --requirement requirements-frameworks.lock 9>&-
elif [[ $part == torch* ]]; then
  say "2/3 installing $part and what the tests need"
  "$venv/bin/python" -m pip install --upgrade "$part" 'numpy<2.3' scikit-learn scipy hypothesis \
    pytest pytest-timeout pytest-xdist jinja2 pyyaml click s3fs matplotlib tensorboard 9>&-
else
  say "2/3 installing the pinned packages; torch is the large one, minutes on a slow line"
  install requirements-dev.lock
  say "3/3 installing ddpgen from this checkout"
  .venv/bin/python -m pip install --no-build-isolation --no-deps --editable . 9>&-
fi
"$venv/bin/python" -m pip check 9>&-
stamp >"$venv/.stamp"
say "done"
