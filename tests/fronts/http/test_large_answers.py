"""Large answers: bounded one by one and all together, and their memory is given back."""

from __future__ import annotations

import os
import socket
import struct
from http.client import HTTPConnection
from pathlib import Path

import pyarrow as pa

from penstock import Message
from penstock.client import Client
from penstock.wire.http.shapes import ARROW_TYPE, NEXT_OFFSET_HEADER
from tests.cli.servers import Server, running, until
from tests.fronts.http import rig
from tests.fronts.http.rig import Front, over_http

MEGABYTE = 1024 * 1024
LOG = b"GET /v1/queues/large/log?max=1 HTTP/1.1\r\nHost: x\r\n\r\n"


async def large(front: Front, *sizes: int) -> None:
    await front.broker.declare_queue("large", retain_messages=1_000)
    for size in sizes:
        await front.broker.publish("large", Message(os.urandom(size)))


@over_http(answer_bytes=16 * MEGABYTE)
async def test_large_answers_wait_for_a_client_that_does_not_take_its_own(front: Front) -> None:
    await large(front, 15 * MEGABYTE)
    answers = front.server.answers
    slow = await front.connect()
    await slow.send(LOG)
    await rig.until(lambda: answers.bytes > 0)
    quick = await front.connect()
    await quick.send(LOG)
    await rig.until(lambda: answers.waiting == 1)
    await front.broker.declare_queue("small")
    await front.broker.publish("small", Message(b"small"))
    assert len((await front.claim("small"))["messages"]) == 1
    page = (await front.call("GET", "/metrics")).body.decode()
    assert "penstock_http_answers_waiting 1.0" in page
    slow.reset()
    reply = await quick.reply()
    assert (reply.status, len(reply.body) > 15 * MEGABYTE) == (200, True)
    await rig.until(lambda: (answers.bytes, answers.waiting) == (0, 0))


@over_http(answer_bytes=16 * MEGABYTE)
async def test_a_client_that_goes_leaves_the_line(front: Front) -> None:
    await large(front, 15 * MEGABYTE)
    answers = front.server.answers
    slow, quick = await front.connect(), await front.connect()
    await slow.send(LOG)
    await rig.until(lambda: answers.bytes > 0)
    await quick.send(LOG)
    await rig.until(lambda: answers.waiting == 1)
    # Without this the server hears that it sends no more, and might still take its answer.
    quick.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    quick.reset()
    await rig.until(lambda: answers.waiting == 0)
    slow.reset()
    await rig.until(lambda: answers.bytes == 0)


@over_http()
async def test_a_scan_is_bounded_by_what_it_unfolds_to(front: Front) -> None:
    await front.broker.declare_queue("large", retain_messages=1_000)
    for _ in range(6):
        await front.broker.publish("large", Message(bytes(15 * MEGABYTE)))
    place, counts = "0", []
    while place != "6":
        reply = await front.call(
            "GET", "/v1/queues/large/lanes/0/scan", headers={"Accept": ARROW_TYPE}, start=place, end=6
        )
        table = pa.ipc.open_stream(reply.body).read_all()
        assert table.column("payload").to_pylist() == [bytes(15 * MEGABYTE)] * table.num_rows
        counts.append(table.num_rows)
        place = reply.headers[NEXT_OFFSET_HEADER.lower()]
    assert counts == [4, 2]


def test_arrow_scans_give_their_memory_back(tmp_path: Path) -> None:
    with running(tmp_path) as server, Client(server.url) as client:
        client.declare_queue("large", retain_messages=1_000)
        for _ in range(64):
            client.publish("large", Message(os.urandom(MEGABYTE)))
        path = f"/v1/queues/large/lanes/0/scan?start=0&end=64&max_bytes={64 * MEGABYTE}"
        sizes = [arrow_bytes(server, path) for _ in range(10)]
        assert min(sizes) > 62 * MEGABYTE
        before = memory(server)
        until(lambda: memory(server) < 300 * MEGABYTE, f"{before} bytes after ten scans, and no less later")


def arrow_bytes(server: Server, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path, headers={"Accept": ARROW_TYPE})
    size = 0
    answer = connection.getresponse()
    while piece := answer.read(MEGABYTE):
        size += len(piece)
    connection.close()
    return size


def memory(server: Server) -> int:
    """Bytes that a server has in memory."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096
