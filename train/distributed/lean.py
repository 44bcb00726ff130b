"""A start without torch's compiler, which torch otherwise imports for every optimizer and every DDP.

Nothing here compiles, and the import takes as long as all the rest of torch (1.4 of 3.1 s, torch 2.13).
Owns the places where torch asks for it on the way. Where torch has changed, or the user's own code
has imported the compiler, everything is as torch does it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

_COMPILER = "torch._dynamo"


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Build an optimizer of torch's or a DDP in here."""
    if _COMPILER in sys.modules:
        yield
        return
    _leave_all_uncompiled()
    stand_in = _NotYet(_COMPILER)
    sys.modules[_COMPILER] = torch._dynamo = stand_in
    try:
        yield
    finally:
        stand_in.step_aside()


def keep_steps_uncompiled(optimizer: Optimizer) -> None:
    """Have the steps of its class, if that is torch's, do without the compiler until somebody imports it.

    Torch wraps each step twice: by the user's hooks, and by what sets the gradient mode and asks the
    compiler for a graph break. The second one is replaced.
    """
    kind = type(optimizer)
    asking = getattr(kind.step, "__wrapped__", None)
    plain = getattr(asking, "__wrapped__", None)
    name = getattr(getattr(asking, "__code__", None), "co_name", "")
    if (
        asking is None
        or plain is None
        or name != "_use_grad"
        or not kind.__module__.startswith("torch.optim")
    ):
        return

    @functools.wraps(plain)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if _COMPILER in sys.modules:
            return asking(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    hooked = kind.profile_hook_step(step)
    hooked.hooked = True  # type: ignore[attr-defined]  # as torch says that it has done so
    kind.step = hooked  # type: ignore[method-assign]


@functools.cache
def _leave_all_uncompiled() -> None:
    for kind in (Optimizer, DistributedDataParallel):
        _leave_uncompiled(kind)


def _leave_uncompiled(kind: type) -> None:
    """Its methods ask the compiler, at their first call, for a form that the compiler leaves alone.

    That is the method itself, as long as nobody compiles (torch/_compile.py keeps it in this attribute).
    """
    for method in vars(kind).values():
        function = method
        while (inner := getattr(function, "__wrapped__", None)) is not None:
            code = getattr(function, "__code__", None)
            if code is not None and code.co_filename.endswith("_compile.py"):
                inner.__dict__.setdefault("__dynamo_disable", inner)
            function = inner


class _NotYet(ModuleType):
    """What torch meets instead: the answers that it wants, and the compiler itself for all else."""

    class utils:  # noqa: N801 (a module's name)
        @staticmethod
        def get_optimize_ddp_mode() -> str:
            return "ddp_optimizer"

    def step_aside(self) -> None:
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        if vars(torch).get("_dynamo") is self:
            del torch._dynamo

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # the import system's own questions
        self.step_aside()
        return getattr(importlib.import_module(_COMPILER), name)
