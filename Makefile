# One way to do each development task. Every target does its own set-up first: nothing else to type.
# .venv is made by tools/venv.sh from requirements-dev.lock; PYTHON=/path/to/python3 chooses another
# interpreter for it. The help text is the comment after ##.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help run rig sky frameworks check test nightly gpu static lint types bench golden docs pictures site lock dist clean venv

# The job that `make run` renders and runs: make run SPEC=examples/toy.yaml
SPEC := examples/gpt.yaml
# The hosts that `make rig` brings up: make rig HOSTS="desk laptop:wlan0 vm3"
HOSTS := desk laptop
# Passed on to pytest, to run a part: make check ARGS="tests/ddpgen -k quoting"
ARGS :=

# Files at a time on two cores: most tests of the day wait for something. The stories of the night compute, and their
# launches would time out. In the order of tests/conftest.py.
AT_ONCE := 6
nightly: AT_ONCE := 3
check: AT_ONCE := 7
PYTEST = python -m pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder

# What runs before the job's own Python is there; pyproject.toml tells ruff the same.
ON_SYSTEM_PYTHON := train/__main__.py train/tools/doctor.py $(addprefix train/,base health run preflight launch)

BIN := $(CURDIR)/.venv/bin
# Rendered scripts call `python3` as a user's would; this makes it .venv's.
export PATH := $(BIN):$(PATH)

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: venv ## render examples/gpt.yaml for every tier and train it here; again after Ctrl-C: it resumes
	ddpgen render $(SPEC) --target all
	@# exec, so that make's SIGTERM reaches the script. It passes that on, and make's own death.
	@exec python tools/run.py build/$(basename $(notdir $(SPEC)))/local.sh

rig: venv ## as root: hosts on this machine (HOSTS="desk laptop:wlan0"), and a shell among them
	@python -m tests.real.rig up $(HOSTS)

sky: ## SkyPilot, in an environment of its own (.venv-sky); without it the tests of tier sky are skipped
	@tools/venv.sh sky

frameworks: venv ## Hugging Face, Lightning and accelerate, for the tests of scripts written with them
	@tools/venv.sh frameworks

check: static ## format, lint, types and the quick tests, which start no engine: under 3 minutes
	$(PYTEST) -m "not real and not slow and not nightly" $(ARGS)

test: static ## check, and the real stories: local, hosts, Slurm, SkyPilot; about 12 minutes
	$(PYTEST) -m "not nightly" $(ARGS)

nightly: static sky frameworks site ## every test, and the promised times alone on the machine: about an hour and a half
	@rm -f .pytest_cache/v/cache/lastfailed
	$(PYTEST) --ignore-glob='*/tests/real/test_preflight*.py' --ignore=tests/real/test_probe.py || python tools/again.py
	@# One at a time: a story that shares the processors says nothing of the seconds it takes, or of the wire.
	DDPGEN_TEST_TIMES=1 python -m pytest tests/real/test_preflight*.py tests/real/test_probe.py
	@# The lock's torch is neither the oldest that is supported nor the newest.
	for torch in torch==2.4.0 torch; do tools/venv.sh $$torch && $(PYTEST:python=.venv-$$torch/bin/python) \
	  tests/train --ignore=tests/train/preflight --ignore=tests/train/launch || exit; done

static: venv ## lint and types, side by side
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types

lint: venv ## formatting and lint, as CI judges them
	ruff format --check .
	ruff check .
	@# A batch host may have no Python but the system's (RHEL 9: 3.9), where the job's own is in a container.
	vermin --quiet --no-tips --violations --target=3.9- $(ON_SYSTEM_PYTHON)

types: venv ## the strict type check of ddpgen/ and train/
	mypy

gpu: venv ## what takes an NVIDIA GPU: the bits of every precision, kills, the cost of steps and checkpoints; ten minutes
	python -m pytest -n 4 --dist load tests/gpu
	@mkdir -p build/bench
	python benchmarks/step.py --cuda --blocks 5 --json build/bench/gpu.json
	python benchmarks/checkpoint.py --cuda --blocks 2 --json build/bench/gpu-checkpoint.json

bench: venv ## the benchmarks against their baselines, interleaved; figures in build/bench/
	@mkdir -p build/bench
	@for each in benchmarks/*.py; do \
	  echo "+ python $$each --json build/bench/$$(basename $$each .py).json"; \
	  python $$each --json build/bench/$$(basename $$each .py).json || exit; \
	done

golden: venv ## write the golden files anew from what is rendered now; read their diff before committing
	python -m pytest tests/ddpgen/test_plan.py tests/ddpgen/test_hosts.py tests/ddpgen/test_slurm.py tests/ddpgen/test_sky.py tests/ddpgen/test_schema.py tests/ddpgen/test_errors.py \
	  tests/ddpgen/test_watch.py tests/ddpgen/test_monitor_states.py tests/train/launch/test_endings.py tests/project/test_mistakes.py \
	  --update-golden
	git diff --stat -- tests/golden docs

docs: pictures site ## the pictures of the docs by real runs, and the site; a few minutes

pictures: venv ## docs/diagram.svg, and by real runs docs/recording.svg and docs/report-example.html
	python tools/diagram.py
	python tools/recording.py
	python tools/report_example.py

site: ## build the documentation site, strictly: build/site/index.html
	@tools/venv.sh docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

lock: venv ## resolve the newest versions pyproject.toml allows and write the lock files
	python tools/lock.py

dist: venv ## build the wheel and the sdist into dist/
	python -m build --no-isolation

clean: ## remove what the targets made (bundles, dist/, caches, .venv); checkpoints stay
	@# A relative checkpoint.dir lies beside the bundles, in build/checkpoints.
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name checkpoints -exec rm -rf {} +
	rm -rf dist .venv .venv.lock .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@tools/venv.sh
