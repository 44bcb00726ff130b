"""Training imports neither torch's compiler nor sympy, and whoever wants them still gets them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = """
import sys, torch
from train.distributed.lean import keep_steps_uncompiled, without_compiler
model = torch.nn.Linear(2, 2)
with without_compiler():
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
keep_steps_uncompiled(optimizer)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


# Runs each line of its standard input in a fork, so that torch is imported once for all of them.
SERVER = """
import json, os, sys, torch
for line in sys.stdin:
    if not os.fork():
        exec(json.loads(line), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    print("failed" if os.wait()[1] else "ended", flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A fresh Python that has imported torch, and nothing of the compiler."""
    argv = [sys.executable, "-c", SERVER]
    with subprocess.Popen(argv, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


Python = Callable[[str], list[str]]


@pytest.fixture
def python(server: subprocess.Popen[str]) -> Python:
    """Run code in a fork of the server. Returns the lines that the code prints."""

    def run(code: str) -> list[str]:
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(code), file=server.stdin, flush=True)
        lines: list[str] = []
        for line in server.stdout:
            if line == "ended\n":
                return lines
            assert line != "failed\n", lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(lines)

    return run


@pytest.mark.skipif(int(version("torch").split(".")[1]) < 6, reason="it imports both by itself")
def test_a_training_imports_neither_compiler_nor_sympy(python: Python, tmp_path: Path) -> None:
    argv = [
        "--workload=toy", "--steps=2", "--global-batch-size=4", "--micro-batch-size=2",
        "--optimizer=adamw", "--eval-every=1", f"--checkpoint-dir={tmp_path}",
    ]  # fmt: skip
    code = (
        f"import sys; from train.worker import main; assert main({argv}) == 0; "
        "print({'sympy', 'torch._dynamo'} & {*sys.modules})"
    )
    assert python(code)[-1:] == ["set()"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        pytest.param("print(bool(torch._dynamo.config.optimize_ddp))", marks=pytest.mark.nightly),
        "f = torch.compile(lambda x: x + 1, backend='eager'); print(f(torch.ones(1)).item() == 2)",
        pytest.param(
            "with without_compiler(): print(bool(torch._dynamo.config.optimize_ddp))",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_the_compiler_is_there_for_whoever_asks(python: Python, use: str) -> None:
    asks = "import torch._dynamo.utils\nprint(torch._dynamo is sys.modules['torch._dynamo'])"
    assert python(f"{STEP}\n{use}\n{asks}") == ["True", "True"]


@pytest.mark.slow
def test_hooks_of_the_users_are_called_and_may_import_it(python: Python) -> None:
    """In another thread, too: a step hides nothing."""
    code = """
import threading
def before(optimizer, args, kwargs):
    def use():
        import torch._dynamo.config
    other = threading.Thread(target=use)
    other.start()
    other.join()
    print('torch._dynamo.config' in sys.modules)
optimizer.register_step_pre_hook(before)
optimizer.register_step_post_hook(lambda *rest: print(torch.is_grad_enabled()))
optimizer.step()
optimizer.step()
"""
    assert python(STEP + code) == ["True"] * 4


@pytest.mark.nightly
def test_the_weights_are_those_of_torchs_own_step(python: Python) -> None:
    code = """
from copy import deepcopy
from train.distributed.lean import keep_steps_uncompiled
import torch
for name, more in (('AdamW', {'lr': .1}), ('SGD', {'lr': .1, 'momentum': .9}), ('Adam', {'lr': .1})):
    kind, found = getattr(torch.optim, name), []
    start = torch.nn.Linear(3, 2)
    for patched in (False, True):
        model = deepcopy(start)
        optimizer = kind(model.parameters(), **more)
        if patched:
            keep_steps_uncompiled(optimizer)
            keep_steps_uncompiled(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().sum().backward()
            optimizer.step(lambda: None)
        found.append(model.weight.detach().clone())
    print(torch.equal(*found))
"""
    assert python(code) == ["True"] * 3
