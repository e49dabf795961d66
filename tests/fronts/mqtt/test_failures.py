"""The MQTT front on a broker whose store fails: nothing is answered that is not so, and nothing is there twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mqtt5
from mqtt5 import QoS

from penstock.api.ticket import Ticket
from penstock.model.errors import Unavailable
from penstock.node.broker import LocalTransaction
from tests.fronts.mqtt.rig import Front, opened, scenario, until_it_is


def fail_once(front: Front, *, in_force: bool) -> None:
    """The next transaction raises; what it was for is committed, or is not."""
    real = LocalTransaction.commit
    left = [True]

    async def commit(self: LocalTransaction) -> Any:
        if not left:
            return await real(self)
        left.clear()
        if in_force:
            await real(self)
        raise Unavailable("the store went away while it was asked; it may have carried it out")

    def transaction() -> LocalTransaction:
        made = LocalTransaction(front.broker)
        made.commit = commit.__get__(made)  # type: ignore[method-assign]
        return made

    front.broker.transaction = transaction  # type: ignore[method-assign]


async def kept(front: Front) -> list[bytes]:
    return [one.payload for one in (await front.broker.read_from("kept")).messages]


async def capture(front: Front) -> None:
    await front.broker.declare_queue("kept")
    await front.broker.bind("mqtt", "kept", "a")


@scenario
async def test_a_publish_of_qos_2_whose_fate_is_not_known_is_there_once(tmp_path: Path) -> None:
    for in_force in (True, False):
        path = tmp_path / str(in_force)
        path.mkdir()
        async with opened(path) as front:
            await capture(front)
            client = await front.connect("client", expiry=60)
            fail_once(front, in_force=in_force)
            client.send(mqtt5.PublishPacket("a", b"once", qos=QoS.EXACTLY_ONCE, packet_id=1))
            assert isinstance(await client.receive(), mqtt5.DisconnectPacket)  # no PUBREC that says either
            await front.gone("client")
            client = await front.connect("client", clean=False, expiry=60)
            client.send(mqtt5.PublishPacket("a", b"once", qos=QoS.EXACTLY_ONCE, packet_id=1, duplicate=True))
            await client.expect(mqtt5.PubRecPacket)
            client.send(mqtt5.PubRelPacket(1))
            await client.expect(mqtt5.PubCompPacket)
            assert await kept(front) == [b"once"]


@scenario
async def test_a_release_that_was_not_recorded_is_not_answered(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await capture(front)
        client = await front.connect("client", expiry=60)
        client.send(mqtt5.PublishPacket("a", b"1", qos=QoS.EXACTLY_ONCE, packet_id=1))
        await client.expect(mqtt5.PubRecPacket)
        fail_once(front, in_force=False)
        client.send(mqtt5.PubRelPacket(1))
        assert isinstance(await client.receive(), mqtt5.DisconnectPacket)
        await front.gone("client")
        client = await front.connect("client", clean=False, expiry=60)
        client.send(mqtt5.PubRelPacket(1))
        assert (await client.expect(mqtt5.PubCompPacket)).reason_code == 0


@scenario
async def test_a_delivery_whose_receipt_was_not_recorded_goes_on_with_the_next_connection(tmp_path: Path) -> None:
    for in_force in (True, False):
        path = tmp_path / str(in_force)
        path.mkdir()
        async with opened(path) as front:
            client = await front.connect("client", expiry=60)
            await client.subscribe("a", qos=2)
            publisher = await front.connect("publisher")
            await publisher.publish("a", b"1", qos=2)
            message = await client.message(answer=False)
            fail_once(front, in_force=in_force)
            client.send(mqtt5.PubRecPacket(message.packet_id))
            assert isinstance(await client.receive(), mqtt5.DisconnectPacket)
            await front.gone("client")
            client = await front.connect("client", clean=False, expiry=60)
            if in_force:
                assert (await client.expect(mqtt5.PubRelPacket)).packet_id == message.packet_id
            else:
                again = await client.message()
                assert (again.packet_id, again.duplicate) == (message.packet_id, True)


@scenario
async def test_a_store_that_is_away_is_told_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await capture(front)
        client = await front.connect("client")
        real = front.broker.publish_to

        def away(*_: Any, **__: Any) -> Any:
            return Ticket.failed(Unavailable("the store is away"))

        front.broker.publish_to = away  # type: ignore[method-assign]
        assert await client.publish("a", b"1") == 0x97
        front.broker.publish_to = real  # type: ignore[method-assign]
        assert await client.publish("a", b"2") == 0
        assert await kept(front) == [b"2"]


@scenario
async def test_one_bad_message_spoils_no_other_of_its_batch(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await capture(front)
        await front.broker.declare_queue("full", max_length=0, overflow="reject")
        await front.broker.bind("mqtt", "full", "b")
        client = await front.connect("client")
        data = b""
        for number in range(1, 11):
            topic = "b" if number == 5 else "$SYS" if number == 7 else "a"
            data += mqtt5.PublishPacket(topic, b"%d" % number, qos=QoS.AT_LEAST_ONCE, packet_id=number).write()
        client.send(data)
        answers = [await client.expect(mqtt5.PubAckPacket) for _ in range(10)]
        assert [one.packet_id for one in answers] == list(range(1, 11))
        assert {one.packet_id: int(one.reason_code) for one in answers if int(one.reason_code)} == {5: 0x97, 7: 0x90}
        await until_it_is([b"%d" % number for number in range(1, 11) if number not in (5, 7)], lambda: kept(front))
