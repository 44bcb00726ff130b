"""Training on an NVIDIA GPU: the same bits on any number of processes, through kills, and in each precision.

One card is enough: each process passes for a host of its own, so all of them compute on GPU 0. NCCL refuses two
ranks on one card, so more than one process uses gloo. `make gpu` runs this; without a GPU every test is skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.ports import free_port
from tests.real import jobs
from tests.real.scripts import Script

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

# Sequences over several blocks of attention's backward pass, in which the blocks add up to one gradient.
GPT = (
    "--workload=gpt", "--steps=12", "--global-batch-size=12", "--micro-batch-size=2", "--optimizer=adamw",
    "--lr=0.001", "--grad-clip=1.0", "--seed=5", "--arg=depth=2", "--arg=width=256", "--arg=heads=4",
    "--arg=seq_len=1024", "--arg=dropout=0.1", "--arg=max_bytes=2000000", "--eval-every=5",
)  # fmt: skip
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def train(directory: Path, processes: int, *flags: str) -> str:
    """Train on GPU 0 with this many processes, and return their output."""
    directory.mkdir(parents=True, exist_ok=True)
    backend = "nccl" if processes == 1 else "gloo"
    command = [
        sys.executable, "-m", "train", "run", f"--backend={backend}", "--checkpoint-every=1000 steps",
        f"--checkpoint-dir={directory}", "--log-every=1", *flags,
    ]  # fmt: skip
    port = str(free_port())
    log = directory / "output"
    with log.open("a") as out:
        workers = [
            subprocess.Popen(
                command,
                env={
                    **ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank),
                    "WORLD_SIZE": str(processes), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                },
                stdout=out,
                stderr=out,
            )
            for rank in range(processes)
        ]  # fmt: skip
        codes = [worker.wait(240) for worker in workers]
    output = log.read_text()
    assert codes == [0] * processes, output
    return output


def weights(directory: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(
        jobs.checkpoints(directory)[-1] / "model.pt", weights_only=True, map_location="cpu"
    )
    return loaded


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_gpt_has_the_same_bits_on_any_number_of_processes(tmp_path: Path, precision: str) -> None:
    flags = (*GPT, f"--precision={precision}")
    output = train(tmp_path / "1", 1, *flags)
    assert "warning" not in output.lower()
    for processes in (2, 3):
        train(tmp_path / str(processes), processes, *flags)
        jobs.assert_same_bits(weights(tmp_path / str(processes)), weights(tmp_path / "1"))
    train(tmp_path / "halves", 2, *flags, "--until=7")
    assert "resuming at step 7 of 12" in train(tmp_path / "halves", 1, *flags)
    jobs.assert_same_bits(weights(tmp_path / "halves"), weights(tmp_path / "1"))


@pytest.mark.parametrize("model", ["channels_last", "mixed_buffers"])
def test_convolutions_and_batch_norm_have_the_same_bits(tmp_path: Path, model: str) -> None:
    models = ROOT / "tests/train/odd_models.py"
    flags = (
        f"--workload={models}:{model}",
        "--steps=8",
        "--global-batch-size=8",  # 4 micro-batches: two processes need no tree, three have unequal shares
        "--micro-batch-size=2",
    )
    more = ("--optimizer=sgd", "--lr=0.05")
    for processes in (1, 2, 3):
        output = train(tmp_path / str(processes), processes, *flags, *more)
        assert "warning" not in output.lower()
        jobs.assert_same_bits(weights(tmp_path / str(processes)), weights(tmp_path / "1"))


def files(directory: Path) -> dict[str, bytes]:
    """The files of the newest checkpoint that hold tensors."""
    newest = jobs.checkpoints(directory)[-1]
    return {name: (newest / name).read_bytes() for name in ("model.pt", "optimizer.pt")}


def digests(directory: Path) -> list[Any]:
    return [row["digest"] for row in jobs.rows(directory) if "digest" in row]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_sharded_optimizer_has_the_same_checkpoint_and_digests(
    tmp_path: Path, precision: str
) -> None:
    flags = (*GPT, f"--precision={precision}", "--digest")
    train(tmp_path / "1", 1, *flags)
    assert len(digests(tmp_path / "1")) == 11
    for processes in (2, 3):
        train(tmp_path / str(processes), processes, *flags, "--shard=optimizer")
        assert files(tmp_path / str(processes)) == files(tmp_path / "1")
        assert digests(tmp_path / str(processes)) == digests(tmp_path / "1")
    train(tmp_path / "halves", 3, *flags, "--until=7", "--shard=optimizer")
    train(tmp_path / "halves", 2, *flags)
    assert files(tmp_path / "halves") == files(tmp_path / "1")


MOVING = ROOT / "tests/train/moving.py"


def losses(directory: Path) -> list[float]:
    return [row["loss"] for row in jobs.rows(directory)]


@pytest.mark.parametrize("name", ["gpt", "batch_norm_and_dropout"])
def test_micro_batches_that_move_at_every_step_change_no_bit(tmp_path: Path, name: str) -> None:
    model = GPT[1:] if name == "gpt" else ("--steps=12", "--optimizer=sgd", "--lr=0.05")
    more = ("--global-batch-size=22", "--micro-batch-size=2", f"--workload={MOVING}:{name}")
    train(tmp_path / "1", 1, *model, *more)
    for processes in (2, 3):
        place = tmp_path / str(processes)
        train(place, processes, *model, *more, "--balance", "--shard=optimizer")
        assert len({tuple(row["shares"]) for row in jobs.rows(place, "shares")}) > 5
        assert losses(place) == losses(tmp_path / "1")
        assert files(place) == files(tmp_path / "1")


def test_a_slow_process_has_less_until_it_is_fast_again(tmp_path: Path) -> None:
    throttle, lifted = tmp_path / "throttle", 30
    flags = (
        f"--workload={MOVING}:slow", f"--arg=file={json.dumps(str(throttle))}", f"--arg=until={lifted}",
        "--steps=55", "--global-batch-size=24", "--micro-batch-size=2", "--optimizer=sgd", "--lr=0.05",
    )  # fmt: skip
    train(tmp_path / "even", 2, *flags)
    throttle.touch()
    output = train(tmp_path / "moved", 2, *flags, "--balance")
    changes = [(row["step"], row["shares"]) for row in jobs.rows(tmp_path / "moved", "shares")]
    away, counts = changes[0]
    assert away < lifted, output
    assert counts in ([4, 8], [5, 7]), output
    assert any(lifted < step <= lifted + 20 and back == [6, 6] for step, back in changes), output
    for row in jobs.rows(tmp_path / "moved", "ranks"):
        if away + 2 < row["step"] < lifted:
            # Sleeps of the host: 4 × 30 ms on rank 0 and 8 × 15 ms on rank 1, in which the GPU has nothing to do.
            assert 0.1 < row["seconds"] < 0.3, output
    assert losses(tmp_path / "moved") == losses(tmp_path / "even")
    assert files(tmp_path / "moved") == files(tmp_path / "even")


def test_a_slow_process_is_named(tmp_path: Path) -> None:
    (tmp_path / "throttle").touch()
    output = train(
        tmp_path / "run", 2, f"--workload={MOVING}:slow", f"--arg=file={json.dumps(str(tmp_path / 'throttle'))}",
        "--arg=until=1000", "--steps=10", "--global-batch-size=24", "--micro-batch-size=2", "--optimizer=sgd",
        "--lr=0.05",
    )  # fmt: skip
    assert "rank 0 computes longer " in output
    row = jobs.rows(tmp_path / "run", "ranks")[-1]
    assert row["waiting"][1] - row["waiting"][0] > 0.3 * row["seconds"]


def test_an_operation_without_a_deterministic_version_is_named_and_trains(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "from types import SimpleNamespace\n"
        "class Pool(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Conv2d(1, 4, 3)\n"
        "    def forward(self, x):\n"
        "        return torch.nn.functional.adaptive_avg_pool2d(self.layer(x), 5)\n"
        "def build(context):\n"
        "    data = list(torch.randn(24, 1, 16, 16, generator=torch.Generator().manual_seed(1)))\n"
        "    loss = lambda model, batch: model(batch).square().mean()\n"
        "    return SimpleNamespace(model=Pool(), dataset=data, loss=loss)\n"
    )
    flags = (
        f"--workload={tmp_path / 'model.py'}:build",
        "--steps=3",
        "--global-batch-size=4",
        "--micro-batch-size=2",
    )
    output = train(tmp_path / "run", 2, *flags, "--optimizer=sgd", "--lr=0.05")
    assert "no deterministic version of adaptive_avg_pool2d_backward_cuda" in output
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    assert '"exact_on_any_world_size": false' in manifest


def job(place: Path, **more: Any) -> dict[str, Any]:
    args = {
        "depth": 2,
        "width": 256,
        "heads": 4,
        "seq_len": 1024,
        "dropout": 0.1,
        "max_bytes": 2_000_000,
    }
    training = {
        "workload": "gpt", "steps": 60, "global_batch_size": 12, "micro_batch_size": 2, "optimizer": "adamw",
        "lr": 1e-3, "grad_clip": 1.0, "precision": "bf16", "log_every": "1 steps", "args": args,
    }  # fmt: skip
    return {
        "name": "gpu", "python": sys.executable, "gpus_per_node": 1,
        "checkpoint": {"dir": str(place / "run"), "every": "10 steps"}, "train": training, **more,
    }  # fmt: skip


def ddpgen(place: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddpgen", *words],
        env={**ENVIRONMENT, **env}, cwd=place, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def launch(place: Path, spec: dict[str, Any], **env: str) -> subprocess.CompletedProcess[str]:
    place.mkdir(exist_ok=True)
    (place / "job.yaml").write_text(yaml.safe_dump(spec))
    return ddpgen(place, "launch", "job.yaml", "--target", "local", **env)


def test_a_launched_job_that_is_killed_ends_in_the_same_weights(tmp_path: Path) -> None:
    whole = launch(tmp_path / "whole", job(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stdout + whole.stderr
    place = tmp_path / "killed"
    place.mkdir()
    (place / "job.yaml").write_text(yaml.safe_dump(job(place)))
    running = subprocess.Popen(
        [sys.executable, "-m", "ddpgen", "launch", "job.yaml", "--target", "local"],
        env=ENVIRONMENT, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    killed = False
    lines = []
    for line in running.stdout:
        lines.append(line)
        if not killed and re.match(r"step +25/", line):
            killed = True
            os.kill(worker_of(place / "run"), signal.SIGKILL)
    assert running.wait() == 0, "".join(lines)
    assert killed, "".join(lines)
    assert "resuming at step 2" in "".join(lines), "".join(lines)
    jobs.assert_same_bits(weights(place / "run"), weights(tmp_path / "whole" / "run"))
    verified = ddpgen(place, "verify", "job.yaml")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def worker_of(directory: Path) -> int:
    """The process that trains in `directory`."""
    wanted = f"--checkpoint-dir={directory}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if wanted in words and b"RANK=0" in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
    raise AssertionError(f"no process trains in {directory}")


@pytest.mark.parametrize("name", ["huggingface", "lightning", "accelerate", "nanogpt"])
def test_a_script_that_is_killed_ends_in_the_same_weights(tmp_path: Path, name: str) -> None:
    whole, script = (
        Script(name, tmp_path / place, procs=1, more="gpus_per_node: 1\n")
        for place in ("whole", "killed")
    )
    whole.run()
    job = script.start()
    script.wait_for_rows(job, 2)
    os.kill(job.process.pid, signal.SIGKILL)  # and with it all others
    assert job.end() == -signal.SIGKILL
    job = script.run()
    assert "does not resume where its checkpoint ends" not in job.output
    if (
        name != "lightning"
    ):  # on one process its sampler draws the order, and its checkpoint has no state for that
        jobs.assert_same_bits(script.weights(), whole.weights())


def test_a_host_whose_gpus_are_hidden_is_named_before_the_start(tmp_path: Path) -> None:
    began = time.monotonic()
    hidden = launch(tmp_path / "hidden", job(tmp_path / "hidden"), CUDA_VISIBLE_DEVICES="")
    assert hidden.returncode == 69
    assert "CUDA_VISIBLE_DEVICES" in hidden.stdout + hidden.stderr
    few = launch(tmp_path / "few", job(tmp_path / "few", procs_per_node=2, gpus_per_node=2))
    assert few.returncode == 69
    assert "GPU001" in few.stdout + few.stderr
    assert time.monotonic() - began < 20
