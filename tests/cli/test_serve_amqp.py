"""`penstock serve` and AMQP: where it listens, the token, the metrics, a port that is taken, a good end."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path
from urllib.request import urlopen

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker, ProbableAuthenticationError

from tests.cli.servers import Server, penstock, running


def port_of(server: Server) -> int:
    found = re.search(r"AMQP 0\.9\.1 is at amqp://127\.0\.0\.1:(\d+)", "".join(server.output))
    assert found is not None
    return int(found[1])


def connect(server: Server, password: str = "guest") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials("guest", password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port_of(server), credentials=credentials))


def test_a_server_speaks_amqp_and_http_about_the_same_queues(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        connection = connect(server)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("hello", durable=True)
        channel.basic_publish("", "hello", b"by AMQP")
        _, claim = server.request("POST", "/v1/queues/hello/claim", {"ack": True})
        assert [message["payload"] for message in claim["messages"]] == ["by AMQP"]
        server.request("POST", "/v1/queues/hello/messages", {"messages": [{"payload": "by HTTP"}]})
        assert channel.basic_get("hello", auto_ack=True)[2] == b"by HTTP"
        channel.basic_consume("hello", lambda *_: None)
        with urlopen(f"{server.url}/metrics") as answer:
            metrics = answer.read().decode()
        for line in ("connections 1.0", "channels 1.0", "consumers 1.0", "published_total 1.0", "delivered_total 1.0"):
            assert f"penstock_amqp_{line}" in metrics
        server.signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosedByBroker) as caught:  # noqa: PT012 - the answer comes later
            while True:
                connection.process_data_events(0.05)
        assert caught.value.reply_code == 320
        assert server.end() == 0


def test_the_password_is_the_token(tmp_path: Path) -> None:
    with running(tmp_path, PENSTOCK_HTTP_TOKEN="secret") as server:
        with pytest.raises(ProbableAuthenticationError):
            connect(server)
        connect(server, "secret").close()


def test_a_port_that_is_taken_and_none_at_all(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = penstock("serve", "--port", "0", "--amqp-port", port, "--no-mqtt", folder=tmp_path)
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}: it is in use" in done.stderr
        assert "--no-amqp" in done.stderr
        with running(tmp_path, "--amqp-port", port, "--no-amqp") as server:
            assert "AMQP" not in "".join(server.output)
    with running(tmp_path, "--set", "amqp.max_connections=1") as server:
        connection = connect(server)
        with pytest.raises(AMQPConnectionError):
            connect(server)
        connection.close()
