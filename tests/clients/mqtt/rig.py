"""What the tests with real MQTT clients stand on: the server in a process that can be killed, and paho easy to ask.

Every wait has a deadline, and what must not come is waited for by something that comes after it.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.cli.dev.checkout import script_environment

PATIENCE_S: Final = 20.0
"""How long a test waits for what must happen; only a failing test waits so long."""
_numbers: Final = itertools.count(1)


def unique(name: str) -> str:
    """A name that no other test has: they share servers."""
    return f"{name}-{next(_numbers)}"


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S:g} s: {what}"
        time.sleep(0.005)


class MqttServerProcess:
    """The real server in a process of its own, on one file and on the same ports however often it is started."""

    def __init__(self, path: Path, *, token: str = "", **options: Any) -> None:
        self._token = token
        self._path = path
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._log = path.with_suffix(".log")
        self.port = 0
        self.websocket_port = 0
        self.http_port = 0

    def start(self) -> MqttServerProcess:
        options = {"port": self.port, "websocket_port": self.websocket_port, **self._options}
        script = Path(__file__).with_name("server_process.py")
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(self._path), json.dumps(options), str(self.http_port), self._token],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=script_environment(),
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().split()
        assert said, f"the server ended before it listened: {self.log}"
        assert said[0] == "ready", said
        self.port, self.websocket_port, self.http_port = map(int, said[1:])
        return self

    @property
    def url(self) -> str:
        """Of its HTTP API."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: nothing of it gets to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; whatever clients did to it, nothing has gone wrong in it unexpectedly."""
        assert self._end(signal.SIGTERM) == 0
        assert "Traceback" not in self.log, self.log

    @property
    def log(self) -> str:
        """What it has said on stderr."""
        return self._log.read_text()

    def _end(self, number: int) -> int:
        if self._process is None:
            return 0
        os.kill(self._process.pid, number)
        code = self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code


class Delivery(NamedTuple):
    """A message as the client has it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    properties: Any

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        return list(getattr(self.properties, "UserProperty", []))

    def user_property(self, name: str) -> str:
        return next((value for key, value in self.user_properties if key == name), "")


def protocol_of(version: int) -> MQTTProtocolVersion:
    return MQTTProtocolVersion.MQTTv5 if version == 5 else MQTTProtocolVersion.MQTTv311


def properties(kind: int, **values: Any) -> Properties:
    """paho's properties of a packet, by their names."""
    made = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


def publish_properties(**values: Any) -> Properties:
    return properties(PacketTypes.PUBLISH, **values)


class Peer:
    """A paho client with a thread of its own; what it receives waits in `deliveries`."""

    def __init__(
        self,
        server: MqttServerProcess,
        version: int = 5,
        client_id: str = "",
        *,
        transport: str = "tcp",
        clean: bool = True,
        manual_ack: bool = False,
        keep_alive: int = 60,
        **connect_properties: Any,
    ) -> None:
        self.server = server
        self.version = version
        self.transport = transport
        self._clean = clean
        self._keep_alive = keep_alive
        self._connect_properties = connect_properties
        self.deliveries: queue.Queue[Delivery] = queue.Queue()
        self.connack: queue.Queue[tuple[int, bool, Any]] = queue.Queue()
        self.disconnected: queue.Queue[int] = queue.Queue()
        self._answers: dict[int, tuple[list[int], Any]] = {}
        self._answered = threading.Condition()
        self.session_present = False
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=clean if version == 4 else None,
            protocol=protocol_of(version),
            transport="websockets" if transport == "websockets" else "tcp",
            reconnect_on_failure=False,
            manual_ack=manual_ack,
        )
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_answer
        self.client.on_unsubscribe = self._on_answer
        self.client.on_publish = self._on_publish

    # What paho says ------------------------------------------------------------------------------------

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: ReasonCode, answered: Any) -> None:
        self.connack.put((reason.value, flags.session_present, answered))

    def _on_disconnect(self, _: Any, __: Any, ___: Any, reason: ReasonCode, ____: Any) -> None:
        self.disconnected.put(reason.value)

    def _on_message(self, _: Any, __: Any, message: paho.MQTTMessage) -> None:
        self.received(message)
        self.deliveries.put(
            Delivery(
                message.topic,
                bytes(message.payload),
                message.qos,
                message.retain,
                message.dup,
                getattr(message, "properties", None),
            )
        )

    def received(self, message: paho.MQTTMessage) -> None:
        """For tests that acknowledge by themselves."""

    def _on_answer(self, _: Any, __: Any, number: int, reasons: Any, answered: Any) -> None:
        with self._answered:
            self._answers[number] = ([reason.value for reason in reasons], answered)
            self._answered.notify_all()

    def _on_publish(self, _: Any, __: Any, number: int, reason: ReasonCode, answered: Any) -> None:
        with self._answered:
            self._answers[number] = ([reason.value], answered)
            self._answered.notify_all()

    def answer(self, number: int | None) -> tuple[list[int], Any]:
        assert number is not None
        with self._answered:
            assert self._answered.wait_for(lambda: number in self._answers, PATIENCE_S), f"no answer to {number}"
            return self._answers.pop(number)

    # What a test says ----------------------------------------------------------------------------------

    def open(self) -> tuple[int, Any]:
        """Connect; the reason of the CONNACK and its properties."""
        options: dict[str, Any] = {}
        if self.version == 5:
            options["clean_start"] = self._clean
            if self._connect_properties:
                options["properties"] = properties(PacketTypes.CONNECT, **self._connect_properties)
        port = self.server.websocket_port if self.transport == "websockets" else self.server.port
        self.client.connect("127.0.0.1", port, self._keep_alive, **options)
        self.client.loop_start()
        reason, self.session_present, answered = self.connack.get(timeout=PATIENCE_S)
        return reason, answered

    def __enter__(self) -> Peer:
        reason, _ = self.open()
        assert reason == 0, f"CONNACK says {reason:#04x}"
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, reason: int = 0, **values: Any) -> None:
        """DISCONNECT, and the thread ends."""
        if self.version == 5:
            code = ReasonCode(PacketTypes.DISCONNECT, identifier=reason)
            self.client.disconnect(code, properties(PacketTypes.DISCONNECT, **values) if values else None)
        else:
            self.client.disconnect()
        self.client.loop_stop()

    def vanish(self) -> None:
        """The socket ends without a DISCONNECT."""
        sock = self.client._sock
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        self.wait_gone()

    def subscribe(self, *filters: str | tuple[str, SubscribeOptions], qos: int = 0, **values: Any) -> list[int]:
        """The codes of the SUBACK."""
        given: Sequence[Any] = [
            one if isinstance(one, tuple) else (one, SubscribeOptions(qos) if self.version == 5 else qos)
            for one in filters
        ]
        options = properties(PacketTypes.SUBSCRIBE, **values) if values else None
        _, number = self.client.subscribe(list(given), properties=options)
        return self.answer(number)[0]

    def unsubscribe(self, *filters: str) -> list[int]:
        _, number = self.client.unsubscribe(list(filters))
        return self.answer(number)[0]

    def publish(
        self, topic: str, payload: bytes | str = b"", qos: int = 1, *, retain: bool = False, **values: Any
    ) -> int:
        """Publish and wait until the server has it (QoS 1 and 2); the reason that it gave."""
        given = publish_properties(**values) if values else None
        info = self.client.publish(topic, payload, qos, retain, given)
        return self.answer(info.mid)[0][0]

    def next(self) -> Delivery:
        return self.deliveries.get(timeout=PATIENCE_S)

    def take(self, count: int) -> list[Delivery]:
        return [self.next() for _ in range(count)]

    def payloads(self, count: int) -> list[bytes]:
        return [delivery.payload for delivery in self.take(count)]

    def wait_gone(self) -> int:
        """The reason for which the connection ended."""
        reason = self.disconnected.get(timeout=PATIENCE_S)
        self.client.loop_stop()
        return reason
