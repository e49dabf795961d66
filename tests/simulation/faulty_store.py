"""A store that is slow, fails, stalls and takes its node down with it, at any step, as the seed says.

Each node gets a `FaultyStore` of its own in front of one shared `MemoryStore`, which is the disk: what was applied
there outlives every crash. A dead node's calls never return, and nothing of it reaches the disk any more. Every commit
that lands is shown to the host, with the node that made it: from there the checker knows what is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final, Protocol

import msgspec

from penstock.api.ticket import in_task
from penstock.model.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.model.rows import (
    BatchHead,
    BatchRow,
    CatalogChanges,
    CatalogRow,
    CheckedBatch,
    ClusterView,
    Commit,
    DedupRow,
    Joined,
    LaneImage,
    Member,
    OutboxRow,
    TraceRow,
)
from penstock.store.contract import Capabilities, Enqueueing
from penstock.store.memory.engine import MemoryStore

DELAYS_MS: Final = (0, 0, 1, 2, 5, 20)
STALL_MS_MAX: Final = 3_000


class Chances(msgspec.Struct, frozen=True):
    """How likely each fault is at one step, 0 to 1."""

    delay: float = 0.0
    stall: float = 0.0
    fail_before: float = 0.0
    fail_after: float = 0.0
    crash: float = 0.0


CALM: Final = Chances()


class Host(Protocol):
    """The world around the store: who decides, who is told."""

    fault_random: Random

    @property
    def chances(self) -> Chances:
        """How likely each fault is now."""

    @property
    def is_away(self) -> bool:
        """Whether nobody reaches the disk now."""

    def crash(self, index: int) -> None:
        """The node of this index dies here and now."""

    def landed(self, index: int, commit: Commit) -> None:
        """A commit of this node is on the disk."""

    def failed(self) -> None:
        """A commit failed: its node reads back what is true."""

    def acquired(self, index: int) -> None:
        """This node owns the disk from now on."""

    def odd(self, text: str) -> None:
        """Something that may never happen did."""


class FaultyStore:
    """One node's way to the disk."""

    enqueueing: Enqueueing | None = None

    def __init__(self, host: Host, disk: MemoryStore, index: int, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._host = host
        self._disk = disk
        self._index = index
        self._applying: list[set[int]] = []
        """The slots of each commit under way."""
        self._closed = False
        self.severed = False
        self.overlaps = 0
        """Commits that began while another was under way."""

    # The contract -----------------------------------------------------------------------------------------

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        await self._before("acquire")
        epochs = await self._disk.acquire(slots, owner)
        self._host.acquired(self._index)
        await self._after("acquire", may_fail=True)
        return epochs

    @in_task
    async def apply(self, commit: Commit) -> None:
        slots = set(commit.epochs)
        if len(self._applying) >= self.capabilities.commits_under_way:
            self._host.odd("too many commits are under way at once")
        if any(not slots.isdisjoint(others) for others in self._applying):
            self._host.odd("two commits of one slot are under way at once")
        self._applying.append(slots)
        self.overlaps += len(self._applying) > 1
        try:
            await self._before("apply")
            await self._land(commit)
            await self._after("apply", may_fail=True)
        except PenstockError:
            self._host.failed()
            raise
        finally:
            self._applying.remove(slots)

    async def _land(self, commit: Commit) -> None:
        try:
            await self._disk.apply(commit)
        except Fenced:
            raise
        except PenstockError as error:
            self._host.odd(f"the store refused a commit: {error}")
            raise
        self._host.landed(self._index, commit)

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        await self._before("load")
        images = await self._disk.load(lanes, dedup_most)
        await self._after("load")
        return images

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        await self._before("read")
        rows = await self._disk.read(lane, start, end, bytes_most)
        await self._after("read")
        return rows

    async def check(self, lane: int, start: int, bytes_most: int) -> list[CheckedBatch]:
        await self._before("check")
        checked = await self._disk.check(lane, start, bytes_most)
        await self._after("check")
        return checked

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        await self._before("heads")
        heads = await self._disk.heads(lane, start, batches_most, bytes_most)
        await self._after("heads")
        return heads

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        await self._before("find_time")
        return await self._disk.find_time(lane, time_ms)

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        await self._before("find_dedup")
        rows = await self._disk.find_dedup(lane, keys)
        await self._after("find_dedup")
        return rows

    async def catalog(self) -> list[CatalogRow]:
        await self._before("catalog")
        rows = await self._disk.catalog()
        await self._after("catalog")
        return rows

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        await self._before("outbox")
        rows = await self._disk.outbox(after, most, slots)
        await self._after("outbox")
        return rows

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        await self._before("find_trace")
        rows = await self._disk.find_trace(namespace, trace_id, most)
        await self._after("find_trace")
        return rows

    async def oldest_trace(self) -> int | None:
        await self._before("oldest_trace")
        return await self._disk.oldest_trace()

    async def lanes_in_use(self) -> list[int]:
        await self._before("lanes_in_use")
        return await self._disk.lanes_in_use()

    async def join(self, member: Member) -> Joined:
        await self._before("join")
        joined = await self._disk.join(member)
        await self._after("join", may_fail=True)
        return joined

    async def heartbeat(self, incarnation: int) -> ClusterView:
        await self._before("heartbeat")
        view = await self._disk.heartbeat(incarnation)
        await self._after("heartbeat", may_fail=True)
        return view

    async def take(self, slots: Sequence[int], incarnation: int) -> dict[int, int]:
        await self._before("take")
        taken = await self._disk.take(slots, incarnation)
        await self._after("take", may_fail=True)
        return taken

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        await self._before("release")
        await self._disk.release(slots, incarnation, to)
        await self._after("release", may_fail=True)

    async def leave(self, incarnation: int) -> None:
        await self._before("leave")
        await self._disk.leave(incarnation)
        await self._after("leave", may_fail=True)

    async def reserve_ids(self, count: int, above: int = 0) -> int:
        await self._before("reserve_ids")
        first = await self._disk.reserve_ids(count, above)
        await self._after("reserve_ids", may_fail=True)
        return first

    async def catalog_since(self, version: int) -> CatalogChanges:
        await self._before("catalog_since")
        changes = await self._disk.catalog_since(version)
        await self._after("catalog_since")
        return changes

    def renewing(self, _seconds: float) -> None:
        return None

    @property
    def place(self) -> str:
        return self._disk.place

    def body_place(self, lane: int, base: int) -> str:
        return self._disk.body_place(lane, base)

    def body_problem(self, lane: int, base: int) -> str:
        return self._disk.body_problem(lane, base)

    def damage(self) -> list[str]:
        return []

    async def close(self) -> None:
        """The node lets go; the disk stays as it is."""
        self._closed = True

    # Faults -----------------------------------------------------------------------------------------------

    async def _before(self, step: str) -> None:
        if self.severed:
            await _for_ever()
        if self._closed:
            raise Closed("the store is closed")
        chances, random = self._host.chances, self._host.fault_random
        if chances.crash and random.random() < chances.crash:
            await self._crash()
        await self._delay(chances)
        if self._host.is_away:
            raise Unavailable(f"simulated: {step} finds nobody")
        if chances.fail_before and random.random() < chances.fail_before:
            raise Unavailable(f"simulated: {step} failed before it did anything")

    async def _after(self, step: str, *, may_fail: bool = False) -> None:
        chances, random = self._host.chances, self._host.fault_random
        if chances.crash and random.random() < chances.crash:
            await self._crash()
        await self._delay(chances)
        if self._host.is_away:
            raise Unavailable(f"simulated: nobody says how {step} went")
        if may_fail and chances.fail_after and random.random() < chances.fail_after:
            raise Unavailable(f"simulated: {step} failed after it was done")

    async def _delay(self, chances: Chances) -> None:
        random = self._host.fault_random
        if chances.stall and random.random() < chances.stall:
            await asyncio.sleep(random.randrange(STALL_MS_MAX) / 1000)
        elif chances.delay and random.random() < chances.delay:
            await asyncio.sleep(random.choice(DELAYS_MS) / 1000)
        if self.severed:
            await _for_ever()

    async def _crash(self) -> None:
        self._host.crash(self._index)
        await _for_ever()


async def _for_ever() -> None:
    """A dead node hears nothing more."""
    await asyncio.get_running_loop().create_future()
