"""Alarms over MQTT: 0x97 where version 5 can say so, a closed connection where 3.1.1 cannot; deliveries go on."""

from __future__ import annotations

from pathlib import Path

from tests.alarms import end_alarm, raise_alarm
from tests.fronts.mqtt.rig import opened, scenario, soon, until

QUOTA_EXCEEDED = 0x97


@scenario
async def test_version_5_is_told_in_puback_and_pubrec(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        subscriber, publisher = await front.connect("subscriber"), await front.connect("publisher")
        await subscriber.subscribe("a")
        raise_alarm(front.broker)
        assert await publisher.publish("a", qos=1) == QUOTA_EXCEEDED
        assert await publisher.publish("a", qos=2) == QUOTA_EXCEEDED
        assert await publisher.publish("a", qos=1, retain=True) == QUOTA_EXCEEDED
        await subscriber.silent()
        end_alarm(front.broker)
        assert await publisher.publish("a", b"after", qos=2) == 0
        assert (await subscriber.message()).payload == b"after"


@scenario
async def test_version_3_is_closed_without_an_answer(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        publisher = await front.wire()
        publisher.send(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01p")
        assert await soon(publisher._reader.readexactly(4)) == b"\x20\x02\x00\x00"
        await front.broker.declare_queue("q")
        raise_alarm(front.broker)
        publisher.send(b"\x32\x0d\x00\x08$queue/q\x00\x07x")
        assert await soon(publisher._reader.read()) == b"", "a PUBACK would say that it is stored"


@scenario
async def test_a_publish_waits_for_the_alarm_to_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        subscriber, publisher = await front.connect("subscriber"), await front.connect("publisher")
        await subscriber.subscribe("a")
        raise_alarm(front.broker, wait=60.0)
        await publisher.publish("a", b"waited", qos=0)
        await until(lambda: front.broker._services.alarms.delayed > 0, "the publish waits")
        end_alarm(front.broker)
        assert (await subscriber.message()).payload == b"waited"


@scenario
async def test_sessions_begin_subscribe_and_get_what_was_there_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        first = await front.connect("kept", expiry=600)
        await first.subscribe("a", qos=2)
        publisher = await front.connect("publisher")
        first.cut()
        await front.gone("kept")
        assert await publisher.publish("a", b"waiting", qos=2) == 0
        raise_alarm(front.broker)
        again = await front.connect("kept", clean=False, expiry=600)
        assert (await again.message()).payload == b"waiting"
        assert await again.subscribe("b", qos=1) == [1]
        other = await front.connect("new", expiry=600)
        assert await other.subscribe("c", qos=2) == [2]
