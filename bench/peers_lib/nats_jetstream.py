"""NATS JetStream with file storage and pull consumers, through nats-py."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.peers_lib.peer import LEASE_S, Client, Consumer, Peer, each, library_path, program
from bench.peers_lib.processes import Process, StartFailed, free_port, wait_for_port

TAKE_S = 0.2
MANY = "many"
MANY_CALLERS = 20
DEFAULT_GROUP = "default"


class Nats(Peer):
    name = "nats"
    library = "nats-py, one connection, publishes of a batch in flight together, pull consumers"
    always: ClassVar[bool] = True
    confirm = (
        "JetStream, file storage, one replica, synced on every write: `sync_interval: always` where the version has it "
        "(2.10 and newer), else by the file attribute S (`chattr +S`) on its folder, by which the kernel forces every "
        "write to disk before it returns (strace: read, synced write, answer). Acknowledgements are not confirmed."
    )

    def _server(self) -> Path | None:
        return program("usr/sbin/nats-server", "usr/bin/nats-server", "usr/local/bin/nats-server")

    def missing(self) -> str | None:
        return None if self._server() else "the package nats-server"

    def version(self) -> str:
        printed = subprocess.run([str(self._server()), "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"v([0-9.]+)", printed.stdout)
        return found[1] if found else "?"

    def start(self, folder: Path) -> None:
        server = self._server()
        assert server is not None
        self.port = free_port()
        store = folder / "store"
        store.mkdir()
        setting = self._sync(store) if self.always else ""
        configuration = folder / "nats.conf"
        configuration.write_text(
            f'host: "127.0.0.1"\nport: {self.port}\nmax_payload: 8MB\n'
            f'jetstream {{ store_dir: "{store}", max_file_store: 64GB, max_memory_store: 1GB{setting} }}\n'
        )
        self.processes.append(Process([server, "-c", configuration], folder / "server.log", library_path(), folder))
        wait_for_port(self.port, self.processes[0])

    def _sync(self, store: Path) -> str:
        major, minor = (int(part) for part in self.version().split(".")[:2])
        if (major, minor) >= (2, 10):
            return ", sync_interval: always"
        # Files that are made in the folder inherit the attribute.
        done = subprocess.run(
            [shutil.which("chattr") or "chattr", "+S", str(store)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise StartFailed(
                f"nats-server {self.version()} cannot sync every write by itself, and this file system does not do it "
                f"for it: chattr +S says {done.stderr.strip()!r}. Use ext4, or name the peer nats-default."
            )
        return ""

    @staticmethod
    def client(port: int) -> Client:
        return NatsClient(port)


class NatsDefault(Nats):
    name = "nats-default"
    synced = False
    always = False
    confirm = (
        "JetStream, file storage, one replica, as it comes: a confirm says that the message was handed to the "
        "operating system, NOT that it was forced to disk, which happens every two minutes. Acknowledgements are not "
        "confirmed."
    )


class NatsClient(Client):
    def __init__(self, port: int) -> None:
        self._port = port
        self._prefix = ""
        """Of the subjects, where all queues are in one stream."""

    async def open(self, callers: int) -> None:
        import nats

        self._connection: Any = await nats.connect(
            f"nats://127.0.0.1:{self._port}", max_outstanding_pings=100, pending_size=64 * 1024 * 1024
        )
        self._stream: Any = self._connection.jetstream(timeout=60)

    async def close(self) -> None:
        await self._connection.close()

    async def declare(self, queue: str, groups: Sequence[str] = ()) -> None:
        from nats.js.api import RetentionPolicy

        kept = RetentionPolicy.INTEREST if groups else RetentionPolicy.WORK_QUEUE
        await self._stream.add_stream(name=queue, subjects=[queue], retention=kept)
        for group in groups or [DEFAULT_GROUP]:
            await self._add_consumer(queue, group, queue)

    async def _add_consumer(self, stream: str, name: str, subject: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        await self._stream.add_consumer(
            stream,
            ConsumerConfig(
                durable_name=name,
                filter_subject=subject,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=LEASE_S,
                max_ack_pending=-1,
            ),
        )

    async def declare_many(self, queues: Sequence[str], goes_on: Callable[[], bool]) -> int:
        """One stream with a subject and a consumer for each queue: cheaper here than as many streams."""
        from nats.js.api import RetentionPolicy

        await self._stream.add_stream(name=MANY, subjects=[f"{MANY}.*"], retention=RetentionPolicy.WORK_QUEUE)

        self._prefix = f"{MANY}."

        async def add(queue: str) -> None:
            await self._add_consumer(MANY, queue, f"{MANY}.{queue}")

        return await each(queues, MANY_CALLERS, add, goes_on)

    async def publish(self, queue: str, payloads: list[bytes]) -> None:
        subject = self._prefix + queue
        if len(payloads) == 1:
            await self._stream.publish(subject, payloads[0])
            return
        await asyncio.gather(*(self._stream.publish(subject, payload) for payload in payloads))

    async def consumer(self, queue: str, most: int, group: str | None = None) -> Consumer:
        subscription = await self._stream.pull_subscribe_bind(
            group or DEFAULT_GROUP, queue, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        return NatsConsumer(subscription, most)

    async def take_and_ack(self, queue: str) -> list[bytes]:
        subscription = await self._stream.pull_subscribe_bind(queue, MANY)
        try:
            consumer = NatsConsumer(subscription, 1)
            payloads, token = await consumer.take()
            if payloads:
                await consumer.ack(token)
            return payloads
        finally:
            await subscription.unsubscribe()


class NatsConsumer(Consumer):
    def __init__(self, subscription: Any, most: int) -> None:
        self._subscription = subscription
        self._most = most

    async def take(self) -> tuple[list[bytes], Any]:
        import nats.errors

        with contextlib.suppress(nats.errors.TimeoutError, TimeoutError):
            messages = await self._subscription.fetch(self._most, timeout=TAKE_S)
            return [message.data for message in messages], messages
        return [], None

    async def ack(self, token: Any) -> None:
        for message in token:
            await message.ack()

    async def close(self) -> None:
        await self._subscription.unsubscribe()
