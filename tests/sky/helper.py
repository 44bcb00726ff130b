"""Answers questions about task files with SkyPilot's own code: one line of JSON in, one out.

Runs in SkyPilot's environment (tests/sky/environment.py), never in the project's: to import SkyPilot takes
seconds, so one process answers them all. Owns how strictly SkyPilot is asked: as its server reads a file
that `sky jobs launch` sends, which is stricter than what `sky` itself does before it sends it. Knows
nothing of ddpgen.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any

# Both before the first import of it: unknown keys are refused only on a server, and there only once no
# plugin can make them known any more.
os.environ["IS_SKYPILOT_SERVER"] = "true"
from sky.server import plugins

plugins._plugins_loaded = True

import sky  # noqa: E402
from sky.backends import CloudVmRayBackend  # noqa: E402
from sky.backends.task_codegen import UNSET_RAY_ENV_VARS, TaskCodeGen  # noqa: E402
from sky.exceptions import NotSupportedError  # noqa: E402
from sky.jobs.recovery_strategy import StrategyExecutor  # noqa: E402
from sky.skylet import log_lib  # noqa: E402
from sky.utils import annotations, dag_utils, schemas  # noqa: E402
from sky.utils.registry import CLOUD_REGISTRY  # noqa: E402
from yaml import YAMLError  # noqa: E402

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main() -> None:
    # What SkyPilot prints is for people; the answers have standard output for themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    assert annotations.is_on_api_server, "SkyPilot does not take itself for a server"
    print(json.dumps({"version": sky.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer = _QUESTIONS[question.pop("ask")](**question)
        print(json.dumps(answer), file=answers, flush=True)


def load(path: str, cwd: str, secrets: dict[str, str], mounts: bool) -> dict[str, Any]:
    """What SkyPilot understands of a file, or the words with which it refuses it; `mounts`: with its mounts."""
    os.chdir(cwd)
    warned = _Warned()
    try:
        dag = dag_utils.load_chain_dag_from_yaml(path, secret_overrides=list(secrets.items()))
        # It goes to the server as text and is read there once more.
        dag = dag_utils.load_chain_dag_from_yaml_str(dag_utils.dump_chain_dag_to_yaml_str(dag))
        (task,) = dag.tasks
        dag_utils.maybe_infer_and_fill_dag_and_task_names(dag)
        task.expand_and_validate_workdir()
        task.validate_name()
        summary = described(task)
        for storage in (task.storage_mounts or {}).values() if mounts else ():
            storage._validate_storage_spec(storage.name)  # as before it is mounted
        dag.validate()
        dag_utils.fill_default_config_in_dag_for_job_launch(dag)
        summary["recovery"] = recovery(task)
    except (ValueError, AssertionError, NotSupportedError, YAMLError) as refusal:
        return {"refused": words(refusal)}
    finally:
        warned.stop()
    return {"task": summary, "warnings": warned.lines}


def keys() -> dict[str, Any]:
    """The keys of a task file that are for users, at its top and below its resources, and the types of each."""
    schema_of = {"": schemas.get_task_schema(), "resources": schemas.get_resources_schema()}
    return {
        section: {
            name: sorted({each["type"] for each in form.get("anyOf", [form]) if "type" in each})
            for name, form in schema["properties"].items()
            if not name.startswith("_")
        }
        for section, schema in schema_of.items()
    }


def without() -> dict[str, Any]:
    """The clouds that lack each feature. Without a cloud's packages, its answer is that for any machine of it."""
    lacking: dict[str, list[str]] = {}
    for cloud in CLOUD_REGISTRY.values():
        try:
            features = cloud._unsupported_features_for_resources(sky.Resources(), None)
        except ImportError:
            features = cloud._CLOUD_UNSUPPORTED_FEATURES
        for feature in features:
            lacking.setdefault(feature.name, []).append(cloud.canonical_name())
    return lacking


def described(task: sky.Task) -> dict[str, Any]:
    """What a task asks for."""
    return {
        "name": task.name,
        "num_nodes": task.num_nodes,
        "workdir": task.workdir,
        "setup": task.setup,
        "run": task.run,
        "envs": dict(task.envs),
        "secrets": sorted(task.secrets),
        "ordered": isinstance(task.resources, list),
        "resources": [each.to_yaml_config() for each in task.resources],
        "copies": dict(task.file_mounts or {}),
        "volumes": dict(task.volumes or {}),
        "callback": task.event_callback,
        "buckets": {
            place: {"source": storage.source, "name": storage.name, "mode": storage.mode.value}
            for place, storage in (task.storage_mounts or {}).items()
        },
    }


def recovery(task: sky.Task) -> dict[str, Any]:
    """What comes of `job_recovery`, which only the controller of managed jobs reads."""
    loop = asyncio.new_event_loop()  # its locks want one; nothing runs in it
    asyncio.set_event_loop(loop)
    lock = asyncio.Lock()
    made = StrategyExecutor.make(
        "cluster", CloudVmRayBackend(), task, 1, 0, None, set(), lock, asyncio.Condition(lock)
    )
    loop.close()
    return {
        "strategy": type(made).__name__,
        "restarts_on_errors": made.max_restarts_on_errors,
        "exit_codes": made.recover_on_exit_codes,
    }


def script(text: str, variables: dict[str, str], kind: str) -> dict[str, str]:
    """The file that a node's bash gets for a task's `setup`, or for its `run` on VMs or on Slurm."""
    if kind == "vm":
        unset = " && ".join(f"unset {name}" for name in UNSET_RAY_ENV_VARS)
        text = TaskCodeGen.build_task_bash_script(text, env_prefix=unset)
    elif kind == "slurm":
        text = TaskCodeGen.build_task_bash_script(text)
    return {"script": log_lib.make_task_bash_script(text, env_vars=variables)}


def words(error: BaseException) -> str:
    return " ".join(_COLOUR.sub("", f"{type(error).__name__}: {error}").split())


class _Warned(logging.Handler):
    """Keeps what SkyPilot warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("sky").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(_COLOUR.sub("", record.getMessage()))

    def stop(self) -> None:
        logging.getLogger("sky").removeHandler(self)


_QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "load": load,
    "script": script,
    "keys": keys,
    "without": without,
}

if __name__ == "__main__":
    main()
