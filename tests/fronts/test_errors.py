"""Every error of the catalogue, raised by the broker, comes out of every front as the catalogue says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mqtt5
import pytest
import uvloop
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from penstock.fronts.mqtt.session.sessions import Sessions
from penstock.model.errors import CATALOGUE, CLASSES, Closed, PenstockError, error_classes
from penstock.node.broker import LocalBroker
from tests.fronts.amqp091.rig import served
from tests.fronts.http.rig import Front, over_http
from tests.fronts.mqtt.rig import opened

KINDS = list(CLASSES.values())


class Raising:
    """In the place of a broker's method: raises what it is told to."""

    def __init__(self) -> None:
        self.error = PenstockError("nothing yet")

    async def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


def instead_of(monkeypatch: pytest.MonkeyPatch, method: str) -> Raising:
    raising = Raising()

    async def call(self: LocalBroker, *arguments: Any, **options: Any) -> Any:
        return await raising(self, *arguments, **options)

    monkeypatch.setattr(LocalBroker, method, call)
    return raising


def test_the_catalogue_is_looked_through() -> None:
    own = {kind.code for kind in error_classes() if kind.__module__ == "penstock.model.errors"}
    assert {kind.code for kind in KINDS} == own <= {row.code for row in CATALOGUE}


@over_http()
async def test_http(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    raising = instead_of(monkeypatch, "pause")
    for kind in KINDS:
        raising.error = kind("the reason")
        reply = await front.call("POST", "/v1/queues/q/pause")
        assert (reply.status, reply.code, reply.message) == (kind.row.http, kind.code, "the reason")
        assert ("retry-after" in reply.headers) == (kind.row.http in (429, 503)), kind
        assert ("www-authenticate" in reply.headers) == (kind.row.http == 401), kind


def test_amqp091(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as place:
        place.channel().queue_declare("q")
        raising = instead_of(monkeypatch, "purge")
        for kind in KINDS:
            raising.error = kind("the reason")
            closed = ConnectionClosedByBroker if kind.row.closes == "connection" else ChannelClosedByBroker
            with pytest.raises(closed) as caught:
                place.channel().queue_purge("q")
            assert caught.value.reply_code == kind.row.amqp091, kind
            assert caught.value.reply_text.endswith(" - the reason")


def test_mqtt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_over_mqtt(tmp_path, monkeypatch))


async def _over_mqtt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as front:
        raising = instead_of(monkeypatch, "publish_to")
        client = await front.connect()
        for kind in KINDS:
            raising.error = kind("the reason")
            if kind is not Closed:
                assert await client.publish("a/b") == kind.row.mqtt, kind
        raising.error = Closed("the broker is closed")
        client.send(mqtt5.PublishPacket("a/b", b"", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=1))
        await client.closed()


# What each packet may say (MQTT 5, 3.2.2.2, 3.9.3 and 3.11.3).
CONNACK_REASONS = {*range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}
SUBACK_REASONS = {0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
UNSUBACK_REASONS = {0x80, 0x83, 0x87, 0x8F, 0x91}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Closed])
def test_mqtt_of_sessions(kind: type[PenstockError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_sessions_over_mqtt(kind, tmp_path, monkeypatch))


async def _sessions_over_mqtt(kind: type[PenstockError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise kind("the reason")

    async with opened(tmp_path) as front:
        client = await front.connect("c", expiry=60)
        assert await client.subscribe("before") == [2]
        monkeypatch.setattr(Sessions, "keep", refuse)
        connected = await front.connect("other", expiry=60)
        assert int(connected.connack.reason_code) == _at_connect(kind)
        assert _at_connect(kind) in CONNACK_REASONS
        assert await client.subscribe("a", "b") == [_about_a_filter(kind)] * 2
        assert _about_a_filter(kind) in SUBACK_REASONS
        reason = _about_a_filter(kind) if _about_a_filter(kind) in UNSUBACK_REASONS else 0x80
        assert await client.unsubscribe("before") == [reason]


def _at_connect(kind: type[PenstockError]) -> int:
    """A CONNACK has a reason for what may pass, and none for a name that is not known."""
    if kind.row.retryable:
        return 0x88
    return 0x80 if kind.row.mqtt == 0x90 else kind.row.mqtt


def _about_a_filter(kind: type[PenstockError]) -> int:
    return 0x8F if kind.row.mqtt == 0x90 else kind.row.mqtt


def test_mqtt_of_a_broker_that_is_closing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise Closed("the reason")

    async def main() -> None:
        async with opened(tmp_path) as front:
            monkeypatch.setattr(Sessions, "keep", refuse)
            assert int((await front.connect("c", expiry=60)).connack.reason_code) == 0x88

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
