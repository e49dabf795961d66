"""Transactions: verdicts and publishes over several queues, all of it or nothing."""

from __future__ import annotations

import pytest

from penstock import InvalidArgument, LeaseLost, Message, MessageTooLarge, NotFound, QueueFull, Verdict
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, group_stats, lease, numbered, play, texts


def test_acks_and_publishes_over_queues_are_one_commit(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("in", lanes=2)
        await broker.declare_queue("out", lanes=3)
        await broker.declare_queue("log")
        await broker.declare_exchange("x", kind="fanout")
        await broker.bind("x", "log")
        await broker.publish_many("in", [Message(b"%d" % n, partition=str(n)) for n in range(10)])
        claims = []
        while len(claim := await broker.claim("in", max=10)):
            claims.append(claim)
        assert len(claims) == 2
        before = node_of(broker).commits.count
        async with broker.transaction() as transaction:
            transaction.publish("out", *(Message(b"%d" % n, partition=str(n)) for n in range(5)))
            transaction.publish_to("x", Message(b"moved"))
            transaction.publish("out", Message(b"5"))
            transaction.ack(claims[0])
            transaction.settle(claims[1], [Verdict("ack", claims[1].offsets()[0], claims[1].offsets()[0] + 1)])
        if home.spans_slots:
            assert node_of(broker).commits.count == before + 1
        assert transaction.receipt is not None
        assert [transaction.receipt.of(index)[0].queue for index in range(7)] == ["out"] * 5 + ["log", "out"]
        broker = await home.open()
        assert sorted(await claim_all(broker, "out")) == ["0", "1", "2", "3", "4", "5"]
        assert await claim_all(broker, "log") == ["moved"]
        assert (await group_stats(broker, "in")).leased == len(claims[1]) - 1

    play(home, scenario)


@pytest.mark.parametrize("fault", ["lease", "twice", "full", "unknown group", "too large"])
def test_one_bad_part_and_nothing_happens(home: Home, fault: str) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for queue in ("a", "b", "c"):
            await broker.declare_queue(queue)
        await broker.declare_queue("full", max_length=0)
        await broker.publish_many("a", numbered(2))
        await broker.publish_many("b", numbered(2))
        good, bad = await broker.claim("a", max=2), await broker.claim("b", max=2)
        if fault == "lease":
            await broker.ack(bad)
        transaction = broker.transaction()
        transaction.ack(good)
        transaction.publish("c", Message(b"x"))
        expected: type[Exception] = LeaseLost
        if fault == "full":
            transaction.publish("full", Message(b"x"))
            expected = QueueFull
        elif fault == "twice":
            transaction.nack(bad)
            transaction.ack(bad, [0])
            expected = InvalidArgument
        elif fault == "unknown group":
            assert bad.lease is not None
            transaction.ack(f"{bad.lease.lane}-999999-{bad.lease.id}")
        elif fault == "too large":
            for _ in range(5):
                transaction.publish("c", Message(bytes(16 << 20)))
            expected = MessageTooLarge
        else:
            transaction.ack(bad)
        if fault in ("lease", "unknown group") and not home.spans_slots:
            expected = InvalidArgument  # leases of several slots
        with pytest.raises(expected):
            await transaction.commit()
        broker = await home.open()
        assert (await group_stats(broker, "a")).leased == 2
        assert (await broker.stats("c")).published == 0
        await broker.ack(lease(good))

    play(home, scenario)


def test_a_transaction_that_was_left_by_an_error_does_nothing(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"m"))
        claim = await broker.claim("q")

        async def fail() -> None:
            async with broker.transaction() as transaction:
                transaction.ack(claim)
                transaction.publish("q", Message(b"n"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert (await group_stats(broker, "q")).leased == 1
        assert (await broker.stats("q")).published == 1

    play(home, scenario)


def test_bad_input_is_refused_before_the_commit(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        transaction = broker.transaction()
        with pytest.raises(NotFound):
            transaction.publish("nowhere", Message(b""))
        with pytest.raises(NotFound):
            transaction.publish_to("nowhere", Message(b""))
        with pytest.raises(InvalidArgument):
            transaction.publish("q", Message("text"))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            transaction.ack("not a lease")
        receipt = await transaction.commit()
        assert len(receipt) == 0
        with pytest.raises(InvalidArgument, match="committed before"):
            await transaction.commit()

    play(memory_home, scenario)


def test_a_transaction_publishes_under_dedup_ids_once(home: Home) -> None:
    """Consume, produce, crash before the answer, again: the effect is there once."""

    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("in", lease_ms=1_000)
        await broker.declare_queue("out")
        await broker.publish("in", Message(b"m"))
        for _ in range(3):
            claim = await broker.claim("in")
            await broker.publish("out", Message(b"effect", dedup_id=f"in-{claim.offsets()[0]}"))
            broker = await home.open()
            home.pass_time(broker, 1_000)
        assert await claim_all(broker, "out") == ["effect"]
        assert texts(await broker.claim("in")) == ["m"]

    play(home, scenario)
