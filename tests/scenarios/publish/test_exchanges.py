"""Every kind of exchange from publish to claim, over a restart."""

from __future__ import annotations

import datetime as dt

import pytest

from penstock import AlreadyExists, Binding, Forbidden, InvalidFilter, Message, NotFound, Unroutable, encode
from penstock.node.broker import LocalBroker
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, play


async def reached(broker: LocalBroker, exchange: str, message: Message) -> set[str]:
    """The queues that a message reaches: said by the receipt, and found there."""
    receipt = await broker.publish_to(exchange, message)
    found = {queue for queue in await broker.queues() if queue != "$events" and await claim_all(broker, queue)}
    assert found == set(receipt.queues)
    as_batch = await broker.publish_to(exchange, encode([message]))
    assert set(as_batch.queues) == found
    for queue in found:
        await broker.purge(queue)
    return found


def test_direct_topic_fanout_headers_filter_and_mqtt(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for queue in "abc":
            await broker.declare_queue(queue)
        for kind in ("direct", "topic", "fanout", "headers", "filter", "mqtt"):
            await broker.declare_exchange(kind, kind=kind)
        await broker.bind("direct", "a", "k1")
        await broker.bind("direct", "b", "k1")
        await broker.bind("direct", "c", "k2")
        await broker.bind("topic", "a", "orders.*.new")
        await broker.bind("topic", "b", "orders.#")
        await broker.bind("fanout", "a")
        await broker.bind("fanout", "c")
        await broker.bind("headers", "a", headers={"x": 1, "y": "z"})
        await broker.bind("headers", "b", headers={"x": 1, "y": "z"}, match="any")
        await broker.bind("filter", "a", "amount > 10 AND region LIKE 'e%'")
        await broker.bind("filter", "b", "amount <= 10")
        await broker.bind("mqtt", "a", "home/+/temp")
        await broker.bind("mqtt", "b", "home/#")
        broker = await home.reopen(broker)
        expected = [
            ("direct", Message(key="k1"), "ab"),
            ("direct", Message(key="k2"), "c"),
            ("direct", Message(key="k3"), ""),
            ("topic", Message(key="orders.eu.new"), "ab"),
            ("topic", Message(key="orders"), "b"),
            ("topic", Message(key="order"), ""),
            ("fanout", Message(key="anything"), "ac"),
            ("headers", Message(headers={"x": 1, "y": "z"}), "ab"),
            ("headers", Message(headers={"x": 1}), "b"),
            ("headers", Message(headers={"x": True}), ""),
            ("filter", Message(headers={"amount": 11, "region": "eu"}), "a"),
            ("filter", Message(headers={"amount": 3}), "b"),
            ("filter", Message(headers={"amount": "3"}), ""),
            ("mqtt", Message(key="home/hall/temp"), "ab"),
            ("mqtt", Message(key="home"), "b"),
            ("mqtt", Message(key="away"), ""),
        ]
        for exchange, message, queues in expected:
            assert await reached(broker, exchange, message) == set(queues), (exchange, message)

    play(home, scenario)


def test_exchanges_lead_to_exchanges_also_in_a_circle_and_each_queue_gets_one(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for queue in "ab":
            await broker.declare_queue(queue)
        for exchange in ("x", "y", "z"):
            await broker.declare_exchange(exchange, kind="fanout")
        for start, end in (("x", "y"), ("y", "z"), ("z", "x")):
            await broker.bind(start, end, target_kind="exchange")
        await broker.bind("y", "a")
        await broker.bind("z", "a")
        await broker.bind("z", "b")
        broker = await home.reopen(broker)
        assert await reached(broker, "x", Message(b"1")) == {"a", "b"}
        await broker.unbind("y", "z", target_kind="exchange")
        broker = await home.reopen(broker)
        assert await reached(broker, "x", Message(b"1")) == {"a"}

    play(home, scenario)


def test_what_matches_nothing_goes_to_the_alternate(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for queue in "ab":
            await broker.declare_queue(queue)
        await broker.declare_exchange("rest", kind="fanout", internal=True)
        await broker.declare_exchange("x", alternate="rest")
        await broker.bind("x", "a", "k")
        await broker.bind("rest", "b")
        broker = await home.reopen(broker)
        assert await reached(broker, "x", Message(key="k")) == {"a"}
        assert await reached(broker, "x", Message(key="other")) == {"b"}
        with pytest.raises(Forbidden, match="internal"):
            await broker.publish_to("rest", Message())

    play(home, scenario)


def test_the_default_exchange_leads_to_the_queue_of_that_name(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("a")
        assert await reached(broker, "", Message(key="a")) == {"a"}
        assert await reached(broker, "", Message(key="nowhere")) == set()
        for operation in (broker.declare_exchange(""), broker.bind("", "a")):
            with pytest.raises(Forbidden):
                await operation

    play(home, scenario)


def test_mandatory_publishes_nothing_if_one_message_has_nowhere_to_go(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("a")
        await broker.declare_exchange("x")
        await broker.bind("x", "a", "k")
        both = [Message(b"1", key="k"), Message(b"2", key="nowhere")]
        with pytest.raises(Unroutable, match="nowhere"):
            await broker.publish_to("x", both, mandatory=True)
        with pytest.raises(Unroutable, match="1 of 2"):
            await broker.publish_to("x", encode(both), mandatory=True)
        assert await claim_all(broker, "a") == []
        receipt = await broker.publish_to("x", both)
        assert (len(receipt), receipt.stored, receipt.of(1)) == (2, 1, [])

    play(home, scenario)


def test_deleting_a_queue_or_exchange_takes_its_bindings_along(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for queue in "ab":
            await broker.declare_queue(queue)
        await broker.declare_exchange("x", kind="fanout")
        await broker.declare_exchange("y", kind="fanout")
        await broker.bind("x", "a")
        await broker.bind("x", "y", target_kind="exchange")
        await broker.bind("y", "b")
        await broker.delete_queue("a")
        await broker.declare_queue("a")
        assert await reached(broker, "x", Message()) == {"b"}
        await broker.delete_exchange("y")
        await broker.declare_exchange("y", kind="fanout")
        broker = await home.reopen(broker)
        assert await reached(broker, "x", Message()) == set()
        with pytest.raises(NotFound):
            await broker.delete_exchange("gone")
        with pytest.raises(NotFound, match="no such binding"):
            await broker.unbind("x", "a")

    play(home, scenario)


def test_declaring_again_is_fine_and_contradicting_is_not(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lanes=2, lease_ms=500)
        await broker.declare_exchange("x", kind="topic")
        await broker.bind("x", "q", "a.#")
        broker = await home.reopen(broker)
        await broker.declare_queue("q")
        await broker.declare_queue("q", lanes=2)
        await broker.declare_exchange("x", kind="topic")
        await broker.bind("x", "q", "a.#")
        assert (await broker.queues())["q"] == {"lanes": 2, "lease_ms": 500}
        with pytest.raises(AlreadyExists, match="lanes=2; it cannot become 3"):
            await broker.declare_queue("q", lanes=3)
        with pytest.raises(AlreadyExists, match="'topic'"):
            await broker.declare_exchange("x", kind="fanout")
        await broker.declare_exchange("f", kind="filter")
        with pytest.raises(InvalidFilter):
            await broker.bind("f", "q", "a >")
        receipt = await broker.publish_to("x", Message(key="a.b"))
        assert receipt.stored == 1

    play(home, scenario)


def test_bindings_of_ephemeral_queues_outlive_a_reload_of_the_catalog(memory_home: Home) -> None:
    """A declaration fails, the catalog is read anew from the store, which knows nothing of ephemeral queues."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_exchange("x", kind="fanout")
        await broker.declare_queue("e", ephemeral=True)
        await broker.bind("x", "e")
        node_of(broker).writer.replace(await node_of(broker).store.catalog())
        assert await reached(broker, "x", Message(b"m")) == {"e"}
        await broker.unbind("x", "e")
        assert await reached(broker, "x", Message(b"m")) == set()

    play(memory_home, scenario)


def test_headers_of_a_binding_come_back_from_the_store_as_they_were(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_exchange("x", kind="headers")
        values = [b"\x00\xff", dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), 1.5, 2**63 - 1, True, "text", [b"1"], None]
        for value in values:
            await broker.bind("x", "q", headers={"h": value})
            broker = await home.reopen(broker)
            assert await reached(broker, "x", Message(headers={"h": value})) == {"q"}, value
            if value is not None:
                assert await reached(broker, "x", Message(headers={"h": "other"})) == set(), value
            await broker.unbind("x", "q", headers={"h": value})
            assert await reached(broker, "x", Message(headers={"h": value})) == set(), value

    play(home, scenario)


def test_what_is_declared_can_be_listed(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        assert await broker.exchanges() == {}
        await broker.declare_exchange("a", kind="topic", description="first")
        await broker.declare_exchange("b", kind="headers")
        await broker.in_namespace("other").declare_exchange("c")
        await broker.declare_queue("q")
        await broker.bind("a", "q", "x.*")
        await broker.bind("a", "b", "#", target_kind="exchange")
        await broker.bind("b", "q", headers={"n": 1}, match="any")
        for _ in range(2):
            assert await broker.exchanges() == {
                "a": {"kind": "topic", "description": "first"},
                "b": {"kind": "headers"},
            }
            assert await broker.bindings("a") == [
                Binding(exchange="a", target="q", pattern="x.*"),
                Binding(exchange="a", target="b", target_kind="exchange", pattern="#"),
            ]
            assert await broker.bindings("b") == [Binding(exchange="b", target="q", headers={"n": 1}, match="any")]
            assert await broker.in_namespace("other").exchanges() == {"c": {}}
            broker = await home.reopen(broker)
        with pytest.raises(NotFound, match="no exchange 'c'"):
            await broker.bindings("c")

    play(home, scenario)


def test_an_exchange_with_auto_delete_goes_with_its_last_binding(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("a")
        await broker.declare_queue("b")
        await broker.declare_exchange("inner", kind="fanout", auto_delete=True)
        await broker.declare_exchange("outer", kind="fanout", auto_delete=True)
        await broker.bind("outer", "inner", target_kind="exchange")
        await broker.bind("inner", "a")
        await broker.bind("inner", "b")
        await broker.unbind("inner", "a")
        broker = await home.reopen(broker)
        assert set(await broker.exchanges()) >= {"inner", "outer"}
        await broker.delete_queue("b")  # the last binding of `inner`, which was the last of `outer`
        assert not {"inner", "outer"} & set(await broker.exchanges())
        await broker.declare_exchange("inner", kind="fanout", auto_delete=True)  # new, and without a binding yet
        broker = await home.reopen(broker)
        assert "inner" in await broker.exchanges()

    play(home, scenario)


def test_an_ephemeral_exchange_does_not_outlive_the_broker(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_exchange("kept", kind="fanout")
        await broker.declare_exchange("gone", kind="fanout", ephemeral=True)
        for exchange in ("kept", "gone"):
            await broker.bind(exchange, "q")
        broker = await home.reopen(broker)
        assert "kept" in await broker.exchanges()
        assert "gone" not in await broker.exchanges()
        await broker.declare_exchange("gone", kind="fanout")
        assert await broker.bindings("gone") == []

    play(home, scenario)
