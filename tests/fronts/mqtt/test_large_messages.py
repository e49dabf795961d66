"""Large messages by MQTT: as large as is configured, within what a packet can say, and in the server's budget."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.fronts.answers import Answers
from penstock.fronts.mqtt.options import PACKET_BYTES_MAX, MqttOptions
from penstock.model import PAYLOAD_BYTES_MAX
from penstock.wire.mqtt.reader import publish_packet
from tests.fronts.mqtt.rig import opened, scenario, until

MIB = 1024 * 1024


def test_the_largest_packet_follows_the_largest_message() -> None:
    assert MqttOptions().packet_bytes_max(20 * MIB) == 21 * MIB
    assert MqttOptions().packet_bytes_max(PAYLOAD_BYTES_MAX) == PACKET_BYTES_MAX
    assert MqttOptions(max_packet_bytes=1024).packet_bytes_max(20 * MIB) == 1024


def test_a_delivery_that_no_packet_can_say_is_none() -> None:
    room = PACKET_BYTES_MAX - 1 - len(b"\0\x01t")
    assert publish_packet(0x30, b"\0\x01t", 0, b"", bytes(room))[-1] == bytes(room)
    assert publish_packet(0x30, b"\0\x01t", 0, b"", bytes(room + 1)) == ()


@scenario
async def test_a_message_as_large_as_is_configured_goes_through_and_one_byte_more_does_not(path: Path) -> None:
    most = 18 * MIB
    async with opened(path, message_bytes=most) as front:
        client = await front.connect("a")
        assert client.connack.max_packet_size == most + MIB
        await client.subscribe("t", qos=1)
        payload = os.urandom(MIB) * 18
        assert await client.publish("t", payload) == 0
        assert (await client.message()).payload == payload
        assert await client.publish("t", payload + b"x") >= 0x80
        client.send(b"\x30" + b"\x80\x80\x80\x0a")  # one of 20 MiB is refused by its first bytes
        await client.closed()


@scenario
async def test_large_deliveries_wait_for_a_client_that_does_not_read_its_own(path: Path) -> None:
    answers = Answers(8 * MIB)
    async with opened(path, answers=answers) as front:
        publisher = await front.connect("publisher")
        slow, waiting, quick = [await front.connect(name) for name in ("slow", "waiting", "quick")]
        for client, topic in ((slow, "slow"), (waiting, "waiting"), (quick, "small")):
            await client.subscribe(topic, qos=1)
        payload = os.urandom(7 * MIB)
        assert await publisher.publish("slow", payload) == 0
        await until(lambda: answers.bytes > 0, "a large delivery is under way")
        assert await publisher.publish("waiting", payload) == 0
        await until(lambda: answers.waiting == 1, "another one waits")
        assert await publisher.publish("small", b"small") == 0
        assert (await quick.message()).payload == b"small"
        slow.cut()
        assert (await waiting.message()).payload == payload
        await until(lambda: (answers.bytes, answers.waiting) == (0, 0), "all is taken")


@scenario
async def test_a_client_that_takes_nothing_is_closed_and_gets_its_message_when_it_comes_back(path: Path) -> None:
    answers = Answers(8 * MIB, seconds=1.0)
    async with opened(path, answers=answers) as front:
        slow, publisher = await front.connect("slow", expiry=60), await front.connect("publisher")
        await slow.subscribe("t", qos=1)
        payload = os.urandom(7 * MIB)
        assert await publisher.publish("t", payload) == 0
        await until(lambda: answers.bytes > 0, "a large delivery is under way")
        await front.gone("slow")
        await until(lambda: answers.bytes == 0, "it is given back")
        again = await front.connect("slow", clean=False, expiry=60)
        assert (await again.message()).payload == payload
