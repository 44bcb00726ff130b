"""The NVIDIA GPUs of this host, as nvidia-smi reports them, compared with the needs of the job.

Owns the calls of nvidia-smi, which may hang with its driver, and the judgement of its answers. Touches no GPU, because
that would cost seconds and memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired

from train.preflight import ports
from train.preflight.facts import Torch
from train.preflight.finding import Finding
from train.preflight.settings import Settings

LIMIT_S = 5.0
_LAST_S = 0.5  # the shortest wait, even past the deadline, because the answer may lie there unread

_CARDS = "--query-gpu=index,uuid,name,driver_version"
_USERS = "--query-compute-apps=gpu_uuid,pid,used_memory,process_name"
_FORM = "--format=csv,noheader,nounits"
# The oldest driver that runs a CUDA of this major version at all, as NVIDIA documents it for
# minor version compatibility (CUDA compatibility guide).
_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# If one of these exists, there is a driver, although its nvidia-smi is not on PATH (WSL, Jetson).
_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl")


@dataclass(frozen=True)
class Card:
    """One GPU as the driver knows it."""

    index: str
    uuid: str
    name: str


@dataclass(frozen=True)
class User:
    """A process that computes on the GPU `uuid`. `memory`: MiB as text, or "" if unknown."""

    uuid: str
    pid: int
    memory: str
    name: str


@dataclass(frozen=True)
class Gpus:
    """The answers of nvidia-smi. `trouble`: why nvidia-smi gave no answer, in words. `missing`: the host has neither
    nvidia-smi nor a driver. `unknown`: the host has a driver without nvidia-smi."""

    cards: Sequence[Card] = ()
    users: Sequence[User] = ()
    driver: str = ""
    trouble: str = ""
    missing: bool = False
    unknown: bool = False


def needs_gpus(settings: Settings, torch: Torch | None) -> bool:
    """True if this job needs NVIDIA GPUs. If torch is built for AMD's, nvidia-smi is not asked."""
    return (settings.gpus > 0 or settings.backend == "nccl") and not (torch and torch.hip)


def start_query() -> Callable[[], Gpus]:
    """Start nvidia-smi, and return a function that waits for its answers."""
    try:
        asked = [_start(_CARDS), _start(_USERS)]
    except OSError:
        there = any(os.path.exists(device) for device in _DEVICES)
        return lambda: Gpus(unknown=there, missing=not there)
    deadline = time.monotonic() + LIMIT_S
    return lambda: _answer(*[_collect(process, deadline) for process in asked])


def _start(query: str) -> Popen[str]:
    return Popen(
        ["nvidia-smi", query, _FORM], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip


def _collect(process: Popen[str], deadline: float) -> tuple[int | None, str]:
    """Exit status and output. The status is None if the process did not end in time."""
    try:
        output, _ = process.communicate(timeout=max(_LAST_S, deadline - time.monotonic()))
    except TimeoutExpired:
        # Wait for 0.1 s only: while the driver hangs, not even SIGKILL ends the process.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutExpired):
            process.wait(0.1)
        return None, ""
    finally:
        if process.stdout is not None:
            process.stdout.close()
    return process.returncode, output.strip()


def _answer(cards: tuple[int | None, str], users: tuple[int | None, str]) -> Gpus:
    status, said = cards
    if status is None:
        return Gpus(trouble=f"gave no answer in {LIMIT_S:g} s")
    if "No devices were found" in said:
        return Gpus()
    if status != 0:
        lines = said.splitlines()
        return Gpus(trouble=f"failed: {lines[0] if lines else f'exit status {status}'}")
    rows = [row for row in _rows(said) if len(row) == 4]
    driver = rows[0][3] if rows else ""
    # The list of processes on the GPUs is optional: without it the job can start all the same.
    taken = [row for row in _rows(users[1]) if len(row) == 4] if users[0] == 0 else []
    return Gpus(
        [Card(*row[:3]) for row in rows],
        [
            User(uuid, int(pid), memory if memory.isdigit() else "", name)
            for uuid, pid, memory, name in taken
            if pid.isdigit()
        ],
        driver,
    )


def _rows(output: str) -> Iterator[list[str]]:
    for line in output.splitlines():
        yield [word.strip() for word in line.split(",", 3)]


def visible(cards: Sequence[Card], environment: Mapping[str, str]) -> list[Card]:
    """The GPUs that CUDA would show to a process with this environment, in CUDA's order."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(cards)
    found = []
    for word in filter(None, listed.replace(" ", "").split(",")):
        card = next((c for c in cards if _is(c, word)), None)
        if card is None and not word.startswith("MIG-"):
            break  # CUDA ignores all entries after an invalid one
        found.append(card or Card(word, word, "MIG"))
    return found


def _is(card: Card, word: str) -> bool:
    return card.index == word or (word.startswith("GPU-") and card.uuid.startswith(word))


# --- findings -------------------------------------------------------------------------------------


def judge(settings: Settings, found_gpus: Gpus, torch: Torch | None) -> Iterator[Finding]:
    """GPU001 to GPU006."""
    me = settings.host_name
    if found_gpus.trouble:
        yield Finding(
            "GPU006",
            me,
            f"nvidia-smi on {me} {found_gpus.trouble}",
            "run nvidia-smi there by hand: if it is only slow, switch persistence mode on "
            "(nvidia-smi -pm 1); if it hangs or fails, reload the GPU driver or reboot",
        )
    yield from _judge_count(settings, found_gpus, torch)
    yield from _judge_driver(settings, found_gpus, torch)
    yield from _judge_users(settings, found_gpus)


def _judge_count(settings: Settings, found_gpus: Gpus, torch: Torch | None) -> Iterator[Finding]:
    """Yield GPU001 if there are fewer GPUs than processes, and GPU005 if nccl lacks CUDA or a driver."""
    me, nccl = settings.host_name, settings.backend == "nccl"
    gloo = ", or set backend: gloo and leave gpus_per_node out of the spec"
    count = f"{settings.procs} process{'es' * (settings.procs != 1)}"
    if torch is not None and not torch.cuda:
        blind = f"torch {torch.version} of {me} is built without CUDA"
        install = "install a torch with CUDA there"
        if nccl:
            yield Finding("GPU005", me, f"{blind}, and nccl needs it", install + gloo)
        else:
            cause = f"{blind} and sees no GPU, and {count} want one each"
            yield Finding("GPU001", me, cause, f"{install}, or ask for no GPUs in the spec")
        return
    if nccl and found_gpus.missing:
        cause = f"{me} has no NVIDIA driver (nvidia-smi is not on PATH either), and nccl needs one"
        yield Finding("GPU005", me, cause, "install the GPU driver there" + gloo)
        return
    shown = visible(found_gpus.cards, os.environ)
    if found_gpus.trouble or found_gpus.unknown or len(shown) >= settings.procs:
        return
    have = f"{me} has {len(found_gpus.cards) or 'no'} GPU{'s' * (len(found_gpus.cards) != 1)}"
    if len(shown) != len(found_gpus.cards):
        listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        have += f", of which CUDA_VISIBLE_DEVICES={listed!r} shows {len(shown) or 'none'}"
    remedy = "start fewer processes on this host, or let each of them see a GPU"
    yield Finding("GPU001", me, f"{have}, and {count} want one each", remedy)


def _judge_users(settings: Settings, found_gpus: Gpus) -> Iterator[Finding]:
    """GPU002, and GPU003 for an earlier run of this job."""
    cards = {c.uuid: c for c in visible(found_gpus.cards, os.environ)[: settings.procs]}
    for user in found_gpus.users:
        if user.uuid not in cards:
            continue
        card, found = cards[user.uuid], _process(user)
        who = str(found) if found else f"process {user.pid} ({user.name})"
        memory = f" with {user.memory} MiB" if user.memory else ""
        gpu = f"GPU {card.index} ({card.name}) of {settings.host_name}"
        # GPU003 is an error, so the process's environment has to name this job. Two jobs may share a GPU.
        if found is not None and found.job and found.is_earlier_run_of(settings.job):
            cause = f"{gpu} is still held by an earlier run: {who}{memory}"
            yield Finding(
                "GPU003", settings.host_name, cause, f"end it with `kill {user.pid}` there"
            )
        else:
            cause = f"{gpu} is in use by {who}{memory}"
            remedy = "wait for it or end it, or choose other GPUs with CUDA_VISIBLE_DEVICES"
            yield Finding("GPU002", settings.host_name, cause, remedy)


def _process(user: User) -> ports.Holder | None:
    """The process with this pid; None if it is gone, or if its command line is another program's.

    In a container, the pid that nvidia-smi reports may be another program's.
    """
    found = ports.process(user.pid)
    program = os.path.basename(user.name.partition(" ")[0])
    return found if found is not None and program and program in found.command else None


def _judge_driver(settings: Settings, found_gpus: Gpus, torch: Torch | None) -> Iterator[Finding]:
    """GPU004."""
    if torch is None or not torch.cuda or not found_gpus.driver or _has_own_driver_library():
        return
    oldest = _DRIVERS.get(int(torch.cuda.partition(".")[0]), "")
    if oldest and _version(found_gpus.driver) < _version(oldest):
        yield Finding(
            "GPU004",
            settings.host_name,
            f"the NVIDIA driver {found_gpus.driver} of {settings.host_name} is too old for torch {torch.version}, "
            f"whose CUDA {torch.cuda} takes {oldest} or newer",
            f"update the GPU driver there to {oldest} or newer, or install a torch for an older CUDA",
        )


def _has_own_driver_library() -> bool:
    """True if NVIDIA's forward compatibility package lets an old driver run a newer CUDA."""
    places = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(Path(p, "libcuda.so.1").exists() for p in places if "compat" in p)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
