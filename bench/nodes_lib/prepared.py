"""Prepared clients: requests of the HTTP API that were made before the measured time, over plain sockets.

A bench that has its clients on the cores of its servers measures them too. These do as little as a client can: send
bytes that are ready, take the lease out of a claim's answer, and keep the answers to be opened after the measured
time, when every id is looked for. Knows the HTTP API and sockets, no server's process; `bench/nodes.py` starts those.
"""

from __future__ import annotations

import base64
import json
import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock import Message, encode
from penstock.batch import to_bytes
from penstock.client.operations.codec import claim_of
from penstock.wire.http.shapes import (
    BATCH_TYPE,
    BATCHES_TYPE,
    JSON_TYPE,
    ClaimAnswer,
    ClaimRequest,
    EncodedClaim,
    PublishRequest,
    SettleRequest,
    VerdictBody,
    encode_json,
    message_body,
)

PAYLOAD: Final = 200
PAYLOADS: Final = ("random", "documents")
FILLER: Final = PAYLOAD - 16
FILLERS: Final = 10_000
"""Different ones: a batch in which one comes twice would be compressed, and the database spared."""
AHEAD_BATCHES: Final = 64
CLAIM_S: Final = 0.2
PATIENCE_S: Final = 30.0
"""So long after the measured time messages may still come; those that do not are lost."""
RECEIVED: Final = 1024 * 1024
_SETTLED: Final = encode_json(SettleRequest([VerdictBody(action="ack")]))

_decode_json: Final = msgspec.json.Decoder(ClaimAnswer).decode
_decode_batches: Final = msgspec.msgpack.Decoder(EncodedClaim).decode

_received: Final = memoryview(bytearray(RECEIVED))


class Fillers:
    """Of each message what follows its id: `random` bytes, which do not compress (as text, where it must be text), or
    `documents`, which do: orders as a shop would send them, in JSON."""

    def __init__(self, kind: str, *, is_text: bool = False) -> None:
        chance = random.Random(1)
        if kind == "documents":
            self._all = [_document(chance) for _ in range(FILLERS)]
        elif is_text:
            self._all = [base64.b64encode(chance.randbytes(FILLER))[:FILLER] for _ in range(FILLERS)]
        else:
            self._all = [chance.randbytes(FILLER) for _ in range(FILLERS)]

    def __getitem__(self, number: int) -> bytes:
        return self._all[number % FILLERS]


def _document(chance: random.Random) -> bytes:
    order = {
        "order": f"A-{chance.randrange(10**6):06d}",
        "customer": f"c-{chance.randrange(10**5):05d}",
        "status": chance.choice(("paid", "open", "sent")),
        "currency": chance.choice(("EUR", "USD", "GBP")),
        "amount": chance.randrange(10**6) / 100,
        "lines": chance.randrange(1, 10),
        "source": "web",
        "region": chance.choice(("eu-central", "eu-west", "us-east")),
        "email": f"{chance.randbytes(6).hex()}@example.org",
    }
    return json.dumps(order).encode().ljust(FILLER)[:FILLER]


def message(number: int, fillers: Fillers, partitions: int) -> Message:
    """A message with its id in front."""
    partition = f"p{number % partitions}" if partitions else None
    return Message(b"%016d%b" % (number, fillers[number]), partition=partition)


class Requests:
    """The requests of one queue, as bytes, and what an answer to a claim says."""

    def __init__(self, port: int, queue: str, size: int, partitions: int, payload: str, *, is_json: bool) -> None:
        self.size = size
        self._partitions = partitions
        self._is_json = is_json
        self._fillers = Fillers(payload, is_text=is_json)
        self._host = b"Host: 127.0.0.1:%d\r\n" % port
        self._path = f"/v1/queues/{queue}".encode()
        claim = encode_json(ClaimRequest(max=size, wait=CLAIM_S, consumer="bench"))
        self.claim = self._request(self._path + b"/claim", claim, JSON_TYPE, JSON_TYPE if is_json else BATCHES_TYPE)
        self._settle = self._request(b"/v1/leases/*/settle", _SETTLED, JSON_TYPE, JSON_TYPE).partition(b"*")

    def _request(self, path: bytes, body: bytes, sends: str, takes: str) -> bytes:
        lines = f"Content-Type: {sends}\r\nAccept: {takes}\r\nContent-Length: {len(body)}\r\n\r\n"
        return b"POST %b HTTP/1.1\r\n%b%b%b" % (path, self._host, lines.encode(), body)

    def publish(self, start: int) -> bytes:
        """Messages from a number on. A batch has an id, as the Python client gives it one; plain JSON has none."""
        numbers = range(start, start + self.size)
        messages = [message(number, self._fillers, self._partitions) for number in numbers]
        if self._is_json:
            body = encode_json(PublishRequest(list(map(message_body, messages))))
            return self._request(self._path + b"/messages", body, JSON_TYPE, JSON_TYPE)
        path = b"%b/messages?publish_id=%d" % (self._path, start)
        return self._request(path, to_bytes(encode(messages)), BATCH_TYPE, JSON_TYPE)

    def settle(self, lease: bytes) -> bytes:
        before, _, after = self._settle
        return b"%b%b%b" % (before, lease, after)

    def claimed(self, body: bytes) -> tuple[bytes, int]:
        """The lease of an answer, and how many messages it has."""
        if self._is_json:
            start = body.find(b'"lease":"') + 9
            return body[start : body.find(b'"', start)], body.count(b'"offset":')
        claim = _decode_batches(body)
        return (claim.lease or "").encode(), sum(part.count for part in claim.slices)

    def numbers(self, body: bytes) -> list[int]:
        """The ids of an answer's messages."""
        if self._is_json:
            return [int((one.payload or "")[:16]) for one in _decode_json(body).messages]
        return [int(payload[:16]) for payload in claim_of(body).payloads()]


class Line:
    """A connection that sends a request and calls back with the answer's body, one at a time."""

    def __init__(self, poll: Poll, port: int, answered: Callable[[bytes], None]) -> None:
        self._poll = poll
        self._answered = answered
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._rest = b""
        """Of the request, what the socket had no room for."""
        self._parts: list[bytes] = []
        self._missing = 0
        """Bytes of the answer that have not come, when its head has."""
        self.is_busy = False
        poll.add(self._socket.fileno(), self)

    def send(self, request: bytes) -> None:
        self.is_busy = True
        sent = self._socket.send(request)
        if sent < len(request):
            self._rest = request[sent:]
            self._poll.want_room(self._socket.fileno(), True)

    def ready(self) -> None:
        """There is something to receive, or room to send."""
        if self._rest:
            self._rest = self._rest[self._socket.send(self._rest) :]
            if not self._rest:
                self._poll.want_room(self._socket.fileno(), False)
            return
        size = self._socket.recv_into(_received)
        if not size:
            raise ConnectionError("a node closed a connection of the bench")
        part = bytes(_received[:size])
        if self._missing:
            self._parts.append(part)
            self._missing -= size
        else:
            self._begin(part)
        if self._missing == 0:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self.is_busy = False
            self._answered(body)

    def _begin(self, part: bytes) -> None:
        """An answer's first bytes; the nodes send its head in one piece."""
        end = part.index(b"\r\n\r\n") + 4
        if not part.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(f"a node answered {part!r}")
        if not part.startswith(b"204", 9):
            start = part.index(b"Content-Length: ") + 16
            self._missing = int(part[start : part.index(b"\r", start)]) - (len(part) - end)
        self._parts.append(part[end:])

    def close(self) -> None:
        self._socket.close()


class Poll:
    """Lines by their sockets, and which of them are ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._lines: dict[int, Line] = {}

    def add(self, number: int, line: Line) -> None:
        self._lines[number] = line
        self._epoll.register(number, select.EPOLLIN)

    def want_room(self, number: int, wanted: bool) -> None:
        self._epoll.modify(number, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def turn(self) -> None:
        for number, _ in self._epoll.poll(1.0):
            self._lines[number].ready()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._epoll.close()


class PreparedFlow:
    """Producers and consumers of one queue."""

    def __init__(self, port: int, queue: str, size: int, partitions: int, payload: str, *, is_json: bool) -> None:
        self._port = port
        self.requests = Requests(port, queue, size, partitions, payload, is_json=is_json)
        self.published = 0
        """Messages that were sent; those of `publishing` requests are not answered yet."""
        self.publishing = 0
        self.acked = 0
        self.until = 0.0
        self.ended = 0.0
        self._ready: deque[bytes] = deque()
        self._waiting: list[Producer] = []
        self._bodies: list[bytes] = []

    def prepare(self, messages: int) -> None:
        """Make the requests of so many messages ahead; those beyond are made when they are sent."""
        size = self.requests.size
        self._ready = deque(self.requests.publish(start) for start in range(0, messages, size))

    def open(self, poll: Poll, callers: int) -> list[Callable[[], None]]:
        """So many producers and consumers, connected; what each does first."""
        starts: list[Callable[[], None]] = []
        for _ in range(callers):
            starts += (Producer(self, poll, self._port).go, Consumer(self, poll, self._port).claim)
        return starts

    def next_publish(self) -> bytes:
        start, self.published = self.published, self.published + self.requests.size
        return self._ready.popleft() if self._ready else self.requests.publish(start)

    def must_wait(self, producer: Producer) -> bool:
        """Whether a producer is too far ahead of the consumers; it is called when there is room."""
        if self.published - self.acked <= AHEAD_BATCHES * self.requests.size:
            return False
        self._waiting.append(producer)
        return True

    def keep(self, body: bytes) -> None:
        self._bodies.append(body)

    def settled(self, count: int) -> None:
        self.acked += count
        self.ended = time.monotonic()
        waiting, self._waiting = self._waiting, []
        for producer in waiting:
            producer.go()

    def is_done(self, now: float) -> bool:
        if now < self.until or self.publishing:
            return False
        return self.acked >= self.published or now > self.until + PATIENCE_S

    def lost_and_duplicated(self) -> tuple[int, int]:
        numbers = [number for body in self._bodies for number in self.requests.numbers(body)]
        different = len(set(numbers))
        return self.published - different, len(numbers) - different


class Producer:
    """Publishes the next batch when the last one is answered."""

    def __init__(self, flow: PreparedFlow, poll: Poll, port: int) -> None:
        self._flow = flow
        self._line = Line(poll, port, self._answered)

    def go(self) -> None:
        if time.monotonic() < self._flow.until and not self._flow.must_wait(self):
            self._flow.publishing += 1
            self._line.send(self._flow.next_publish())

    def _answered(self, _body: bytes) -> None:
        self._flow.publishing -= 1
        self.go()


class Consumer:
    """Claims the next messages while it acknowledges the last ones, as the client's consumer runner does."""

    def __init__(self, flow: PreparedFlow, poll: Poll, port: int) -> None:
        self._flow = flow
        self._claims = Line(poll, port, self._claimed)
        self._settles = Line(poll, port, self._settled)
        self._settling = 0
        self._held: tuple[bytes, int] | None = None

    def claim(self) -> None:
        self._claims.send(self._flow.requests.claim)

    def _claimed(self, body: bytes) -> None:
        lease, count = self._flow.requests.claimed(body)
        if not count:
            self.claim()
            return
        self._flow.keep(body)
        if self._settles.is_busy:
            self._held = lease, count
        else:
            self._settle(lease, count)

    def _settle(self, lease: bytes, count: int) -> None:
        self._settling = count
        self._settles.send(self._flow.requests.settle(lease))
        self.claim()

    def _settled(self, _body: bytes) -> None:
        self._flow.settled(self._settling)
        if self._held is not None:
            (lease, count), self._held = self._held, None
            self._settle(lease, count)


def run(flows: Sequence[PreparedFlow], callers: int, seconds: float) -> tuple[float, float]:
    """Publish for so long, and consume all of it; how long that took, and the CPU time of this process.

    `callers` producers and as many consumers are of each flow.
    """
    poll = Poll()
    try:
        starts = [start for flow in flows for start in flow.open(poll, callers)]
        client_cpu, began = time.process_time(), time.monotonic()
        for flow in flows:
            flow.until = began + seconds
        for start in starts:
            start()
        while not all(flow.is_done(time.monotonic()) for flow in flows):
            poll.turn()
        return max(flow.ended for flow in flows) - began, time.process_time() - client_cpu
    finally:
        poll.close()
