"""torch.profiler over some steps: a trace for each rank, and a table of the ranks' times.

Owns the range of steps, the files below profile/ and the table. Outside of the range it does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from train.base.console import say
from train.distributed.process_group import World
from train.distributed.timing import StepClock
from train.health.phase import doing

_OPERATORS = 8


class Profile:
    """The profile on one rank. All ranks begin and end at the same step, because they exchange the table's rows."""

    def __init__(
        self, steps: tuple[int, int], directory: Path, world: World, clock: StepClock
    ) -> None:
        """`steps`: the first and the last step. `clock`: the trainer's clock."""
        self._first, self._last = steps
        self._directory, self._world, self._clock = directory, world, clock
        self._steps = range(0)
        self._profiler: Any = None

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """The context of one step. A start in the middle of the range traces the rest of it."""
        if self._profiler is None and self._first <= step <= self._last:
            self._begin(step)
        yield
        if self._profiler is not None:
            self._steps = range(self._steps.start, step + 1)
            if step == self._last:
                self.close()

    def _begin(self, step: int) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._world.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._steps = range(step, step)
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()
        self._wait_for_gpu()
        self._before = self._clock.totals()

    def close(self) -> None:
        """After the last step of the range or of the run: write the trace, and print the table on rank 0."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        with doing("writing the profile"):
            self._wait_for_gpu()
            step_s, exchange_s, data_s = self._clock.totals().mean_since(self._before)
            profiler.stop()
            operators = profiler.key_averages()
            compute_s = step_s - exchange_s - data_s
            if self._world.device.type == "cuda":  # the host only waits; use the kernels' times
                kernels = [(each.key, each.self_device_time_total) for each in operators]
                exchange_s = self._seconds(t for name, t in kernels if "nccl" in name.lower())
                compute_s = self._seconds(t for name, t in kernels if "nccl" not in name.lower())
            place = self._directory / f"rank-{self._world.rank}.json.gz"
            try:
                self._directory.mkdir(exist_ok=True)
                profiler.export_chrome_trace(str(place))
            except (OSError, RuntimeError) as error:
                say(f"the profile cannot be written to {place}: {error}", self._world.rank)
            rows = self._world.all_gather((step_s, compute_s, exchange_s, data_s))
        if self._world.rank == 0:
            say("\n".join([*self._table(rows), *self._top(operators)]))

    def _wait_for_gpu(self) -> None:
        """Wait until the clock counts all steps."""
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)

    def _seconds(self, microseconds: Iterator[float]) -> float:
        return sum(microseconds) / 1e6 / len(self._steps)

    def _table(self, rows: list[tuple[float, float, float, float]]) -> Iterator[str]:
        yield f"profile of steps {self._steps[0]} to {self._steps[-1]}, traces in {self._directory}; ms of a step:"
        yield "  rank      step   compute  communication   waiting      data"
        # The rank with the least exchange time waits for no other rank, so all of that time is communication.
        least = min(exchange_s for _, _, exchange_s, _ in rows)
        for rank, (step_s, compute_s, exchange_s, data_s) in enumerate(rows):
            waiting_s = exchange_s - least
            step, compute, sent, waiting, data = (
                1000 * seconds for seconds in (step_s, compute_s, least, waiting_s, data_s)
            )
            yield f"  {rank:4}{step:10.1f}{compute:10.1f}{sent:15.1f}{waiting:10.1f}{data:10.1f}"

    def _top(self, operators: Any) -> Iterator[str]:
        on_gpu = self._world.device.type == "cuda"
        key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        yield f"  {'operators of rank 0':42}ms of a step   calls"
        for each in sorted(operators, key=lambda o: -getattr(o, key))[:_OPERATORS]:
            ms = getattr(each, key) / 1000 / len(self._steps)
            yield f"  {each.key[:42]:42}{ms:12.1f}{each.count / len(self._steps):8.0f}"
