"""The broker of a node among others does everything, whoever owns it: two nodes on one store, HTTP between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest

from penstock.api.principal import ANYONE, Authorizer
from penstock.api.ticket import in_task
from penstock.embedded import open_member
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.server import HttpServer
from penstock.model import Message
from penstock.model.errors import Forbidden, LeaseLost, NotFound, NotOwner, Unavailable, Unroutable
from penstock.model.rows import Commit, home_slot
from penstock.node.broker.cluster import ClusterBroker
from penstock.node.clock import SystemClock
from penstock.node.cluster.membership import Cluster, ClusterOptions
from penstock.node.cluster.peers import HttpPeers
from penstock.store.memory.engine import MemoryStore
from tests.nodes import node_of
from tests.scenarios.cluster.test_slots import SharedStore
from tests.scenarios.rig import until

Story = Callable[[ClusterBroker, Cluster, ClusterBroker, Cluster], Awaitable[None]]


@asynccontextmanager
async def reaching(
    store: MemoryStore, name: str, authorizer: Authorizer = ANYONE.authorizer
) -> AsyncIterator[tuple[ClusterBroker, Cluster]]:
    options = ClusterOptions(heartbeat_ms=100, lease_ms=600_000)
    member = await open_member(store, SystemClock(), name=name, options=options)
    broker = ClusterBroker.of(member.authorized_by(authorizer))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(broker.close)
        server = HttpServer(broker, HttpOptions(port=0, token="secret"))
        await server.start()
        stack.push_async_callback(server.stop)
        await broker.cluster.join(f"http://127.0.0.1:{server.port}")
        yield broker, broker.cluster


def play(story: Story) -> None:
    async def scene() -> None:
        store = SharedStore()
        async with reaching(store, "one") as (first, one), reaching(store, "two") as (second, two):

            async def shared() -> bool:
                return len(one.ownership.owned) == len(two.ownership.owned) == 32

            await until(shared)
            await story(first, one, second, two)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_what_a_front_asks_is_done_by_whoever_owns_it() -> None:
    async def story(first: ClusterBroker, one: Cluster, second: ClusterBroker, two: Cluster) -> None:
        await first.declare_exchange("x", kind="topic")
        owners = set()
        for number in range(8):  # some are the first's, some the second's
            name = f"q{number}"
            await first.declare_queue(name, max_attempts=0)
            owners.add(node_of(first._local).catalog.queue("default", name).slot in one.ownership.owned)
            await second.bind("x", name, "a.#")
            assert await second.queue_options(name) == {"max_attempts": 0}
            await first.publish_many(name, [Message(b"1"), Message(b"2")])
            claim = await second.claim(name, max=2, lease_seconds=20)
            assert claim.payloads() == [b"1", b"2"]
            assert await first.extend(claim, 60) > claim.deadline_ms
            await first.ack(claim, [claim.messages[0].offset])
            await second.nack(claim, [claim.messages[1].offset], delay=0)
            with pytest.raises(LeaseLost):
                await first.ack(claim)
            (again,) = await first.claim(name, ack=True)
            assert again.attempt == 2
            assert (await second.stats(name)).published == 2
        assert owners == {True, False}
        await second.publish_to("x", Message(b"m", key="a.b"))
        for number in range(8):
            claim = await first.claim(f"q{number}", wait=10)
            assert claim.payloads() == [b"m"]
            await first.transaction().ack(claim).publish("q0", Message(b"t")).commit()
        assert sum([len(await second.claim("q0", max=10, wait=5, min=8))]) == 8
        with pytest.raises(Unroutable):
            await first.publish_to("x", Message(b"m", key="b"), mandatory=True)
        for number in range(8):
            await second.delete_queue(f"q{number}")
            with pytest.raises(NotFound):
                await first.claim(f"q{number}")

    play(story)


def test_a_session_ends_at_every_node() -> None:
    async def story(first: ClusterBroker, one: Cluster, second: ClusterBroker, two: Cluster) -> None:
        session = first.begin_session("s-1")
        names = [f"q{number}" for number in range(6)]
        for name in names:
            await second.declare_queue(name)
            await second.publish(name, Message(b"m"))
            assert len(await session.claim(name, consumer="s-1/1", lease_seconds=600)) == 1
            await session.declare_queue(f"own-{name}", exclusive=True)
            with pytest.raises(Forbidden):
                await second.claim(f"own-{name}")
            await second.publish(f"own-{name}", Message(b"answer"))
            assert len(await session.claim(f"own-{name}", wait=5)) == 1
        await session.end_session()
        for name in names:
            (message,) = await second.claim(name, wait=5)  # back at once, the attempt counted
            assert message.attempt == 2

            async def gone(name: str = f"own-{name}") -> bool:
                return not await first.has_queue(name) and not await second.has_queue(name)

            await until(gone)

    play(story)


def test_a_consumer_that_waits_at_another_node_is_woken_and_when_cancelled_takes_nothing() -> None:
    async def story(first: ClusterBroker, one: Cluster, second: ClusterBroker, two: Cluster) -> None:
        name = next(name for name in map(str, range(99)) if _slot(name) in two.ownership.owned)
        await first.declare_queue(name)
        waiting = asyncio.ensure_future(first.claim(name, wait=30, lease_seconds=600))
        await asyncio.sleep(0.2)
        await second.publish(name, Message(b"1"))
        assert (await asyncio.wait_for(waiting, 10)).payloads() == [b"1"]
        waiting = asyncio.ensure_future(first.claim(name, wait=30, lease_seconds=600))
        await asyncio.sleep(0.2)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        async def nobody_waits() -> bool:
            return node_of(second._local).waiters.count == 0

        await until(nobody_waits)
        await second.publish(name, Message(b"2"))
        (message,) = await second.claim(name, wait=10)
        assert (message.message.payload, message.attempt) == (b"2", 1)

    play(story)


@pytest.mark.parametrize("is_declared_dead", [False, True])
@pytest.mark.parametrize("settles", [False, True])
def test_what_another_node_handed_a_session_is_not_delivered_if_its_node_was_dead_meanwhile(
    is_declared_dead: bool, settles: bool
) -> None:
    """As after a pause: the answer lay in the socket, and others may be done with the messages."""

    async def story(first: ClusterBroker, one: Cluster, second: ClusterBroker, two: Cluster) -> None:
        name = next(name for name in map(str, range(99)) if _slot(name) in two.ownership.owned)
        await first.declare_queue(name)
        session = first.begin_session("s")
        held = None
        if settles:
            await second.publish(name, Message(b"0"))
            held = await session.claim(name, wait=10, lease_seconds=600)
            await second.publish(name, Message(b"1"))
        answered, goes_on = asyncio.Event(), asyncio.Event()
        while_owner = first._forwarder._while_owner

        async def late(*arguments: Any) -> Any:
            answer = await while_owner(*arguments)
            answered.set()
            await goes_on.wait()
            return answer

        with patch.object(first._forwarder, "_while_owner", late):
            if held is not None:
                claiming = asyncio.ensure_future(session.settle_and_claim(held, lease_seconds=600))
            else:
                claiming = asyncio.ensure_future(session.claim(name, wait=30, lease_seconds=600))
                await second.publish(name, Message(b"1"))
            await answered.wait()
            if is_declared_dead:
                before = one.ownership.incarnation
                await one._rejoin()
                assert one.ownership.incarnation != before
            else:
                one.ownership.doubt()
            goes_on.set()
            if is_declared_dead:
                with pytest.raises(Unavailable, match="its sessions have ended"):
                    await claiming
            else:  # its lease on its slots was not lost: the next heartbeat says so
                assert (await claiming).payloads() == [b"1"]

    play(story)


def test_a_claim_whose_queue_moves_waits_no_longer_than_it_was_asked_to() -> None:
    async def story(first: ClusterBroker, one: Cluster, second: ClusterBroker, two: Cluster) -> None:
        name = next(name for name in map(str, range(99)) if _slot(name) in one.ownership.owned)
        await first.declare_queue(name)
        began = asyncio.get_running_loop().time()
        waiting = asyncio.ensure_future(first.claim(name, wait=3))
        await asyncio.sleep(1.5)
        to = one.ownership.node_of(two.ownership.incarnation)
        assert to is not None
        await one.give([_slot(name)], to.incarnation)
        assert len(await waiting) == 0
        assert 2.9 < asyncio.get_running_loop().time() - began < 4.2

    play(story)


def test_pages_of_another_node_are_those_that_it_gives_itself() -> None:
    async def story(first: ClusterBroker, one: Cluster, second: ClusterBroker, two: Cluster) -> None:
        name = next(name for name in map(str, range(99)) if _slot(name) in one.ownership.owned)
        await first.declare_queue(name)
        await first.publish_many(name, [Message(b"%d" % number) for number in range(5)])
        await first.reject(await first.claim(name, max=5), error="bad")
        for broker in (first, second):
            found, after = [], None
            while True:
                page = await broker.dead_page(name, after=after, max=2)
                assert len(page.dead) <= 2
                found += [letter.received.payload for letter in page.dead]
                if (after := page.next) is None:
                    break
            assert found == [b"0", b"1", b"2", b"3", b"4"]
        await first.publish_many(name, [Message(bytes(7_000_000))] * 4)
        while claim := await first.claim(name, max=5):
            await first.reject(claim)
        for broker in (first, second):
            page = await broker.dead_page(name, max=100)
            sizes = [[len(letter.received.payload) for letter in page.dead]]
            while page.next is not None:
                page = await broker.dead_page(name, after=page.next, max=100)
                sizes.append([len(letter.received.payload) for letter in page.dead])
            assert [size for some in sizes for size in some] == [1] * 5 + [7_000_000] * 4
            assert max(map(sum, sizes)) <= 16 * 1024 * 1024
        for number in range(3):
            await second.put_mark(f"m{number}", {"at": number})
        for broker in (first, second):
            marks = await broker.marks_page("m", max=2)
            assert ([mark.name for mark in marks.marks], marks.next) == (["m0", "m1"], "m1")
            rest = await broker.marks_page("m", after="m1")
            assert [(mark.name, bytes(mark.value)) for mark in rest.marks] == [("m2", b'{"at":2}')]

    play(story)


def test_a_forwarded_request_needs_the_secret_and_is_not_forwarded_again() -> None:
    async def story(first: ClusterBroker, one: Cluster, second: ClusterBroker, two: Cluster) -> None:
        name = next(name for name in map(str, range(99)) if _slot(name) in one.ownership.owned)
        await first.declare_queue(name)
        right, wrong = HttpPeers(two.ownership, lambda: one.secret), HttpPeers(two.ownership, lambda: "guessed")
        urls = {row.incarnation: row.url for row in one.ownership.view.nodes}
        owner, other = urls[one.ownership.incarnation], urls[two.ownership.incarnation]
        target = f"/v1/queues/{name}/stats".encode()
        try:
            assert (await right.send(owner, b"GET", target)).status == 200
            assert (await right.send(other, b"GET", target)).status == 421
            # Without it the request is a client's, which has no token.
            assert (await wrong.send(owner, b"GET", target)).status == 401
            assert (await wrong.send(owner, b"POST", b"/v1/cluster/poke")).status == 401
        finally:
            right.close()
            wrong.close()

    play(story)


class Moving(SharedStore):
    """A store that refuses a commit as one does whose slot has just moved away."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0
        self.slot = -1

    @in_task
    async def apply(self, commit: Commit) -> None:
        if self.slot in commit.epochs and any(change.batches for change in commit.lanes):
            slot, self.slot = self.slot, -1
            self.refused += 1
            raise NotOwner("it has moved", slot)
        await super().apply(commit)


def test_what_moves_away_while_it_is_committed_is_routed_again() -> None:
    async def scene() -> None:
        store = Moving()
        async with reaching(store, "one") as (broker, _):
            await broker.declare_queue("q")
            store.slot = _slot("q")
            receipt = await broker.publish_many("q", [Message(b"1")])  # a ticket
            assert receipt.first().offset == 0
            store.slot = _slot("q")
            assert (await broker.publish("q", Message(b"2"))).offset == 1  # a coroutine
            assert store.refused == 2
            assert (await broker.claim("q", max=10)).payloads() == [b"1", b"2"]

    asyncio.run(asyncio.wait_for(scene(), 60))


def _slot(name: str) -> int:
    return home_slot("default", name)
