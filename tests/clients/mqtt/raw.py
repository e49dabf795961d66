"""A client of version 5 on a plain socket, packet by packet: for what a library would hide."""

from __future__ import annotations

import socket
from typing import Any, TypeVar

import mqtt5

from tests.clients.mqtt.rig import PATIENCE_S, MqttServerProcess

Packet = TypeVar("Packet")


class Raw:
    """Sends packets of the mqtt5 library and reads those that come."""

    def __init__(self, server: MqttServerProcess) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        self._data = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *packets: Any) -> None:
        self._socket.sendall(b"".join(one if isinstance(one, bytes) else one.write() for one in packets))

    def read(self) -> Any:
        """The next packet; None at the end."""
        while True:
            try:
                packet, size = mqtt5.read(memoryview(self._data))
            except IndexError:
                received = self._socket.recv(65536)
                if not received:
                    assert not self._data, f"the connection ended within a packet: {self._data!r}"
                    return None
                self._data += received
            else:
                self._data = self._data[size:]
                return packet

    def expect(self, kind: type[Packet]) -> Packet:
        packet = self.read()
        assert isinstance(packet, kind), packet
        return packet

    def connect(self, client_id: str = "", *, clean_start: bool = True, **options: Any) -> mqtt5.ConnAckPacket:
        self.send(mqtt5.ConnectPacket(client_id, clean_start=clean_start, **options))
        return self.expect(mqtt5.ConnAckPacket)

    def subscribe(self, pattern: str, qos: int = 0, **options: Any) -> list[int]:
        entry = mqtt5.TopicFilter(pattern, max_qos=mqtt5.QoS(qos), **options)
        self.send(mqtt5.SubscribePacket(1, [entry]))
        return [int(code) for code in self.expect(mqtt5.SubAckPacket).reason_codes]

    def nothing(self) -> None:
        """Nothing comes before the answer to a ping."""
        self.send(mqtt5.PingReqPacket())
        self.expect(mqtt5.PingRespPacket)
