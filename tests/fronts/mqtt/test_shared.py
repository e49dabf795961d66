"""Shared subscriptions through the MQTT front."""

from __future__ import annotations

from pathlib import Path

import mqtt5

from tests.fronts.mqtt.rig import Client, Front, crashed, opened, scenario, until

QUEUE = "mqtt/share/group/a/#"


async def members(front: Front, count: int, qos: int = 1, expiry: int = 0) -> list[Client]:
    clients = []
    for number in range(count):
        client = await front.connect(f"member-{number}", expiry=expiry)
        assert await client.subscribe("$share/group/a/#", qos=qos, subscription_id=4) == [qos]
        clients.append(client)
    return clients


@scenario
async def test_each_message_goes_to_one_member(tmp_path: Path) -> None:
    for qos in (0, 1, 2):
        async with opened(tmp_path) as front:
            one, two = await members(front, 2, qos)
            other = await front.connect("other")
            await other.subscribe("a/1", qos=0)
            publisher = await front.connect("publisher")
            found = []
            for number in range(10):
                await publisher.publish("a/1", b"%d" % number, qos=qos)
                assert (await other.message()).payload == b"%d" % number
            await until(lambda: front.server.measures.delivered == 20, "all are sent")
            for client in (one, two):
                client.send(b"\xc0\x00")  # a ping: what was sent comes before its answer
                while hasattr(packet := await client.receive(), "payload"):
                    assert packet.subscription_ids == [4]
                    assert packet.qos == qos
                    found.append(packet.payload)
            assert sorted(found) == [b"%d" % number for number in range(10)]
            assert len(found) == len(set(found))


@scenario
async def test_a_burst_is_spread_over_the_members(tmp_path: Path) -> None:
    for qos in (0, 1):
        async with opened(tmp_path) as front:
            clients = await members(front, 4, qos)
            publisher = await front.connect("publisher")
            for number in range(200):
                publisher.send(mqtt5.PublishPacket("a/1", b"%d" % number, qos=mqtt5.QoS(0)))
            await until(lambda: front.server.measures.delivered == 200, "all are sent")
            for client in clients:
                client.send(b"\xc0\x00")
                count = 0
                while hasattr(await client.receive(), "payload"):
                    count += 1
                assert count >= 20


@scenario
async def test_what_a_member_did_not_acknowledge_goes_to_another_when_it_is_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        (one,) = await members(front, 1)
        publisher = await front.connect("publisher")
        await publisher.publish("a/1", b"1")
        await one.message(answer=False)
        two = await front.connect("two")
        await two.subscribe("$share/group/a/#", qos=1)
        await two.silent()
        one.cut()
        assert (await two.message()).payload == b"1"


@scenario
async def test_the_queue_goes_with_its_last_member(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        one, two = await members(front, 2)
        assert await front.broker.has_queue(QUEUE)
        assert await one.unsubscribe("$share/group/a/#") == [0]
        assert await front.broker.has_queue(QUEUE)
        await two.disconnect()
        await until(lambda: not front.broker.knows_queue(QUEUE, "browse"), "the queue is deleted")


@scenario
async def test_a_member_whose_session_stays_keeps_the_messages(tmp_path: Path) -> None:
    async with crashed(tmp_path) as front:
        (client,) = await members(front, 1, expiry=60)
        publisher = await front.connect("publisher")
        await publisher.publish("a/1", b"1")
        await client.message(answer=False)
        await client.disconnect()
        await front.gone("member-0")
        await publisher.publish("a/2", b"2")
    async with opened(tmp_path) as front:
        client = await front.connect("member-0", clean=False, expiry=1)
        assert [(await client.message()).payload for _ in range(2)] == [b"1", b"2"]
        await client.disconnect()
        await until(lambda: not front.broker.knows_queue(QUEUE, "browse"), "the session and its share have ended")


@scenario
async def test_qos_2_stays_with_the_member_that_was_sent_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        (one,) = await members(front, 1, qos=2, expiry=60)
        publisher = await front.connect("publisher")
        await publisher.publish("a/1", b"1", qos=2)
        first = await one.message(answer=False)
        one.cut()
        two = await front.connect("two")
        await two.subscribe("$share/group/a/#", qos=2)
        await front.gone("member-0")
        await two.silent()
        one = await front.connect("member-0", clean=False, expiry=60)
        again = await one.message()
        assert (again.payload, again.packet_id, again.duplicate) == (b"1", first.packet_id, True)
        assert again.subscription_ids == [4]
