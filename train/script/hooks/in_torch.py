"""Hooks in torch: the optimizer steps of a script, its saves and its loads.

A save to a path is atomic: the file is written under another name, synced, and renamed. So if a script overwrites one
file again and again, a kill during a save leaves the previous file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from train.health.phase import BACKWARD, doing
from train.script.hooks.order import Iteration
from train.script.hooks.session import Session

# How many bytes to write after a failed save, to test whether the disk is full.
_TRIAL = 1 << 20


def hook_torch(session: Session, torch: Any) -> None:
    """Install the hooks in `torch`, after its import."""
    # Replace each function in both places, because pickle finds a function by its module.
    torch.save = torch.serialization.save = _saving(session, torch.save, argument_index=1, name="f")
    torch.load = torch.serialization.load = _loading(session, torch.load, name="f")
    # Take the module from sys.modules, because torch.optim deletes its attribute `optimizer`.
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(
        lambda optimizer, *_: session.stepped(optimizer)
    )
    backward, scale = torch.Tensor.backward, torch.amp.GradScaler.scale

    @functools.wraps(scale)
    def scaling(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if scaled is not outputs and isinstance(scaled, torch.Tensor):
            scaled._ddpgen_loss = outputs
        return scaled

    @functools.wraps(backward)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        session.note_loss(getattr(self, "_ddpgen_loss", self))
        with doing(BACKWARD):
            return backward(self, *args, **kwargs)

    torch.Tensor.backward, torch.amp.GradScaler.scale = noting, scaling


def hook_dataloader(session: Session, module: Any) -> None:
    """Install the hooks in `torch.utils.data.dataloader`, after its import."""
    base = module._BaseDataLoaderIter
    begin, draw, give = base.__init__, base._next_index, base.__next__

    @functools.wraps(begin)
    def beginning(self: Any, loader: Any) -> None:
        # An iterable dataset does not tell which samples it yields.
        if loader._dataset_kind == module._DatasetKind.Map:
            with contextlib.suppress(TypeError):
                self._ddpgen_iteration = Iteration(len(loader), loader.sampler)
        begin(self, loader)

    @functools.wraps(draw)
    def drawing(self: Any) -> Any:
        indices = draw(self)
        if iteration := getattr(self, "_ddpgen_iteration", None):
            session.note_drawn(iteration, indices)
        return indices

    @functools.wraps(give)
    def giving(self: Any) -> Any:
        batch = give(self)
        if iteration := getattr(self, "_ddpgen_iteration", None):
            session.note_given(iteration)
        return batch

    base.__init__, base._next_index, base.__next__ = beginning, drawing, giving


def hook_safetensors(session: Session, module: Any) -> None:
    """Install the hooks in `safetensors.torch`, after its import."""
    module.save_file = _saving(session, module.save_file, argument_index=1, name="filename")
    module.load_file = _loading(session, module.load_file, name="filename")


def hook_distributed_save(session: Session, module: Any) -> None:
    """Install the hook in `torch.distributed.checkpoint.state_dict_saver`, after its import."""
    save = module.save

    @functools.wraps(save)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        path = _path(
            kwargs.get("checkpoint_id") or getattr(kwargs.get("storage_writer"), "path", None)
        )
        with session.progress.saving(path) if path else contextlib.nullcontext():
            return save(*args, **kwargs)

    module.save = recorded


def hook_distributed_load(session: Session, module: Any) -> None:
    """Install the hook in `torch.distributed.checkpoint.state_dict_loader`, after its import."""
    module.load = _loading(session, module.load, name="checkpoint_id")


def _saving(
    session: Session, save: Callable[..., Any], argument_index: int, name: str
) -> Callable[..., Any]:
    """Return an atomic form of `save`, whose path is the argument at index `argument_index` or with the name `name`."""

    @functools.wraps(save)
    def atomic(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get(name, args[argument_index] if len(args) > argument_index else None)
        path = _path(given)
        if path is None or not _may_be_replaced(path):
            # If the script gave an open file, that file is empty already and cannot be protected. Only record the save.
            opened = _path(getattr(given, "name", None))
            if opened is None:
                return save(*args, **kwargs)
            session.progress.check(opened)
            result = save(*args, **kwargs)
            session.progress.saved(opened)
            return result
        session.progress.check(path)
        with _draft(path, session) as draft:
            if name in kwargs:
                result = save(*args, **{**kwargs, name: draft})
            else:
                result = save(*args[:argument_index], draft, *args[argument_index + 1 :], **kwargs)
        session.progress.saved(path)
        return result

    return atomic


def _loading(session: Session, load: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(load)
    def noting(*args: Any, **kwargs: Any) -> Any:
        result = load(*args, **kwargs)
        given = kwargs.get(name, args[0] if args else None)
        reader = kwargs.get("storage_reader")  # of torch.distributed.checkpoint
        path = _path(given) or _path(getattr(given, "name", getattr(reader, "path", None)))
        if path is not None:
            session.progress.loaded(path)
        return result

    return noting


@contextlib.contextmanager
def _draft(path: str, session: Session) -> Iterator[str]:
    """Yield a path in the same folder to write to, and rename it to `path` at the end. An error leaves `path`
    unchanged."""
    path = os.path.realpath(path)  # replace the link's target, not the link
    if session.bucket and path.startswith(session.bucket):
        yield path
        return
    # Keep the file's name, because torch.save writes it into the file.
    prefix, folder = session.progress.draft_prefix, os.path.dirname(path)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as place:
        draft = os.path.join(place, os.path.basename(path))
        with _full_disk_named(folder):
            yield draft
            with open(draft, "rb") as file:
                os.fsync(file.fileno())
        os.replace(draft, path)


@contextlib.contextmanager
def _full_disk_named(folder: str) -> Iterator[None]:
    """Within this context, if the disk of `folder` is full, let the error say so, because torch's own words would be
    "unexpected pos 704 vs 598"."""
    try:
        yield
    except Exception as error:
        if _is_full(folder):
            words = (
                f"no space is left on the disk of {folder}; free some, or save elsewhere ({error})"
            )
            if isinstance(error, OSError):
                error.strerror = words
            else:
                error.args = (words,)
        raise


def _is_full(folder: str) -> bool:
    """Return whether the disk of `folder` is full. Tries a write, because a quota shows only in a write."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(os.urandom(_TRIAL))  # zeros may be stored as nothing
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _may_be_replaced(path: str) -> bool:
    """Return whether a rename may replace `path`, which then is no device or pipe and lies in a writable directory."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        regular = True
    return regular and os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)


def _path(target: Any) -> str | None:
    if not isinstance(target, (str, os.PathLike)):
        return None
    path = os.fspath(target)
    return path if isinstance(path, str) and "://" not in path else None
