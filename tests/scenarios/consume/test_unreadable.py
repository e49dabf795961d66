"""What the disk does not give back, and files that somebody deleted, are damage: told, passed over, nobody's fault."""

from __future__ import annotations

import errno
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import DamagedRange, Message, StoreCorrupt, Unavailable
from penstock.node.broker import LocalBroker
from penstock.store.sqlite import reads
from penstock.store.sqlite.log import segments
from tests.damage import refuse_reads, segment_of
from tests.nodes import node_of
from tests.scenarios.rig import Home, play

COUNT = 40
PAYLOADS = [random.Random(number).randbytes(1_000) for number in range(COUNT)]

Harm = Callable[[pytest.MonkeyPatch, Path], None]
HARM: dict[str, tuple[Harm, str]] = {
    "refused": (refuse_reads, "cannot be read: Input/output error"),
    "missing": (lambda _, file: file.unlink(), "cannot be read: its file is missing"),
}
HARMS = pytest.mark.parametrize("harm", HARM)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_FIRST", 1 << 13)
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MOST", 1 << 13)


async def filled(home: Home, **options: Any) -> tuple[LocalBroker, int]:
    """A broker on a file with many batches of one message, in several segments; none of them is in memory."""
    broker = await home.open()
    await broker.declare_queue("q", **options)
    await broker.declare_group("q", "default")
    for payload in PAYLOADS:
        await broker.publish("q", Message(payload))
    [lane] = node_of(broker).catalog.queue("default", "q").lanes
    return await home.reopen(broker), lane


def harmed(home: Home, lane: int, harm: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[int]]:
    """A file of the log that cannot be read any more, and the offsets that were in it."""
    assert home.path is not None
    file = segment_of(home.path, lane, 10)
    lost = [offset for offset in range(COUNT) if segment_of(home.path, lane, offset) == file]
    assert 1 < len(lost) < 10
    HARM[harm][0](monkeypatch, file)
    return file, lost


@HARMS
@pytest.mark.parametrize("ack", [False, True])
def test_a_claim_passes_over_it_and_spends_no_attempt(
    file_home: Home, harm: str, ack: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(home: Home) -> None:
        broker, lane = await filled(home)
        file, lost = harmed(home, lane, harm, monkeypatch)
        found: dict[int, bytes] = {}
        while len(claim := await broker.claim("q", max=7, ack=ack)):
            found.update(zip(claim.offsets(), claim.payloads(), strict=True))
        assert found == {offset: PAYLOADS[offset] for offset in range(COUNT) if offset not in lost}
        ranges = (await broker.dead_ranges("q")).ranges
        assert [row.reason for row in ranges] == ["damaged"] * len(ranges)
        assert [offset for row in ranges for offset in range(row.start, row.end)] == lost
        assert {row.attempts for row in ranges} == {0}
        assert (await broker.measures()).damaged_messages == {"body": len(lost), "meta": 0}
        assert any(f"{len(lost)} messages fail their checksum or cannot be read" in note for note in broker.damage())
        lines = [record for record in caplog.records if HARM[harm][1] in record.message]
        assert len(lines) == len(lost)
        where = f"queue default/q, lane 0, offsets {lost[0]} to {lost[0]}: the body in the store {HARM[harm][1]}"
        assert (lines[0].levelname, lines[0].message) == ("ERROR", f"{where}; file: {file}")

    play(file_home, scenario)


@HARMS
def test_reads_browses_and_streams_name_it(file_home: Home, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(home: Home) -> None:
        broker, lane = await filled(home)
        await broker.declare_group("q", "s", kind="stream", start="beginning")
        _, lost = harmed(home, lane, harm, monkeypatch)
        gap = DamagedRange(0, lost[0], lost[-1] + 1)
        whole = [payload for offset, payload in enumerate(PAYLOADS) if offset not in lost]
        page = await broker.browse("q", max=COUNT)
        assert [one.message.payload for one in page.messages] == whole
        assert page.damaged == [gap]
        read = await broker.read_from("q", 0, max=COUNT)
        assert (read.payloads(), read.damaged) == (whole, [gap])

    play(file_home, scenario)


def test_messages_come_when_the_file_is_back(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        assert home.path is not None
        broker, lane = await filled(home)
        file = segment_of(home.path, lane, 10)
        aside = file.rename(file.with_suffix(".aside"))
        claim = await broker.claim("q", max=COUNT)
        assert 30 < len(claim) < COUNT
        await broker.ack(claim)
        aside.rename(file)
        assert await broker.redrive("q", reason="damaged") == COUNT - len(claim)
        broker = await home.reopen(broker)
        again = await broker.claim("q", max=COUNT)
        assert again.payloads() == [PAYLOADS[offset] for offset in again.offsets()]
        assert len(claim) + len(again) == COUNT
        assert {one.attempt for one in again} == {1}

    play(file_home, scenario)


def test_a_file_that_may_not_be_read_is_no_damage(file_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(home: Home) -> None:
        assert home.path is not None
        broker, lane = await filled(home)
        with monkeypatch.context() as patch:
            refuse_reads(patch, segment_of(home.path, lane, 10), errno.EACCES)
            with pytest.raises(Unavailable, match="Permission denied"):
                await broker.claim("q", max=COUNT)
        claim = await broker.claim("q", max=COUNT)
        assert claim.payloads() == PAYLOADS
        assert {one.attempt for one in claim} == {1}

    play(file_home, scenario)


# Pages of SQLite's file --------------------------------------------------------------------------------------


def unreadable_page(*_: object) -> Any:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    error.sqlite_errorname = "SQLITE_IOERR_READ"
    raise error


def test_a_page_with_metadata_that_cannot_be_read_stops_its_lane_alone(
    file_home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(home: Home) -> None:
        broker, lane = await filled(home)
        await broker.declare_queue("other")
        real = reads.read_heads
        monkeypatch.setattr(reads, "read_heads", lambda *given: unreadable_page() if given[2] == lane else real(*given))
        for _ in range(3):
            with pytest.raises(
                StoreCorrupt, match=r"queue default/q, lane 0: from offset 0 on: .*penstock store repair"
            ):
                await broker.claim("q")
        assert (await broker.measures()).damaged_lanes == 1
        assert any("1 lanes cannot be used" in note for note in broker.damage())
        await broker.publish("other", Message(b"m"))
        assert (await broker.claim("other")).payloads() == [b"m"]
        [line] = [record for record in caplog.records if "from offset 0 on" in record.message]
        assert (line.levelname, str(home.path) in line.message) == ("ERROR", True)
        monkeypatch.setattr(reads, "read_heads", real)
        assert {one.attempt for one in await broker.claim("q", max=COUNT)} == {1}

    play(file_home, scenario)


def test_a_batch_whose_row_cannot_be_read_is_damaged(file_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(home: Home) -> None:
        broker, lane = await filled(home)
        real = reads.find_batches

        def find(connection: Any, pending: Any, of: int, start: int, end: int, most: int) -> Any:
            if of == lane and start <= 5 < end:
                unreadable_page()
            return real(connection, pending, of, start, end, most)

        monkeypatch.setattr(reads, "find_batches", find)
        claim = await broker.claim("q", max=COUNT)
        assert claim.offsets() == [offset for offset in range(COUNT) if offset != 5]
        [row] = (await broker.dead_ranges("q")).ranges
        assert (row.start, row.end, row.reason, row.attempts) == (5, 6, "damaged", 0)
        [reason] = await broker.dead_reasons("q")
        assert "offsets 5 to 5: the body in the store cannot be read: " in reason.error

    play(file_home, scenario)
