"""Builds the workload that a name in the spec means: a built-in one, or a function in a file of the user's.

The errors name the missing part.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from train.base.errors import TrainError, peer_failure
from train.base.words import did_you_mean
from train.workload import Context, Workload

BUILT_IN = ("gpt", "mnist", "toy")


def load_workload(name: str, context: Context, args: Mapping[str, Any]) -> Workload:
    """Build the workload that `name` names: a built-in one, or `file.py:function` in the user's code.

    Raises TrainError when the file, the function or a required part of its result is missing, or
    when `args` does not fit the function's parameters.
    """
    try:
        build = _find_builder(name)
        _check_args(name, build, args)
        result = build(context, **args)
    except (TrainError, OSError):
        raise  # a TrainError says enough; a restart may cure an OSError (a file server that is away)
    except Exception as error:
        if peer_failure(error):
            raise  # a peer has ended, and says itself why
        raise TrainError(_users_own(error)) from error
    return _as_workload(name, result)


def _users_own(error: Exception) -> str:
    """Print the user's part of the traceback, and return the error in one line."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # train/
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((own, "<frozen"))
    ]
    if frames:
        print("".join(traceback.format_list(frames)), file=sys.stderr, end="")
    where = ""
    if isinstance(error, SyntaxError):
        where = f"{os.path.relpath(error.filename or '?')}:{error.lineno}: "
    elif frames:
        where = f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}: "
    return f"{where}{type(error).__name__}: {error}"


def _find_builder(name: str) -> Callable[..., Any]:
    if name in BUILT_IN:
        builder: Callable[..., Any] = importlib.import_module(f"train.workloads.{name}").build
        return builder
    path, colon, function = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise TrainError(
            f"workload {name!r} is neither built in ({', '.join(BUILT_IN)}) nor of the form "
            f"'my_model.py:build'{did_you_mean(name, BUILT_IN)}"
        )
    if not os.path.isfile(path):
        raise TrainError(
            f"workload file {path!r} is not in {os.getcwd()!r}; list it under 'code' in the spec"
        )
    module = _import_file(path)
    if not hasattr(module, function):
        defined = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise TrainError(
            f"{path} defines no {function!r}{did_you_mean(function, defined)}; "
            f"the workload protocol wants 'def {function}(context, **args)' returning a Workload"
        )
    found = getattr(module, function)
    if not callable(found):
        raise TrainError(f"{path}: {function!r} is a {type(found).__name__}, not a function")
    user_builder: Callable[..., Any] = found
    return user_builder


def _import_file(path: str) -> Any:
    # The user's own imports (`from layers import Block`) are found in the file's directory. It comes last on the path,
    # so that a user's `train.py` cannot take the place of this package.
    for directory in (os.getcwd(), os.path.dirname(os.path.abspath(path))):
        if directory not in sys.path:
            sys.path.append(directory)
    module_name = "ddpgen_user_" + "".join(c if c.isalnum() else "_" for c in path[:-3])
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise TrainError(f"{path!r} cannot be imported as a Python module")
    module = importlib.util.module_from_spec(spec)
    # Register the module before it runs, because pickling (DataLoader workers) and dataclasses look it up here.
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _check_args(name: str, build: Callable[..., Any], args: Mapping[str, Any]) -> None:
    parameters = list(inspect.signature(build).parameters.values())[1:]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    for arg in args:
        if arg not in accepted and not takes_any:
            raise TrainError(
                f"train.args.{arg}: workload {name!r} has no such argument"
                f"{did_you_mean(arg, accepted)}; it takes {', '.join(accepted) or 'none'}"
            )
    try:
        inspect.signature(build).bind(None, **args)
    except TypeError as error:
        raise TrainError(
            f"workload {name!r} cannot be built from train.args: {error}; "
            "its first parameter is the context, the others are named in train.args"
        ) from None


def _as_workload(name: str, result: Any) -> Workload:
    if isinstance(result, Workload):
        workload = result
    else:
        required = ("model", "dataset", "loss")
        missing = [part for part in required if not hasattr(result, part)]
        if missing:
            raise TrainError(
                f"workload {name!r} returned a {type(result).__name__} without "
                f"{', '.join(missing)}; return a train.workload.Workload, or any object with "
                f"{', '.join(required)}"
            )
        parts = {f: getattr(result, f) for f in Workload.__dataclass_fields__ if hasattr(result, f)}
        workload = Workload(**parts)
    if not isinstance(workload.model, nn.Module):
        raise TrainError(
            f"workload {name!r}: model is a {type(workload.model).__name__}, not a torch.nn.Module"
        )
    for part in ("loss", "metrics", "finish", "optimizer", "schedule", "log", "collate"):
        value = getattr(workload, part)
        if value is not None and not callable(value):
            raise TrainError(f"workload {name!r}: {part} is not callable")
    if isinstance(workload.data_files, str) or not isinstance(workload.fingerprint, str):
        raise TrainError(
            f"workload {name!r}: data_files is a list of paths, and fingerprint a text"
        )
    if workload.finish is not None and workload.metrics is None:
        raise TrainError(f"workload {name!r}: finish has nothing to work on without metrics")
    _check_data(name, workload)
    return workload


def _check_data(name: str, workload: Workload) -> None:
    for part in ("dataset", "eval_dataset"):
        value = getattr(workload, part)
        if value is None:
            continue
        reads = hasattr(value, "__getitem__") or callable(getattr(value, "batch", None))
        if not hasattr(value, "__len__") or not reads:
            raise TrainError(
                f"workload {name!r}: {part} needs len(), and [index] or batch(indices); an iterable has no "
                "position to resume at"
            )
        if len(value) == 0:
            raise TrainError(f"workload {name!r}: {part} is empty")
