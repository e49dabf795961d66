"""`verify`: a sound store of any engine is found sound, also while a broker uses it; damage is found and named."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock import Message
from penstock.maintenance.verify import Report, verify
from penstock.model.errors import NotFound
from penstock.model.rows import slot_of
from penstock.store.sqlite.log.records import Draft, draft
from penstock.store.sqlite.log.segments import Found, Segment, Segments
from tests.conformance.samples import batches, change, commit
from tests.maintenance.rig import ENGINE_NAMES, copy_files, flip, make, place_of, segment_of


def verified(place: str | Path) -> Report:
    return asyncio.run(verify(place))


def sound(report: Report) -> None:
    assert (report.ok, report.findings) == (True, []), report.findings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed SQLite store; tests damage copies of it."""
    path = tmp_path_factory.mktemp("made") / "penstock.db"
    make(str(path))
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return copy_files(made, tmp_path / "copy")


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_sound_store_is_found_sound(engine: str, tmp_path: Path) -> None:
    place = place_of(engine, tmp_path)
    make(place)
    report = verified(place)
    sound(report)
    assert report.queues >= 4
    assert report.messages >= 60
    assert report.ids >= 40
    assert report.warnings == []
    assert (report.records is not None) == (engine == "sqlite")


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_store_in_use_is_found_sound(engine: str, tmp_path: Path) -> None:
    place = place_of(engine, tmp_path)

    async def main() -> None:
        async with await penstock.open(place) as broker:
            await broker.declare_queue("work")

            async def work() -> None:
                for number in range(10_000):
                    await broker.publish_many("work", [Message(b"%d" % number * 100)] * 5)
                    await broker.ack(await broker.claim("work", max=5))
                    if number % 10 == 9:
                        await broker.declare_queue(f"brief-{number}")
                        await broker.delete_queue(f"brief-{number - 10}") if number > 10 else None

            working = asyncio.create_task(work())
            for _ in range(3):
                sound(await asyncio.to_thread(verified, place))
                assert not working.done()
            working.cancel()

    asyncio.run(main())
    sound(verified(place))


def test_verifying_changes_nothing(path: Path) -> None:
    before = {file: file.read_bytes() for file in (path, *Path(f"{path}-log").glob("*.log"))}
    sound(verified(path))
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_what_is_not_there_is_not_made(engine: str, tmp_path: Path) -> None:
    place = place_of(engine, tmp_path)
    with pytest.raises(NotFound, match="there is no store"):
        verified(place)
    with pytest.raises(NotFound, match="there is no store"):
        verified(place)


# Damage of SQLite's files ---------------------------------------------------------------------------------


def position_of(path: Path, queue: str, base: int = 0) -> tuple[int, int, int]:
    """(segment, position, size) of the body of a batch."""
    with closing(sqlite3.connect(path)) as connection:
        [(document,)] = connection.execute("SELECT document FROM catalog WHERE kind = 'queue' AND name = ?", (queue,))
        lane = int(document.split(b'"lanes":[')[1].split(b"]")[0].split(b",")[0])
        row: tuple[int, int, int] = connection.execute(
            "SELECT segment, position, size - length(meta) FROM batches WHERE lane = ? AND base >= ? LIMIT 1",
            (lane, base),
        ).fetchone()
        return row


def test_a_flipped_byte_of_a_payload_is_named_with_its_queue_and_offsets(path: Path) -> None:
    segment, position, size = position_of(path, "mail", base=2)
    flip(segment_of(path, segment), position + size - 1)
    report = verified(path)
    assert not report.ok
    [checksum] = [one for one in report.findings if one.check == "checksum"]
    assert (checksum.queue, checksum.lane, checksum.start) == ("default/mail", 0, 2)
    [log] = [one for one in report.findings if one.check == "log"]
    assert "bodies of record" in log.problem
    assert log.file == str(segment_of(path, segment))


def test_a_flipped_byte_anywhere_in_a_record_is_found(path: Path) -> None:
    """Head, rows and bodies of records, all over the log: none passes."""
    with closing(sqlite3.connect(path)) as connection:
        _, position = connection.execute("SELECT segment, position FROM log").fetchone()
    for at in range(64, position, position // 40):
        flip(segment_of(path), at)
        report = verified(path)
        assert any(one.check == "log" for one in report.findings), (at, report.findings)
        flip(segment_of(path), at)
    sound(verified(path))


def test_a_damaged_head_of_a_segment_is_found(path: Path) -> None:
    flip(segment_of(path), 20)
    assert "head" in verified(path).findings[0].problem


def test_a_missing_segment_is_found(path: Path) -> None:
    segment_of(path).unlink()
    report = verified(path)
    assert any(one.check == "log" and "missing" in one.problem for one in report.findings)


def test_a_segment_that_was_cut_is_found(path: Path) -> None:
    os.truncate(segment_of(path), 5_000)
    assert not verified(path).ok


def test_a_torn_record_behind_the_last_is_a_warning(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        _, position = connection.execute("SELECT segment, position FROM log").fetchone()
    with segment_of(path).open("r+b") as file:
        file.seek(position)
        file.write(b"PNLr" + b"\x01" * 40)
    report = verified(path)
    sound(report)
    assert "torn by a crash" in report.warnings[0]


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_record_behind_the_last_whose_bodies_never_came_is_a_warning(path: Path, is_torn: bool) -> None:
    """A loss of power may keep its rows. A sector that is empty was never written; other bytes are damage."""
    with closing(sqlite3.connect(path)) as connection:
        store_id, number, position, record = connection.execute(
            "SELECT store_id, segment, position, record FROM log"
        ).fetchone()
    segment = Segments(Path(f"{path}-log")).open(number, store_id)
    assert segment is not None
    with closing(segment):
        rows = batches(1, body=b"\x55" * 4_096)
        made = draft(commit({slot_of(1): 1}, change(1, batches=rows)))
        assert isinstance(made, Draft)
        segment.write(position, record, made)
    with segment_of(path, number).open("r+b") as file:
        file.seek(position - position % 512 + 2_048)
        file.write(bytes(512) if is_torn else b"\x66" * 512)
    report = verified(path)
    if is_torn:
        sound(report)
        assert "torn by a crash" in report.warnings[0]
    else:
        assert "fail their checksum" in report.findings[0].problem


@pytest.mark.parametrize("looks_at_bodies", [True, False])
def test_a_record_that_is_written_at_this_moment_is_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch, looks_at_bodies: bool
) -> None:
    """One record is seen too early, once: not at all, or without its bodies."""
    data = segment_of(path).read_bytes()
    early = data.index(b"PNLr", len(data.rstrip(b"\0")) // 2)
    real = Segment.record_at
    seen: list[int] = []

    def too_early(self: Segment, position: int, *, bodies: bool = True) -> Found | None:
        if position == early and bodies == looks_at_bodies and not seen:
            seen.append(position)
            return None
        return real(self, position, bodies=bodies)

    monkeypatch.setattr(Segment, "record_at", too_early)
    sound(verified(path))
    assert seen == [early]


def test_damaged_pages_of_the_file_are_found(path: Path) -> None:
    size = path.stat().st_size
    for page in range(8192, size, 8192):
        flip(path, page + 3)  # the head of a page of the tree
    report = verified(path)
    assert not report.ok
    assert {one.check for one in report.findings} >= {"file"}


def changed(path: Path, *statements: str) -> Report:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement
    return verified(path)


@pytest.mark.parametrize(
    ("statement", "check", "problem"),
    [
        ("UPDATE batches SET position = position + 1 WHERE rowid = 3", "index", "points to byte"),
        ("UPDATE batches SET bytes_end = bytes_end + 1 WHERE rowid = 3", "index", "points to byte"),
        ("UPDATE segments SET live_bytes = live_bytes + 1", "index", "table of segments"),
        ("DELETE FROM batches WHERE rowid = (SELECT max(rowid) FROM batches WHERE base = 1)", "offsets", "missing"),
        ("UPDATE lanes SET end = end + 1 WHERE end > 3", "offsets", "missing at the end"),
        ("UPDATE groups SET next = 100000 WHERE next > 0", "rows", "next is 100000"),
        ("UPDATE leases SET entries = x'9192000a'", "rows", "lease"),
        ("UPDATE leases SET entries = x'c1'", "rows", "cannot be read"),
        ("UPDATE waiting SET chunk = chunk + 100", "rows", "others' offsets"),
        ("UPDATE dead SET end = end + 90", "rows", "never handed out"),
        ("UPDATE dedup SET offset = 999999", "rows", "an id of offset"),
        ("UPDATE outbox SET lane = 123456789", "rows", "of a lane that is not there"),
        ("DELETE FROM catalog WHERE name = 'mail' AND kind = 'queue'", "rows", "neither a queue nor"),
        ("DELETE FROM catalog WHERE kind = 'group'", "rows", "not declared"),
        ("DELETE FROM catalog WHERE kind = 'staged'", "catalog", "cannot be read"),
        ("UPDATE catalog SET document = x'00' WHERE kind = 'queue'", "catalog", "cannot be read"),
        ("UPDATE catalog SET name = 'mail' WHERE kind = 'queue'", "catalog", "is there twice"),
    ],
)
def test_rows_that_do_not_fit_together_are_found(path: Path, statement: str, check: str, problem: str) -> None:
    findings = changed(path, statement).findings
    assert any(one.check == check and problem in one.problem for one in findings), findings


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(b"nothing")
    assert "missing" in verified(path).findings[0].problem
    Path(f"{path}-log").mkdir()
    assert "not a database" in verified(path).findings[0].problem


# Databases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
def test_a_damaged_payload_in_a_database_is_found(engine: str, tmp_path: Path) -> None:
    """Bytes change below the engine, as a disk may do it."""
    place = place_of(engine, tmp_path)
    make(place)
    asyncio.run(damage_body(engine, place))
    report = verified(place)
    assert {one.check for one in report.findings} == {"checksum"}
    assert {one.queue for one in report.findings} == {"other/orders"}


async def damage_body(engine: str, place: str) -> None:
    from penstock.store.open import open_engine

    store = await open_engine(place)
    try:
        [row] = [row for row in await store.catalog() if row.kind == "queue" and row.namespace == "other"]
    finally:
        await store.close()
    lane = int(row.document.split(b'"lanes":[')[1].split(b"]")[0])
    if engine == "postgres":
        import asyncpg

        url, _, schema = place.partition("?schema=")
        connection = await asyncpg.connect(url)
        await connection.execute(
            f"UPDATE {schema}.batches SET body = set_byte(body, octet_length(body) - 1, 1) WHERE lane = {lane}"
        )
        await connection.close()
        return
    from tests.databases import mariadb

    with mariadb.connected(place) as session, session.cursor() as cursor:
        cursor.execute(f"UPDATE batches SET body = concat(left(body, length(body) - 1), 'X') WHERE lane = {lane}")
        session.commit()
