"""What the tests of the MQTT front stand on: a server in this process, and clients that say and hear every packet.

Packets of version 5 are written and read by the library mqtt5 alone, so that both ends cannot be wrong together; those
of 3.1.1 are written here by hand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import mqtt5
import uvloop
from mqtt5 import QoS, TopicFilter

from penstock.embedded import open_store
from penstock.fronts.answers import Answers
from penstock.fronts.auth import Credentials
from penstock.fronts.front import Shared
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.server import MqttServer
from penstock.model import PAYLOAD_BYTES_DEFAULT
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.node.limits import Limits
from penstock.store.sqlite.engine import SqliteStore

PATIENCE_S = 20.0
"""How long a test waits for what must happen; only a failing test waits so long."""
Result = TypeVar("Result")
Packet = Any
Kind = TypeVar("Kind")


async def soon(wanted: Coroutine[Any, Any, Result] | asyncio.Future[Result]) -> Result:
    return await asyncio.wait_for(wanted, PATIENCE_S)


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a deadline."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"not in {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.005)


async def until_it_is(wanted: Any, look: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """The same for what must be asked for."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while (found := await look()) != wanted:
        assert asyncio.get_running_loop().time() < deadline, f"not in {PATIENCE_S} s: {found!r} is not {wanted!r}"
        await asyncio.sleep(0.005)


def scenario(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test that is a coroutine, on uvloop as `penstock serve` is."""

    def run(tmp_path: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(tmp_path))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


class Client:
    """A version 5 client that does nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self._later: deque[Packet] = deque()
        """Deliveries that came while an answer was waited for."""
        self._packet_id = 100
        self.connack: Packet = None

    # Packets ------------------------------------------------------------------------------------------------

    def send(self, packet: Packet | bytes) -> None:
        self._writer.write(packet if isinstance(packet, bytes) else packet.write())

    async def receive(self) -> Packet:
        """The next packet, whatever it is."""
        while True:
            try:
                packet, size = mqtt5.read(memoryview(self._buffer))
            except IndexError:
                data = await soon(self._reader.read(65536))
                if not data:
                    raise ConnectionError("the server has closed the connection") from None
                self._buffer += data
            else:
                self._buffer = self._buffer[size:]
                return packet

    async def expect(self, kind: type[Kind]) -> Kind:
        packet = await self.receive()
        assert isinstance(packet, kind), packet
        return packet

    async def _answer(self, kind: type[Kind]) -> Kind:
        """The next packet that is no delivery: what a client publishes to itself may come before the answer."""
        while isinstance(packet := await self.receive(), mqtt5.PublishPacket):
            self._later.append(packet)
        assert isinstance(packet, kind), packet
        return packet

    async def silent(self) -> None:
        """Nothing has been sent that was not received: a ping is answered before anything else comes."""
        assert not self._later
        self.send(mqtt5.PingReqPacket())
        await self.expect(mqtt5.PingRespPacket)

    async def closed(self) -> None:
        """Until the server has closed the connection; what it says before is passed over."""
        while True:
            try:
                await self.receive()
            except (ConnectionError, OSError):
                return

    # What clients do ----------------------------------------------------------------------------------------

    def next_id(self) -> int:
        self._packet_id += 1
        return self._packet_id

    async def subscribe(
        self,
        *filters: str | TopicFilter,
        qos: int = 2,
        subscription_id: int | None = None,
        properties: dict[str, str] | None = None,
    ) -> list[int]:
        """The codes of the answer; nothing else may come before it."""
        wanted = [TopicFilter(one, max_qos=QoS(qos)) if isinstance(one, str) else one for one in filters]
        self.send(
            mqtt5.SubscribePacket(
                self.next_id(),
                wanted,
                subscription_id=subscription_id,
                user_properties=list((properties or {}).items()),
            )
        )
        return [int(code) for code in (await self.expect(mqtt5.SubAckPacket)).reason_codes]

    async def subscribe_anything(self, *filters: str) -> list[int]:
        """The same for filters that the library refuses to write, of QoS 2 each."""
        body = self.next_id().to_bytes(2, "big") + b"\x00"
        for one in filters:
            body += len(one).to_bytes(2, "big") + one.encode() + b"\x02"
        size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) % 128 | 128, len(body) // 128])
        self.send(b"\x82" + size + body)
        return [int(code) for code in (await self.expect(mqtt5.SubAckPacket)).reason_codes]

    async def unsubscribe(self, *filters: str) -> list[int]:
        self.send(mqtt5.UnsubscribePacket(self.next_id(), list(filters)))
        return [int(code) for code in (await self.expect(mqtt5.UnsubAckPacket)).reason_codes]

    async def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        *,
        qos: int = 1,
        properties: dict[str, str] | None = None,
        **fields: Any,
    ) -> int:
        """Publish and wait for the last answer; its reason code."""
        packet_id = self.next_id() if qos else None
        self.send(
            mqtt5.PublishPacket(
                topic,
                payload,
                qos=QoS(qos),
                packet_id=packet_id,
                user_properties=list((properties or {}).items()),
                **fields,
            )
        )
        if qos == 0:
            return 0
        if qos == 1:
            return int((await self._answer(mqtt5.PubAckPacket)).reason_code)
        answer = await self._answer(mqtt5.PubRecPacket)
        assert answer.packet_id == packet_id
        if int(answer.reason_code) < 0x80:
            self.send(mqtt5.PubRelPacket(answer.packet_id))
            await self.expect(mqtt5.PubCompPacket)
        return int(answer.reason_code)

    async def message(self, *, answer: bool = True) -> Packet:
        """The next delivery, answered to its end."""
        packet: Packet = self._later.popleft() if self._later else await self.expect(mqtt5.PublishPacket)
        if answer and packet.qos == QoS.AT_LEAST_ONCE:
            self.send(mqtt5.PubAckPacket(packet.packet_id))
        elif answer and packet.qos == QoS.EXACTLY_ONCE:
            self.send(mqtt5.PubRecPacket(packet.packet_id))
            while isinstance(released := await self.receive(), mqtt5.PublishPacket):
                self._later.append(released)
            assert released.packet_id == packet.packet_id
            self.send(mqtt5.PubCompPacket(packet.packet_id))
        return packet

    async def disconnect(self, reason: int = 0, expiry: int | None = None) -> None:
        """Say goodbye, and wait until the server has heard it."""
        self.send(
            mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode(reason), session_expiry_interval=expiry)
        )
        await self.closed()
        self._writer.close()

    def cut(self) -> None:
        """Go without a goodbye."""
        self._writer.transport.abort()


async def connect(port: int, client_id: str = "", *, clean: bool = True, expiry: int = 0, **options: Any) -> Client:
    """A client whose CONNECT is answered; `connack` is what with."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    client.send(mqtt5.ConnectPacket(client_id, clean_start=clean, session_expiry_interval=expiry, **options))
    client.connack = await client.expect(mqtt5.ConnAckPacket)
    return client


class Front:
    """A broker on a file and its MQTT server."""

    def __init__(self, broker: LocalBroker, server: MqttServer) -> None:
        self.broker = broker
        self.server = server
        self._clients: list[Client] = []

    async def wire(self) -> Client:
        """A connection on which nothing was said."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self._clients.append(client)
        return client

    async def connect(self, client_id: str = "", *, clean: bool = True, expiry: int = 0, **options: Any) -> Client:
        client = await connect(self.server.port, client_id, clean=clean, expiry=expiry, **options)
        self._clients.append(client)
        return client

    async def leased(self, client_id: str) -> int:
        """Messages that are under way to a client, as the broker has it."""
        return (await self.broker.stats(f"mqtt/session/{client_id}")).groups[0].leased

    async def gone(self, client_id: str) -> None:
        """Until the server has closed a client's session."""
        await until(lambda: client_id not in self.server.sessions.connected, f"{client_id} is gone")

    def cut_all(self) -> None:
        for client in self._clients:
            client.cut()


def _server(
    broker: LocalBroker,
    *,
    token: str = "",
    message_bytes: int = PAYLOAD_BYTES_DEFAULT,
    answers: Answers | None = None,
    **options: Any,
) -> MqttServer:
    shared = Shared(Credentials(token), message_bytes=message_bytes, answers=answers)
    return MqttServer(broker, MqttOptions(port=0, websocket_port=0, **options), shared)


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[Front]:
    """A server on a file; open it again on the same to see what a restart leaves."""
    limits = Limits(message_bytes=options.get("message_bytes", PAYLOAD_BYTES_DEFAULT))
    broker = await open_store(await SqliteStore.open(path / "mqtt.db"), SystemClock(), limits=limits)
    async with broker:
        server = _server(broker, **options)
        await server.start()
        front = Front(broker, server)
        try:
            yield front
        finally:
            front.cut_all()
            await server.stop()


@asynccontextmanager
async def crashed(path: Path, **options: Any) -> AsyncIterator[Front]:
    """The same, and in the end the server is not there any more: nothing is said or written on the way out."""
    broker = await open_store(await SqliteStore.open(path / "mqtt.db"), SystemClock())
    server = _server(broker, **options)
    await server.start()
    front = Front(broker, server)
    try:
        yield front
    finally:
        server.sessions.close = _nothing  # type: ignore[method-assign]
        front.cut_all()
        await broker.close()
        await server.stop()


async def _nothing(*_: Any, **__: Any) -> None:
    """What a crash does to a session."""
