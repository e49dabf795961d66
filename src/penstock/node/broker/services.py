"""What a broker calls: the services of one node, named one by one. `node.py` builds them; only brokers take them."""

from __future__ import annotations

from typing import Protocol

from penstock.node.background.enqueued import Enqueueing
from penstock.node.background.schedules import Schedules
from penstock.node.catalog import Catalog
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
from penstock.node.observe.feed import EventFeed
from penstock.node.observe.history import Histories
from penstock.node.observe.readiness import Readiness
from penstock.node.observe.survey import Survey
from penstock.node.observe.traces import Traces
from penstock.node.publish.append import Publisher
from penstock.node.publish.transactions import Transactions
from penstock.node.spool.spool import Spool
from penstock.node.staging.staging import Staging


class Services(Protocol):
    """A node, as its brokers see it."""

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
