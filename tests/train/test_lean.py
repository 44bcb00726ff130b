"""Training imports neither torch's compiler nor sympy, and whoever wants them still gets them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = """
import sys, torch
from train.lean import keep_steps_uncompiled, without_compiler
model = torch.nn.Linear(2, 2)
with without_compiler():
    optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
keep_steps_uncompiled(optimizer)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
state = optimizer.state_dict()
optimizer.load_state_dict(state)
"""


# Every piece of code runs in a child of a process that has imported torch, and nothing else, once.
FORKS = """
import json, os, sys, torch
for line in sys.stdin:
    if not os.fork():
        exec(json.loads(line), {})
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


class Torch:
    """A fresh Python with torch, again and again."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, code: str) -> str:
        """What it prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(code), file=self._process.stdin, flush=True)
        said: list[str] = []
        for line in self._process.stdout:
            said.append(line.strip())
            if said[-1].lstrip("-").isdigit():
                break
        assert said[-1:] == ["0"], said
        return "\n".join(said[:-1])


@pytest.fixture(scope="module")
def python() -> Iterator[Torch]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True
    ) as process:
        yield Torch(process)


@pytest.mark.skipif(int(version("torch").split(".")[1]) < 6, reason="it imports both by itself")
def test_a_training_imports_neither_compiler_nor_sympy(tmp_path: Path) -> None:
    argv = [
        "--workload=toy", "--steps=2", "--global-batch-size=4", "--micro-batch-size=2",
        "--optimizer=adamw", "--eval-every=1", f"--checkpoint-dir={tmp_path}",
    ]  # fmt: skip
    code = (
        f"import sys; from train.worker import main; assert main({argv}) == 0; "
        "print({'sympy', 'torch._dynamo'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1:] == ["set()"], done


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_steps_of_torchs_optimizers_do_without_it(python: Torch, optimizer: str) -> None:
    code = STEP.format(optimizer=optimizer) + "print('torch._dynamo' in sys.modules)"
    assert python(code) == "False"


USES = [
    pytest.param(
        "import torch._dynamo.config as c; print(bool(c.optimize_ddp))", marks=pytest.mark.nightly
    ),
    "print(bool(torch._dynamo.config.optimize_ddp))",
    pytest.param(
        "f = torch.compile(lambda x: x + 1, backend='eager'); print(f(torch.ones(1)).item() == 2)",
        marks=pytest.mark.nightly,
    ),
    pytest.param(
        "with without_compiler():\n  print(bool(torch._dynamo.config.optimize_ddp))",
        marks=pytest.mark.nightly,
    ),
]


@pytest.mark.parametrize("use", USES)
def test_it_is_there_for_whoever_asks(python: Torch, use: str) -> None:
    asks = "import torch._dynamo.utils\nprint(torch._dynamo is sys.modules['torch._dynamo'])"
    assert python(f"{STEP.format(optimizer='AdamW')}\n{use}\n{asks}") == "True\nTrue"


def test_hooks_of_the_users_are_called_and_may_import_it(python: Torch) -> None:
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
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.step()
"""
    assert python(STEP.format(optimizer="AdamW") + code) == "\n".join(["True"] * 4)


def test_the_weights_are_those_of_torchs_own_step(python: Torch) -> None:
    code = """
from copy import deepcopy
from train.lean import keep_steps_uncompiled
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
    assert python(code) == "\n".join(["True"] * 3)


@pytest.mark.nightly
def test_an_optimizer_of_the_users_meets_torch_as_it_is(python: Torch) -> None:
    code = """
class Own(torch.optim.SGD):
    def step(self, closure=None):
        import torch._dynamo.config
        return super().step(closure)
own = Own(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
keep_steps_uncompiled(own)
own.step()
print('torch._dynamo.config' in sys.modules)
"""
    assert python(STEP.format(optimizer="AdamW") + code) == "True"
