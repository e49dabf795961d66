"""`penstock serve` low on memory, as a process: every protocol refuses publishes, and consumers are served."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import NackError

from tests.cli.servers import Server, penstock, running, until

LOW = ("--set", "limits.memory_share=0.0001", "--set", "limits.alarm_wait=0.1")
"""Less than any Python takes."""


def port_of(server: Server, title: str) -> int:
    [line] = [line for line in server.output if f"{title}://" in line or line.startswith(title)]
    return int(line.split("://")[1].split()[0].rpartition(":")[2].strip(",."))


@pytest.fixture
def low(tmp_path: Path) -> Iterator[Server]:
    """A server that is low on memory, with one message in queue `q` from better times."""
    with running(tmp_path) as server:
        assert server.request("PUT", "/v1/queues/q", {})[0] == 201
        assert server.request("POST", "/v1/queues/q/messages", {"messages": [{"payload": "before"}]})[0] == 200
        server.stop()
    with running(tmp_path, *LOW) as server:
        until(lambda: "alarms" in server.request("GET", "/readyz")[1], "the alarm begins")
        yield server


def test_http_refuses_publishes_and_serves_consumers(low: Server) -> None:
    status, answer = low.request("POST", "/v1/queues/q/messages", {"messages": [{"payload": "x"}]})
    assert (status, answer["error"]["code"]) == (503, "resource_alarm")
    status, claim = low.request("POST", "/v1/queues/q/claim", {"ack": True})
    assert [message["payload"] for message in claim["messages"]] == ["before"]
    assert low.request("GET", "/readyz")[0] == 200
    assert 'penstock_alarm{resource="memory"} 1.0' in low.text("/metrics").splitlines()
    [warning] = [line for line in low.errors if "memory is low" in line]
    assert "WARNING" in warning
    assert "raise limits.memory_share" in warning


def test_amqp_nacks_publishes_and_serves_consumers(low: Server) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port_of(low, "amqp")))
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(NackError):
        channel.basic_publish("", "q", b"x")
    _, _, body = channel.basic_get("q", auto_ack=True)
    assert body == b"before"
    connection.close()


def test_mqtt_refuses_publishes(low: Server) -> None:
    with socket.create_connection(("127.0.0.1", port_of(low, "mqtt")), 20) as wire:
        wire.sendall(b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01p")
        assert wire.recv(1000)[0] == 0x20
        wire.sendall(b"\x32\x0e\x00\x08$queue/q\x00\x07\x00x")
        puback = wire.recv(1000)
        assert puback[0] == 0x40
        assert b"\x00\x07\x97" in puback, puback


def test_stats_and_top_say_so(low: Server, tmp_path: Path) -> None:
    [alarm] = low.request("GET", "/v1/stats")[1]["alarms"]
    assert alarm.startswith("memory is low: this server uses ")
    for command in (("stats",), ("stats", "q"), ("top", "--once", "--interval", "100ms")):
        done = penstock(*command, "--url", low.url, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("warning: memory is low: this server uses "), command
        assert "Publishes are held back" in done.stderr
        assert "q " in done.stdout
    top = json.loads(penstock("top", "--once", "--json", "--url", low.url, folder=tmp_path).stdout)
    assert [one.partition(":")[0] for one in top["alarms"]] == ["memory is low"]


def test_doctor_says_so(low: Server, tmp_path: Path) -> None:
    done = penstock("doctor", "--port", str(low.port), *LOW, "--json", folder=tmp_path)
    [alarm] = [one for one in json.loads(done.stdout)["checks"] if one["about"] == "alarm"]
    assert alarm["state"] == "wrong"
    assert alarm["text"].startswith("memory is low")
    assert done.returncode == 1


def test_a_disk_below_its_floor_is_an_alarm_too(tmp_path: Path) -> None:
    floor = ("--set", f"limits.disk_free_bytes={1 << 50}", "--set", "limits.alarm_wait=0")
    with running(tmp_path, *floor) as server:
        assert server.request("PUT", "/v1/queues/q", {})[0] == 201
        until(lambda: "alarms" in server.request("GET", "/readyz")[1], "the alarm begins")
        status, answer = server.request("POST", "/v1/queues/q/messages", {"messages": [{"payload": "x"}]})
        assert (status, answer["error"]["code"]) == (503, "resource_alarm")
        assert "the store's disk is low" in answer["error"]["message"]
        assert str(tmp_path) not in answer["error"]["message"], "folders are for the log"
