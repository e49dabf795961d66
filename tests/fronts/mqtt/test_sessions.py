"""Sessions through the MQTT front: what outlives a connection and a crash, takeover, expiry, packets sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import mqtt5
import msgspec
import pytest
from mqtt5 import QoS, Will

from penstock import Message, Unavailable
from tests.fronts.mqtt.rig import Front, crashed, opened, scenario, until, until_it_is

NEVER = 0xFFFFFFFF


async def outbound(front: Front) -> set[int]:
    """Packet ids whose PUBREL is not answered, as it is recorded."""
    documents = front.server.sessions.documents
    await documents.table.catch_up()
    return documents.packet_ids("o", "client")


@scenario
async def test_a_clean_session_leaves_nothing_behind(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await client.subscribe("a/#", "b/+")
        assert await front.broker.has_queue("mqtt/session/client")
        await client.disconnect()
        await front.gone("client")
        assert not [name for name in await front.broker.queues() if name.startswith("mqtt/")]
        assert await front.broker.bindings("mqtt") == []


@scenario
async def test_a_session_with_expiry_is_there_again_with_what_came_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        assert not client.connack.session_present
        await client.subscribe("a", qos=1, subscription_id=5)
        await client.disconnect()
        publisher = await front.connect("publisher")
        for number in range(10):
            assert await publisher.publish("a", b"%d" % number) == 0
        client = await front.connect("client", clean=False, expiry=60)
        assert client.connack.session_present
        found = [await client.message() for _ in range(10)]
        assert [one.payload for one in found] == [b"%d" % number for number in range(10)]
        assert {tuple(one.subscription_ids) for one in found} == {(5,)}
        assert not any(one.duplicate for one in found)


@pytest.mark.parametrize("way", ["stopped", "crashed"])
def test_an_offline_session_survives_a_restart(way: str, tmp_path: Path) -> None:
    @scenario
    async def run(path: Path) -> None:
        first = opened if way == "stopped" else crashed
        async with first(path) as front:
            client = await front.connect("client", expiry=NEVER)
            await client.subscribe("a/+", qos=2)
            publisher = await front.connect("publisher")
            await publisher.publish("a/0", b"seen", qos=1)
            assert (await client.message()).payload == b"seen"
            await until_it_is(0, lambda: front.leased("client"))
            client.cut()
            await publisher.publish("a/1", b"1", qos=1)
            await publisher.publish("a/2", b"2", qos=2)
        async with opened(path) as front:
            client = await front.connect("client", clean=False, expiry=NEVER)
            assert client.connack.session_present
            assert [(await client.message()).payload for _ in range(2)] == [b"1", b"2"]
            await client.silent()
            assert await client.publish("a/3", b"3") == 0  # the subscription is there too
            assert (await client.message()).payload == b"3"

    run(tmp_path)


@scenario
async def test_what_was_not_acknowledged_comes_again_in_order_under_the_same_ids(tmp_path: Path) -> None:
    async with crashed(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        await client.subscribe("a", qos=2)
        publisher = await front.connect("publisher")
        for number in range(6):
            await publisher.publish("a", b"%d" % number, qos=1 + number % 2)
        first = [await client.message(answer=False) for _ in range(6)]
        client.send(mqtt5.PubAckPacket(first[2].packet_id))
        await client.silent()
        await until_it_is(5, lambda: front.leased("client"))
        client.cut()
        await front.gone("client")
        client = await front.connect("client", clean=False, expiry=60)
        again = [await client.message(answer=False) for _ in range(5)]
        assert [one.payload for one in again] == [b"0", b"1", b"3", b"4", b"5"]
        assert all(one.duplicate for one in again)
        assert [one.packet_id for one in again] == [one.packet_id for one in first if one.payload != b"2"]
    async with opened(tmp_path) as front:
        client = await front.connect("client", clean=False, expiry=60)
        third = [await client.message(answer=False) for _ in range(5)]
        assert [(one.payload, one.packet_id, one.duplicate) for one in third] == [
            (one.payload, one.packet_id, True) for one in again
        ]


@scenario
async def test_a_publish_of_qos_2_that_is_repeated_after_a_crash_is_there_once(tmp_path: Path) -> None:
    publish = mqtt5.PublishPacket("a", b"once", qos=QoS.EXACTLY_ONCE, packet_id=1)
    async with crashed(tmp_path) as front:
        await front.broker.declare_queue("kept")
        await front.broker.bind("mqtt", "kept", "a")
        client = await front.connect("client", expiry=60)
        client.send(publish)
        await client.expect(mqtt5.PubRecPacket)
    async with opened(tmp_path) as front:
        client = await front.connect("client", clean=False, expiry=60)
        client.send(mqtt5.PublishPacket("a", b"once", qos=QoS.EXACTLY_ONCE, packet_id=1, duplicate=True))
        assert (await client.expect(mqtt5.PubRecPacket)).packet_id == 1
        client.send(mqtt5.PubRelPacket(1))
        assert (await client.expect(mqtt5.PubCompPacket)).reason_code == 0
        assert (await front.broker.stats("kept")).published == 1
        client.send(publish)  # the id is free again: this is another message
        await client.expect(mqtt5.PubRecPacket)
        assert (await front.broker.stats("kept")).published == 2


@scenario
async def test_a_release_is_not_forgotten_by_a_crash(tmp_path: Path) -> None:
    """After PUBCOMP the id means another message: were it still known, that one would be lost."""
    async with crashed(tmp_path) as front:
        await front.broker.declare_queue("kept")
        await front.broker.bind("mqtt", "kept", "a")
        client = await front.connect("client", expiry=60)
        client.send(mqtt5.PublishPacket("a", b"1", qos=QoS.EXACTLY_ONCE, packet_id=1))
        await client.expect(mqtt5.PubRecPacket)
        client.send(mqtt5.PubRelPacket(1))
        await client.expect(mqtt5.PubCompPacket)
    async with opened(tmp_path) as front:
        client = await front.connect("client", clean=False, expiry=60)
        client.send(mqtt5.PublishPacket("a", b"2", qos=QoS.EXACTLY_ONCE, packet_id=1))
        await client.expect(mqtt5.PubRecPacket)
        assert [one.payload for one in (await front.broker.read_from("kept")).messages] == [b"1", b"2"]


@scenario
async def test_a_delivery_of_qos_2_is_never_sent_again_once_the_client_has_it(tmp_path: Path) -> None:
    async with crashed(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        await client.subscribe("a", qos=2)
        publisher = await front.connect("publisher")
        await publisher.publish("a", b"once", qos=2)
        message = await client.message(answer=False)
        client.send(mqtt5.PubRecPacket(message.packet_id))
        await client.expect(mqtt5.PubRelPacket)
    async with crashed(tmp_path) as front:
        client = await front.connect("client", clean=False, expiry=60)
        released = await client.expect(mqtt5.PubRelPacket)  # and no PUBLISH before it
        assert released.packet_id == message.packet_id
        client.send(mqtt5.PubCompPacket(message.packet_id))
        await client.silent()
        await until_it_is(set(), lambda: outbound(front))
    async with opened(tmp_path) as front:
        client = await front.connect("client", clean=False, expiry=60)
        await client.silent()


@scenario
async def test_a_packet_id_that_is_not_known_is_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        client.send(mqtt5.PubRelPacket(7))
        assert (await client.expect(mqtt5.PubCompPacket)).reason_code == 0x92
        client.send(mqtt5.PubRecPacket(7))
        assert (await client.expect(mqtt5.PubRelPacket)).reason_code == 0x92


@scenario
async def test_clean_start_ends_the_session_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        await client.subscribe("a")
        await client.disconnect()
        publisher = await front.connect("publisher")
        await publisher.publish("a", b"old")
        client = await front.connect("client", clean=True, expiry=60)
        assert not client.connack.session_present
        assert await publisher.publish("a", b"lost") == 0x10
        await client.silent()


@scenario
async def test_a_session_ends_after_its_expiry(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", expiry=1)
        await client.subscribe("a")
        await client.disconnect()
        assert await front.broker.has_queue("mqtt/session/client")
        await until(lambda: not front.broker.knows_queue("mqtt/session/client", "browse"), "the session has ended")
        await until(lambda: not front.server.sessions.documents.all, "its document is gone")
        assert not (await front.connect("client", clean=False, expiry=1)).connack.session_present


@scenario
async def test_a_session_whose_time_is_over_while_no_server_ran_is_not_resumed(tmp_path: Path) -> None:
    async with crashed(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        await client.subscribe("a")
        await client.disconnect(expiry=0)
        await front.gone("client")
        client = await front.connect("other", expiry=1)
        await client.subscribe("a")
    async with opened(tmp_path) as front:
        assert not (await front.connect("client", clean=False, expiry=60)).connack.session_present
        # What a crash left connected counts from the restart on.
        await until(lambda: not front.broker.knows_queue("mqtt/session/other", "browse"), "the other session has ended")


@scenario
async def test_the_server_may_shorten_the_expiry(tmp_path: Path) -> None:
    async with opened(tmp_path, max_session_expiry_seconds=30) as front:
        assert (await front.connect("a", expiry=60)).connack.session_expiry_interval == 30
        assert (await front.connect("b", expiry=20)).connack.session_expiry_interval is None


@scenario
async def test_the_same_client_id_takes_the_session_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        first = await front.connect("client", expiry=60)
        await first.subscribe("a", qos=1)
        publisher = await front.connect("publisher")
        await publisher.publish("a", b"1")
        await first.message(answer=False)
        second = await front.connect("client", clean=False, expiry=60)
        assert second.connack.session_present
        assert (await first.expect(mqtt5.DisconnectPacket)).reason_code == 0x8E
        message = await second.message()
        assert (message.payload, message.duplicate) == (b"1", True)
        await publisher.publish("a", b"2")
        assert (await second.message()).payload == b"2"


@scenario
async def test_many_who_want_the_same_client_id_leave_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        wires = [await front.wire() for _ in range(10)]
        for wire in wires:
            wire.send(mqtt5.ConnectPacket("client", clean_start=False, session_expiry_interval=60))
        for wire in wires:
            await wire.expect(mqtt5.ConnAckPacket)
        codes = []
        for wire in wires:
            wire.send(mqtt5.PingReqPacket())
            packet = await wire.receive()
            codes.append(getattr(packet, "reason_code", None))
        assert codes.count(0x8E) == 9
        assert len(front.server.sessions.connected) == 1


@scenario
async def test_a_client_without_an_id_gets_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        one, two = await front.connect(""), await front.connect("")
        assert one.connack.assigned_client_id != two.connack.assigned_client_id
        assert one.connack.assigned_client_id in front.server.sessions.connected


@scenario
async def test_client_ids_of_any_text_are_taken_and_what_cannot_be_a_name_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        for client_id in ("a/b/c", "sch\u00f6n und gut", "$x", "x" * 200):
            client = await front.connect(client_id, expiry=60)
            assert await client.subscribe("a") == [2]
            await client.disconnect()
            assert (await front.connect(client_id, clean=False)).connack.session_present
        for client_id, reason in (("x" * 201, 0x85), ("a\x1fb", 0x82)):
            assert (await front.connect(client_id)).connack.reason_code == reason


@scenario
async def test_a_token_must_be_the_password(tmp_path: Path) -> None:
    async with opened(tmp_path, token="secret") as front:
        assert (await front.connect("a")).connack.reason_code == 0x86
        assert (await front.connect("a", username="x", password=b"wrong")).connack.reason_code == 0x86
        assert (await front.connect("a", username="x", password=b"secret")).connack.reason_code == 0


@scenario
async def test_a_keep_alive_that_is_too_long_is_replaced(tmp_path: Path) -> None:
    async with opened(tmp_path, max_keep_alive_seconds=30) as front:
        assert (await front.connect("a", keep_alive=60)).connack.server_keep_alive == 30
        assert (await front.connect("b", keep_alive=0)).connack.server_keep_alive == 30
        assert (await front.connect("c", keep_alive=10)).connack.server_keep_alive is None


@scenario
async def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path, max_connections=1) as front:
        await front.connect("a")
        assert (await front.connect("b")).connack.reason_code == 0x89


@scenario
async def test_clients_are_told_when_the_server_stops(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await front.server.stop()
        assert (await client.expect(mqtt5.DisconnectPacket)).reason_code == 0x8B
        await client.closed()


@scenario
async def test_a_queue_that_was_deleted_ends_the_connection_and_is_made_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        await client.subscribe("a", qos=1)
        await front.broker.delete_queue("mqtt/session/client")
        assert (await client.expect(mqtt5.DisconnectPacket)).reason_code == 0x98
        await front.gone("client")
        client = await front.connect("client", clean=False, expiry=60)
        assert client.connack.session_present
        publisher = await front.connect("publisher")
        assert await publisher.publish("a", b"1") == 0
        assert (await client.message()).payload == b"1"


@scenario
async def test_clients_that_come_and_go_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        server, sessions = front.server, front.server.sessions
        with patch("penstock.fronts.mqtt.session.sessions.DUE_MORE", 5):
            for number in range(30):
                client = await front.connect("stays", clean=False, expiry=3_600)
                if number == 0:
                    await client.subscribe("a", "$share/g/b", "$queue/q/#", qos=1)
                await front.broker.publish("q", Message(b"%d" % number))
                await client.message(answer=False)
                if number % 2:
                    await client.disconnect()
                else:
                    client.cut()
                await front.gone("stays")
        assert len(sessions._due) <= 8
        await front.connect("stays", clean=True)
        for number in range(10):
            client = await front.connect(f"goes-{number}", will=Will("w", payload=b"x"))
            await client.subscribe("a", "$share/g/b", "$queue/q/#", qos=2)
        front.cut_all()
        await until(lambda: not server.connections and not sessions.connected, "all are gone")
        await until(lambda: not sessions.documents.all, "no document is left")
        assert not sessions._locks
        assert not sessions._opened
        assert not sessions.subscribing._members
        assert not server.unsettled.sources
        left = [name for name in await front.broker.queues() if name.startswith(("mqtt/session/", "mqtt/share/"))]
        assert left == []
        group = next(one for one in (await front.broker.stats("q")).groups if one.group == "stays")
        assert group.leased == 0


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_connection_that_another_node_took_over_says_nothing_more_of_its_session(
    is_waiting: bool, tmp_path: Path
) -> None:
    """But that it has let go, where the other waits for that. Else what the new connection holds would be nobody's."""

    @scenario
    async def story(tmp_path: Path) -> None:
        async with opened(tmp_path) as front:
            await front.connect("client", clean=False, expiry=60)
            sessions = front.server.sessions
            documents = sessions.documents
            mine = documents.all["client"]
            token = mine.token if is_waiting else "client#other"
            theirs = msgspec.structs.replace(mine, node="another", token=token)
            await front.broker.publish(documents.table.queue, documents.row(theirs))
            await documents.table.catch_up()
            await front.gone("client")
            found = documents.all["client"]
            assert found.token == token
            assert not (is_waiting and found.is_connected)

    story(tmp_path)


@scenario
async def test_what_was_claimed_without_an_answer_is_delivered_when_the_rest_is_settled(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", clean=False, expiry=60)
        await client.subscribe("a", qos=1)
        publisher = await front.connect("publisher")
        await publisher.publish("a", b"held")
        held = await client.message(answer=False)
        source = front.server.sessions.connected["client"].sources[""]  # type: ignore[attr-defined]
        lost: list[bytes] = []

        class Losing:
            """The broker, of which one answer is lost."""

            def __getattr__(self, name: str) -> Any:
                return getattr(front.broker, name)

            async def claim(self, *arguments: Any, **options: Any) -> None:
                lost.extend((await front.broker.claim(*arguments, **options)).payloads())
                source.broker = front.broker
                raise Unavailable("the answer was lost")

        source.broker = Losing()
        await source.restart()
        await publisher.publish("a", b"lost")
        await until(lambda: lost == [b"lost"], "it was claimed")
        await publisher.publish("a", b"next")
        await client.silent()
        client.send(mqtt5.PubAckPacket(held.packet_id))
        found = [await client.message() for _ in range(2)]
        assert [one.payload for one in found] == [b"lost", b"next"]
