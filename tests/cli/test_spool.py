"""`penstock spool`: dead letters of a spool are listed, shown and published again, once."""

from __future__ import annotations

from pathlib import Path

from penstock import Message, encode
from penstock.node.spool.records import DeadRecord, Header, Record, packed_dead, segment_start
from tests.cli.commands import Cli

HEADER = Header("00000000000000aa", "store", 1)


def letter(folder: Path, cli: Cli, number: int, *payloads: bytes, queue: str | None = "work") -> str:
    batch = encode([Message(payload) for payload in payloads])
    record = Record(
        number,
        1,
        cli.namespace,
        queue,
        7,
        None if queue else "all",
        ("work",),
        None,
        batch.count,
        batch.meta,
        batch.body,
    )
    name = f"dead-{HEADER.spool}-{number:012}.letter"
    (folder / name).write_bytes(packed_dead(DeadRecord(HEADER, record, "not_found: there is no queue 'work'", 2)))
    return name


def test_letters_are_listed_shown_and_published_again(cli: Cli, tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path))
    assert "no dead letters" in cli("spool", "list", *folder)
    first, second = letter(tmp_path, cli, 1, b"one", b"two"), letter(tmp_path, cli, 2, b"three", queue=None)
    assert [(row["file"], row["messages"], row["to"]) for row in cli.json("spool", "list", *folder)] == [
        (first, 2, f"queue work of namespace {cli.namespace}"),
        (second, 1, f"exchange all of namespace {cli.namespace}"),
    ]
    assert cli("spool", "show", first, *folder).splitlines()[1:] == ["one", "two"]
    assert [body["payload"] for body in cli.json("spool", "show", second, *folder)] == ["three"]
    assert "no queue 'work'" in cli.fails("spool", "retry", first, *folder)
    assert (tmp_path / first).exists()
    cli("queue", "create", "work")
    kept = (tmp_path / first).read_bytes()
    assert "Published 2 messages" in cli("spool", "retry", first, *folder)
    assert not (tmp_path / first).exists()
    (tmp_path / first).write_bytes(kept)  # as if the command had been killed before it removed the file
    cli("spool", "retry", "--all", "--to", "work", *folder)
    assert cli.json("stats", "work")["published"] == 3
    assert list(tmp_path.iterdir()) == []


def test_letters_of_a_spool_that_is_not_empty_stay(cli: Cli, tmp_path: Path) -> None:
    name = letter(tmp_path, cli, 1, b"one")
    (tmp_path / "0000000001.spool").write_bytes(segment_start(HEADER))
    cli("queue", "create", "work")
    assert "still being replayed" in cli.fails("spool", "retry", name, "--folder", str(tmp_path))
    assert cli.json("stats", "work")["published"] == 0


def test_what_cannot_be_read_is_told(cli: Cli, tmp_path: Path) -> None:
    assert "there is no folder" in cli.fails("spool", "list", "--folder", str(tmp_path / "none"))
    assert "No such file" in cli.fails("spool", "show", "x", "--folder", str(tmp_path))
    (tmp_path / "x").write_bytes(b"PNSPOOL1nothing")
    assert "damaged" in cli.fails("spool", "show", "x", "--folder", str(tmp_path))
    assert "name the files" in cli.fails("spool", "retry", "--folder", str(tmp_path), code=2)
