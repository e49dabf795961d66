"""What must happen in queues of several owners at once: decided in one commit, carried out by each owner, exactly once.

The node that publishes commits its own part and, in the very same commit, a row in the outbox for each part that
belongs to another node. The owner of that slot appends the messages and deletes the row in one commit of its own
(`outbox.py`), so whatever crashes, each part is there once. Where only one other node is concerned nothing crosses: the
request is `NotOwner`. Verdicts on leases of several owners cannot be promised for later, for a lease may end
meanwhile: there the slots themselves are asked for.

Where the engine commits one slot at a time, another slot is to a publish what another node is, also if it is this
node's: its part goes through the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from penstock.batch import EncodedBatch, decode, decode_meta, encode
from penstock.model.appended import Appended
from penstock.model.errors import InvalidArgument, MessageTooLarge, NotFound, NotOwner, PenstockError, Unavailable
from penstock.model.rows import OutboxRow, slot_of
from penstock.node.catalog import EPHEMERAL_FROM, Catalog
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.lifecycle import Numbers
from penstock.node.publish.parts import Origin, Part, Results, is_kept_encoded
from penstock.node.timers import Tasks

LANDED_WITHIN_S: Final = 10.0
"""How long a publish waits for other nodes to have carried out their parts."""
GATHERED_WITHIN_S: Final = 5.0
AGAIN_S: Final = 0.05


class RemotePart(msgspec.Struct, frozen=True):
    """An outbox document: append these messages to the row's lane."""

    namespace: str
    queue: str
    queue_id: int
    count: int
    meta: bytes
    body: bytes
    publish_id: str
    """By which the owner knows it again; also those without one of their own get one."""
    asked_ms: int | None = None
    spool: str = ""
    """The spool that it comes from, if it does,"""
    sequence: int = 0
    """and the number of its record there."""


class Landing(msgspec.Struct, frozen=True):
    """What is asked of the owner: whether this row has been carried out, and where its messages went."""

    id: int
    lane: int
    count: int
    publish_id: str
    ids: list[tuple[str | None, str | None]] = []
    """(partition, dedup id) of each message, where any has one."""


class Landed(msgspec.Struct, frozen=True):
    id: int
    base: int
    count: int
    duplicates: dict[int, int] = {}


class Sent(Appended, frozen=True):
    """In the place of an answer until the owner has given one."""

    landing: Landing | None = None


_decoder: Final = msgspec.msgpack.Decoder(RemotePart)


class Neighbours(Protocol):
    """The other nodes, as far as publishing needs them."""

    async def ask_for(self, slots: list[int]) -> None:
        """Have slots handed to this node, and keep them for a while."""

    async def changed(self, seconds: float) -> None:
        """Wait until the next view of the owners, at most this long."""

    def look(self) -> None:
        """Look soon who owns what."""

    async def ask_landed(self, slot: int, landings: list[Landing]) -> list[Landed]:
        """Where these went, as the present owner of their slot knows."""


def is_remote_part(row: OutboxRow) -> bool:
    """Whether it is such a document: others are JSON."""
    return not row.document.startswith(b"{")


def is_of_spool(row: OutboxRow, spool: str) -> bool:
    return is_remote_part(row) and _decoder.decode(row.document).spool == spool


def is_sent(results: Results) -> bool:
    """Whether other nodes have to append some of it."""
    return any(isinstance(appended, Sent) for _, _, appended, _ in results)


def part_of(row: OutboxRow, catalog: Catalog) -> Part:
    """What a row asks for, as a part to be appended here; raises `NotFound` where its queue is gone."""
    remote = _decoder.decode(row.document)
    queue = catalog.by_lane.get(row.lane)
    if queue is None or queue.deleting or queue.id != remote.queue_id:
        raise NotFound(f"the queue {remote.queue!r} was deleted")
    batch = EncodedBatch(remote.count, remote.meta, remote.body)
    origin = Origin(remote.spool, remote.sequence) if remote.spool else None
    if not is_kept_encoded(batch):
        part = Part(queue, row.lane, decode(batch), None, None, None, remote.publish_id)
    else:
        part = Part(queue, row.lane, (), batch, decode_meta(batch.meta, batch.count), None, remote.publish_id)
    return part if origin is None else msgspec.structs.replace(part, asked_ms=remote.asked_ms, origin=origin)


@dataclass(eq=False, repr=False)
class RemotePublish:
    """Parts of publishes whose lanes other nodes own."""

    _ownership: Ownership
    _commits: Commits
    _numbers: Numbers
    _tasks: Tasks

    def __post_init__(self) -> None:
        self._is_spanning = self._commits.spans_slots
        self.row_bytes_max: int | None = None
        """The longest part that may be sent to another node; None: any."""
        self.neighbours: Neighbours | None = None
        """None where nothing is ever sent: this node has the store for itself, and one commit may hold everything."""

    def is_other_nodes(self, part: Part) -> bool:
        return not self._ownership.has_taken(slot_of(part.lane))

    def is_elsewhere(self, part: Part, home: int | None) -> bool:
        """Whether a part cannot be in the commit of the slot `home`: it is another node's, or must be in its own."""
        return self.is_other_nodes(part) or not self._commits.may_share(home, slot_of(part.lane))

    def at_home(self, parts: Sequence[Part], home: int | None) -> set[int]:
        """The lanes whose parts are in the commit of the slot `home`; the others are promised in it.

        Where something is promised, so is what is for memory alone: with the answer of the commit, its part would be
        lost without the others.
        """
        lanes = {part.lane for part in parts}
        own = {part.lane for part in parts if not self.is_elsewhere(part, home)}
        return own if own == lanes or self._is_spanning else {lane for lane in own if lane < EPHEMERAL_FROM}

    def home_of(self, parts: Sequence[Part]) -> int | None:
        """The slot whose commit a publish is; None where one commit may hold all that is this node's."""
        if self._is_spanning:
            return None
        own = [part.lane for part in parts if not self.is_other_nodes(part)]
        # What is only in memory has no commit that others could be promised in.
        return slot_of(min(own)) if own else None

    # Before -----------------------------------------------------------------------------------------------

    def check_owners(self, parts: Sequence[Part]) -> None:
        """Raise `NotOwner` where all of it is another node's: that can do it in one commit."""
        self.check_rows(parts)
        if not parts or not all(map(self.is_other_nodes, parts)):
            return
        slots = {slot_of(part.lane) for part in parts}
        if len(self._ownership.owners(slots)) == 1:
            raise self._ownership.not_owner(min(slots))

    def check_rows(self, parts: Sequence[Part]) -> None:
        """Raise where a part that is sent to another node is longer than a row of the store may be."""
        if self.row_bytes_max is None or len(parts) == 1:
            return
        for part in parts:
            if part.size > self.row_bytes_max and self.is_other_nodes(part):
                raise MessageTooLarge(
                    f"{part.size} bytes for queue {part.queue.name!r}, which another server has, together with other "
                    f"queues; this store takes {self.row_bytes_max} bytes of that: publish to it alone, or raise "
                    "max_allowed_packet of the database"
                )

    async def gather(self, slots: Collection[int]) -> None:
        """Own these slots, of leases that are settled together. `NotOwner` where one other node has all of them."""
        if any(not self._commits.may_share(min(slots), slot) for slot in slots):
            raise InvalidArgument(
                "these leases are of queues in several slots, and this store commits one slot at a time; settle them "
                "in a transaction for each queue"
            )
        neighbours, owns = self.neighbours, self._ownership.owns
        if neighbours is None or all(map(owns, slots)):
            return
        if len(self._ownership.owners(slots)) == 1:
            raise self._ownership.not_owner(min(slots))
        deadline = asyncio.get_running_loop().time() + GATHERED_WITHIN_S
        while not all(map(owns, slots)):
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(
                    "these leases are of several nodes, whose queues could not be brought together; try again"
                )
            await neighbours.ask_for([slot for slot in slots if not owns(slot)])
            await neighbours.changed(AGAIN_S)

    def send(self, part: Part, home: int | None) -> Sent:
        """Promise a part in the next commit of `home`; in the same step as what belongs together with it."""
        row, landing = self.promise(part)
        self._commits.amend(home).outbox.append(row)
        return Sent(-1, landing.count, landing=landing)

    def promise(self, part: Part) -> tuple[OutboxRow, Landing]:
        """The row by which the owner of a part's slot appends it, and how to ask for it there."""
        batch = part.batch if part.batch is not None else encode(part.messages)
        id = self._numbers.next()
        publish_id = part.publish_id or f"remote-{id}"
        queue = part.queue
        spool, sequence = part.origin or ("", 0)
        remote = RemotePart(
            queue.namespace,
            queue.name,
            queue.id,
            batch.count,
            batch.meta,
            batch.body,
            publish_id,
            part.asked_ms,
            spool,
            sequence,
        )
        row = OutboxRow(id, part.lane, 0, msgspec.msgpack.encode(remote), slot_of(part.lane))
        ids = part.ids()
        named = ids if any(dedup_id is not None for _, dedup_id in ids) else []
        return row, Landing(id, part.lane, batch.count, publish_id, named)

    # After ------------------------------------------------------------------------------------------------

    async def landed(self, results: Results) -> Results:
        """The results with the places of what was sent to other nodes, when it is there."""
        if self.neighbours is None or not is_sent(results):
            return results
        waiting = [appended.landing for _, _, appended, _ in results if isinstance(appended, Sent)]
        found = await _all_landed(self.neighbours, [landing for landing in waiting if landing is not None])
        return [
            (queue, lane, found[appended.landing.id], indexes)
            if isinstance(appended, Sent) and appended.landing is not None
            else (queue, lane, appended, indexes)
            for queue, lane, appended, indexes in results
        ]

    def nudge(self, results: Results) -> None:
        """Let other nodes append their parts now; nobody waits for it."""
        if self.neighbours is not None and is_sent(results):
            self._tasks.spawn(self._quietly(results))

    async def _quietly(self, results: Results) -> None:
        try:
            await self.landed(results)
        except NotOwner:
            return


async def _all_landed(neighbours: Neighbours, landings: list[Landing]) -> dict[int, Appended]:
    """Ask the owners until all of it is there, or it takes too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LANDED_WITHIN_S
    found: dict[int, Appended] = {}
    reason: PenstockError | None = None
    left = landings
    while left:
        by_slot: dict[int, list[Landing]] = {}
        for landing in left:
            by_slot.setdefault(slot_of(landing.lane), []).append(landing)
        for slot, wanted in by_slot.items():
            try:
                for one in await neighbours.ask_landed(slot, wanted):
                    found[one.id] = Appended(one.base, one.count, one.duplicates)
            except PenstockError as error:
                reason = error
        left = [landing for landing in landings if landing.id not in found]
        if left and loop.time() > deadline:
            raise Unavailable(
                f"what belongs to other nodes is decided and not all there yet ({reason}); it will be. Published again "
                "under the same publish_id, it is there once"
            )
        if left:
            neighbours.look()
            await asyncio.sleep(AGAIN_S)  # not until the next look: where a queue is full, that would go on and on
    return found
