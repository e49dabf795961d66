"""RabbitMQ: classic and quorum queues of one node, through pika on asyncio.

Runs the program out of the package with all its folders and ports set by environment variables; the machine's own
RabbitMQ, if there is one, is not touched. The node's name service (epmd) is a child too, on a port of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.peers_lib.peer import PACKAGES, Client, Consumer, Peer, library_path, program
from bench.peers_lib.processes import Process, free_port, wait_for_port

CONNECTIONS = 4
TAKE_S = 0.2
CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.relative = 0.6
log.console.level = warning
log.file = false
log.console = true
loopback_users.guest = true
channel_max = 2047
"""
# Schedulers that spin while they wait would be billed as CPU seconds of work.
ERLANG_ARGUMENTS = "+sbwt none +sbwtdcpu none +sbwtdio none"


class RabbitMQ(Peer):
    library = "pika (AsyncioConnection), 4 connections, acks of many at once"
    queue_arguments: ClassVar[dict[str, object]]

    def _server(self) -> Path | None:
        return program("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")

    def missing(self) -> str | None:
        if self._server() is None:
            return "the package rabbitmq-server"
        return None if program("usr/lib/erlang/bin/erl") else "the package erlang-base"

    def version(self) -> str:
        found = re.search(r"rabbitmq_server-([0-9.]+)", str(self._server()))
        return found[1] if found else "?"

    def start(self, folder: Path) -> None:
        server, epmd = self._server(), program("usr/lib/erlang/bin/epmd")
        assert server is not None
        assert epmd is not None
        self.port, names_port, node_port = free_port(), free_port(), free_port()
        environment = self._environment(folder, names_port, node_port)
        self.processes.append(Process([epmd, "-port", str(names_port)], folder / "epmd.log", environment))
        wait_for_port(names_port, self.processes[0])
        self.processes.append(Process([server], folder / "server.log", environment, folder))
        wait_for_port(self.port, self.processes[1], seconds=120)

    def _environment(self, folder: Path, names_port: int, node_port: int) -> dict[str, str]:
        (folder / "rabbitmq.conf").write_text(CONFIGURATION.format(port=self.port))
        (folder / "enabled_plugins").write_text("[].\n")
        erlang = program("usr/lib/erlang")
        assert erlang is not None
        return {
            "HOME": str(folder),
            "PATH": f"{PACKAGES / 'usr/bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-environment-file"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "feature_flags"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG_ARGUMENTS,
            "LANG": "C.UTF-8",
        } | library_path()


class RabbitMQClassic(RabbitMQ):
    name = "rabbitmq-classic"
    synced = False
    queue_arguments: ClassVar[dict[str, object]] = {"x-queue-type": "classic", "x-queue-version": 2}
    confirm = (
        "Classic queue (version 2), durable, persistent messages. A confirm says that the message was handed to the "
        "operating system, NOT that it was forced to disk: strace saw 3 syncs in 400 single confirmed publishes, where "
        "each synced peer made one synced write a publish or more. Acknowledgements are not confirmed."
    )

    @staticmethod
    def client(port: int) -> Client:
        return RabbitMQClient(port, RabbitMQClassic.queue_arguments)


class RabbitMQQuorum(RabbitMQ):
    name = "rabbitmq-quorum"
    queue_arguments: ClassVar[dict[str, object]] = {"x-queue-type": "quorum"}
    confirm = (
        "Quorum queue of one member. A confirm says that the message is in the Raft log and forced to disk. "
        "Acknowledgements go through the same log, but are not confirmed."
    )

    @staticmethod
    def client(port: int) -> Client:
        return RabbitMQClient(port, RabbitMQQuorum.queue_arguments)


# The client ----------------------------------------------------------------------------------------------


class _Publisher:
    """A channel in confirm mode that any number of callers share: each waits for the tag of its last message."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._sent = 0
        self._confirmed = 0
        self._out_of_order: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def open(self) -> None:
        await answered(lambda done: self.channel.confirm_delivery(self._on_confirm, callback=done))

    async def publish(self, exchange: str, key: str, payloads: list[bytes], properties: Any) -> None:
        for payload in payloads:
            self.channel.basic_publish(exchange, key, payload, properties)
        self._sent += len(payloads)
        confirmed = asyncio.get_running_loop().create_future()
        self._waiting[self._sent] = confirmed
        await confirmed

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if type(method).__name__ != "Ack":
            raise RuntimeError("RabbitMQ refused a message (basic.nack)")
        if method.multiple:
            self._confirmed = max(self._confirmed, method.delivery_tag)
        else:
            self._out_of_order.add(method.delivery_tag)
        while self._confirmed + 1 in self._out_of_order:
            self._confirmed += 1
            self._out_of_order.discard(self._confirmed)
        # Futures were added in the order of their tags.
        while self._waiting and (first := next(iter(self._waiting))) <= self._confirmed:
            waiting = self._waiting.pop(first)
            if not waiting.done():
                waiting.set_result(None)


async def answered(ask: Any) -> Any:
    """Calls a method of pika that answers through a callback, and waits for the answer."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(done.set_result)
    return await done


class RabbitMQClient(Client):
    def __init__(self, port: int, queue_arguments: dict[str, object]) -> None:
        self._port = port
        self._queue_arguments = queue_arguments
        self._connections: list[Any] = []
        self._publishers: list[_Publisher] = []
        self._getters: asyncio.Queue[_Getter] = asyncio.Queue()
        self._turn = 0
        self._fanouts: set[str] = set()

    async def open(self, callers: int) -> None:
        import pika

        self._persistent = pika.BasicProperties(delivery_mode=2)
        for _ in range(CONNECTIONS):
            self._connections.append(await self._connect())
        for connection in self._connections:
            publisher = _Publisher(await self._channel(connection))
            await publisher.open()
            self._publishers.append(publisher)
        for index in range(min(callers, 20)):
            self._getters.put_nowait(_Getter(await self._channel(self._connections[index % CONNECTIONS])))

    async def _connect(self) -> Any:
        import pika
        from pika.adapters.asyncio_connection import AsyncioConnection

        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=0),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, problem: opened.set_exception(RuntimeError(str(problem))),
            on_close_callback=lambda *_: None,
            custom_ioloop=loop,
        )
        return await opened

    async def _channel(self, connection: Any) -> Any:
        return await answered(lambda done: connection.channel(on_open_callback=done))

    async def close(self) -> None:
        for connection in self._connections:
            closed = asyncio.get_running_loop().create_future()
            connection.add_on_close_callback(lambda *_, closed=closed: closed.done() or closed.set_result(None))
            connection.close()
            await asyncio.wait_for(closed, 10)

    async def declare(self, queue: str, groups: Sequence[str] = ()) -> None:
        self._turn += 1
        channel = self._publishers[self._turn % CONNECTIONS].channel
        if groups:
            await answered(lambda done: channel.exchange_declare(queue, "fanout", durable=True, callback=done))
            self._fanouts.add(queue)
        for name in [f"{queue}.{group}" for group in groups] or [queue]:
            await self._declare_queue(channel, name)
            if groups:
                await self._bind(channel, name, queue)

    async def _declare_queue(self, channel: Any, name: str) -> None:
        arguments = self._queue_arguments
        await answered(lambda done: channel.queue_declare(name, durable=True, arguments=arguments, callback=done))

    async def _bind(self, channel: Any, queue: str, exchange: str) -> None:
        await answered(lambda done: channel.queue_bind(queue, exchange, callback=done))

    async def publish(self, queue: str, payloads: list[bytes]) -> None:
        self._turn += 1
        publisher = self._publishers[self._turn % CONNECTIONS]
        exchange, key = (queue, "") if queue in self._fanouts else ("", queue)
        await publisher.publish(exchange, key, payloads, self._persistent)

    async def consumer(self, queue: str, most: int, group: str | None = None) -> Consumer:
        self._turn += 1
        channel = await self._channel(self._connections[self._turn % CONNECTIONS])
        consumer = RabbitMQConsumer(channel, most)
        await consumer.open(queue if group is None else f"{queue}.{group}")
        return consumer

    async def take_and_ack(self, queue: str) -> list[bytes]:
        getter = await self._getters.get()
        try:
            return await getter.get(queue)
        finally:
            self._getters.put_nowait(getter)


class _Getter:
    """A channel that fetches single messages (basic.get), one caller at a time."""

    def __init__(self, channel: Any) -> None:
        from pika.spec import Basic

        self._channel = channel
        self._answer: asyncio.Future[tuple[int, bytes] | None] | None = None
        channel.add_callback(lambda _: self._settle(None), [Basic.GetEmpty], one_shot=False)

    def _settle(self, got: tuple[int, bytes] | None) -> None:
        if self._answer is not None:
            self._answer.set_result(got)

    async def get(self, queue: str) -> list[bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self._channel.basic_get(queue, lambda _, method, __, body: self._settle((method.delivery_tag, body)))
        got = await self._answer
        if got is None:
            return []
        self._channel.basic_ack(got[0])
        return [got[1]]


class RabbitMQConsumer(Consumer):
    """Messages are pushed, up to `most` of them unacknowledged; what has come is taken together."""

    def __init__(self, channel: Any, most: int) -> None:
        self._channel = channel
        self._most = most
        self._arrived: list[bytes] = []
        self._last_tag = 0
        self._wake = asyncio.Event()

    async def open(self, queue: str) -> None:
        await answered(lambda done: self._channel.basic_qos(prefetch_count=self._most, callback=done))
        await answered(lambda done: self._channel.basic_consume(queue, self._on_message, callback=done))

    def _on_message(self, _: Any, method: Any, __: Any, body: bytes) -> None:
        self._arrived.append(body)
        self._last_tag = method.delivery_tag
        self._wake.set()

    async def take(self) -> tuple[list[bytes], int]:
        if not self._arrived:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), TAKE_S)
            except TimeoutError:
                return [], 0
        taken, self._arrived = self._arrived, []
        return taken, self._last_tag

    async def ack(self, token: int) -> None:
        self._channel.basic_ack(token, multiple=True)

    async def close(self) -> None:
        self._channel.close()
