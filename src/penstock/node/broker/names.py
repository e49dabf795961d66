"""What a name stands for, seen from one namespace and, perhaps, one session: the queue, group or exchange, or why not.

All parts of the broker's face are built on this. Next stop: the part that has the operation.
"""

from __future__ import annotations

import itertools
from typing import Final, Protocol, get_args

from penstock.api.arguments import check_is_text
from penstock.api.principal import ANYONE, Action, Caller, Kind
from penstock.model import DEFAULT_GROUP, INTEGER_MAX, TIME_MS_MAX, check_integer
from penstock.model.errors import ExclusiveQueue, Forbidden, NotFound
from penstock.model.rows import REGISTRAR_SLOT, home_slot
from penstock.node.alarms import Alarms
from penstock.node.background.enqueued import Enqueueing
from penstock.node.background.schedules import Schedules
from penstock.node.catalog import Catalog, Group, Queue
from penstock.node.clock import Clock
from penstock.node.cluster.membership import Cluster
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.consume.claims import Claims
from penstock.node.consume.dead_letters import DeadLetters
from penstock.node.consume.extents import Extents
from penstock.node.consume.scans import Scans
from penstock.node.consume.sessions import Sessions
from penstock.node.consume.streams import Streams
from penstock.node.consume.waiters import Waiters
from penstock.node.declarations import Declarations
from penstock.node.exchanges import Exchanges
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle
from penstock.node.marks import Marks
from penstock.node.observe.history import EventFeed, Histories
from penstock.node.observe.readiness import Readiness
from penstock.node.observe.survey import Survey
from penstock.node.observe.traces import Traces
from penstock.node.publish.append import Publisher
from penstock.node.publish.transactions import Transactions
from penstock.node.session import Session
from penstock.node.spool.spool import Spool
from penstock.node.staging.staging import Staging

_consumers = itertools.count(1)
_NAME_OF: Final = {kind: f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}'s name" for kind in get_args(Kind)}


class Services(Protocol):
    """A node, as its brokers see it: what they call, named one by one. `node.py` builds it; only brokers take it."""

    clock: Clock
    lifecycle: Lifecycle
    ownership: Ownership
    cluster: Cluster | None
    """None where the node is alone on its store, and owns everything."""
    catalog: Catalog
    lanes: LaneSet
    commits: Commits
    declarations: Declarations
    exchanges: Exchanges
    schedules: Schedules
    marks: Marks
    sessions: Sessions
    publisher: Publisher
    transactions: Transactions
    staging: Staging
    spool: Spool
    alarms: Alarms
    enqueueing: Enqueueing
    claims: Claims
    waiters: Waiters
    streams: Streams
    scans: Scans
    extents: Extents
    dead_letters: DeadLetters
    feed: EventFeed
    histories: Histories
    traces: Traces
    survey: Survey
    readiness: Readiness

    async def close(self) -> None:
        """Commit what is pending, end what waits, release everything."""


class Names:
    """The services of a node, and from where they are called."""

    def __init__(
        self,
        services: Services,
        namespace: str,
        session: Session | None = None,
        caller: Caller = ANYONE,
        *,
        is_forwarded: bool = False,
    ) -> None:
        """`is_forwarded`: another node asks, which keeps what is published through it while the store is away."""
        self._services = services
        self._is_forwarded = is_forwarded
        self._caller = caller
        self._allow = caller.authorizer.authorize
        self._namespace = namespace
        self._session = session
        self.consumer_name = f"consumer-{next(_consumers)}" if session is None else session.name
        """The name under which this broker claims unless another is given."""
        self.session_key = None if session is None else str(session)
        """The session as leases store it and as nodes send it to each other."""
        self.namespace = namespace
        self.cluster = services.cluster
        """This node's place among others; None where it has its store for itself."""

    def authorize(self, action: Action, kind: Kind, name: str) -> None:
        self._allow(self._caller.principal, action, kind, self._namespace, name)

    def _queue(self, name: str, action: Action) -> Queue:
        queue = self._visible_queue(name, action)
        if queue.session is not None and queue.session != self._session:
            raise ExclusiveQueue(f"queue {name!r} is exclusive to another session")
        return queue

    def _visible_queue(self, name: str, action: Action) -> Queue:
        """The same, exclusive to another session or not: for what only counts."""
        self._services.lifecycle.check_open()
        check_is_text(name, "a queue's name")
        self._allow(self._caller.principal, action, "queue", self._namespace, name)
        return self._owned_queue(name)

    def _owned_queue(self, name: str) -> Queue:
        """A queue that this node owns. Of one that it does not know, the owner of its home slot knows the truth."""
        services = self._services
        queue = services.catalog.queues.get((self._namespace, name))
        services.ownership.check(home_slot(self._namespace, name) if queue is None else queue.slot)
        if queue is None or queue.deleting:
            return services.catalog.queue(self._namespace, name)  # which says that there is none
        return queue

    def slot_of_queue(self, name: str) -> int:
        """The slot of a queue; of one that this node does not know, the home slot of its name."""
        queue = self._services.catalog.queues.get((self._namespace, name))
        return home_slot(self._namespace, name) if queue is None else queue.slot

    def _target(self, name: str) -> Queue:
        """A queue to publish to. Anybody may answer into a session's own queue; reading it is the session's alone."""
        services = self._services
        services.lifecycle.check_open()
        check_is_text(name, "a queue's name")
        self._allow(self._caller.principal, "publish", "queue", self._namespace, name)
        queue = services.spool.taken_for(self._namespace, name) if services.spool.is_on else None
        if queue is None:
            queue = self._owned_queue(name)
        if queue.name.startswith("$"):
            raise Forbidden(f"queue {name!r} is written by the broker alone")
        return queue

    def spools_for(self, name: str) -> bool:
        """Whether the spool takes what is published to a queue now, whoever owns that."""
        return self._services.spool.taken_for(self._namespace, name) is not None

    def _known_target(self, name: str, action: Action = "publish") -> Queue:
        """The same, whoever owns it: for what is not done in that queue alone."""
        self._check("queue", name, action)
        queue = self._services.catalog.queue(self._namespace, name)
        if queue.name.startswith("$"):
            raise Forbidden(f"queue {name!r} is written by the broker alone")
        return queue

    def _check(self, kind: Kind, name: str, action: Action) -> None:
        """Raise unless the caller may do this to the thing of that name."""
        self._services.lifecycle.check_open()
        check_is_text(name, _NAME_OF[kind])
        self.authorize(action, kind, name)

    def _check_registrars(self, kind: Kind, name: str, action: Action) -> None:
        """The same of a schedule, mark or transaction, which the registrar keeps: raise unless this node is that."""
        self._check(kind, name, action)
        self._services.ownership.check(REGISTRAR_SLOT)

    def _check_listing(self) -> None:
        """Raise unless the caller may see what the namespace has."""
        self._services.lifecycle.check_open()
        self.authorize("browse", "namespace", self._namespace)

    def _check_registrar(self) -> None:
        """Raise unless this node has the catalog."""
        self._services.lifecycle.check_open()
        self._services.ownership.check(REGISTRAR_SLOT)

    def _group(self, queue: Queue, name: str) -> Group:
        check_is_text(name, "a group's name")
        group = queue.groups.get(name)
        if group is None:
            raise NotFound(f"queue {queue.name!r} has no group {name!r}; declare it first")
        return group

    async def _work_group(self, queue: Queue, name: str) -> Group:
        """The group; the default one is made when it is first wanted."""
        if name == DEFAULT_GROUP and name not in queue.groups:
            return await self._services.declarations.declare_group(queue, name, {})
        return self._group(queue, name)

    async def _place(self, lane_id: int, offset: int | None, time_ms: int | None) -> int:
        if offset is not None:
            return check_integer(offset, "offset", 0, INTEGER_MAX)
        if time_ms is not None:
            check_integer(time_ms, "time_ms", 0, TIME_MS_MAX)
        return await self._services.lanes.offset_at(lane_id, "beginning" if time_ms is None else time_ms)
