"""A start without torch's compiler, which torch otherwise imports for every optimizer and every DDP.

The training does not compile, and the import takes as long as all the rest of torch (1.4 of 3.1 s, torch 2.13).
Owns the places in torch that would import the compiler. If torch has changed, or if the user's own code has
imported the compiler, torch's own behaviour stays.
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
    """Within this context, building an optimizer of torch's or a DDP does not import the compiler."""
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
    """If the optimizer's class is torch's, let its steps work without the compiler until somebody imports it.

    Torch wraps each step twice: one wrapper calls the user's hooks, the other sets the gradient mode and asks the
    compiler for a graph break. Replace the second wrapper.
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
    hooked.hooked = True  # type: ignore[attr-defined]  # torch's own mark of a wrapped step
    kind.step = hooked  # type: ignore[method-assign]


@functools.cache
def _leave_all_uncompiled() -> None:
    for kind in (Optimizer, DistributedDataParallel):
        _leave_uncompiled(kind)


def _leave_uncompiled(kind: type) -> None:
    """Give the class's methods the form that they would ask the compiler for at their first call.

    In this form the compiler leaves a method alone. As long as nobody compiles, this form is the method itself.
    torch/_compile.py keeps it in the attribute `__dynamo_disable`.
    """
    for method in vars(kind).values():
        function = method
        while (inner := getattr(function, "__wrapped__", None)) is not None:
            code = getattr(function, "__code__", None)
            if code is not None and code.co_filename.endswith("_compile.py"):
                inner.__dict__.setdefault("__dynamo_disable", inner)
            function = inner


class _NotYet(ModuleType):
    """Stand-in for the compiler's module: has what torch asks for here, and loads the compiler for anything more."""

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
            raise AttributeError(name)  # asked by the import system
        self.step_aside()
        return getattr(importlib.import_module(_COMPILER), name)
