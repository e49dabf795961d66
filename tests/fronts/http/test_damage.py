"""Damaged messages over HTTP, by raw requests and by the client: passed over, named in the answer, counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import AsyncClient, Client, DamagedRange, Message
from penstock.api.results import Scan
from penstock.batch import encode
from penstock.store.sqlite.engine import SqliteStore
from penstock.wire.http.shapes import ARROW_TYPE, BATCHES_TYPE
from tests.damage import FLIP
from tests.fronts.http.rig import Front, front_on
from tests.nodes import node_of

PARTS = pytest.mark.parametrize("part", ["body", "meta"])
LARGE = 100_000
"""Bytes of a payload that an answer carries in parts of its own."""
GAP = {"lane": 0, "start": 4, "end": 8}
SOUND = [0, 1, 2, 3, 8, 9, 10, 11]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@asynccontextmanager
async def damaged_front(path: Path, part: str, size: int = 10) -> AsyncIterator[Front]:
    """A server on three batches of four messages, of which the second is damaged."""
    async with front_on(await SqliteStore.open(path)) as front:
        await front.broker.declare_queue("q", retain_messages=1_000)
        for batch in range(3):
            numbers = range(batch * 4, batch * 4 + 4)
            messages = [
                Message(b"%d " % number + random.Random(number).randbytes(size), headers={"n": number})
                for number in numbers
            ]
            await front.broker.publish_batch("q", encode(messages))
        [lane] = node_of(front.broker).catalog.queue("default", "q").lanes
    FLIP[part](path, lane, 4)
    async with front_on(await SqliteStore.open(path)) as front:
        yield front


def offsets(answer: dict[str, Any]) -> list[int]:
    return [one["offset"] for one in answer["messages"]]


@PARTS
def test_answers_name_what_they_pass_over(tmp_path: Path, part: str) -> None:
    async def main() -> None:
        async with damaged_front(tmp_path / "x.db", part) as front:
            log = await front.ok("GET", "/v1/queues/q/log")
            assert (offsets(log), log["damaged"], log["next_offset"]) == (SOUND, [GAP], 12)
            page = await front.ok("GET", "/v1/queues/q/messages")
            assert (offsets(page), page["damaged"], page["next"]) == (SOUND, [GAP], None)
            whole = await front.ok("GET", "/v1/queues/q/log", offset=8)
            assert (offsets(whole), "damaged" in whole) == ([8, 9, 10, 11], False)
            reply = await front.call("GET", "/v1/queues/q/messages/0/5")
            assert (reply.status, reply.code) == (500, "store_corrupt")
            assert "queue 'q', lane 0, offset 5" in reply.message
            assert (await front.ok("GET", "/v1/queues/q/messages/0/8"))["offset"] == 8
            metrics = (await front.call("GET", "/metrics")).body.decode()
            assert f'penstock_damaged_messages_total{{part="{part}"}} 4.0' in metrics
            assert "penstock_damaged_lanes 0.0" in metrics
            [note] = (await front.ok("GET", "/readyz"))["damage"]
            assert "4 messages fail their checksum" in note
            assert str(tmp_path) not in note

    run(main())


@PARTS
def test_a_stream_group_over_http(tmp_path: Path, part: str) -> None:
    async def main() -> None:
        async with damaged_front(tmp_path / "x.db", part) as front:
            await front.ok("PUT", "/v1/queues/q/groups/s", {"kind": "stream"})
            found: list[int] = []
            damaged: list[Any] = []
            while True:
                read = await front.ok("POST", "/v1/queues/q/groups/s/read", {"max": 3})
                found += offsets(read)
                damaged += read.get("damaged", [])
                if not read["messages"] and "damaged" not in read:
                    break
            assert (found, damaged) == (SOUND, [GAP])

    run(main())


@PARTS
def test_dead_letters_over_http(tmp_path: Path, part: str) -> None:
    async def main() -> None:
        async with damaged_front(tmp_path / "x.db", part) as front:
            claim = await front.claim("q", max=100)
            assert offsets(claim) == SOUND
            verdict = {"verdicts": [{"action": "reject", "offsets": [3, 8]}]}
            await front.ok("POST", f"/v1/leases/{claim['lease']}/settle", verdict)
            dead = await front.ok("GET", "/v1/queues/q/groups/default/dead")
            assert [one["message"]["offset"] for one in dead["dead"]] == [3, 8]
            assert dead["damaged"] == [GAP]
            export = (await front.call("GET", "/v1/queues/q/groups/default/dead/export")).body
            lines = [msgspec.json.decode(line) for line in export.splitlines()]
            assert sorted(line["message"]["offset"] for line in lines if "message" in line) == [3, 8]
            assert [line["damaged"] for line in lines if "damaged" in line] == [GAP]

    run(main())


@PARTS
def test_scans_over_http(tmp_path: Path, part: str) -> None:
    async def main() -> None:
        async with damaged_front(tmp_path / "x.db", part) as front:
            path = "/v1/queues/q/lanes/0/scan"
            query: dict[str, Any] = {"start": 0, "end": 12}
            reply = await front.call("GET", path, headers={"Accept": BATCHES_TYPE}, **query)
            scan = msgspec.msgpack.decode(reply.body, type=Scan)
            assert scan.damaged == [DamagedRange(0, 4, 8)]
            assert [(part.offset, part.end) for part in scan.slices] == [(0, 4), (4, 8), (8, 12)]
            assert [one.offset for one in scan.messages()] == SOUND
            query |= {"columns": "offset", "where": "n < 99"}
            reply = await front.call("GET", path, headers={"Accept": ARROW_TYPE}, **query)
            with pa.ipc.open_stream(reply.body) as stream:
                told = stream.schema.metadata.get(b"penstock.damaged")
                rows = stream.read_all().column("offset").to_pylist()
            if part == "body":  # no payload is asked for, and none is read
                assert (told, rows) == (None, list(range(12)))
            else:
                assert (told, rows) == (msgspec.json.encode([GAP]), SOUND)

    run(main())


@PARTS
@pytest.mark.parametrize("size", [10, LARGE])
def test_the_client_gives_what_was_named(
    tmp_path: Path, part: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with damaged_front(tmp_path / "x.db", part, size) as front:
            gap = DamagedRange(0, 4, 8)
            async with AsyncClient(f"http://127.0.0.1:{front.server.port}") as client:
                read = await client.read_from("q", 0)
                assert ([one.offset for one in read.messages], read.damaged) == (SOUND, [gap])
                page = await client.browse("q")
                assert ([one.offset for one in page.messages], page.damaged) == (SOUND, [gap])
                scan = await client.scan("q", 0, 0, 12)
                assert ([one.offset for one in scan.messages()], scan.damaged) == (SOUND, [gap])
                await client.declare_group("q", "s", kind="stream", auto_commit=False)
                async with client.stream("q", "s", batch=3, wait=0.05) as reader:
                    assert [received.offset async for received in reader] == SOUND
                    assert reader.damaged == [gap]
                [group] = [one for one in (await client.stats("q")).groups if one.group == "s"]
                assert group.lag == 0
                claim = await client.claim("q", max=100)
                assert claim.offsets() == SOUND
                assert (await client.dead("q")).damaged == [gap]

    run(main())
    [line] = [record for record in caplog.records if "passed over" in record.message]
    assert (line.levelname, line.name) == ("WARNING", "penstock.client")
    assert "queue 'q', lane 0, offsets 4 to 7" in line.message


def test_the_client_for_threads_gives_it_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with damaged_front(tmp_path / "x.db", "body") as front:

            def work() -> tuple[list[DamagedRange], list[DamagedRange]]:
                with Client(f"http://127.0.0.1:{front.server.port}") as client:
                    client.declare_group("q", "s", kind="stream", auto_commit=False)
                    with client.stream("q", "s", wait=0.05) as reader:
                        assert [received.offset for received in reader] == SOUND
                        return client.browse("q").damaged, reader.damaged

            assert await asyncio.to_thread(work) == ([DamagedRange(0, 4, 8)], [DamagedRange(0, 4, 8)])

    run(main())
