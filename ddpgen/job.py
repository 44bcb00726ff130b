"""A spec file → checked jobs → a bundle and its bundle.json: the steps that every command shares. Prints nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ddpgen import __version__
from ddpgen.bundle import code, lock, source
from ddpgen.driver.wording import first_names
from ddpgen.errors import Finding, SpecInvalidError, TargetUnavailableError
from ddpgen.lint import lines, program
from ddpgen.site import layers
from ddpgen.site.layers import AS_WRITTEN, Chosen
from ddpgen.spec import unwise
from ddpgen.spec.fields import Refused, show
from ddpgen.spec.groups import Group
from ddpgen.spec.reader import Reading, locate
from ddpgen.spec.rules import Conflict
from ddpgen.tiers import command, sweep
from ddpgen.tiers.registry import DEFAULT_TIER, MODELS, TIERS

if TYPE_CHECKING:
    from ddpgen.bundle.write import WriteResult
    from ddpgen.render import Artefact
    from ddpgen.spec.job import JobSpec

_log = logging.getLogger(__name__)

BUILD = "build"  # the directory of the bundles


class Render(NamedTuple):
    """The options of a render. `output`: the bundle's directory. `preview`: write nothing."""

    output: Path | None = None
    templates: Path | None = None
    force: bool = False
    limit_mib: int = 100  # the largest size of `code`
    preview: bool = False


class Rendered(NamedTuple):
    """The result of write_bundle(), with warnings about the files that it gathered."""

    artefacts: list[Artefact]
    written: WriteResult
    warnings: list[Finding]


def load(path: str, chosen: Chosen = AS_WRITTEN, raw: bytes | None = None) -> dict[str, Reading]:
    """Read a spec for every tier. Raises SpecUnreadableError, SpecInvalidError. `raw`: its text, instead of the file's."""
    readings = sweep.read(layers.read(path, chosen, MODELS, raw))
    _log.debug(f"read {path}: a spec for {', '.join(readings)}")
    return {tier: sweep.in_container(reading, path) for tier, reading in readings.items()}


def check(readings: Sequence[Reading], home: Path) -> list[Finding]:
    """Return the warnings of these readings, sorted. Raise SpecInvalidError if any finding is an error.

    Besides the fields, this checks the files that the spec names and the rules of each tier.
    """
    findings: set[Finding] = set()
    for alike in sweep.by_point(readings):
        conflicts = {each.tier: (each.root, _conflicts(each, home)) for each in alike}
        findings.update(*(each.warnings for each in alike), *locate(conflicts).values())
    for reading in readings:
        if reading.points and not any(finding.fatal for finding in findings):
            findings.update(sweep.check(reading))
    if any(finding.fatal for finding in findings):
        raise SpecInvalidError(readings[0].filename, findings)
    return sorted(findings)


def _conflicts(reading: Reading, home: Path) -> list[Conflict]:
    tier, job = TIERS[reading.tier], reading.job
    conflicts = [
        *code.check(job, home, tier.files(job, home)),
        *program.check(job, home),
        *lines.check(job, home),
        *unwise.conflicts(job, reading.locate),
        *lock.check(job, reading.filename),
        *tier.check(job),
        *tier.check_files(job, home),
    ]
    if job.preflight.ignore:
        from ddpgen import guide

        conflicts += guide.check(job)
    return conflicts


def resolve(target: str, readings: Mapping[str, Reading]) -> list[str]:
    """Return the tiers that `--target` means. Raise TargetUnavailableError if the spec does not fit the tier."""
    if target == "all":
        return [name for name in TIERS if name in readings]
    if target not in readings:
        message = f"the spec has no targets.{target}; write {target}: below targets:, as docs/{target}.md says"
        if target == DEFAULT_TIER:
            message = (
                f"the spec has no targets.{target}, and without one its job does not fit on one machine; "
                f"write targets: {{{target}: {{nodes: 1}}}}, with what else is to differ here"
            )
        raise TargetUnavailableError(message)
    return [target]


def artefacts(
    readings: Mapping[str, Reading], tiers: Sequence[str], templates: Path | None
) -> list[Artefact]:
    """Render these tiers."""
    from ddpgen.render import Renderer

    renderer = Renderer(templates)
    rendered: list[Artefact] = []
    for tier in tiers:
        rendered += TIERS[tier].render(sweep.programmed(readings[tier]), renderer)
    return rendered


def output_directory(readings: Mapping[str, Reading], options: Render) -> Path:
    """Return the directory for the bundle: -o, or build/<name> below the working directory."""
    return options.output or Path(BUILD, next(iter(readings.values())).job.name)


def rendered_directory(readings: Mapping[str, Reading], output: Path | None) -> Path:
    """Return the directory of a bundle that was rendered before: -o, or build/<name>.

    build/<name> is looked for below the working directory, and then below the spec's directory.
    """
    bundle = output_directory(readings, Render(output=output))
    below_spec = Path(next(iter(readings.values())).filename).parent / bundle
    bundle = below_spec if not (output or bundle.exists()) and below_spec.exists() else bundle
    _log.debug(f"the bundle is {bundle}, which {'exists' if bundle.exists() else 'is not there'}")
    return bundle


def write_bundle(
    readings: Mapping[str, Reading], tiers: Sequence[str], home: Path, options: Render
) -> Rendered:
    """Render `tiers` and write the bundle. Raises the errors of every step."""
    from ddpgen.bundle import write
    from ddpgen.resources import resource

    rendered = artefacts(readings, tiers, options.templates)
    directory = output_directory(readings, options)
    jobs = [readings[tier].job for tier in tiers]
    for tier in tiers:
        _refuse_inside(directory, readings[tier])
    write.refuse_inside_another(directory)
    checkpoints = {job.checkpoint.path or "checkpoints" for job in jobs}
    own_paths = [directory, *(directory.parent / path for path in (".submitted", *checkpoints))]
    if options.output is None:
        # build/logs holds the logs of launches from build/. With -o, a directory `logs` may be the user's.
        own_paths.append(directory.parent / "logs")
    sources, warnings = _gather([readings[tier] for tier in tiers], home, own_paths)
    code.refuse_too_much(sources, options.limit_mib)
    _log.debug(f"code of {home}: {first_names([*sources]) or 'no files'}")
    items = [
        *(write.Item(a.path, a.text.encode(), executable=a.executable) for a in rendered),
        *write.copied_tree(resource("train"), "train"),
        *(write.Item(name, file=file) for name, file in sources.items()),
    ]
    if points := sweep.listing({tier: sweep.programmed(readings[tier]) for tier in tiers}):
        items.append(write.Item(sweep.FILE, points.encode()))
    if any(job.locked for job in jobs):
        items.append(write.Item(command.LOCK, file=lock.path(readings[tiers[0]].filename)))
    named = [(*j.code, *TIERS[tier].files(j, home)) for tier, j in zip(tiers, jobs, strict=True)]
    paths = dict.fromkeys(path for each in named for path in each)
    facts = {
        "ddpgen": __version__,
        "layers": readings[tiers[0]].whole.record,
        "name": jobs[0].name,
        "schema": write.SCHEMA,
        "source": source.describe(home, [*paths], sources),
        "spec": {tier: Group(MODELS[tier]).dump(readings[tier].job) for tier in tiers},
        "targets": list(tiers),
    }
    put = write.preview if options.preview else write.write
    return Rendered(rendered, put(directory, items, facts, options.force), warnings)


def _gather(
    readings: Sequence[Reading], home: Path, avoid: Sequence[Path]
) -> tuple[dict[str, Path], list[Finding]]:
    """Return the files of `code` of all these tiers, by their path in the bundle, and warnings.

    The tiers share one directory of the bundle. Raises SpecInvalidError if two tiers have different files of the same
    name.
    """
    gathered: dict[str, Path] = {}
    owners: dict[str, Reading] = {}
    warnings, visited = [], set()
    for reading in readings:
        extra = TIERS[reading.tier].files(reading.job, home)
        if (reading.job.code, *extra) in visited:
            continue
        visited.add((reading.job.code, *extra))
        code_files = code.gather(reading.job.code, home, avoid, extra)
        if code_files.withheld:
            names = first_names([_relative(file, home) for file in code_files.withheld])
            problem = f"{names} may hold secrets, and stay out of the bundle"
            remedy = (
                f"name in code what the job needs of it, and list the rest in {code.IGNORE_FILE}"
            )
            warnings.append(reading.locate(Conflict(("code",), problem, remedy, fatal=False)))
        for name, file in code_files.files.items():
            owner = owners.setdefault(name, reading)
            if gathered.setdefault(name, file).resolve() != file.resolve():
                problem = (
                    f"{name} of the bundle would be {_relative(file, home)} for {reading.tier}, and "
                    f"{_relative(gathered[name], home)} for {owner.tier}"
                )
                remedy = (
                    "rename one, or render each of these tiers into a bundle of its own: "
                    f"--target {reading.tier} -o DIR"
                )
                conflict = Conflict(("code",), problem, remedy)
                raise SpecInvalidError(reading.filename, [reading.locate(conflict)])
    return gathered, warnings


def _relative(file: Path, home: Path) -> str:
    base = home if file.is_relative_to(home) else home.resolve()
    return str(file.relative_to(base) if file.is_relative_to(base) else file)


def _refuse_inside(directory: Path, reading: Reading) -> None:
    """Raise SpecInvalidError if the job would write into the bundle: a render replaces it as a whole."""
    bundle, job = Path(os.path.abspath(directory)), reading.job
    paths = {"checkpoint.dir": job.checkpoint.path, "train.workdir": job.train.workdir}
    for field, path in paths.items():
        if path and Path(os.path.abspath(bundle.parent / path)).is_relative_to(bundle):
            problem = f"{show(path)} is inside the bundle {directory}, which each render replaces"
            conflict = Conflict((field,), problem, "name a place outside, or change -o")
            raise SpecInvalidError(reading.filename, [reading.locate(conflict)])


def bundle_jobs(bundle: Path) -> dict[str, JobSpec]:
    """Return the jobs that a bundle was rendered for, by tier. Raise SpecUnreadableError."""
    from ddpgen.bundle import write

    specs = write.read(bundle)["spec"]
    try:
        jobs = {tier: Group(MODELS[tier]).load(spec) for tier, spec in specs.items()}
        return {tier: sweep.restored(bundle, tier, job) for tier, job in jobs.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Refused):
        raise write.unreadable(bundle) from None
