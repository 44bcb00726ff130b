"""Fixtures of the workloads' tests: contexts, real digits in IDX form, and a server for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.train.workloads import http_files, idx_files
from train.workload import Context


@pytest.fixture(autouse=True)
def one_thread_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, as in a job; and 127.0.0.1 is reached directly, whatever this machine's proxies."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def context_of() -> Callable[..., Context]:
    """`context_of(seed=1)`: a context as the one process of a job has it; seeds torch, too."""

    def make(seed: int = 0, rank: int = 0, world_size: int = 1) -> Context:
        torch.manual_seed(seed)
        return Context(
            seed=seed,
            rank=rank,
            local_rank=rank,
            world_size=world_size,
            device=torch.device("cpu"),
            micro_batch_size=16,
        )

    return make


@pytest.fixture
def context(context_of: Callable[..., Context]) -> Context:
    return context_of()


@pytest.fixture(scope="session")
def digits() -> dict[str, bytes]:
    """1,797 handwritten digits of 8x8 pixels (scikit-learn's), as the four packed IDX files."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return idx_files.image_set(data.images * 15, data.target, held_out=297)


@pytest.fixture
def site(digits: dict[str, bytes]) -> Iterator[http_files.Site]:
    with http_files.serving(dict(digits)) as running:
        yield running
