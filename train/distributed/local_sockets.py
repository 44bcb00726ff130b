"""Small sums among the processes of one host: a socket for every pair of them, and no thread.

Owns the connections and the order of the messages on them. A message lies in the kernel's buffers from the moment it
is sent, so it travels during the backward pass and has arrived when it is read. By contrast, gloo wakes threads up on
both sides. On busy cores that takes longer than a small model's step. Knows nothing of the meaning of the numbers.
"""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch

from train.base.errors import PeerGoneError, PeerLateError
from train.distributed import tree
from train.distributed.process_group import World

# The most numbers in a message. No rank ends a step without the messages of all others. So at most four messages lie
# unread in a socket: two sums of this step and two of the step before. The buffers have room for four, so that no
# sender waits for a reader.
MOST_NUMBERS = 2048
_BUFFER_BYTES = 4 * MOST_NUMBERS * 8 * 4
# Every process writes to every other one. With more processes than this, gloo sends fewer messages.
MOST_PROCESSES = 16
_RANK = struct.Struct("<i")


class Waitable(Protocol):
    """A sum that is under way."""

    def wait(self) -> torch.Tensor:
        """Wait for the sum and return it. Raises RuntimeError when a peer is gone or too late."""


class Reducer(Protocol):
    """The interface of train.distributed.reduction.TreeReducer, as used for tensors outside DDP's buckets."""

    def reduce(self, rows: list[torch.Tensor], out: torch.Tensor) -> Waitable: ...


class LocalSockets:
    """A connection to every peer. Every rank sends, and so receives, in the same order."""

    def __init__(self, rank: int, peers: dict[int, socket.socket]) -> None:
        self._rank, self._peers = rank, peers
        self._due: deque[Message] = deque()

    def send(self, numbers: torch.Tensor, sizes: Sequence[int]) -> Message:
        """Send these doubles to every peer. `sizes`: how many doubles each rank sends this time.

        Raises RuntimeError when a peer is gone.
        """
        data = bytearray(numbers.numel() * 8)
        own_numbers = torch.frombuffer(data, dtype=torch.float64).copy_(numbers)
        for rank, peer in self._peers.items():
            try:
                peer.sendall(data)
            except OSError as error:
                raise _connection_error(rank, error) from error
        message = Message(self, own_numbers, sizes)
        self._due.append(message)
        return message

    def receive(self) -> None:
        """Complete the oldest message that is under way."""
        message = self._due.popleft()
        message.rank_numbers = [
            message.own_numbers if rank == self._rank else self._receive_from(rank, size)
            for rank, size in enumerate(message.sizes)
        ]

    def _receive_from(self, rank: int, size: int) -> torch.Tensor:
        data = bytearray(size * 8)
        unfilled = memoryview(data)
        while unfilled:
            try:
                count = self._peers[rank].recv_into(unfilled)
            except OSError as error:
                raise _connection_error(rank, error) from error
            if count == 0:
                raise PeerGoneError(f"the connection to rank {rank} was closed")
            unfilled = unfilled[count:]
        return torch.frombuffer(data, dtype=torch.float64)


class Message:
    """One message of each rank. `rank_numbers`: their numbers, once `wait` has returned."""

    def __init__(
        self, sockets: LocalSockets, own_numbers: torch.Tensor, sizes: Sequence[int]
    ) -> None:
        self._sockets, self.own_numbers, self.sizes = sockets, own_numbers, sizes
        self.rank_numbers: list[torch.Tensor] = []

    def wait(self) -> list[torch.Tensor]:
        """Return the numbers of each rank, by rank. Raises PeerGoneError, PeerLateError."""
        while not self.rank_numbers:
            self._sockets.receive()
        return self.rank_numbers


class SocketReducer:
    """The reduction tree for small tensors: every rank receives all partial sums and adds them up."""

    def __init__(self, sockets: LocalSockets, ranges: Sequence[range], fallback: Reducer) -> None:
        """`fallback` reduces tensors that are too large, not on the CPU, or not of doubles."""
        self._sockets, self._fallback = sockets, fallback
        self.assign(ranges)

    def assign(self, ranges: Sequence[range], rank: int = 0) -> None:
        """From the next step on, the ranks have these micro-batches."""
        leaves = ranges[-1].stop
        self._stage = tree.stage([tree.fold_of_rank(r, leaves).nodes for r in ranges], leaves)

    def reduce(self, rows: list[torch.Tensor], out: torch.Tensor) -> Waitable:
        """Sum `rows` (this rank's partial sums, flat doubles, in order) over all ranks into `out`."""
        largest = max(self._stage.rows) * out.numel()
        if largest > MOST_NUMBERS or out.device.type != "cpu" or out.dtype != torch.float64:
            return self._fallback.reduce(rows, out)
        message = self._sockets.send(torch.cat(rows), [n * out.numel() for n in self._stage.rows])
        return _Sum(message, self._stage.fold, out)


class _Sum:
    def __init__(self, message: Message, fold: tree.Fold, out: torch.Tensor) -> None:
        self._message, self._fold, self._out = message, fold, out

    def wait(self) -> torch.Tensor:
        partial_sums = torch.cat(self._message.wait()).view(-1, self._out.numel())
        for left, right in self._fold.adds:
            partial_sums[left].add_(partial_sums[right])
        return self._out.copy_(partial_sums[self._fold.remaining_rows[0]])


def connect(world: World) -> LocalSockets | None:
    """Return the sockets of this world, or None on all ranks alike.

    None if there is one process, more than MOST_PROCESSES or several hosts, or if a rank can make no socket.
    """
    if not 1 < world.size <= MOST_PROCESSES or len(world.layout) > 1:
        return None
    directory = world.all_gather(_private_directory() if world.rank == 0 else "")[0]
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            if not all(world.all_gather(_listens(listener, directory, world))):
                return None
            peers = _connect_and_accept(listener, directory, world)
            world.barrier()  # all are connected before rank 0 deletes the names
    finally:
        if world.rank == 0:
            shutil.rmtree(directory, ignore_errors=True)
    return LocalSockets(world.rank, peers)


def _private_directory() -> str:
    """Make and return a directory that only this user can look into; "" if it cannot be made."""
    try:
        return tempfile.mkdtemp(prefix="ddpgen-")
    except OSError:
        return ""


def _listens(listener: socket.socket, directory: str, world: World) -> bool:
    """Listen, and return whether that works. It needs a directory whose name is not too long for a socket."""
    if not directory:
        return False
    try:
        listener.settimeout(world.collective_timeout)
        listener.bind(f"{directory}/{world.rank}")
        listener.listen(world.size)
    except OSError:
        return False
    return True


def _connect_and_accept(
    listener: socket.socket, directory: str, world: World
) -> dict[int, socket.socket]:
    """Return a socket to every peer: connect to the lower ranks, and accept the higher ones."""
    peers: dict[int, socket.socket] = {}
    for rank in range(world.rank):
        peer = peers[rank] = _prepared(socket.socket(socket.AF_UNIX), world)
        peer.connect(f"{directory}/{rank}")
        peer.sendall(_RANK.pack(world.rank))
    for _ in range(world.rank + 1, world.size):
        peer = _prepared(listener.accept()[0], world)
        peers[_RANK.unpack(peer.recv(_RANK.size, socket.MSG_WAITALL))[0]] = peer
    return peers


def _prepared(peer: socket.socket, world: World) -> socket.socket:
    peer.settimeout(world.collective_timeout)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        peer.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
    return peer


def _connection_error(rank: int, error: OSError) -> PeerGoneError | PeerLateError:
    if isinstance(error, TimeoutError):
        return PeerLateError(f"rank {rank} did not answer in time")
    return PeerGoneError(f"the connection to rank {rank} was lost: {error.strerror}")
