"""Requests that are one operation of the API each: the server answers by this table, and the client asks by it.

A row says where an operation is, and what its arguments and its result travel in. Operations that need more than that
(publish, claim, settle, reads, scans, staging) have handlers and methods of their own. Next stop:
`fronts/http/handlers/`, or `client/operations/`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from penstock.api.admin import FailedPage
from penstock.api.broker import Broker
from penstock.api.dead_letters import DeadRanges
from penstock.api.inspect import QueueStats, Trace
from penstock.api.scan import Extent, QueueLanes
from penstock.api.staging import Mark, Staged
from penstock.model.errors import (
    AlreadyCommitted,
    AlreadyExists,
    LeaseLost,
    LimitReached,
    OffsetGone,
    PenstockError,
    WrongKind,
)
from penstock.wire.http.answers import (
    BindingsAnswer,
    CountAnswer,
    DeadAnswer,
    ExchangesAnswer,
    ExtendAnswer,
    GroupsAnswer,
    PageAnswer,
    QueueBody,
    ReasonsAnswer,
    ScheduleBody,
    SchedulesAnswer,
)
from penstock.wire.http.arguments import (
    Arguments,
    AttachRequest,
    BindingBody,
    BrowseQuery,
    CommitRequest,
    ConsumerRequest,
    DeadChoice,
    DeadQuery,
    DetachRequest,
    EnqueuedChoice,
    ExtendRequest,
    ExtentQuery,
    FailedQuery,
    LanesQuery,
    RangesQuery,
    ScheduleRequest,
    SeekRequest,
    TraceEventRequest,
    TraceQuery,
)

QUEUE: Final = "/v1/queues/{queue}"
GROUP: Final = QUEUE + "/groups/{group}"
LANE: Final = QUEUE + "/lanes/{lane}"
EXCHANGE: Final = "/v1/exchanges/{exchange}"
SCHEDULE: Final = "/v1/schedules/{schedule}"
MARK: Final = "/v1/marks/{mark}"
TRACE: Final = "/v1/traces/{trace}"
TRANSACTION: Final = "/v1/staged/{transaction}"
FAILED: Final = "/v1/enqueued/failed"

NUMBERS: Final = frozenset({"lane", "offset"})
"""Names in paths that stand for numbers."""


class Endpoint(Struct, frozen=True):
    """One request.

    The names in the path are the operation's first arguments, `body` or `query` has the rest. The answer is `gives`,
    around the result or the result itself; without it there is nothing to say.
    """

    method: str
    path: str
    operation: Callable[..., Awaitable[Any]]
    gives: type[Struct] | None = None
    body: type[Arguments] | None = None
    query: type[Arguments] | None = None
    name: str = ""
    """What OpenAPI calls it, if not as the operation."""
    errors: tuple[type[PenstockError], ...] = ()
    """Those that it has beyond the common ones."""
    removes: bool = False
    """Done twice, it finds nothing the second time; so it is with every DELETE."""

    @property
    def parts(self) -> list[str]:
        return self.path.strip("/").split("/")

    @property
    def names(self) -> list[str]:
        """The names in the path."""
        return [part[1:-1] for part in self.parts if part.startswith("{")]


ENDPOINTS: Final[dict[str, list[Endpoint]]] = {
    "queues": [
        Endpoint("GET", QUEUE, Broker.queue_options, QueueBody, name="show_queue"),
        Endpoint("DELETE", QUEUE, Broker.delete_queue),
        Endpoint("POST", QUEUE + "/pause", Broker.pause, name="pause_queue"),
        Endpoint("POST", QUEUE + "/resume", Broker.resume, name="resume_queue"),
        Endpoint("GET", QUEUE + "/stats", Broker.stats, QueueStats, name="queue_stats"),
    ],
    "staging": [
        Endpoint("GET", TRANSACTION, Broker.staged, Staged, name="show_staged"),
        Endpoint("DELETE", TRANSACTION, Broker.abort_staged, errors=(AlreadyCommitted,)),
    ],
    "marks": [
        Endpoint("GET", MARK, Broker.mark, Mark, name="show_mark"),
        Endpoint("DELETE", MARK, Broker.delete_mark),
    ],
    "consuming": [
        Endpoint(
            "POST", "/v1/leases/{lease}/extend", Broker.extend, ExtendAnswer, body=ExtendRequest, errors=(LeaseLost,)
        ),
    ],
    "groups": [
        Endpoint("GET", QUEUE + "/groups", Broker.groups, GroupsAnswer, name="list_groups"),
        Endpoint("DELETE", GROUP, Broker.delete_group),
        Endpoint("POST", GROUP + "/seek", Broker.seek, body=SeekRequest),
        Endpoint("POST", GROUP + "/pause", Broker.pause, name="pause_group"),
        Endpoint("POST", GROUP + "/resume", Broker.resume, name="resume_group"),
        Endpoint("POST", GROUP + "/purge", Broker.purge, CountAnswer, errors=(WrongKind,)),
        Endpoint("POST", GROUP + "/attach", Broker.attach, body=AttachRequest),
        Endpoint("POST", GROUP + "/detach", Broker.detach, body=DetachRequest),
        Endpoint("POST", GROUP + "/stop-waiting", Broker.stop_waiting, body=ConsumerRequest),
    ],
    "streams": [
        Endpoint("POST", GROUP + "/commit", Broker.commit, body=CommitRequest, errors=(WrongKind,)),
    ],
    "scans": [
        Endpoint("GET", QUEUE + "/lanes", Broker.lanes, QueueLanes, query=LanesQuery),
        Endpoint("GET", LANE + "/extent", Broker.extent, Extent, query=ExtentQuery, errors=(OffsetGone,)),
    ],
    "inspect": [
        Endpoint("GET", QUEUE + "/messages", Broker.browse, PageAnswer, query=BrowseQuery, errors=(OffsetGone,)),
    ],
    "dead": [
        Endpoint(
            "GET", GROUP + "/dead", Broker.dead, DeadAnswer, query=DeadQuery, name="list_dead", errors=(WrongKind,)
        ),
        Endpoint(
            "GET",
            GROUP + "/dead/ranges",
            Broker.dead_ranges,
            DeadRanges,
            query=RangesQuery,
            name="ranges",
            errors=(WrongKind,),
        ),
        Endpoint(
            "GET", GROUP + "/dead/reasons", Broker.dead_reasons, ReasonsAnswer, name="reasons", errors=(WrongKind,)
        ),
        Endpoint("POST", GROUP + "/dead/redrive", Broker.redrive, CountAnswer, body=DeadChoice, errors=(WrongKind,)),
        Endpoint("POST", GROUP + "/dead/purge", Broker.purge_dead, CountAnswer, body=DeadChoice, errors=(WrongKind,)),
    ],
    "enqueued": [
        Endpoint("GET", FAILED, Broker.enqueued_failed, FailedPage, query=FailedQuery, name="list_failed"),
        Endpoint(
            "POST", FAILED + "/retry", Broker.retry_enqueued, CountAnswer, body=EnqueuedChoice, name="retry_failed"
        ),
        Endpoint(
            "POST", FAILED + "/purge", Broker.purge_enqueued, CountAnswer, body=EnqueuedChoice, name="purge_failed"
        ),
    ],
    "exchanges": [
        Endpoint("GET", "/v1/exchanges", Broker.exchanges, ExchangesAnswer, name="list_exchanges"),
        Endpoint("DELETE", EXCHANGE, Broker.delete_exchange),
        Endpoint("GET", EXCHANGE + "/bindings", Broker.bindings, BindingsAnswer, name="list_bindings"),
        Endpoint("POST", EXCHANGE + "/bind", Broker.bind, body=BindingBody, errors=(AlreadyExists,)),
        Endpoint("POST", EXCHANGE + "/unbind", Broker.unbind, body=BindingBody, removes=True),
    ],
    "traces": [
        Endpoint("GET", TRACE, Broker.trace, Trace, query=TraceQuery, name="show_trace"),
        Endpoint("POST", TRACE + "/events", Broker.trace_event, body=TraceEventRequest, name="add_event"),
    ],
    "schedules": [
        Endpoint("GET", "/v1/schedules", Broker.schedules, SchedulesAnswer, name="list_schedules"),
        Endpoint("PUT", SCHEDULE, Broker.declare_schedule, ScheduleBody, body=ScheduleRequest, errors=(LimitReached,)),
        Endpoint("GET", SCHEDULE, Broker.schedule, ScheduleBody, name="show_schedule"),
        Endpoint("DELETE", SCHEDULE, Broker.delete_schedule),
    ],
}
"""By subject: the modules of `fronts/http/handlers/`, and the chapters of the reference."""


def endpoints_of(operation: Callable[..., Awaitable[Any]]) -> list[Endpoint]:
    """Where an operation is; the one with the most names in its path first."""
    found = [one for rows in ENDPOINTS.values() for one in rows if one.operation is operation]
    return sorted(found, key=lambda endpoint: -len(endpoint.names))
