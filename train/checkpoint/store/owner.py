"""The owner of a store: one live job at a time, and within a job its latest start.

Owns `owner.json`, which names the start that writes to the store. The owner renews it while it lives. An owner is alive
if the object changes while it is watched; the clocks of two machines are never compared. A store that does not answer
for a while ends nothing: the training goes on, and looks again.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from dataclasses import asdict, dataclass, replace

from train.base import typed
from train.base.console import say
from train.checkpoint.store.places import Store, StoreError, describe_error
from train.checkpoint.store.retries import BoundedStore, with_retries
from train.run.lock import FencedOffError, HeldByLiveJobError, watch

OWNER, MANIFEST = "owner.json", "manifest.json"
LOOK_S = 10.0
RENEW_S = 30.0
# An owner that has not renewed for so long is gone: two missed renewals, and the time that a slow store takes.
SILENCE_S = 75.0
_WATCH_S = 5.0
# While the store does not answer, a start waits for it at most so many times SILENCE_S longer.
_AWAY = 4
# Bytes of owner.json. A mount remembers a file's size for a while, so only a constant size is always read whole.
_SIZE = 2048
# On a plain disk a read may come while the file is being written, so read again.
_LOOKS, _LOOKS_APART_S = 3, 0.05


@dataclass(frozen=True)
class Owner:
    """A start of a job.

    `job`: the same for all starts that a scheduler makes of the job. `restarts`: the scheduler's count of its restarts.
    `turn`: the number of this owner in the order of the store's owners. `home`: machine and checkpoint directory, which
    hold at most one live start. `beat`: changes with every renewal.
    """

    job: str
    attempt: str
    host: str
    restarts: int = 0
    home: str = ""
    turn: int = 0
    token: str = ""
    beat: int = 0
    time: float = 0.0

    def is_same_job(self, other: Owner) -> bool:
        """True if the other is a start of this job too, or comes from the same checkpoint directory on this machine."""
        return self.job == other.job or (self.home != "" and self.home == other.home)

    def is_later(self, other: Owner) -> bool:
        """True if this start is the later one of two starts of one job, so that this one goes on."""
        mine, theirs = (
            (o.restarts if self.job == other.job else 0, o.turn, o.token) for o in (self, other)
        )
        return mine > theirs


def read_owner(store: Store) -> Owner | None:
    """Return the store's owner, or None if owner.json is missing or invalid. Raises OSError."""
    for _ in range(_LOOKS):
        try:
            content = store.read(OWNER)
        except FileNotFoundError:
            return None
        owner = typed.parse(Owner, content)
        if owner is not None:
            return owner
        time.sleep(_LOOKS_APART_S)
    return None


class Ownership:
    """This start's hold of the store, from `take` to `close`."""

    def __init__(self, store: Store, me: Owner) -> None:
        self._store = BoundedStore(store)
        self._me = replace(me, token=secrets.token_hex(6))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="store owner", daemon=True)
        self._renewing = threading.Lock()
        self._is_silent = False
        self._manifest: bytes | None = None
        self.lost: FencedOffError | None = None

    @property
    def turn(self) -> int:
        """The number of this owner in the order of the store's owners; 0 before take()."""
        return self._me.turn

    def take(self, turn: int | None = None) -> None:
        """Own the store from now on.

        `turn`: the turn that this start had before its processes were restarted, or None.
        Raises HeldByLiveJobError if another live job owns the store, FencedOffError if a later start of this job owns it, and
        OSError if the store cannot be used.
        """
        name = self._store.name
        before: Owner | None = with_retries(name, lambda: read_owner(self._store))
        if before is not None:
            self._check_may_take(before, turn)
        self._me = replace(self._me, turn=before.turn + 1 if before is not None else 1)
        with_retries(name, self._renew)
        # Two starts may have come this far at once: the last write won.
        with_retries(name, self.check)
        self._store.limit()
        self._thread.start()

    def wrote_manifest(self, content: bytes) -> None:
        """Remember the manifest that this start wrote. It proves that the store is still this start's, if owner.json is
        gone."""
        self._manifest = content

    def check(self) -> None:
        """Raise FencedOffError if another start owns the store by now, OSError if the store does not answer."""
        if self.lost is not None:
            raise self.lost
        found = read_owner(self._store)
        if found is None:
            self._check_is_mine_still()
            return
        if found.token == self._me.token:
            return
        if self._me.is_same_job(found) and self._me.is_later(found):
            return  # the earlier start has renewed once more, and will see this one's next renewal
        self.lost = FencedOffError(
            f"{self._store.name} is written to by {_name(found)} since; this one stops writing and "
            "ends"
        )
        raise self.lost

    def _check_is_mine_still(self) -> None:
        """Check by the manifest if owner.json was only deleted, or if a later start has come and ended meanwhile."""
        if self._manifest is None:
            return
        try:
            manifest = self._store.read(MANIFEST)
        except FileNotFoundError:
            raise StoreError(
                f"{OWNER} and {MANIFEST} are gone: it was emptied, or another place is mounted there "
                "now; mount the bucket again, or start the job again"
            ) from None
        if manifest != self._manifest and _whole(manifest):
            self.lost = FencedOffError(
                f"a later start has written to {self._store.name} and ended; this one stops writing "
                "and ends"
            )
            raise self.lost

    def may_speak(self) -> bool:
        """True if no other start owns the store, so that this start may report a failure there. Raises OSError."""
        if self.lost is not None:
            return False
        found = read_owner(self._store)
        if found is None or found.token == self._me.token:
            return True
        # A start that has never taken the store may still speak for its own job.
        return not self._thread.ident and self._me.is_same_job(found)

    def close(self) -> None:
        """Stop renewing, because this process ends; the job may go on in another."""
        self._ended.set()

    def release(self) -> None:
        """Give up the store, because the job ends with this start. Raises OSError."""
        self.close()
        with self._renewing:
            found = read_owner(self._store)
            if found is not None and found.token == self._me.token:
                self._store.delete(OWNER)

    def _check_may_take(self, holder: Owner, turn: int | None) -> None:
        if self._me.is_same_job(holder):
            # Without a turn of its own, or in the same directory, this start comes after the holder.
            if turn is None or holder.home == self._me.home:
                turn = holder.turn
            if holder.is_later(replace(self._me, turn=turn, token=holder.token)):
                raise FencedOffError(
                    f"a later start of this job, on {holder.host}, writes to {self._store.name}; this "
                    "one ends"
                )
            return
        say(
            f"{self._store.name} was written to by {_name(holder)}; looking for up to {SILENCE_S:g} s "
            "whether that is still alive"
        )
        since = began = time.monotonic()
        owner = holder

        def beat() -> tuple[Owner | None, bool]:
            nonlocal since, owner
            now: Owner | None = holder
            try:
                now = read_owner(self._store)
                if now is None and self._store.list(OWNER):
                    now = holder  # its record is being written
            except PermissionError:
                raise
            except OSError:
                # The store itself is silent, which is no sign of the owner's life or end.
                since = min(time.monotonic(), began + _AWAY * SILENCE_S)
            owner = now or owner
            return now, time.monotonic() - since >= SILENCE_S

        if watch(beat, math.inf, _WATCH_S):
            raise HeldByLiveJobError(
                f"{self._store.name} belongs to {_name(owner)}, which is running",
                "stop that one first, or give this job another name or prefix",
            )

    def _renew(self) -> None:
        with self._renewing:
            if self._ended.is_set():
                return
            self._me = replace(self._me, beat=self._me.beat + 1, time=round(time.time(), 3))
            text = json.dumps(asdict(self._me), indent=1)
            self._store.write(OWNER, text.encode().ljust(_SIZE - 1) + b"\n")

    def _keep(self) -> None:
        """Renew owner.json, so that other starts see that this one lives."""
        renewed = time.monotonic()
        while not self._ended.wait(LOOK_S):
            if time.monotonic() - renewed < RENEW_S - LOOK_S / 2:
                continue
            try:
                self.check()
                self._renew()
                renewed = time.monotonic()
                self._answers("")
            except FencedOffError:
                return
            except OSError as error:
                self._answers(describe_error(error))

    def _answers(self, problem: str) -> None:
        """Say once that the store does not answer, and once that it does again."""
        if problem and not self._is_silent:
            say(
                f"{self._store.name} does not answer ({problem}); training goes on, a stop asked for there "
                "is not seen meanwhile"
            )
        elif self._is_silent and not problem:
            say(f"{self._store.name} answers again")
        self._is_silent = bool(problem)


def _name(owner: Owner) -> str:
    job = owner.job.removesuffix(f" {owner.attempt}")
    return f"job {job} on {owner.host} (attempt {owner.attempt})"


def _whole(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
