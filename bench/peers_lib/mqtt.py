"""MQTT 5 with QoS 1 both ways: Penstock and Mosquitto through the same paho, on the event loop of the workloads.

A queue is a topic that one lasting session is subscribed to; a group is a session of its own. A publish is confirmed by
its PUBACK. Consumers of one queue share the connection of its session, with a receive maximum of what they may have
unacknowledged together.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import penstock
from bench.peers_lib.peer import ROOT, Client, Consumer, Peer, library_path, program
from bench.peers_lib.processes import Process, free_port, wait_for_port

CONNECTIONS: Final = 4
CONSUMERS: Final = 4
"""Of a queue; they share a connection."""
IN_FLIGHT: Final = 1_000
"""Publishes under way on one connection, which paho holds to."""
TAKE_S: Final = 0.2
NEVER: Final = 0xFFFFFFFF
LIBRARY: Final = "paho-mqtt on asyncio, MQTT 5, QoS 1 both ways; 4 connections publish, one a queue consumes"
MOSQUITTO_CONFIGURATION: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
user root
persistence true
persistence_location {folder}/
autosave_interval 1800
max_inflight_messages 0
max_queued_messages 0
max_queued_bytes 0
set_tcp_nodelay true
log_dest stderr
log_type error
"""


class PenstockMqtt(Peer):
    name = "penstock-mqtt"
    library = LIBRARY
    confirm = (
        "An SQLite file and its synced log: a PUBACK is sent after the commit that holds the message was forced "
        "to disk, and a client's PUBACK is carried out in such a commit."
    )

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return penstock.__version__

    def start(self, folder: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "penstock.cli", "serve", "--port", "0", "--mqtt-port", str(self.port)]
        command += ["--mqtt-websocket-port", "0", "--no-amqp", "--store", str(folder / "penstock.db")]
        command += ["--set", "log.level=warning", "--set", "mqtt.max_queued=10000000"]
        command += ["--set", "mqtt.max_queued_bytes=10000000000", "--set", "mqtt.max_subscriptions=100000"]
        self.processes.append(Process(command, folder / "penstock.log", {"PYTHONPATH": str(ROOT / "src")}, folder))
        wait_for_port(self.port, self.processes[-1])

    @staticmethod
    def client(port: int) -> Client:
        return MqttClient(port)


class Mosquitto(Peer):
    name = "mosquitto"
    library = LIBRARY
    synced = False
    confirm = (
        "Persistence on, as packaged: a PUBACK says that the message is in memory. What is in memory is written to "
        "disk every 30 minutes and when the server ends; a crash loses what came since."
    )

    def _server(self) -> Path | None:
        return program("usr/sbin/mosquitto")

    def missing(self) -> str | None:
        return None if self._server() is not None else "the package mosquitto"

    def version(self) -> str:
        server = self._server()
        assert server is not None
        said = subprocess.run([server, "-h"], env=library_path(), capture_output=True, text=True, check=False)
        return said.stdout.partition("version ")[2].split()[0] if "version " in said.stdout else "?"

    def start(self, folder: Path) -> None:
        server = self._server()
        assert server is not None
        self.port = free_port()
        settings = folder / "mosquitto.conf"
        settings.write_text(MOSQUITTO_CONFIGURATION.format(port=self.port, folder=folder))
        self.processes.append(Process([server, "-c", settings], folder / "server.log", library_path(), folder))
        wait_for_port(self.port, self.processes[-1])

    @staticmethod
    def client(port: int) -> Client:
        return MqttClient(port)


# The client ----------------------------------------------------------------------------------------------


class _Batch:
    """Publishes that one caller waits for."""

    __slots__ = ("confirmed", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Connection:
    """A paho client whose socket is read and written by the running event loop."""

    def __init__(self, client_id: str, on_message: Callable[[Any], None] | None = None) -> None:
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._batches: dict[int, _Batch] = {}
        client = self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(IN_FLIGHT)
        client.on_socket_open = lambda _, __, sock: self._loop.add_reader(sock, client.loop_read)
        client.on_socket_close = self._closed_socket
        client.on_socket_register_write = lambda _, __, sock: self._loop.add_writer(sock, client.loop_write)
        client.on_socket_unregister_write = self._written
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = lambda _, __, number, *___: self._answers.pop(number).set_result(None)
        if on_message is not None:
            client.on_message = lambda _, __, message: on_message(message)

    async def open(self, port: int, *, receive_maximum: int = 65_535, lasts: bool = False) -> None:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        asked.ReceiveMaximum = min(receive_maximum, 65_535)
        asked.SessionExpiryInterval = NEVER if lasts else 0
        self.client.connect("127.0.0.1", port, keepalive=0, clean_start=not lasts, properties=asked)
        await asyncio.wait_for(self._opened, 30)

    async def close(self) -> None:
        while self.client.want_write():
            self.client.loop_write()  # acknowledgements that are on their way
            await asyncio.sleep(0)
        self.client.disconnect()
        await asyncio.wait_for(self._closed, 30)

    async def publish(self, topic: str, payloads: list[bytes]) -> None:
        batch = _Batch(len(payloads))
        for payload in payloads:
            self._batches[self.client.publish(topic, payload, 1).mid] = batch
        await batch.confirmed

    async def subscribe(self, topic: str) -> None:
        _, number = self.client.subscribe(topic, 1)
        assert number is not None
        self._answers[number] = self._loop.create_future()
        await self._answers[number]

    def _closed_socket(self, _client: Any, _data: Any, sock: Any) -> None:
        self._loop.remove_reader(sock)

    def _written(self, _client: Any, _data: Any, sock: Any) -> None:
        self._loop.remove_writer(sock)

    def _on_connect(self, _: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
        if reason.is_failure:
            self._opened.set_exception(RuntimeError(f"the server refused the connection: {reason}"))
        else:
            self._opened.set_result(None)

    def _on_disconnect(self, _: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        for batch in self._batches.values():
            if not batch.confirmed.done():
                batch.confirmed.set_exception(RuntimeError(f"the server ended the connection: {reason}"))

    def _on_publish(self, _: Any, __: Any, number: int, reason: Any, ___: Any) -> None:
        batch = self._batches.pop(number)
        if reason.is_failure and not batch.confirmed.done():
            batch.confirmed.set_exception(RuntimeError(f"the server refused a message: {reason}"))
        batch.left -= 1
        if not batch.left and not batch.confirmed.done():
            batch.confirmed.set_result(None)


class _Session:
    """A lasting session and what has come to it, by topic."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._name = name
        self._connection: _Connection | None = None
        self._users = 0
        self.arrived: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self._wakes: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def open(self, most: int) -> None:
        """Connect for one more user; the first says how much may be unacknowledged."""
        self._users += 1
        if self._connection is None:
            self._connection = _Connection(self._name, self._on_message)
            await self._connection.open(self._port, receive_maximum=most, lasts=True)

    async def close(self) -> None:
        self._users -= 1
        if self._users == 0 and self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()
            self.arrived.clear()  # what was not acknowledged comes again

    async def subscribe(self, topic: str) -> None:
        assert self._connection is not None
        await self._connection.subscribe(topic)

    def _on_message(self, message: Any) -> None:
        self.arrived[message.topic].append((message.mid, message.payload))
        self._wakes[message.topic].set()

    async def wait(self, topic: str, seconds: float) -> None:
        if not self.arrived[topic]:
            wake = self._wakes[topic]
            wake.clear()
            try:
                await asyncio.wait_for(wake.wait(), seconds)
            except TimeoutError:
                return

    def acknowledge(self, numbers: Sequence[int]) -> None:
        assert self._connection is not None
        for number in numbers:
            self._connection.client.ack(number, 1)


class MqttClient(Client):
    def __init__(self, port: int) -> None:
        self._port = port
        self._publishers: list[_Connection] = []
        self._sessions: dict[str, _Session] = {}
        self._turn = 0

    async def open(self, callers: int) -> None:
        for index in range(CONNECTIONS):
            publisher = _Connection(f"bench-publisher-{index}")
            await publisher.open(self._port)
            self._publishers.append(publisher)

    async def close(self) -> None:
        for publisher in self._publishers:
            await publisher.close()

    def _session(self, group: str) -> _Session:
        if group not in self._sessions:
            self._sessions[group] = _Session(self._port, f"bench-session-{group}")
        return self._sessions[group]

    async def declare(self, queue: str, groups: Sequence[str] = ()) -> None:
        for group in groups or [""]:
            session = self._session(group)
            await session.open(IN_FLIGHT)
            await session.subscribe(queue)
            await session.close()

    async def declare_many(self, queues: Sequence[str], goes_on: Callable[[], bool]) -> int:
        await self._session("").open(IN_FLIGHT)
        return await super().declare_many(queues, goes_on)

    async def publish(self, queue: str, payloads: list[bytes]) -> None:
        self._turn += 1
        await self._publishers[self._turn % CONNECTIONS].publish(queue, payloads)

    async def consumer(self, queue: str, most: int, group: str | None = None) -> Consumer:
        session = self._session(group or "")
        await session.open(most * (1 if group else CONSUMERS))
        return MqttConsumer(session, queue, most)

    async def take_and_ack(self, queue: str) -> list[bytes]:
        consumer = MqttConsumer(self._session(""), queue, 1)
        payloads, token = await consumer.take(wait_s=10.0)
        await consumer.ack(token)
        return payloads


class MqttConsumer(Consumer):
    """What has come to the session, at most so many at a time."""

    def __init__(self, session: _Session, topic: str, most: int) -> None:
        self._session = session
        self._topic = topic
        self._most = most

    async def take(self, wait_s: float = TAKE_S) -> tuple[list[bytes], list[int]]:
        await self._session.wait(self._topic, wait_s)
        arrived = self._session.arrived[self._topic]
        taken, arrived[:] = arrived[: self._most], arrived[self._most :]
        return [payload for _, payload in taken], [number for number, _ in taken]

    async def ack(self, token: list[int]) -> None:
        self._session.acknowledge(token)

    async def close(self) -> None:
        await self._session.close()
