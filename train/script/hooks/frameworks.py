"""Hooks in Hugging Face's Trainer, Lightning and accelerate.

The hooks save and end on request, go on from the newest whole checkpoint, and record which checkpoint directories are
whole. Each function here that installs hooks is called when the script has imported the framework.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from train.base.console import say
from train.script.hooks.session import Session

TRANSFORMERS, LIGHTNING = "transformers", "lightning"
_HOLDS = {
    TRANSFORMERS: "Hugging Face Trainer: a stop saves; it resumes at the same sample, with the same bits on as many "
    "processes",
    LIGHTNING: "Lightning: a stop saves; it resumes with the same bits from an epoch's end only, and without random "
    "numbers (dropout, or a shuffle on one process)",
}


def hook_transformers(session: Session, module: Any) -> None:
    """Install the hooks in `transformers.trainer`, after its import."""
    trainer = module.Trainer
    base = module.TrainerCallback

    class Callback(base):  # type: ignore[misc, valid-type]
        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            session.progress.step = state.global_step

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            session.progress.step = state.global_step
            if session.stop.due():
                control.should_save = True

        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if session.stop.due():
                session.end()

    module.DEFAULT_CALLBACKS.append(Callback)
    train, save = trainer.train, trainer._save_checkpoint

    @functools.wraps(train)
    def resuming(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        with session.training_by(TRANSFORMERS, _HOLDS[TRANSFORMERS]):
            searches = kwargs.get("trial", args[0] if args else None) is not None
            if resume_from_checkpoint in (None, False) and not searches:
                resume_from_checkpoint = session.resume_from()
                if resume_from_checkpoint is not None and _is_over(
                    self, resume_from_checkpoint, module
                ):
                    return module.TrainOutput(self.state.global_step, 0.0, {})
            return train(self, resume_from_checkpoint, *args, **kwargs)

    @functools.wraps(save)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        place = os.path.join(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        with session.progress.saving(place, session.framework):
            result = save(self, *args, **kwargs)
            session.all_ranks()  # each rank adds the state of its own random numbers
            return result

    trainer.train, trainer._save_checkpoint = resuming, recorded


def _is_over(trainer: Any, checkpoint: str, module: Any) -> bool:
    """Return whether `checkpoint` is of the last step, and load it in that case, because Trainer.train would take one
    more step from there."""
    state = module.TrainerState.load_from_json(os.path.join(checkpoint, "trainer_state.json"))
    if not 0 < trainer.args.max_steps <= state.global_step:
        return False
    trainer._load_from_checkpoint(checkpoint)
    trainer.state = state
    return True


def hook_lightning(session: Session, module: Any) -> None:
    """Install the hooks in `lightning.pytorch.trainer.trainer`, or pytorch_lightning's, after its import."""
    trainer = module.Trainer
    base = module.Callback
    fit, save = trainer.fit, trainer.save_checkpoint

    class Callback(base):  # type: ignore[misc, valid-type]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            session.progress.step = trainer.global_step

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            session.progress.step = trainer.global_step
            if session.stop.due():
                kept = getattr(trainer.checkpoint_callback, "dirpath", None)
                trainer.save_checkpoint(
                    os.path.join(kept or trainer.default_root_dir, "stopped.ckpt")
                )
                session.end()

    @functools.wraps(fit)
    def resuming(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(each, Callback) for each in self.callbacks):
            self.callbacks.append(Callback())
        with session.training_by(LIGHTNING, _HOLDS[LIGHTNING]):
            if len(args) < 5 and kwargs.get("ckpt_path") is None:
                kwargs["ckpt_path"] = session.resume_from()
            return fit(self, *args, **kwargs)

    trainer.fit, trainer.save_checkpoint = resuming, _recorded(session, save)


def hook_fabric(session: Session, module: Any) -> None:
    """Install the hook in `lightning.fabric.fabric`, after its import."""
    module.Fabric.save = _recorded(session, module.Fabric.save)


def hook_lightning_files(session: Session, module: Any) -> None:
    """Install the hook in `lightning.fabric.utilities.cloud_io`, after its import.

    Lightning writes a file in the system's temporary directory and moves it to its place. On another file system this
    move is a copy over the previous file, so a kill would leave half a file.
    """
    save = module._atomic_save

    @functools.wraps(save)
    def atomic(checkpoint: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or "://" in str(filepath):
            return save(checkpoint, filepath, *args, **kwargs)
        return sys.modules["torch"].save(checkpoint, filepath)

    module._atomic_save = atomic


def _recorded(session: Session, save: Callable[..., Any]) -> Callable[..., Any]:
    """Return `save` with a record of its file. `save`: a method of Lightning whose first argument is a path. Lightning
    writes the file whole or not at all."""

    @functools.wraps(save)
    def recorded(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        session.progress.check(os.fspath(path))
        result = save(self, path, *args, **kwargs)
        session.progress.saved(os.fspath(path), session.framework)
        return result

    return recorded


def hook_accelerate(session: Session, module: Any) -> None:
    """Install the hook in `accelerate.accelerator`, after its import."""
    accelerator = module.Accelerator
    save = accelerator.save_state

    @functools.wraps(save)
    def recorded(self: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        settings = self.project_configuration
        place = output_dir
        if settings.automatic_checkpoint_naming:
            place = os.path.join(
                self.project_dir, "checkpoints", f"checkpoint_{settings.iteration}"
            )
        with session.progress.saving(os.fspath(place)):
            return save(self, output_dir, *args, **kwargs)

    accelerator.save_state = recorded


def hooks(session: Session) -> dict[str, Callable[[ModuleType], None]]:
    """Return the hook of each module, by the module's name."""
    from train.script.hooks import in_torch

    every = {
        "torch": in_torch.hook_torch,
        "torch.utils.data.dataloader": in_torch.hook_dataloader,
        "safetensors.torch": in_torch.hook_safetensors,
        "transformers.trainer": hook_transformers,
        "torch.distributed.checkpoint.state_dict_saver": in_torch.hook_distributed_save,
        "torch.distributed.checkpoint.state_dict_loader": in_torch.hook_distributed_load,
        "lightning.fabric.fabric": hook_fabric,
        "lightning_fabric.fabric": hook_fabric,
        "lightning.fabric.utilities.cloud_io": hook_lightning_files,
        "lightning_fabric.utilities.cloud_io": hook_lightning_files,
        "lightning.pytorch.trainer.trainer": hook_lightning,
        "pytorch_lightning.trainer.trainer": hook_lightning,
        "accelerate.accelerator": hook_accelerate,
    }
    return {name: functools.partial(_guarded, session, name, hook) for name, hook in every.items()}


def _guarded(
    session: Session, name: str, hook: Callable[[Session, ModuleType], None], module: Any
) -> None:
    """Call the hook. If it does not fit this version of the framework, print a line and go on without it."""
    try:
        hook(session, module)
    except Exception as error:  # noqa: BLE001 - it is the script that counts
        version = getattr(module, "__version__", "")
        say(
            f"{name} {version}: ddpgen's hook does not fit ({type(error).__name__}: {error}); going on without"
        )
