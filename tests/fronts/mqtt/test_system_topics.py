"""`$SYS/broker/…` through the MQTT front."""

from __future__ import annotations

from pathlib import Path

from mqtt5 import QoS, RetainHandling, TopicFilter

from penstock.version import VERSION
from tests.fronts.mqtt.rig import Client, opened, scenario

CONNECTED = "$SYS/broker/clients/connected"
TOPICS = 16
"""As many as the table in docs/protocols.md has."""


async def taken(client: Client, topic: str, payload: bytes) -> None:
    """Until a topic says this."""
    while True:
        message = await client.message()
        if (message.topic, message.payload) == (topic, payload):
            return


@scenario
async def test_a_subscription_gets_the_numbers_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        assert await client.publish("a", b"kept", retain=True) == 0
        assert await client.subscribe("$SYS/#", qos=2, subscription_id=7) == [0]
        found = [await client.message() for _ in range(TOPICS)]
        await client.silent()
        assert all(one.retain and one.qos == QoS.AT_MOST_ONCE and one.subscription_ids == [7] for one in found)
        values = {one.topic.removeprefix("$SYS/broker/"): one.payload.decode() for one in found}
        assert values["version"] == f"penstock version {VERSION}"
        assert values["uptime"].endswith(" seconds")
        expected = {
            "clients/connected": 1,
            "clients/disconnected": 0,
            "clients/total": 1,
            "subscriptions/count": 1,
            "retained messages/count": 1,
            "messages/received": 1,
            "publish/messages/received": 1,
            "messages/sent": 0,
            "publish/messages/sent": 0,
            "publish/messages/dropped": 0,
        }
        assert {name: int(values[name]) for name in expected} == expected
        assert int(values["bytes/received"]) > int(values["bytes/sent"]) > 0
        assert int(values["messages/stored"]) == int(values["store/messages/count"]) > 0
        assert not front.broker.knows_queue("mqtt/session/client", "browse"), "nothing of it is stored"


@scenario
async def test_what_has_changed_comes_every_interval(tmp_path: Path) -> None:
    async with opened(tmp_path, sys_interval_s=0.05) as front:
        client = await front.connect("client")
        await client.subscribe(TopicFilter(CONNECTED, retain_handling=RetainHandling.SEND_NEVER), "#")
        await taken(client, CONNECTED, b"1")
        other = await front.connect("other")
        await taken(client, CONNECTED, b"2")
        await other.publish("a", b"x")
        message = await client.message()
        assert message.topic == "a", "it has not changed again"
        assert await client.unsubscribe(CONNECTED) == [0]
        await other.disconnect()
        await front.gone("other")
        await client.silent()


@scenario
async def test_wildcards_do_not_find_them_and_nobody_publishes_there(tmp_path: Path) -> None:
    async with opened(tmp_path, sys_interval_s=0.05) as front:
        wild, exact = await front.connect("wild"), await front.connect("exact")
        await wild.subscribe("#", "+/broker/uptime")
        await exact.subscribe("$SYS/broker/clients/+")
        await taken(exact, CONNECTED, b"2")
        assert await exact.publish(CONNECTED, b"99") == 0x90
        await front.connect("another")
        await taken(exact, CONNECTED, b"3")
        await wild.silent()
        assert await wild.subscribe("$share/group/$SYS/#") == [0x8F]


@scenario
async def test_they_are_made_only_while_somebody_subscribes(tmp_path: Path) -> None:
    async with opened(tmp_path, sys_interval_s=0.05) as front:
        topics, made = front.server.system_topics, 0
        values = topics.values

        async def counted() -> dict[str, bytes]:
            nonlocal made
            made += 1
            return await values()

        topics.values = counted  # type: ignore[method-assign]
        client = await front.connect("client", clean=False, expiry=100)
        await client.subscribe(CONNECTED)
        await taken(client, CONNECTED, b"1")
        await client.disconnect()
        await front.gone("client")
        before = made
        await topics._tell()
        assert made == before
        again = await front.connect("client", clean=False, expiry=100)
        await taken(again, CONNECTED, b"1")
        assert made > before, "the session goes on with its subscription"


@scenario
async def test_they_can_be_turned_off(tmp_path: Path) -> None:
    async with opened(tmp_path, sys_interval_s=0) as front:
        client = await front.connect("client")
        assert await client.subscribe("$SYS/#") == [0]
        await client.silent()
