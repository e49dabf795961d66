"""The paths that are counted: what callers ask of the server, step by step.

A path is a generator. It prepares everything, yields, and does one round of its messages each time that it is resumed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, NamedTuple

import mqtt5
import msgspec
from pamqp import commands, frame

from bench.instructions_lib.lines import AmqpLine, HttpLine, MqttLine, amqp_publish, http_request
from bench.instructions_lib.schedule import Server, step
from penstock import Message, encode
from penstock.batch import to_bytes
from penstock.wire.http.shapes import (
    BATCH_TYPE,
    BATCHES_TYPE,
    JSON_TYPE,
    ClaimRequest,
    EncodedClaim,
    NextRequest,
    SettleRequest,
    VerdictBody,
    encode_json,
)

PAYLOAD_BYTES: Final = 200
CALLERS: Final = 8
CONSUMERS: Final = 4
GROUPS: Final = tuple(f"group-{number}" for number in range(10))
BATCH: Final = 100
WARM_UP: Final = 20
"""Rounds that are not counted."""
SCANNED: Final = 20_000
"""Messages that a scan reads."""
COLUMNS: Final = ("offset", "payload", "key", "headers", "published_at")
START: Final = "start"
QUEUE: Final = "/v1/queues/bench"
SETTLED: Final = encode_json(SettleRequest([VerdictBody(action="ack")]))

Run = Callable[[Server], Generator[None, None, None]]

_decode_claim: Final = msgspec.msgpack.Decoder(EncodedClaim).decode


class Path(NamedTuple):
    """What is counted."""

    name: str
    title: str
    run: Run
    messages: int
    """In a round."""
    rounds: int
    """That are counted."""
    store: str = "sqlite"


# Requests of HTTP, as the Python client makes them ------------------------------------------------------------


class Publishes:
    """Requests that publish `size` messages each. Every request has its own publish id; no payload compresses."""

    def __init__(self, size: int) -> None:
        self._chance = random.Random(size)
        self._size = size
        self._made = 0

    def next(self) -> bytes:
        self._made += 1
        batch = encode([Message(self._chance.randbytes(PAYLOAD_BYTES)) for _ in range(self._size)])
        path = f"{QUEUE}/messages?publish_id=bench-{self._size}-{self._made:08}"
        return http_request("POST", path, to_bytes(batch), BATCH_TYPE, JSON_TYPE)

    def some(self, count: int) -> list[bytes]:
        return [self.next() for _ in range(count)]


def claim(size: int, group: str = "default") -> bytes:
    body = encode_json(ClaimRequest(group=group, max=size, consumer="bench"))
    return http_request("POST", f"{QUEUE}/claim", body, JSON_TYPE, BATCHES_TYPE)


def ack(answer: bytes, size: int) -> bytes:
    return http_request("POST", f"/v1/leases/{lease_of(answer, size)}/settle", SETTLED, JSON_TYPE, JSON_TYPE)


def settle_and_claim(answer: bytes, size: int) -> bytes:
    body = encode_json(NextRequest(max=size, consumer="bench"))
    return http_request("POST", f"/v1/leases/{lease_of(answer, size)}/next", body, JSON_TYPE, BATCHES_TYPE)


def lease_of(answer: bytes, size: int) -> str:
    """The lease of a claim that got all that it asked for."""
    found = _decode_claim(answer)
    assert sum(part.count for part in found.slices) == size, found
    assert found.lease is not None
    return found.lease


def lines_to(server: Server, count: int, stack: ExitStack, groups: Sequence[str] = ("default",)) -> list[HttpLine]:
    """Connections, and a queue with its groups."""
    lines = [stack.enter_context(closing(HttpLine(server.port))) for _ in range(count)]
    lines[0].ask(http_request("PUT", QUEUE, b"{}"))
    for group in groups:
        lines[0].ask(http_request("PUT", f"{QUEUE}/groups/{group}", b"{}"))
    return lines


# HTTP ---------------------------------------------------------------------------------------------------------


def publish(callers: int, size: int) -> Run:
    def run(server: Server) -> Generator[None, None, None]:
        with ExitStack() as stack:
            lines, requests = lines_to(server, callers, stack), Publishes(size)
            while True:
                yield
                step(server, lines, requests.some(callers))

    return run


def claim_and_ack(consumers: int, size: int, rounds: int) -> Run:
    def run(server: Server) -> Generator[None, None, None]:
        with ExitStack() as stack:
            lines = lines_to(server, consumers, stack)
            fill(server, lines[0], consumers * size * (rounds + WARM_UP))
            while True:
                yield
                answers = step(server, lines, [claim(size)] * consumers)
                step(server, lines, [ack(answer, size) for answer in answers])

    return run


def settle_and_claim_by(consumers: int, size: int, rounds: int) -> Run:
    def run(server: Server) -> Generator[None, None, None]:
        with ExitStack() as stack:
            lines = lines_to(server, consumers, stack)
            fill(server, lines[0], consumers * size * (rounds + WARM_UP + 1))
            answers = step(server, lines, [claim(size)] * consumers)
            while True:
                yield
                answers = step(server, lines, [settle_and_claim(answer, size) for answer in answers])

    return run


def fan_out(server: Server) -> Generator[None, None, None]:
    with ExitStack() as stack:
        lines, requests = lines_to(server, len(GROUPS), stack, GROUPS), Publishes(BATCH)
        while True:
            yield
            step(server, lines[:1], requests.some(1))
            answers = step(server, lines, [claim(BATCH, group) for group in GROUPS])
            step(server, lines, [ack(answer, BATCH) for answer in answers])


def scan(server: Server) -> Generator[None, None, None]:
    """As executors of Spark read: batches as they are stored, of which the client makes Arrow."""
    with ExitStack() as stack:
        lines = lines_to(server, 1, stack)
        fill(server, lines[0], SCANNED)
        path = f"{QUEUE}/lanes/0/scan?start=0&end={SCANNED}&columns={','.join(COLUMNS)}"
        while True:
            yield
            step(server, lines, [http_request("GET", path, takes=BATCHES_TYPE)])


def fill(server: Server, line: HttpLine, messages: int) -> None:
    for request in Publishes(BATCH).some(-(-messages // BATCH)):
        step(server, [line], [request])


# AMQP and MQTT: publish, confirm, deliver and ack, one by one --------------------------------------------------


def amqp_one_by_one(server: Server) -> Generator[None, None, None]:
    """An ack comes with the next publish, whose commit it goes with: alone it would wait for one by the clock."""
    with closing(AmqpLine(server.amqp_port)) as consumer, closing(AmqpLine(server.amqp_port)) as producer:
        consumer.ask(commands.Queue.Declare(queue="bench", durable=True))
        consumer.ask(commands.Basic.Qos(prefetch_count=10))
        consumer.ask(commands.Basic.Consume(queue="bench"))
        producer.ask(commands.Confirm.Select())
        chance = random.Random(1)
        acks = b""
        while True:
            yield
            request = amqp_publish("bench", chance.randbytes(PAYLOAD_BYTES))
            with server.stopped():
                consumer.send(acks)
                producer.send(request)
            expect(producer.hear(), commands.Basic.Ack)
            delivery = expect(consumer.hear(), commands.Basic.Deliver)
            consumer.hear()  # the properties
            consumer.hear()  # the payload
            acks = frame.marshal(commands.Basic.Ack(delivery.delivery_tag), 1)
            server.rest()


def mqtt_one_by_one(server: Server) -> Generator[None, None, None]:
    """An ack comes before the next publish, and has a commit of its own."""
    subscriber, publisher = (MqttLine(server.mqtt_port, f"bench-{what}") for what in ("subscriber", "publisher"))
    with closing(subscriber), closing(publisher):
        subscriber.ask(mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("bench", max_qos=mqtt5.QoS.AT_LEAST_ONCE)]))
        chance = random.Random(1)
        while True:
            yield
            payload = chance.randbytes(PAYLOAD_BYTES)
            request = mqtt5.PublishPacket("bench", payload, qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=1).write()
            with server.stopped():
                publisher.send(request)
            expect(publisher.hear(), mqtt5.PubAckPacket)
            delivery = expect(subscriber.hear(), mqtt5.PublishPacket)
            server.rest()
            with server.stopped():
                subscriber.send(mqtt5.PubAckPacket(delivery.packet_id).write())
            server.rest()


def expect(found: Any, kind: type) -> Any:
    if not isinstance(found, kind):
        raise RuntimeError(f"{kind.__name__} was expected, and {found!r} came")
    return found


def start(server: Server) -> Generator[None, None, None]:
    """All that is counted is over when there is a server."""
    yield


PUBLISH: Final = publish(CALLERS, 1)
CLAIM: Final = claim_and_ack(CONSUMERS, 1, 100)

PATHS: Final = {
    path.name: path
    for path in (
        Path("publish", "publish 1, 8 callers", PUBLISH, CALLERS, 100),
        Path("claim", "claim 1 + ack 1, 4 consumers", CLAIM, CONSUMERS, 100),
        Path("next", "settle and claim 1, 4 consumers", settle_and_claim_by(CONSUMERS, 1, 100), CONSUMERS, 100),
        Path("publish-100", "publish by 100, 4 callers", publish(4, BATCH), 4 * BATCH, 50),
        Path("claim-100", "claim + ack by 100, 4 consumers", claim_and_ack(4, BATCH, 50), 4 * BATCH, 50),
        Path("fan-out", "publish, and to 10 groups, by 100", fan_out, BATCH, 30),
        Path("amqp", "AMQP: publish, confirm, deliver, ack 1", amqp_one_by_one, 1, 200),
        Path("mqtt", "MQTT, QoS 1: publish, deliver, ack 1", mqtt_one_by_one, 1, 200),
        Path("postgres-publish", "PostgreSQL: publish 1, 8 callers", PUBLISH, CALLERS, 100, "postgres"),
        Path("postgres-claim", "PostgreSQL: claim 1 + ack 1", CLAIM, CONSUMERS, 100, "postgres"),
        Path("scan", "scan of 20,000, as Spark reads", scan, SCANNED, 5),
        Path(START, "start of the server", start, 1, 1),
    )
}
