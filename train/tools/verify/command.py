"""`python -m train verify CHECKPOINT_DIR`: compute steps of a run again, and compare the bits with the record.

Owns the order of things, the verdict and the exit code: 0 identical, 1 not identical, 2 usage, 69 cannot be done here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import filecmp
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from train.base.console import say
from train.base.errors import EXIT_FAILED, EXIT_UNAVAILABLE, Refusal, TrainError
from train.run.layout import MARKER, step_directory
from train.run.provenance import MANIFEST, Start, library_flags, read_manifest
from train.tools.verify import compare, record
from train.tools.verify.chained import other_weights
from train.tools.verify.compare import Difference, Origin, Rank
from train.tools.verify.record import Record, ReplayRange
from train.tools.verify.workplace import Replay, processes_that_fit, unpack, workplace

EXIT_INTERRUPTED = 130
_MAX_NAMED = 3
_FILES = ("model.pt", "optimizer.pt")


@dataclass(frozen=True)
class Damage:
    """A kept checkpoint that differs from the replay.

    `what`: the difference, in words. `unverified`: why the checkpoint does not verify against its own marker either,
    or "". `same`: its tensors equal the replay's.
    """

    step: int
    what: str
    unverified: str
    same: bool = False

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step}: {self.what}"


@dataclass(frozen=True)
class Result:
    """The result of a replay.

    `losses`, `tensors`: how many were compared. `loss`: the first step whose loss has other bits, or None. `rows`:
    steps whose loss has other bits although all tensors after them are the same. `weights`: steps whose hash in the
    manifest differs. `digest`: the first step whose weights have another digest, and the tensor, in words. `chain`: the
    faults in the chain of metrics.jsonl. `differences`: the differences between the environments.
    """

    replay_range: ReplayRange
    processes: int
    losses: int
    tensors: int
    loss: int | None
    damages: Sequence[Damage]
    differences: Sequence[Difference]
    rows: Sequence[int] = ()
    weights: Sequence[int] = ()
    digest: str = ""
    chain: Sequence[str] = ()

    @property
    def identical(self) -> bool:
        changed = self.damages or self.rows or self.weights or self.digest or self.chain
        return self.loss is None and not changed

    @property
    def other_bits(self) -> bool:
        """True if a known difference changes bits."""
        return any(difference.rank is Rank.BITS for difference in self.differences)

    @property
    def explained(self) -> bool:
        """True if the cause is known: a difference that changes bits, or checkpoints that do not verify."""
        damaged = self.loss is None and all(damage.unverified for damage in self.damages)
        return self.other_bits or damaged


def main(argv: Sequence[str]) -> int:
    """Verify, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog=os.environ.get("DDPGEN_CALLED_AS") or "python -m train verify",
        description="Compute steps of a run again, and say whether losses and tensors are those on record.",
        epilog="exit code: 0 identical; 1 not identical; 2 wrong usage; 69 cannot be done here",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("checkpoint_dir", metavar="CHECKPOINT_DIR", type=Path)
    add(
        "--from",
        dest="begin",
        type=int,
        metavar="STEP",
        help="of a checkpoint, or 0  [default: that before the newest]",
    )
    add(
        "--steps", type=int, metavar="K", help="so many; without --from from a random checkpoint on"
    )
    add("--procs", type=int, metavar="N", help="processes  [default: what fits here]")
    add("--json", action="store_true", help="for programs instead of people")
    add("--keep", type=Path, metavar="DIR", help="replay there, and leave all of it")
    add("--unpack", action="store_true", help="only unpack the bundle of its first step there")
    options = parser.parse_args(argv)
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps={options.steps}: at least one step")
    if options.unpack and options.keep is None:
        parser.error("--unpack needs --keep=DIR")
    _on_signals(_interrupt)
    try:
        with _quiet():
            return _verify(options)
    except Refusal as refusal:
        code, why = refusal.code, str(refusal)
    except TrainError as error:
        code, why = EXIT_UNAVAILABLE, str(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"{error.filename or options.keep or 'the replay'}: {error.strerror}"
        code, why = EXIT_UNAVAILABLE, f"{what}; correct that, or name another place with --keep"
    except Exception as error:  # noqa: BLE001 - 1 would say that something is not identical
        code = EXIT_UNAVAILABLE
        why = f"what {options.checkpoint_dir} holds cannot be read ({type(error).__name__}: {error}); get it once more"
    except KeyboardInterrupt:
        code, why = EXIT_INTERRUPTED, "interrupted; nothing is left behind"
        if options.keep is not None:
            why = f"interrupted; what was computed is in {options.keep}"
    print(f"{parser.prog}: {why}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """After `ddpgen -q`, print no progress. Errors are printed outside."""
    if os.environ.get("DDPGEN_LOG") != "ERROR":
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _interrupt(signum: int, frame: FrameType | None) -> None:
    _on_signals(signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise KeyboardInterrupt


def _on_signals(action: Any) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, action)


def _verify(options: argparse.Namespace) -> int:
    directory = Path(os.path.abspath(options.checkpoint_dir))
    keep = options.keep.absolute() if options.keep else None
    run_record = record.read_record(directory)
    if options.unpack:
        with workplace(directory, keep) as parent:
            first = record.replay_range(run_record, 0, max(run_record.losses))
            print(unpack(directory, first.start, parent))
        return 0
    if importlib.util.find_spec("torch") is None:
        raise TrainError(
            f"torch is not installed for {sys.executable}, and a replay needs it; install it there (pip install "
            "'ddpgen[train]'), or go into the run's bundle and type python3 -m train verify with a Python that has it"
        )
    begin, end = record.choose(run_record, options.begin, options.steps)
    if options.begin is None and options.steps is not None:
        say(f"a random checkpoint: repeat it with --from={begin} --steps={options.steps}")
    with workplace(directory, keep) as parent:
        result = _search(run_record, begin, end, options.procs, parent)
    result = dataclasses.replace(result, chain=record.chain_faults(directory))
    lines = list(_verdict(result))
    if border := result.replay_range.border:
        lines.append(f"it ends at step {result.replay_range.end}: {border}")
    print(json.dumps(_as_json(result, lines), indent=1) if options.json else "\n".join(lines))
    return 0 if result.identical else EXIT_FAILED


def _search(run_record: Record, begin: int, end: int, procs: int | None, parent: Path) -> Result:
    """Replay these steps and return the result.

    If the result is not identical and has no known cause, replay once more from the checkpoint before, because the
    first checkpoint itself may have been changed.
    """
    went_back = False
    while True:
        replay_range = record.replay_range(run_record, begin, end)
        earlier = run_record.before(begin)
        bad = _verification_error(run_record, begin) if begin else ""
        if bad and earlier is None:
            named = f"{bad}; --from=0 computes all steps again, and names the tensor"
            damage = Damage(begin, named, bad)
            return Result(replay_range, 0, 0, 0, None, [damage], [])
        if not bad:
            result = _replay(run_record, replay_range, procs, parent)
            if result.identical or result.explained or earlier is None or went_back:
                return result
            bad = "something differs, which may be this one"
        assert earlier is not None
        say(
            f"the checkpoint of step {begin}: {bad}; beginning at the one before, of step {earlier}"
        )
        begin, went_back = earlier, True


def _verification_error(run_record: Record, step: int) -> str:
    """Return why the checkpoint of `step` does not verify; "" if it does."""
    from train.checkpoint.disk import BadCheckpointError, read

    checkpoint = step_directory(run_record.directory, step)
    if not (checkpoint / MARKER).exists():
        raise TrainError(
            f"{checkpoint} is gone: the job that runs there keeps newer ones by now; verify it again"
        )
    try:
        read(checkpoint, step)
    except BadCheckpointError as error:
        return str(error)
    return ""


def _replay(
    run_record: Record, replay_range: ReplayRange, procs: int | None, parent: Path
) -> Result:
    """Compute the steps of `replay_range` again, with a checkpoint at each step that has a kept one, and compare."""
    import torch

    start = replay_range.start
    facts = [
        run_record.environments.get(str(host.get("environment")), {})
        for host in start["hosts"].values()
    ]
    on_gpu = any(each.get("device", "cpu") != "cpu" for each in facts)
    gpus = torch.cuda.device_count() if on_gpu else 0
    procs = processes_that_fit(start["settings"], start["world_size"], procs, gpus)
    flags = library_flags(facts[0]) if facts else {}
    replay = Replay(run_record.directory, parent, start, on_gpu, procs)
    if replay_range.begin:
        replay.begin_at(replay_range.begin)
    say(
        f"replaying steps {replay_range.begin} to {replay_range.end} on {procs} process{'es' if procs > 1 else ''}"
    )
    differences: list[Difference] = []

    def show(line: str) -> None:
        nonlocal differences
        if not line.startswith("step "):
            return
        if not differences:  # they are known after the first step: do not wait for the last one
            differences = _differences(run_record, start, replay.directory)
            if decisive := [str(each) for each in differences if each.rank is Rank.BITS]:
                say(
                    f"other than on record, which can change bits: {'; '.join(decisive[:_MAX_NAMED])}"
                )
        print(line, file=sys.stderr, flush=True)

    replay.run(sorted({*replay_range.points, replay_range.end}), flags, show)
    return _compare_with_record(run_record, replay_range, procs, replay.directory)


def _compare_with_record(
    run_record: Record, replay_range: ReplayRange, procs: int, replayed: Path
) -> Result:
    """Compare the record with the replay of `replay_range`.

    If all tensors of a checkpoint are the same, the losses before it were the same when they were computed. So if one
    on record differs, it was changed later.
    """
    rows = record.read_rows(replayed)
    other = compare.loss_differences(run_record.losses, rows.losses)
    tensors, agreed, damages, weights = 0, replay_range.begin, list[Damage](), list[int]()
    for point in sorted({*replay_range.points, replay_range.end}):
        damage: list[Damage] = []
        if point in replay_range.points:
            count, damage = _compare_checkpoint(run_record, point, replayed)
            tensors += count
            damages += damage
            if all(each.same for each in damage):
                agreed = point
        if any(agreed < step <= point for step in other):
            break
        if all(each.same for each in damage) and not _has_recorded_hash(
            run_record, point, replayed
        ):
            weights.append(point)
    changed = [step for step in other if step <= agreed]
    loss = next((step for step in other if step > agreed), None)
    differences = _differences(run_record, replay_range.start, replayed)
    compared = len({*run_record.losses} & {*rows.losses})
    digest = ""
    if first := other_weights(run_record.digests, rows.digests):
        digest = (
            f"the weights of step {first.step} have another digest, first in {first.name(replayed)}"
        )
    return Result(
        replay_range, procs, compared, tensors, loss, damages, differences, changed, weights, digest
    )


def _has_recorded_hash(run_record: Record, step: int, replayed: Path) -> bool:
    """Return True if the weights of `step` have the hash in the manifest, or if the manifest has no hash of them."""
    from train.checkpoint.disk import unpickle
    from train.checkpoint.weights import weights_sha256

    if step not in run_record.weights:
        return True
    model = unpickle(step_directory(replayed, step) / "model.pt", mapped=True)
    return weights_sha256(model) == run_record.weights[step]


def _differences(run_record: Record, start: Start, replayed: Path) -> list[Difference]:
    """Return the differences between the origin of a start and the replay's in `replayed`."""
    manifest = read_manifest(replayed)
    now: Start = manifest["starts"][-1]
    # A thread hashes the data during the first steps. Until then, count it as the same.
    now = now if now.get("data") else {**now, "data": start.get("data")}
    origins = Origin(start, run_record.environments), Origin(now, manifest["environments"])
    return compare.environment_differences(*origins)


def _compare_checkpoint(run_record: Record, step: int, replayed: Path) -> tuple[int, list[Damage]]:
    """Return how many tensors the checkpoint of `step` has, and its differences from the replay."""
    import torch

    from train.checkpoint.disk import unpickle

    recorded, recomputed = (
        step_directory(run_record.directory, step),
        step_directory(replayed, step),
    )
    model = unpickle(recomputed / "model.pt", mapped=True)
    count = sum(isinstance(value, torch.Tensor) for value in model.values())
    unverified, differences = _verification_error(run_record, step), list[str]()
    for name in _FILES:
        try:
            difference = compare.tensor_differences(recorded / name, recomputed / name)
        except FileNotFoundError:
            raise TrainError(
                f"{recorded / name} is gone: the job that runs there keeps newer ones by now; verify it again"
            ) from None
        except Exception as error:  # noqa: BLE001 - whatever torch makes of a damaged file
            differences.append(f"{name} cannot be read: {error}")
            continue
        if difference is not None:
            differences.append(f"{name} differs in {difference}")
    if differences or not unverified:
        return count, [Damage(step, each, unverified) for each in differences]
    difference_of_files = f"{unverified}; its tensors are those of the replay"
    if all(filecmp.cmp(recorded / name, recomputed / name, shallow=False) for name in _FILES):
        difference_of_files = (
            f"{MARKER} was changed: {' and '.join(_FILES)} are those of the replay"
        )
    return count, [Damage(step, difference_of_files, unverified, same=True)]


def _verdict(result: Result) -> Iterator[str]:
    """Yield the verdict in one line, then the other facts."""
    replay_range = result.replay_range
    steps = f"steps {replay_range.begin} to {replay_range.end}"
    on = f"on {result.processes} process{'es' if result.processes > 1 else ''}"
    if result.identical:
        tensors = f" and {result.tensors} tensors" if replay_range.points else ""
        written = replay_range.start["world_size"]
        yield f"identical: {steps}, {result.losses} losses{tensors}, {on} (written on {written})"
        if (missing := replay_range.end - replay_range.begin - result.losses) > 0:
            yield f"not compared: the losses of {missing} of these steps are not on record"
        if not replay_range.points:
            yield f"no checkpoint of step {replay_range.end} is kept: no tensors were compared"
        return
    facts = [str(damage) for damage in result.damages]
    if result.loss is not None:
        facts.insert(0, f"the loss of step {result.loss} has other bits")
    facts += [
        f"the loss of step {step} in metrics.jsonl was changed: the replay has other bits, and the same tensors after it"
        for step in result.rows
    ]
    facts += [result.digest] if result.digest else []
    facts += result.chain
    facts += [
        f"weights in {MANIFEST} is not the hash of the weights of step {step}"
        for step in result.weights
    ]
    first, *more = facts
    if result.loss is not None or ((result.damages or result.digest) and result.other_bits):
        sides = "on record", "here"
        first, *table = compare.verdict(f"not identical: {first}", result.differences, sides)
        yield from (first, *more, *table)
        return
    yield from (f"not identical: {first}", *more)
    if result.losses and result.damages and not result.rows:
        yield f"the losses of {steps} are those on record: the checkpoint was changed after it was written"


def _as_json(result: Result, lines: Sequence[str]) -> Mapping[str, Any]:
    replay_range = result.replay_range
    return {
        "identical": result.identical,
        "verdict": lines,
        "from": replay_range.begin,
        "to": replay_range.end,
        "losses": result.losses,
        "tensors": result.tensors,
        "processes": result.processes,
        "written_on": replay_range.start["world_size"],
        "border": replay_range.border,
        "first_loss": result.loss,
        "changed_rows": list(result.rows),
        "changed_weights": list(result.weights),
        "first_digest": result.digest,
        "chain": list(result.chain),
        "checkpoints": [dataclasses.asdict(damage) for damage in result.damages],
        "differences": [
            {
                "bits": compare.LABELS[each.rank],
                "name": each.name,
                "was": each.first,
                "now": each.second,
            }
            for each in result.differences
        ],
    }
