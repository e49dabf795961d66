"""Every operation asks whether its caller may do it, by the right action, before anything happens.

The table names all operations of a broker; one that is missing here fails a test. It holds for a node that is alone,
and for both of two, whichever of them owns what the operation is about.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import pytest

import penstock
from penstock import Message, Verdict, encode
from penstock.api.front_broker import FrontBroker
from penstock.api.messages import Transaction
from penstock.api.principal import ANONYMOUS, Action, Kind, Principal
from penstock.model.errors import Forbidden
from penstock.node.broker.local import LocalBroker
from tests.scenarios.cluster.test_broker import reaching
from tests.scenarios.cluster.test_slots import SharedStore
from tests.scenarios.rig import until

ALICE = Principal("alice")
BATCH = encode([Message(b"x")])


class Asked(NamedTuple):
    principal: Principal
    action: Action
    kind: Kind
    namespace: str
    name: str


class Refusing:
    """Says no to all that it is told to, and notes what it was asked. Anonymous, who made everything, may do all."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.refuses: Callable[[Asked], bool] = lambda _: False

    def authorize(self, principal: Principal, action: Action, kind: Kind, namespace: str, name: str) -> None:
        if principal == ANONYMOUS:
            return
        asked = Asked(principal, action, kind, namespace, name)
        self.asked.append(asked)
        if self.refuses(asked):
            raise Forbidden(f"{principal.name} may not {action} {kind} {name!r}")


class Operation(NamedTuple):
    """A call, and what it must ask for first."""

    method: str
    action: Action
    kind: Kind
    name: str
    call: Callable[[Any, Any], Any]
    """Of a broker (or, for `transaction.…`, a transaction) and a lease of queue q."""


def op(method: str, action: Action, kind: Kind, name: str, *arguments: Any, **options: Any) -> Operation:
    """An operation whose arguments are these; `LEASE` stands for the lease."""

    def call(target: Any, lease: Any) -> Any:
        given = [lease if one is LEASE else one for one in arguments]
        return getattr(target, method.rpartition(".")[2])(*given, **options)

    return Operation(method, action, kind, name, call)


LEASE = object()

OPERATIONS = [
    op("publish", "publish", "queue", "q", "q", Message(b"")),
    op("publish_many", "publish", "queue", "q", "q", [Message(b"")]),
    op("publish_batch", "publish", "queue", "q", "q", BATCH),
    op("publish_to", "publish", "exchange", "x", "x", Message(b"")),
    op("transaction.publish", "publish", "queue", "q", "q", Message(b"")),
    op("transaction.publish_to", "publish", "exchange", "x", "x", Message(b"")),
    op("stage", "publish", "transaction", "t", "t", "c", BATCH, queue="q"),
    op("commit_staged", "publish", "transaction", "t", "t", ["c"]),
    op("abort_staged", "publish", "transaction", "t", "t"),
    op("trace_event", "publish", "trace", "id", "id", "e"),
    op("claim", "consume", "queue", "q", "q"),
    op("read", "consume", "queue", "q", "q", "stream"),
    op("read_from", "consume", "queue", "q", "q", 0),
    op("commit", "consume", "queue", "q", "q", "stream", 0),
    op("settle", "consume", "queue", "q", LEASE, [Verdict("ack")]),
    op("settle_and_claim", "consume", "queue", "q", LEASE),
    op("ack", "consume", "queue", "q", LEASE),
    op("nack", "consume", "queue", "q", LEASE),
    op("reject", "consume", "queue", "q", LEASE),
    op("postpone", "consume", "queue", "q", LEASE, 1.0),
    op("release", "consume", "queue", "q", LEASE),
    op("extend", "consume", "queue", "q", LEASE),
    op("transaction.settle", "consume", "queue", "q", LEASE, [Verdict("ack")]),
    op("transaction.ack", "consume", "queue", "q", LEASE),
    op("transaction.nack", "consume", "queue", "q", LEASE),
    op("transaction.reject", "consume", "queue", "q", LEASE),
    op("transaction.postpone", "consume", "queue", "q", LEASE, 1.0),
    op("transaction.release", "consume", "queue", "q", LEASE),
    op("attach", "consume", "queue", "q", "q"),
    op("attach", "consume", "queue", "q", "q", ""),
    op("detach", "consume", "queue", "q", "q"),
    op("detach", "consume", "queue", "q", "q", ""),
    op("stop_waiting", "consume", "queue", "q", "q"),
    op("browse", "browse", "queue", "q", "q"),
    op("history", "browse", "queue", "q", "q", 0),
    op("stats", "browse", "queue", "q", "q"),
    op("lanes", "browse", "queue", "q", "q"),
    op("scan", "browse", "queue", "q", "q", 0, 0, 1),
    op("extent", "browse", "queue", "q", "q", 0, 0),
    op("dead", "browse", "queue", "q", "q"),
    op("dead_page", "browse", "queue", "q", "q"),
    op("dead_ranges", "browse", "queue", "q", "q"),
    op("dead_reasons", "browse", "queue", "q", "q"),
    op("has_queue", "browse", "queue", "q", "q"),
    op("knows_queue", "publish", "queue", "q", "q", "publish"),
    op("knows_exchange", "publish", "exchange", "x", "x", "publish"),
    op("queue_options", "browse", "queue", "q", "q"),
    op("groups", "browse", "queue", "q", "q"),
    op("bindings", "browse", "exchange", "x", "x"),
    op("schedule", "browse", "schedule", "s", "s"),
    op("mark", "browse", "mark", "m", "m"),
    op("staged", "browse", "transaction", "t", "t"),
    op("trace", "browse", "trace", "id", "id"),
    op("queues", "browse", "namespace", "default"),
    op("queues_page", "browse", "namespace", "default"),
    op("exchanges", "browse", "namespace", "default"),
    op("schedules", "browse", "namespace", "default"),
    op("marks", "browse", "namespace", "default"),
    op("marks_page", "browse", "namespace", "default"),
    op("follow_events", "browse", "namespace", "default"),
    op("follow_events", "browse", "queue", "q", queue="q"),
    op("enqueued_failed", "browse", "enqueued", ""),
    op("declare_queue", "declare", "queue", "new", "new"),
    op("declare_queue", "declare", "queue", "q", "q", max_attempts=9),
    op("delete_queue", "declare", "queue", "q", "q"),
    op("declare_group", "declare", "queue", "q", "q", "g"),
    op("delete_group", "declare", "queue", "q", "q", "stream"),
    op("declare_exchange", "declare", "exchange", "new", "new"),
    op("delete_exchange", "declare", "exchange", "x", "x"),
    op("bind", "declare", "exchange", "x", "x", "q", "other"),
    op("unbind", "declare", "exchange", "x", "x", "q"),
    op("declare_schedule", "declare", "schedule", "new", "new", message=Message(b""), queue="q", interval_ms=60_000),
    op("delete_schedule", "declare", "schedule", "s", "s"),
    op("pause", "manage", "queue", "q", "q"),
    op("resume", "manage", "queue", "q", "q"),
    op("seek", "manage", "queue", "q", "q", "stream", to="first"),
    op("purge", "manage", "queue", "q", "q"),
    op("redrive", "manage", "queue", "q", "q"),
    op("purge_dead", "manage", "queue", "q", "q"),
    op("put_mark", "manage", "mark", "m", "m", 2),
    op("delete_mark", "manage", "mark", "m", "m"),
    op("retry_enqueued", "manage", "enqueued", ""),
    op("purge_enqueued", "manage", "enqueued", ""),
    op("measures", "admin", "node", ""),
    op("spool", "admin", "node", ""),
    op("authorize", "manage", "queue", "q", "manage", "queue", "q"),
]

# What does nothing to a queue or the node, or is not a client's to ask for.
EXEMPT = {
    *("in_namespace", "acting_as", "session", "begin_session", "new_session_name", "end_session"),  # views
    *("in_session", "locate_session", "new_session_id", "renew_session"),  # sessions by id, which is a secret
    *("queue", "exchange", "transaction"),  # handles: their operations ask
    "knows_namespace",  # that a namespace has something; its operations ask
    *("flush", "close", "drain", "check_ready", "is_alive"),  # when, not what
    *("damage", "alarms"),  # parts of readiness
    "keep_writing",  # by a front, of a queue of its own
}
ALSO = [
    op("bind", "declare", "queue", "q", "x", "q", "other"),
    op("bind", "declare", "exchange", "x2", "x", "x2", target_kind="exchange"),
    op("unbind", "declare", "queue", "q", "x", "q"),
    op("declare_schedule", "publish", "queue", "q", "new", message=Message(b""), queue="q", interval_ms=60_000),
    op("declare_schedule", "publish", "exchange", "x", "new", message=Message(b""), exchange="x", interval_ms=60_000),
    op("stage", "publish", "queue", "q", "t", "c", BATCH, queue="q"),
    op("stage", "publish", "exchange", "x", "t", "c", BATCH, exchange="x"),
    op("commit_staged", "manage", "mark", "m", "t", ["c"], marks=[penstock.MarkPut("m", 1)]),
    op("trace_event", "browse", "queue", "q", "id", "e", queue="q", offset=0),
]
"""Operations that touch two things ask for both."""


class Scene(NamedTuple):
    """A broker that has one of everything."""

    alice: FrontBroker
    """The broker that is asked, as Alice."""
    owner: FrontBroker
    """The same, as who may do everything."""
    authorizer: Refusing
    lease: Any


async def fill(owner: FrontBroker) -> Any:
    """One of everything, and a lease."""
    await owner.declare_queue("q")
    await owner.declare_group("q", "stream", kind="stream")
    for name in ("x", "x2"):
        await owner.declare_exchange(name, kind="direct")
    await owner.bind("x", "q")
    await owner.declare_schedule("s", message=Message(b""), queue="q", interval_ms=3_600_000)
    await owner.put_mark("m", 1)
    await owner.publish_many("q", [Message(b"1"), Message(b"2")])
    return await owner.claim("q", consumer="owner")


@asynccontextmanager
async def alone() -> AsyncIterator[Scene]:
    authorizer = Refusing()
    async with await penstock.open(None) as broker:
        assert isinstance(broker, LocalBroker)
        owner = broker.authorized_by(authorizer)
        yield Scene(owner.acting_as(ALICE), owner, authorizer, await fill(owner))


@asynccontextmanager
async def among_others(asked: int) -> AsyncIterator[Scene]:
    """Two nodes with the same rules. Whatever an operation is about, one of them does not own it."""
    store, authorizer = SharedStore(), Refusing()
    async with reaching(store, "one", authorizer) as (first, one), reaching(store, "two", authorizer) as (second, two):
        await until(lambda: len(one.ownership.owned) == len(two.ownership.owned) == 32)
        lease = await fill(first)
        await until(lambda: second.knows_exchange("x2", "publish") and second.knows_queue("q", "publish"))
        owner = (first, second)[asked]
        yield Scene(owner.acting_as(ALICE), owner, authorizer, lease)


PLACES: dict[str, Callable[[], AbstractAsyncContextManager[Scene]]] = {
    "alone": alone,
    "first of two": lambda: among_others(0),
    "second of two": lambda: among_others(1),
}


def play(scenario: Callable[[Scene], Awaitable[None]], place: str = "alone") -> None:
    async def main() -> None:
        async with PLACES[place]() as scene:
            await scenario(scene)

    asyncio.run(asyncio.wait_for(main(), 60))


async def carry_out(operation: Operation, scene: Scene) -> Any:
    target = scene.alice.transaction() if operation.method.startswith("transaction.") else scene.alice
    result = operation.call(target, scene.lease)
    return await result if inspect.isawaitable(result) else result


def shown(operation: Operation) -> str:
    return f"{operation.method}-{operation.action}-{operation.kind}-{operation.name}"


def wanted_by(operation: Operation) -> Asked:
    return Asked(ALICE, operation.action, operation.kind, "default", operation.name)


async def asks_first(operation: Operation, scene: Scene) -> None:
    authorizer = scene.authorizer
    authorizer.asked.clear()
    authorizer.refuses = lambda _: True
    before = await state(scene.owner)
    with pytest.raises(Forbidden, match="alice may not"):
        await carry_out(operation, scene)
    assert authorizer.asked == [wanted_by(operation)], "the first thing that it does, and nothing after it"
    assert await state(scene.owner) == before


async def asks_for_this_too(operation: Operation, scene: Scene) -> None:
    authorizer, wanted = scene.authorizer, wanted_by(operation)
    authorizer.asked.clear()
    authorizer.refuses = lambda asked: asked == wanted
    before = await state(scene.owner)
    with pytest.raises(Forbidden, match="alice may not"):
        await carry_out(operation, scene)
    assert authorizer.asked[-1] == wanted
    assert len(authorizer.asked) > 1
    assert await state(scene.owner) == before


@pytest.mark.parametrize("operation", OPERATIONS, ids=shown)
def test_an_operation_asks_first_and_is_refused(operation: Operation) -> None:
    play(lambda scene: asks_first(operation, scene))


@pytest.mark.parametrize("operation", ALSO, ids=shown)
def test_an_operation_asks_for_all_that_it_touches(operation: Operation) -> None:
    play(lambda scene: asks_for_this_too(operation, scene))


@pytest.mark.parametrize("place", ["first of two", "second of two"])
def test_among_several_nodes_an_operation_asks_first_and_is_refused(place: str) -> None:
    async def scenario(scene: Scene) -> None:
        wrong = [operation for operation in OPERATIONS if not await passes(asks_first, operation, scene)]
        assert [shown(operation) for operation in wrong] == []

    play(scenario, place)


@pytest.mark.parametrize("place", ["first of two", "second of two"])
def test_among_several_nodes_an_operation_asks_for_all_that_it_touches(place: str) -> None:
    async def scenario(scene: Scene) -> None:
        wrong = [operation for operation in ALSO if not await passes(asks_for_this_too, operation, scene)]
        assert [shown(operation) for operation in wrong] == []

    play(scenario, place)


async def passes(check: Callable[[Operation, Scene], Awaitable[None]], operation: Operation, scene: Scene) -> bool:
    try:
        await check(operation, scene)
    except (AssertionError, pytest.fail.Exception):
        return False
    return True


async def state(owner: FrontBroker) -> Any:
    """What there is, as its owner sees it."""
    queues = await owner.queues()
    stats = {name: await owner.stats(name) for name in queues}
    groups = {name: await owner.groups(name) for name in queues}
    exchanges = {name: await owner.bindings(name) for name in await owner.exchanges()}
    return queues, stats, groups, exchanges, await owner.schedules(), await owner.marks()


def operations_of(kind: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_the_table_has_every_operation() -> None:
    named = {operation.method for operation in OPERATIONS}
    assert operations_of(FrontBroker) - EXEMPT == {name for name in named if "." not in name}
    in_transactions = {name.partition(".")[2] for name in named if "." in name}
    assert operations_of(Transaction) - {"commit"} == in_transactions
    assert operations_of(FrontBroker) >= EXEMPT


@pytest.mark.parametrize("place", PLACES)
def test_views_keep_who_asks(place: str) -> None:
    async def scenario(scene: Scene) -> None:
        elsewhere = scene.alice.in_namespace("other")
        session = elsewhere.begin_session("a-session")
        await session.queues()
        await session.acting_as(Principal("bob")).queues()
        asked = [(one.principal.name, one.namespace, one.name) for one in scene.authorizer.asked]
        assert asked == [("alice", "other", "other"), ("bob", "other", "other")]
        assert session.acting_as(Principal("bob")).consumer_name == session.consumer_name

    play(scenario, place)


@pytest.mark.parametrize("place", PLACES)
def test_a_lease_of_another_namespace_is_asked_for_there(place: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.alice.in_namespace("other").ack(scene.lease)
        assert scene.authorizer.asked == [Asked(ALICE, "consume", "queue", "default", "q")]

    play(scenario, place)


def test_anyone_may_do_anything_by_default() -> None:
    async def main() -> None:
        async with await penstock.open(None) as broker:
            await broker.declare_queue("q")
            assert (await broker.publish("q", Message(b"x"))).offset == 0

    asyncio.run(main())
