"""Connections that say and hear whole messages of HTTP, AMQP and MQTT, as a client with prepared requests does.

They block, and know neither queues nor when it is their turn: `schedule.py` does.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import mqtt5
from pamqp import commands, frame, header

PATIENCE_S: Final = 300.0
CHUNK: Final = 1 << 18


class Line:
    """A connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._heard = b""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> None:
        data = self._socket.recv(CHUNK)
        if not data:
            raise ConnectionError("the server closed a connection of the bench")
        self._heard += data

    def _until(self, end: bytes) -> bytes:
        while end not in self._heard:
            self._more()
        found, _, self._heard = self._heard.partition(end)
        return found

    def _bytes(self, size: int) -> bytes:
        while len(self._heard) < size:
            self._more()
        found, self._heard = self._heard[:size], self._heard[size:]
        return found


class HttpLine(Line):
    def hear(self) -> bytes:
        """An answer's body; only success is expected."""
        head = self._until(b"\r\n\r\n").lower()
        if b"transfer-encoding: chunked" in head:
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self._bytes(int(head.partition(b"content-length: ")[2].partition(b"\r")[0] or 0))
        if not head.startswith(b"http/1.1 20"):
            raise RuntimeError(f"the server answered {head[9:12]!r} {body[:400]!r}")
        return body

    def _chunk(self) -> bytes:
        chunk = self._bytes(int(self._until(b"\r\n"), 16))
        self._until(b"\r\n")
        return chunk

    def ask(self, request: bytes) -> bytes:
        self.send(request)
        return self.hear()


def http_request(
    method: str, path: str, body: bytes = b"", sends: str = "application/json", takes: str = "*/*"
) -> bytes:
    """As penstock's own client writes it."""
    lines = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {sends}\r\naccept: {takes}\r\n"
    return f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body


class AmqpLine(Line):
    """With one channel open."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.send(b"AMQP\x00\x00\x09\x01")
        self.hear()
        self.say(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        tune: Any = self.hear()
        self.say(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        self.ask(commands.Connection.Open("/"), 0)
        self.ask(commands.Channel.Open())

    def hear(self) -> Any:
        """The next frame, without its place."""
        while True:
            # An empty one asks for more: pamqp tells a frame that has not come whole by that.
            size, _, found = frame.unmarshal(self._heard) if self._is_whole() else (0, 0, None)
            if size:
                self._heard = self._heard[size:]
                return found
            self._more()

    def _is_whole(self) -> bool:
        return len(self._heard) >= 7 and len(self._heard) >= 8 + int.from_bytes(self._heard[3:7], "big")

    def say(self, command: Any, channel: int = 1) -> None:
        self.send(frame.marshal(command, channel))

    def ask(self, command: Any, channel: int = 1) -> Any:
        self.say(command, channel)
        return self.hear()


def amqp_publish(queue: str, payload: bytes) -> bytes:
    head = header.ContentHeader(0, len(payload), commands.Basic.Properties(delivery_mode=2))
    method = frame.marshal(commands.Basic.Publish(exchange="", routing_key=queue), 1)
    body = b"\x03\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
    return method + frame.marshal(head, 1) + body


class MqttLine(Line):
    def __init__(self, port: int, name: str) -> None:
        super().__init__(port)
        self.ask(mqtt5.ConnectPacket(name, clean_start=True, session_expiry_interval=3600))

    def hear(self) -> Any:
        while True:
            try:
                packet, size = mqtt5.read(memoryview(self._heard))
            except IndexError:
                self._more()
            else:
                self._heard = self._heard[size:]
                return packet

    def ask(self, packet: Any) -> Any:
        self.send(packet.write())
        return self.hear()
