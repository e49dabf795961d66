"""MQTT in WebSocket frames, with the client's half of the library at the other end and no socket between."""

from __future__ import annotations

import pytest
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from penstock.wire.mqtt.connection import Limits, ServerConnection
from penstock.wire.mqtt.packets import Connect, Publish
from penstock.wire.mqtt.websocket import WebSocketFilter
from tests.unit.wire.mqtt.rig import connect, publish


def client(path: str = "/mqtt", subprotocols: tuple[str, ...] = ("mqtt",), origin: str | None = None) -> ClientProtocol:
    return ClientProtocol(
        parse_uri(f"ws://127.0.0.1:1{path}"),
        subprotocols=[Subprotocol(name) for name in subprotocols] or None,
        origin=None if origin is None else Origin(origin),
    )


def opened(filter_: WebSocketFilter, peer: ClientProtocol) -> Response:
    """Shake hands; the answer of the server."""
    peer.send_request(peer.connect())
    request = b"".join(peer.data_to_send())
    for index in range(len(request)):
        assert filter_.receive(request[index : index + 1]) == b""
    peer.receive_data(filter_.take())
    response = peer.events_received()[0]
    assert isinstance(response, Response)
    return response


def written(peer: ClientProtocol) -> bytes:
    return b"".join(peer.data_to_send())


def test_packets_go_through_frames_of_any_size() -> None:
    filter_, peer, connection = WebSocketFilter(), client(), ServerConnection(Limits())
    response = opened(filter_, peer)
    assert response.status_code == 101
    assert response.headers["Sec-WebSocket-Protocol"] == "mqtt"
    sent = connect(5) + publish(5)
    for index in range(len(sent)):
        peer.send_binary(sent[index : index + 1])
    events = connection.receive(filter_.receive(written(peer)))
    assert isinstance(events[0], Connect)
    connection.connack()
    assert isinstance(connection.receive(b"")[0], Publish)
    filter_.send(connection.take())
    peer.receive_data(filter_.take())
    frame = peer.events_received()[0]
    assert isinstance(frame, Frame)
    assert frame.opcode is Opcode.BINARY
    assert bytes(frame.data)[:1] == b"\x20"
    assert not filter_.closed


def test_a_message_in_fragments_with_a_ping_between() -> None:
    filter_, peer = WebSocketFilter(), client()
    opened(filter_, peer)
    peer.send_binary(b"ab", fin=False)
    peer.send_ping(b"are you there")
    peer.send_continuation(b"cd", fin=True)
    assert filter_.receive(written(peer)) == b"abcd"
    peer.receive_data(filter_.take())
    pong = peer.events_received()[0]
    assert isinstance(pong, Frame)
    assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"are you there")


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        (client("/other"), 404),
        (client(subprotocols=()), 400),
        (client(subprotocols=("amqp",)), 400),
        (client(origin="https://example.com"), 403),
        (client(origin="null"), 403),
        (client(origin="http://["), 403),
        (client(origin="http://127.0.0.1.example.com"), 403),
    ],
)
def test_who_is_not_let_in(peer: ClientProtocol, status: int) -> None:
    filter_ = WebSocketFilter()
    assert opened(filter_, peer).status_code == status
    assert filter_.closed
    assert filter_.receive(b"more") == b""


@pytest.mark.parametrize("origin", ["http://localhost:8000", "http://127.0.0.1", "http://[::1]:1", None])
def test_pages_of_this_machine_are_let_in(origin: str | None) -> None:
    assert opened(WebSocketFilter(), client(origin=origin)).status_code == 101


def test_any_page_where_a_password_is_asked_for() -> None:
    assert opened(WebSocketFilter(any_origin=True), client(origin="https://example.com")).status_code == 101


def test_a_query_after_the_path_is_let_in() -> None:
    assert opened(WebSocketFilter(), client("/mqtt?x=1")).status_code == 101


def test_text_frames_are_refused() -> None:
    filter_, peer = WebSocketFilter(), client()
    opened(filter_, peer)
    peer.send_text(b"text")
    assert filter_.receive(written(peer)) == b""
    assert filter_.closed
    peer.receive_data(filter_.take())
    assert peer.close_rcvd is not None
    assert peer.close_rcvd.code == CloseCode.UNSUPPORTED_DATA


def test_a_frame_longer_than_allowed_is_refused_by_its_header() -> None:
    filter_, peer = WebSocketFilter(maximum_frame_size=1000), client()
    opened(filter_, peer)
    peer.send_binary(b"x" * 1000)
    assert filter_.receive(written(peer)) == b"x" * 1000
    peer.send_binary(b"x" * 1001)
    assert filter_.receive(written(peer)[:20]) == b""
    assert filter_.closed
    peer.receive_data(filter_.take())
    assert peer.close_rcvd is not None
    assert peer.close_rcvd.code == CloseCode.MESSAGE_TOO_BIG


def test_closing_from_either_side() -> None:
    filter_, peer = WebSocketFilter(), client()
    opened(filter_, peer)
    filter_.send(b"last")
    filter_.close()
    assert filter_.closed
    peer.receive_data(filter_.take())
    assert peer.close_rcvd is not None
    assert peer.close_rcvd.code == CloseCode.NORMAL_CLOSURE
    filter_.send(b"too late")
    filter_.close()
    assert filter_.take() == b""

    filter_, peer = WebSocketFilter(), client()
    opened(filter_, peer)
    peer.send_close(CloseCode.NORMAL_CLOSURE)
    assert filter_.receive(written(peer)) == b""
    assert filter_.closed
    peer.receive_data(filter_.take())
    assert peer.state in (State.CLOSING, State.CLOSED)


@pytest.mark.parametrize(
    "data",
    [b"\x10\x0d\0\x04MQTT", b"GET /mqtt HTTP/1.1\r\n\r\n", b"GET " + b"x" * 9000, b"\r\n", b"POST / HTTP/1.1\r\n\r\n"],
)
def test_what_is_no_handshake_is_closed_or_waited_for(data: bytes) -> None:
    filter_ = WebSocketFilter()
    assert filter_.receive(data) == b""
    assert not filter_.take().startswith(b"HTTP/1.1 101")
