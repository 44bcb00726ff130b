"""One micro-batch, computed twice before the first step: it has to give the same bits, and to call no collective.

Owns the comparison, the watch on collectives, and the messages of both. Leaves parameters, gradients and buffers as
they were. It need not restore the random state, which is set before each micro-batch anyway.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from train.base.console import say
from train.base.errors import TrainError
from train.distributed.process_group import World
from train.health.stacks import innermost_user_line

# torch's words in the debug mode "error".
_NOT_DETERMINISTIC = re.compile(
    r"(\S+) does not have a deterministic implementation|because it uses CuBLAS"
)
# The methods of a process group through which every function of torch.distributed goes.
_COLLECTIVE = re.compile(r"(?!__).*(all|reduce|gather|scatter|broadcast|barrier|send|recv)")


@dataclass(frozen=True)
class Repetition:
    """The result on one rank. `difference`: the difference in words, "" if both results have the same bits. `loss`: the
    first loss, or None. `operation`: an operation without a deterministic version, by torch's name, or ""."""

    difference: str
    loss: float | None
    operation: str = ""


def check(
    model: torch.nn.Module,
    compute: Callable[[Any], torch.Tensor],
    read: Callable[[], Iterable[Any]],
    world: World,
    may_meet: bool = False,
) -> bool:
    """Compute the micro-batch that `read` returns twice, on every rank. Return whether all bits are the same.

    On a GPU, torch is in the debug mode "error" afterwards, because in the mode "warn" the backward pass of attention
    does not repeat its bits. If an operation has no deterministic version, the mode is "warn", and rank 0 prints a
    warning.
    """
    if world.device.type == "cpu":
        return report(repeat(model, compute, read(), may_meet), world)
    torch.set_deterministic_debug_mode("error")
    repetition = repeat(model, compute, read(), may_meet)
    operations = sorted({*world.all_gather(repetition.operation)} - {""})
    if not operations:
        return report(repetition, world)
    torch.set_deterministic_debug_mode("warn")
    if world.rank == 0:
        say(
            f"warning: torch has no deterministic version of {', '.join(operations)} on a GPU. So the weights may differ "
            "from run to run. Use another operation if the bits have to be the same (docs/performance.md, What fixes "
            "the bits)"
        )
    report(repeat(model, compute, read(), may_meet), world)
    return False


def repeat(
    model: torch.nn.Module,
    compute: Callable[[Any], torch.Tensor],
    batches: Iterable[Any],
    may_meet: bool = False,
) -> Repetition:
    """Compute loss and gradients of `batches`, one micro-batch that is read twice, and compare them.

    `compute` sets the random state. Raises TrainError when `compute` calls a collective, unless `may_meet` allows it.
    """
    try:
        with nullcontext() if may_meet else _no_collectives():
            return _repeat(model, compute, list(batches))
    except _CollectiveError as error:
        raise TrainError(
            f"{innermost_user_line(error.__traceback__)} calls {error} while a micro-batch is computed; "
            "processes with different numbers of micro-batches would wait there for ever, and with equal "
            "numbers the weights would depend on the number of processes. Compute the loss from its own "
            "micro-batch, and raise train.micro_batch_size if more samples have to meet in it "
            "(docs/workloads.md, A loss over many samples)"
        ) from None
    except Exception as error:  # noqa: BLE001 - the first step raises it again, and reports it as usual
        refused = _NOT_DETERMINISTIC.search(str(error)) if isinstance(error, RuntimeError) else None
        without = "cuBLAS without CUBLAS_WORKSPACE_CONFIG=:4096:8"
        return Repetition("", None, (refused[1] or without) if refused else "")


def _repeat(
    model: torch.nn.Module, compute: Callable[[Any], torch.Tensor], batches: Sequence[Any]
) -> Repetition:
    place = next(_differing_values(*batches), None)
    if place is not None:
        return Repetition(f"the batch{place} was another one when it was read again", None)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    results = []
    model.train()
    for batch in batches:
        with _state_kept(model):  # because every micro-batch of a step starts from the same buffers
            loss = compute(batch)
            loss.backward()
            results.append((loss.detach(), [p.grad for _, p in named]))
    (first, gradients), (second, others) = results
    found = []
    if not _same_bits(first, second):
        found.append(f"its loss was {first.item():.9g}, then {second.item():.9g}")
    pairs = zip(named, gradients, others, strict=True)
    changed = [name for (name, _), one, other in pairs if not _same_bits(one, other)]
    if changed:
        more = f" (the first of {len(changed)} parameters)" if len(changed) > 1 else ""
        found.append(f"the gradient of {changed[0]}{more} was another one")
    return Repetition(", ".join(found), first.item())


def report(repetition: Repetition, world: World) -> bool:
    """Return whether no rank found a difference; rank 0 prints a warning if one did."""
    repetitions = world.all_gather(repetition)
    differing = [
        (rank, each.difference) for rank, each in enumerate(repetitions) if each.difference
    ]
    losses = [(rank, each.loss) for rank, each in enumerate(repetitions) if each.loss is not None]
    odd = [(rank, loss) for rank, loss in losses if repr(loss) != repr(losses[0][1])]
    if differing:
        difference = f"on rank {differing[0][0]}, {differing[0][1]}"
    elif odd:
        (rank, loss), (other, another) = losses[0], odd[0]
        difference = f"its loss is {loss:.9g} on rank {rank} and {another:.9g} on rank {other}"
    else:
        return True
    if world.rank == 0:
        on_gpu = world.device.type == "cuda"
        gpu = " An operation of a GPU that is not deterministic does this, too." if on_gpu else ""
        say(
            f"warning: one micro-batch gave two results: {difference}. So the weights will depend on the number of "
            "processes and on restarts. Draw random numbers from the default generators only, keep nothing "
            "outside of parameters and buffers, and use neither rank, clock nor file order "
            f"(docs/workloads.md, What keeps the bits the same).{gpu}"
        )
    return False


class _CollectiveError(Exception):
    """Raised with the name of the function in torch.distributed that was called."""


@contextmanager
def _no_collectives() -> Iterator[None]:
    """Within this context a collective of this thread raises _CollectiveError.

    Wraps the methods of the process group, so that the name by which the user's code calls a function does not matter.
    """
    thread = threading.get_ident()

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                raise _CollectiveError(f"torch.distributed.{sys._getframe(1).f_code.co_name}")
            return method(*args, **kwargs)

        return call

    group = dist.ProcessGroup
    # Take the methods from vars(), because a method from getattr() would not bind to a group after it is put back.
    methods = {name: each for name, each in vars(group).items() if _COLLECTIVE.match(name)}
    for name, method in methods.items():
        setattr(group, name, watched(method))
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(group, name, method)


@contextmanager
def _state_kept(model: torch.nn.Module) -> Iterator[None]:
    """At the end of this context, clear the gradients, and restore the set of buffers and their values."""
    kept = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffers, before in kept:
            buffers.clear()
            buffers.update(before)
        for buffer, value in values:
            buffer.data.copy_(value)
        model.zero_grad(set_to_none=True)


def _differing_values(first: Any, second: Any, path: str = "") -> Iterator[str]:
    """Yield the places where two batches differ, as `[0]` or `['image']`. Compares only the tensors in dicts, lists and
    tuples."""
    if isinstance(first, torch.Tensor):
        if not isinstance(second, torch.Tensor) or not _same_bits(first, second):
            yield path
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in first:
            yield from _differing_values(first[key], second.get(key), f"{path}[{key!r}]")
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        for i, each in enumerate(first):
            counterpart = second[i] if i < len(second) else None
            yield from _differing_values(each, counterpart, f"{path}[{i}]")


def _same_bits(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Return whether the bits are the same, apart from the sign of a zero; NaN equals NaN."""
    if first is None or second is None:
        return first is second
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.is_sparse:
        first, second = first.coalesce(), second.coalesce()
        return _same_bits(first.indices(), second.indices()) and _same_bits(
            first.values(), second.values()
        )
    return torch.equal(first, second) or bool(
        ((first == second) | (first.isnan() & second.isnan())).all()
    )
