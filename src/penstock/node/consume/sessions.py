"""Sessions: what belongs to one client and ends with it, as far as it is in queues of this node.

A session is one process's; its queues and leases may be any node's. Each lease, attached consumer and exclusive queue
carries the session that made it, so that they are found by the session and never by a consumer's name. The process that
has a session tells the others when it ends; when a process is gone, all its sessions have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane
from penstock.node.catalog import Catalog, Group, Queue
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.declarations import Declarations
from penstock.node.lanes import LaneSet
from penstock.node.session import Session


@dataclass(eq=False, repr=False)
class Sessions:
    """Where sessions have claimed in queues of this node, and how they end."""

    _catalog: Catalog
    _ownership: Ownership
    _lanes: LaneSet
    _clock: Clock
    _commits: Commits
    _declarations: Declarations

    def __post_init__(self) -> None:
        self._claims: dict[Session, set[tuple[int, str, str]]] = {}
        """(queue, group, consumer) of each session's claims here, also of those that another process has."""

    # What a session does ----------------------------------------------------------------------------------

    def claimed(self, session: Session, queue: Queue, group: str, consumer: str) -> None:
        """A session claims: what it gets ends with it."""
        self._claims.setdefault(session, set()).add((queue.id, group, consumer))

    def detached(self, session: Session, queue: Queue, group: str, consumer: str) -> None:
        """A session's consumer has given back what it held."""
        self._claims.get(session, set()).discard((queue.id, group, consumer))

    def loaded(self, lane: Lane) -> None:
        """A lane was loaded: end the leases of sessions whose process is gone, and know those of the others."""
        queue = self._catalog.by_lane[lane.id]
        for group in lane.groups.values():
            if not isinstance(group, WorkGroup):
                continue
            for text in list(group.leases.by_session):
                session, known = Session.parse(text), queue.group_by_id(group.id)
                if not self._ownership.is_alive(session.holder):
                    group.session_left(self._clock.now_ms(), text)
                    self._commits.touch(lane)
                elif known is not None:
                    for lease in group.leases.of_session(text):
                        self.claimed(session, queue, known.name, lease.consumer)

    async def slots_served(self, slots: Set[int]) -> None:
        """Delete the exclusive queues of sessions that ended with the process that had them."""
        for queue in self._catalog.in_slots(slots):
            session = queue.session
            if session is not None and not queue.deleting and not self._ownership.is_alive(session.holder):
                await self._declarations.drop_queue(queue)

    # Its end ----------------------------------------------------------------------------------------------

    async def end(self, session: Session) -> None:
        """Delete a session's exclusive queues and return what it has leased, as far as they are this node's.

        Safe to repeat.
        """
        for queue in self._owned_queues():
            if queue.session == session and not queue.deleting:
                await self._declarations.delete_queue(queue)
        for (id, group), consumers in self._places(session).items():
            known = self._catalog.by_id.get(id)
            if known is not None and not known.deleting and self._ownership.owns(known.slot):
                await self._left(known, group, session, consumers)
        self._claims.pop(session, None)

    def _places(self, session: Session) -> dict[tuple[int, str], set[str]]:
        """(queue, group) → the consumers that a session has there, attached or not."""
        places: dict[tuple[int, str], set[str]] = {}
        for id, group, consumer in self._claims.get(session, ()):
            places.setdefault((id, group), set()).add(consumer)
        for queue in self._owned_queues():
            for (group, consumer), holder in queue.consumers.items():
                if holder == session:
                    places.setdefault((queue.id, group), set()).add(consumer)
        return places

    async def end_all_of(self, incarnations: Collection[int]) -> None:
        """These processes are gone, and their sessions with them."""
        known = {queue.session for queue in self._catalog.by_id.values() if queue.session is not None}
        for session in known | set(self._claims):
            if session.holder in incarnations:
                await self.end(session)

    async def consumer_left(self, queue: Queue, group: Group | None, consumer: str, *, keep: bool = False) -> None:
        """A consumer is gone: what it holds returns at once, counted as an attempt; with `keep`, not yet."""
        _detach(queue, [("" if group is None else group.name, consumer)])
        if group is not None and not keep:
            for lane in await self._lanes.together(queue.lanes):
                lane.groups[group.id].consumer_left(self._clock.now_ms(), consumer)
                self._commits.touch(lane)
            await self._commits.commit()
        await self._delete_unused(queue)

    async def _left(self, queue: Queue, name: str, session: Session, consumers: set[str]) -> None:
        """The same for all that a session has in one group."""
        _detach(queue, [place for place, holder in queue.consumers.items() if holder == session and place[0] == name])
        group = queue.groups.get(name)
        if group is not None:
            for lane in await self._lanes.together(queue.lanes):
                self._end_leases(lane.groups[group.id], session, consumers)
                self._commits.touch(lane)
            await self._commits.commit()
        await self._delete_unused(queue)

    def _end_leases(self, group: WorkGroup | StreamGroup, session: Session, consumers: set[str]) -> None:
        now_ms = self._clock.now_ms()
        if isinstance(group, WorkGroup):
            group.session_left(now_ms, str(session), consumers)
            return
        for consumer in consumers:
            group.consumer_left(now_ms, consumer)

    async def _delete_unused(self, queue: Queue) -> None:
        """Delete a queue that lives as long as it has a consumer, when the last one is gone."""
        if queue.config.auto_delete and queue.had_consumer and not queue.consumers:
            await self._declarations.delete_queue(queue)

    def _owned_queues(self) -> list[Queue]:
        return [queue for queue in self._catalog.by_id.values() if self._ownership.owns(queue.slot)]


def _detach(queue: Queue, places: Collection[tuple[str, str]]) -> None:
    queue.consumers = {place: session for place, session in queue.consumers.items() if place not in places}
    if queue.only_consumer in places:
        queue.only_consumer = None
