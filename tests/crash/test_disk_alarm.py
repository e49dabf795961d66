"""A real disk that fills up under a real server: publishers wait, then are refused; consumers drain it; they go on."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.servers import Server, penstock, running, until
from tests.crash.faults import small_disk

DISK_BYTES: Final = 64 << 20
FLOOR_BYTES: Final = 16 << 20
NOISE_BYTES: Final = 50_000
NOISE: Final = base64.b64encode(random.Random(0).randbytes(NOISE_BYTES)).decode()
"""Bytes that do not become fewer when a batch is compressed."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One whose store is on a small disk, and which keeps a part of that free."""
    limits = ("--set", f"limits.disk_free_bytes={FLOOR_BYTES}", "--set", "limits.alarm_wait=1")
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        running(tmp_path, "--store", str(disk / "penstock.db"), *limits) as server,
    ):
        yield server


def publish(server: Server, number: int) -> tuple[int, Any]:
    message = {"key": str(number), "payload_base64": NOISE}
    return server.request("POST", "/v1/queues/q/messages", {"messages": [message]})


def publish_until_refused(server: Server, first: int) -> tuple[int, Any]:
    """The number of the message that was refused, and the answer."""
    for number in range(first, first + DISK_BYTES // NOISE_BYTES):
        status, answer = publish(server, number)
        if status != 200:
            return number, (status, answer)
    pytest.fail("the disk is full and nobody said so")


def drained(server: Server) -> list[str]:
    """The keys of all messages, each acknowledged when the next is asked for."""
    keys: list[str] = []
    while True:
        status, claim = server.request("POST", "/v1/queues/q/claim", {"max": 100, "ack": True})
        assert status == 200, claim
        if not claim["messages"]:
            return keys
        keys += [message["key"] for message in claim["messages"]]


def count(server: Server, name: str) -> float:
    [line] = re.findall(rf"^penstock_{name} (\S+)$", server.text("/metrics"), re.MULTILINE)
    return float(line)


def alarms(server: Server) -> list[str]:
    found: list[str] = server.request("GET", "/v1/stats")[1]["alarms"]
    return found


def test_a_disk_that_fills_up_stops_publishers_until_consumers_have_made_room(server: Server, tmp_path: Path) -> None:
    assert server.request("PUT", "/v1/queues/q", {})[0] == 201
    assert server.request("PUT", "/v1/queues/q/groups/default", {})[0] in (200, 201)

    refused, (status, answer) = publish_until_refused(server, 0)
    assert (status, answer["error"]["code"]) == (503, "resource_alarm")
    assert "the store's disk is low" in answer["error"]["message"]
    assert refused * NOISE_BYTES > DISK_BYTES // 4
    assert count(server, "alarm_delayed_total") == 1, "it was held back first"
    assert count(server, "alarm_refused_total") == 1
    assert count(server, 'disk_free_bytes{resource="store"}') < FLOOR_BYTES
    assert [one.partition(":")[0] for one in alarms(server)] == ["the store's disk is low"]
    assert penstock("stats", "--url", server.url, folder=tmp_path).stderr.startswith("warning: the store's disk is low")

    assert drained(server) == [str(number) for number in range(refused)], "all that was answered, in order"
    until(lambda: not alarms(server), "the room is given back")
    assert publish(server, refused)[0] == 200

    again, (status, answer) = publish_until_refused(server, refused + 1)
    assert (status, answer["error"]["code"]) == (503, "resource_alarm")
    assert again > refused + 100, "there was room again"
    assert drained(server) == [str(number) for number in range(refused, again)]
    assert json.dumps(server.errors).count("the store's disk is low") == 2
