"""`penstock publish`: messages from arguments, files and lines, and what cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands import publish as publishing
from tests.cli.commands import Cli, interrupt
from tests.cli.servers import DEADLINE_SECONDS, until


@pytest.fixture
def queue(cli: Cli) -> str:
    cli("queue", "create", "mail", "--backoff-ms", "0", "--max-attempts", "2")
    return "mail"


def test_a_message_has_every_field_that_a_flag_gives_it(cli: Cli, queue: str) -> None:
    said = cli(
        "publish",
        queue,
        "hello",
        "--key",
        "k",
        "--partition",
        "p",
        "--header",
        "text=a=b",
        "--header",
        "n:=3",
        "--header",
        "list:=[1,null]",
        "--priority",
        "7",
        "--delay",
        "1h30m",
        "--ttl",
        "2d",
        "--dedup-id",
        "d",
        "--content-type",
        "text/plain",
        "--correlation-id",
        "c",
        "--trace-id",
        "t",
        "--at",
        "2999-01-01T00:00:00Z",
    )
    assert said == "Published to mail: offset 0 of lane 0.\n"
    [message] = cli.log(queue)
    del message["published_ms"]
    assert message == {
        "queue": "mail",
        "lane": 0,
        "offset": 0,
        "payload": "hello",
        "partition": "p",
        "key": "k",
        "headers": {"text": "a=b", "n": 3, "list": [1, None]},
        "priority": 7,
        "delay_ms": 5_400_000,
        "not_before_ms": 32_472_144_000_000,
        "ttl_ms": 172_800_000,
        "dedup_id": "d",
        "content_type": "text/plain",
        "correlation_id": "c",
        "trace_id": "t",
    }


def test_a_known_message_is_told_as_such(cli: Cli, queue: str) -> None:
    cli("publish", queue, "hello", "--dedup-id", "d")
    assert "was known already" in cli("publish", queue, "hello", "--dedup-id", "d")
    assert cli.json("publish", queue, "hello", "--dedup-id", "d") == [
        {"queue": "mail", "lane": 0, "offset": 0, "duplicate": True, "buffered": False}
    ]


def test_payloads_come_from_files_and_stdin_byte_for_byte(cli: Cli, queue: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"\xff\x00\n")
    (tmp_path / "two").write_bytes(b"")
    cli("publish", queue, "--file", str(tmp_path / "one"), "--file", str(tmp_path / "two"))
    cli("publish", queue, "--file", "-", stdin=b"a\nb\n")
    assert [one.get("payload_base64", one.get("payload")) for one in cli.log(queue)] == ["/wAK", "", "a\nb\n"]
    assert "does not exist" in cli.fails("publish", queue, "--file", str(tmp_path / "three"), code=2)


def test_a_payload_that_is_an_argument_is_what_the_shell_passed_on(cli: Cli, queue: str) -> None:
    cli("publish", queue, " a\udcff\n")  # how Python hands over a byte that is not UTF-8
    cli("publish", queue, "")
    assert [one.get("payload_base64", one.get("payload")) for one in cli.log(queue)] == ["IGH/Cg==", ""]


def test_ten_thousand_lines_are_as_many_messages_in_order(cli: Cli, queue: str) -> None:
    lines = [f"line {number}" for number in range(10_000)]
    assert cli("publish", queue, "--lines", stdin="\n".join(lines)) == "Published 10,000 messages to mail.\n"
    assert [one["payload"] for one in cli.log(queue)] == lines


def test_lines_are_published_in_batches_of_a_thousand_at_most(
    cli: Cli, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client.client import AsyncClient

    sizes: list[int] = []
    publish_many = AsyncClient.publish_many

    async def counted(self: AsyncClient, queue: str, messages: Any, **more: Any) -> Any:
        sizes.append(len(messages))
        return await publish_many(self, queue, messages, **more)

    monkeypatch.setattr(AsyncClient, "publish_many", counted)
    cli("publish", queue, "--lines", stdin="x\n" * 2_500)
    assert sum(sizes) == 2_500
    assert max(sizes) <= publishing.BATCH_MESSAGES
    assert len(sizes) < 100  # not one by one


def test_every_line_counts_and_its_end_does_not(cli: Cli, queue: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\r\n\n b \n\xff")
    assert cli.json("publish", queue, "--lines", "--file", str(tmp_path / "lines"), "--key", "k") == {
        "published": 4,
        "stored": 4,
        "duplicates": 0,
        "buffered": 0,
        "queues": ["mail"],
    }
    found = cli.log(queue)
    assert [one.get("payload") for one in found] == ["a", "", " b ", None]
    assert {one["key"] for one in found} == {"k"}


def test_json_lines_are_whole_messages_and_flags_fill_what_they_do_not_say(cli: Cli, queue: str) -> None:
    lines = [
        {"payload": "a", "key": "own", "headers": {"n": 1}},
        {"payload_base64": "/w==", "partition": "p"},
        {"payload_json": {"deep": [1, 2]}},
        {},
    ]
    text = "\n\n".join(map(json.dumps, lines))
    said = cli("publish", queue, "--json-lines", "--key", "flag", "--ttl", "1h", stdin=text)
    assert said == "Published 4 messages to mail.\n"
    found = cli.log(queue)
    assert [one["key"] for one in found] == ["own", "flag", "flag", "flag"]
    assert {one["ttl_ms"] for one in found} == {3_600_000}
    assert found[0]["headers"] == {"n": 1}
    assert (found[1]["payload_base64"], found[1]["partition"]) == ("/w==", "p")
    assert json.loads(found[2]["payload"]) == {"deep": [1, 2]}


@pytest.mark.parametrize(
    "bad",
    [
        "{not json",
        '{"payload": "\udcff"}',
        '{"payload_json": ' + "[" * 100_000,
        '{"paylod": 1}',
        '["a"]',
        '{"payload": 5}',
        '{"priority": 300}',
        '{"payload_base64": "?"}',
    ],
)
def test_a_line_that_is_no_message_is_named_and_those_before_it_are_published(cli: Cli, queue: str, bad: str) -> None:
    said = cli.fails(
        "publish",
        queue,
        "--json-lines",
        stdin=f'{{"payload": "a"}}\n{bad}\n{{"payload": "c"}}\n'.encode(errors="surrogateescape"),
    )
    assert said.startswith("Error: line 2 of stdin: ")
    assert said.endswith("\n1 message published before that.\n")
    assert [one["payload"] for one in cli.log(queue)] == ["a"]


def test_a_slow_pipe_is_published_as_it_flows(cli: Cli, queue: str) -> None:
    with cli.child("publish", queue, "--lines") as process:
        assert process.stdin is not None
        for count in (1, 2, 3):
            process.stdin.write(b"x\n")
            process.stdin.flush()
            wait_for_messages(cli, queue, count)
        output, errors = process.communicate(b"x\n", timeout=DEADLINE_SECONDS)
    assert (output, errors) == (b"Published 4 messages to mail.\n", b"")


def wait_for_messages(cli: Cli, queue: str, count: int) -> None:
    until(lambda: len(cli.log(queue)) == count, f"{count} messages are published")


def test_ctrl_c_while_a_pipe_is_silent_says_how_far_it_came(cli: Cli, queue: str) -> None:
    with cli.child("publish", queue, "--lines") as process:
        assert process.stdin is not None
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        wait_for_messages(cli, queue, 2)
        assert interrupt(process) == (130, "2 messages published before that.\n")


def test_publishing_a_long_file_shows_progress_on_a_terminal_alone(cli: Cli, queue: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x" * 200 + b"\n" + b"y\n" * 20_000)
    with cli.on_terminal("publish", queue, "--lines", "--file", "lines", folder=tmp_path) as terminal:
        assert terminal.end() == 0
    assert b"\x1b[" in terminal.seen
    assert b"Published 20,001 messages to mail." in terminal.seen
    done = cli.invoke("publish", queue, "--lines", "--file", str(tmp_path / "lines"))
    assert (done.stdout, done.stderr) == ("Published 20,001 messages to mail.\n", "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "say where to"),
        (("mail",), "say what to publish"),
        (("mail", "a", "--lines"), "leave the payload out"),
        (("mail", "--lines", "--json-lines"), "not both"),
        (("mail", "a", "--file", "-"), "in one way"),
        (("mail", "a", "--exchange", "x"), "not both"),
        (("mail", "a", "--mandatory"), "--mandatory is for --exchange"),
        (("mail", "a", "--delay", "10"), "'10' is no span"),
        (("mail", "a", "--at", "noon"), "'noon' is no time"),
        (("mail", "a", "--header", "novalue"), "must be NAME=VALUE"),
        (("mail", "a", "--header", "n:={"), "is not JSON"),
        (("mail", "a", "--header", "a=1", "--header", "a=2"), "'a' is given twice"),
        (("mail", "a", "--priority", "256"), "256"),
    ],
)
def test_a_publish_that_cannot_be_meant_is_a_usage_error(
    cli: Cli, queue: str, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in cli.fails("publish", *arguments, code=2)
    assert cli.log(queue) == []


def test_a_publish_that_the_server_refuses_is_one_line(cli: Cli) -> None:
    assert "no queue 'nowhere'" in cli.fails("publish", "nowhere", "hello")
    said = cli.fails("publish", "nowhere", "--lines", stdin="a\n")
    assert said.splitlines()[1:] == ["0 messages published before that."]
