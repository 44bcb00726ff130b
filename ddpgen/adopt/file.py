"""A file → the kind of launch script that it is, and the spec for it."""

from __future__ import annotations

import re
from pathlib import Path

from ddpgen.adopt import sky
from ddpgen.adopt.draft import Draft
from ddpgen.adopt.sbatch import Batch
from ddpgen.adopt.script import HandStarted, Script
from ddpgen.errors import SpecInvalidError, SpecUnreadableError
from ddpgen.spec import yamltree
from ddpgen.spec.yamltree import NotYamlError, Scalar

_MAX_BYTES = 1 << 20


def adopt(file: Path, home: Path) -> tuple[str, Draft]:
    """Return the spec for a launch script, and the draft with its reports. Raise DdpgenError.

    `home`: the directory that the spec will be written to.
    """
    if file.suffix == ".py":
        raise SpecUnreadableError(
            f"{file}: is no launch script; for a training script: ddpgen init --script {file}"
        )
    try:
        raw = file.read_bytes()[:_MAX_BYTES]
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise SpecUnreadableError(
            f"{file}: {error.strerror}; give the path of a launch script"
        ) from None
    except UnicodeDecodeError:
        raise SpecUnreadableError(f"{file}: is no text; give a launch script") from None
    try:
        script = _task(raw, file) if file.suffix in (".yaml", ".yml") else _script(text, file)
    except NotYamlError as error:
        raise SpecInvalidError(str(file), error.findings) from None
    draft = script.draft
    script.find_training_script(file, home)
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", str(draft.get("name"))).strip("-_.")[:63] or "my-job"
    draft.put("name", name, draft.fields["name",].line)
    return draft.text(), draft


# A directive, or srun where a command begins.
_FOR_SLURM = re.compile(
    r"^(#SBATCH|[ \t]*srun |[^#\n]*([;&|({\"'`=]|\b(then|do|else|exec|time|nohup|eval)|\w=\S*)[ \t]*srun )",
    re.MULTILINE,
)


def _script(text: str, file: Path) -> Script:
    if shell := re.match(r"#!(?:\S*/)?(?:env +(?:-\S+ +)*)?(t?csh|fish)\b", text):
        raise SpecUnreadableError(f"{file}: is a script for {shell[1]}; give one for bash")
    kind: type[Script] = HandStarted
    default_field = None
    if _FOR_SLURM.search(text):
        kind, default_field = Batch, ("targets.slurm.requeues", 20)
    script = kind(Draft(str(file), default_field=default_field), str(file.resolve().parent))
    if other := re.search(r"^#(PBS|BSUB) ", text, re.MULTILINE):
        remedy = "ddpgen does not know this scheduler: write what they ask for in the spec"
        line = text.count("\n", 0, other.start()) + 1
        script.draft.report_lost(line, f"the {other[0].strip()} lines", remedy)
    script.read(text)
    return script


def _task(raw: bytes, file: Path) -> Script:
    root, _ = yamltree.parse(raw)
    run = root.entries.get("run")
    if not isinstance(run, Scalar):
        problem = "is no SkyPilot task, because it has no run: with commands"
        begin = re.search(rb"^\w", raw, re.MULTILINE)
        if begin and re.search(rb"^---\s", raw[begin.start() :], re.MULTILINE):
            problem = "has several YAML documents, and the first one has no run: with commands"
        raise SpecUnreadableError(f"{file}: {problem}; give one, or a script for sbatch or bash")
    draft = Draft(str(file))
    variables = sky.fields(root, draft)
    script = Script(draft, variables=variables)
    script.nodes, script.gpus = draft.get("nodes") or 1, draft.get("gpus_per_node") or 0
    workdir = root.entries.get("workdir")
    script.starts_in(workdir.text if isinstance(workdir, Scalar) else "")
    script.read(run.text, run.position.line + (run.quoted and "\n" in run.text))
    return script
