"""What a torture run stands on: a database that can be killed and replaced by its replica, nodes that can be killed and
paused, and the networks between them, which can be split, slowed and cut. Each node has a network of its own where the
machine allows it (`network.py`), else all of it is on loopback, behind proxies. Each process is ended by its own id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from penstock.cli.dev.checkout import script_environment
from tests.torture.database import TorturedDatabase
from tests.torture.network import STORE, Network
from tests.torture.proxy import Proxy

NODE: Final = Path(__file__).with_name("node.py")
PATIENCE_S: Final = 180.0
LOOK_S: Final = 0.5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class TorturedNode:
    """One server process, with a proxy between it and the database and one between it and the other nodes.

    In a network of its own the others reach it without that second one.
    """

    def __init__(self, number: int, folder: Path, database: TorturedDatabase, network: Network | None) -> None:
        self.name = f"node-{number}"
        self.host = "127.0.0.1" if network is None else network.address(number)
        self._inside = ([], []) if network is None else network.command(number)
        self.port, self.amqp_port, self.mqtt_port = free_port(), free_port(), free_port()
        self.to_store = Proxy("127.0.0.1", database.port, "127.0.0.1" if network is None else STORE)
        self.to_node = Proxy("127.0.0.1", self.port)
        self._is_behind_proxy = network is None
        self._folder = folder / self.name
        self._folder.mkdir()
        self._clock = self._folder / "clock"
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        self.is_wanted = False
        """Whether it should run: it ends by itself where the database is away while it starts."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def open(self) -> None:
        await self.to_store.start()
        await self.to_node.start()

    def keep_running(self) -> None:
        """Start it again if it ended by itself, as whatever looks after a server does."""
        if self.is_wanted and not self.is_running:
            self.start()

    def start(self) -> None:
        self.is_wanted = True
        store = f"postgresql://penstock@{self.to_store.host}:{self.to_store.port}/postgres?schema=torture"
        advertise = f"http://127.0.0.1:{self.to_node.port}" if self._is_behind_proxy else self.url
        options = {
            "http.host": self.host,
            "http.port": self.port,
            "http.insecure": "true",
            "amqp.host": self.host,
            "amqp.port": self.amqp_port,
            "mqtt.host": self.host,
            "mqtt.port": self.mqtt_port,
            "mqtt.websocket_port": 0,
            "log.level": "warning",
        }
        words, descriptors = self._inside
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *words,
                    sys.executable,
                    str(NODE),
                    str(self._clock),
                    "serve",
                    "--store",
                    store,
                    "--advertise",
                    advertise,
                    *(f"--set={name}={value}" for name, value in options.items()),
                ],
                cwd=self._folder,
                pass_fds=descriptors,
                env=script_environment(),
                stdout=log,
                stderr=log,
            )

    def set_clock(self, seconds: float) -> None:
        """Make its wall clock so many seconds wrong."""
        self._clock.write_text(str(seconds))

    async def ready(self) -> None:
        """Until it serves; `World.look_after` starts it again where it ends before that."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not await asyncio.to_thread(self._answers):
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{self.name} does not serve: {self.log()}")
            await asyncio.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def log(self) -> str:
        """The last of what it complained about."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if line[:2] == "20" or "Error" in line][-30:])

    def kill(self) -> None:
        self.is_wanted = False
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self.is_paused = False

    def pause(self) -> None:
        if self.is_running:
            os.kill(self._pid, signal.SIGSTOP)
            self.is_paused = True

    def go_on(self) -> None:
        if self.is_paused and self.is_running:
            os.kill(self._pid, signal.SIGCONT)
        self.is_paused = False

    def terminate(self) -> None:
        """Ask it to stop in good order."""
        self.is_wanted = False
        if self._process is not None and self.is_running:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.name} did not stop: {self.log()}") from None

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid


class World:
    """A database with its replica, and nodes on it."""

    def __init__(self, folder: Path, nodes: int, network: Network | None) -> None:
        self.network = network
        self.database = TorturedDatabase(self._database_moved)
        self.nodes = [TorturedNode(number, folder, self.database, network) for number in range(nodes)]

    def _database_moved(self, port: int) -> None:
        for node in self.nodes:
            node.to_store.lead_to(port)

    async def look_after(self) -> None:
        """Start nodes again that end by themselves, until cancelled."""
        while True:
            for node in self.nodes:
                node.keep_running()
            await asyncio.sleep(LOOK_S)

    async def open(self) -> None:
        for node in self.nodes:
            await node.open()
            node.start()
        for node in self.nodes:
            await node.ready()

    async def heal(self) -> None:
        """Everything runs, everything is connected."""
        await asyncio.to_thread(self.database.heal)
        for node in self.nodes:
            node.to_store.heal()
            node.to_node.heal()
            node.go_on()
            node.is_wanted = True  # by `look_after`, also if it is about to stop now
        for node in self.nodes:
            await node.ready()

    async def close(self) -> None:
        for node in self.nodes:
            node.go_on()
            node.kill()
            await node.to_store.close()
            await node.to_node.close()
        await asyncio.to_thread(self.database.close)
