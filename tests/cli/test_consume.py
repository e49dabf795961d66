"""`penstock consume` and `tail`: messages out, and what becomes of those that were held."""

from __future__ import annotations

import itertools
import os
import select
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock import Received
from tests.cli.commands import Cli, first_line, interrupt
from tests.cli.servers import DEADLINE_SECONDS, until


@pytest.fixture
def queue(cli: Cli) -> str:
    cli("queue", "create", "mail", "--backoff-ms", "0", "--max-attempts", "2")
    return "mail"


def test_messages_are_printed_and_then_acknowledged(cli: Cli, queue: str) -> None:
    cli("publish", queue, "hello", "--key", "k", "--partition", "p", "--header", "n:=3", "--trace-id", "t")
    cli("publish", queue, "--lines", stdin="a\nb\n")
    first = cli("consume", queue, "--max", "1")
    assert first.startswith("0:0 ")
    assert first.endswith("partition=p key=k trace=t n=3 hello\n")
    assert " ago (" in first
    assert cli.stats(queue)["lag"] == 2
    assert [one["payload"] for one in cli.lines("consume", queue)] == ["a", "b"]
    assert cli.stats(queue) | {"oldest_offset": 0} == {
        "group": "default",
        "kind": "work",
        "ready": 0,
        "leased": 0,
        "scheduled": 0,
        "dead": 0,
        "lag": 0,
        "oldest_offset": 0,
        "paused": False,
    }
    assert cli("consume", queue) == ""


def test_more_messages_than_a_claim_takes_are_all_consumed(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="".join(f"{number}\n" for number in range(350)))
    assert cli("consume", queue, "--raw", "--max", "340").splitlines() == [str(number) for number in range(340)]
    assert cli.stats(queue)["lag"] == 10


def test_messages_that_are_not_acknowledged_are_all_shown_and_all_back(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="a\nb\n" * 100)
    assert len(cli("consume", queue, "--no-ack").splitlines()) == 200
    assert (cli.stats(queue)["ready"], cli.stats(queue)["leased"]) == (200, 0)
    assert {one["attempt"] for one in cli.lines("consume", queue)} == {1}


def test_messages_are_nacked_or_rejected_with_a_reason(cli: Cli, queue: str) -> None:
    cli("publish", queue, "a")
    assert "attempt=2" in cli("consume", queue, "--nack", "--error", "no luck").splitlines()[1]
    cli("publish", queue, "b")
    cli("consume", queue, "--reject", "--error", "never")
    assert [(one["reason"], one["error"]) for one in cli.json("dead", "list", queue)] == [
        ("attempts", "no luck"),
        ("rejected", "never"),
    ]


def test_only_a_partition_and_a_group(cli: Cli, queue: str) -> None:
    cli("group", "create", queue, "g", "--ordered")
    cli("publish", queue, "a", "--partition", "p")
    cli("publish", queue, "b", "--partition", "q")
    assert cli("consume", queue, "--group", "g", "--partition", "q", "--raw") == "b\n"
    assert "has no group 'h'" in cli.fails("consume", queue, "--group", "h")


def test_the_raw_bytes_go_to_a_file_and_never_to_a_terminal(cli: Cli, queue: str, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\x1b[31m\xff")
    cli("publish", queue, "--file", str(tmp_path / "bytes"))
    with cli.child("consume", queue, "--raw", "--no-ack") as process:
        assert process.communicate(timeout=DEADLINE_SECONDS) == (b"\x1b[31m\xff\n", b"")
    with cli.on_terminal("consume", queue, "--raw", "--no-ack") as terminal:
        assert terminal.end() == 0
    assert terminal.seen.strip() == b"base64:G1szMW3/"


def test_a_stream_group_is_read_and_committed(cli: Cli, queue: str) -> None:
    cli("group", "create", queue, "audit", "--stream")
    cli("publish", queue, "--lines", stdin="a\nb\nc\n")
    assert cli("consume", queue, "--group", "audit", "--raw", "--max", "2") == "a\nb\n"
    assert cli.stats(queue, "audit")["lag"] == 1
    assert cli("consume", queue, "--group", "audit", "--raw") == "c\n"
    assert cli.stats(queue, "audit")["lag"] == 0
    for flags in (("--nack",), ("--no-ack",), ("--exec", "true"), ("--partition", "p")):
        assert "is a stream" in cli.fails("consume", queue, "--group", "audit", *flags, code=2)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--nack", "--reject"), "choose one"),
        (("--no-ack", "--exec", "true"), "choose one"),
        (("--error", "why"), "--error is the reason"),
        (("--exec", "true", "--json"), "leave out --json"),
        (("--raw", "--json"), "choose one"),
        (("--max", "0"), "0"),
    ],
)
def test_a_consume_that_cannot_be_meant_is_a_usage_error(
    cli: Cli, queue: str, flags: tuple[str, ...], complaint: str
) -> None:
    assert complaint in cli.fails("consume", queue, *flags, code=2)


def test_following_goes_on_until_ctrl_c(cli: Cli, queue: str) -> None:
    with cli.child("consume", queue, "--follow", "--raw") as process:
        for number in range(3):
            cli("publish", queue, str(number))
            assert first_line(process) == f"{number}\n"
        until(lambda: cli.stats(queue)["lag"] == 0, "all are acknowledged")
        assert interrupt(process) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_gives_back_what_is_held_without_an_attempt(cli: Cli, queue: str, number: signal.Signals) -> None:
    cli("publish", queue, "--lines", stdin="a\nb\n")
    with cli.child("consume", queue, "--follow", "--no-ack", "--raw", "--lease", "1h") as process:
        assert first_line(process) == "a\n"
        assert first_line(process) == "b\n"
        assert cli.stats(queue)["leased"] == 2
        assert interrupt(process, number) == (128 + number, "")
    assert (cli.stats(queue)["leased"], cli.stats(queue)["ready"]) == (0, 2)
    assert {one["attempt"] for one in cli.lines("consume", queue)} == {1}


def test_what_a_reader_that_went_away_did_not_take_is_given_back(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin=("x" * 10_000 + "\n") * 50)
    with cli.child("consume", queue, "--raw", "--lease", "1h") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(DEADLINE_SECONDS) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert (cli.stats(queue)["leased"], cli.stats(queue)["ready"]) == (0, 50)


def test_held_leases_are_kept_alive(cli: Cli, queue: str) -> None:
    cli("publish", queue, "a")
    with cli.child("consume", queue, "--follow", "--no-ack", "--raw", "--lease", "2s") as process:
        assert first_line(process) == "a\n"
        # Another consumer waits for longer than the lease: it would get the message if that had ended.
        assert cli("consume", queue, "--wait", "5s") == ""
        assert interrupt(process)[0] == 130
    assert cli("consume", queue, "--raw") == "a\n"


def move_group(cli: Cli) -> None:
    """Somebody moves the group: leases that are out end."""
    cli.request("POST", "/v1/queues/mail/groups/default/seek", {"to": "first"})


def test_a_lease_that_somebody_ended_is_told_and_no_reason_to_stop(
    cli: Cli, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("publish", queue, "a")
    shown: list[bytes] = []

    def show(messages: Iterable[Received]) -> None:
        shown.extend(received.payload for received in messages)
        if len(shown) == 1:
            move_group(cli)

    monkeypatch.setattr("penstock.cli.show_message._show_bytes", show)
    done = cli.invoke("consume", queue, "--raw")
    assert (done.exit_code, shown) == (0, [b"a", b"a"])
    assert done.stderr.startswith("what was printed last could not be settled, and comes again: ")
    assert cli.stats(queue)["lag"] == 0


def test_a_command_whose_lease_somebody_ended_is_told(cli: Cli, queue: str, tmp_path: Path) -> None:
    cli("publish", queue, "a")
    seek = f"{sys.executable} -m penstock group seek mail default --to first"
    with cli.child(
        "consume", queue, "--exec", f"test -e {tmp_path}/moved || ({seek} && touch {tmp_path}/moved)"
    ) as process:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0
    assert errors.startswith(b"offset 0 of lane 0 was dealt with too late, and comes again: ")
    assert cli.stats(queue)["lag"] == 0


# Exec -----------------------------------------------------------------------------------------------------


def test_a_command_gets_the_payload_and_what_is_known_of_it(cli: Cli, queue: str, tmp_path: Path) -> None:
    cli("publish", queue, "hello", "--key", "k", "--partition", "p", "--header", "n:=3", "--trace-id", "t")
    cli("publish", queue, "again")
    command = (
        f'cat >> {tmp_path}/out; echo " $MESSAGE_QUEUE $MESSAGE_LANE:$MESSAGE_OFFSET $MESSAGE_ATTEMPT '
        f'$MESSAGE_PARTITION $MESSAGE_KEY $MESSAGE_TRACE_ID $MESSAGE_HEADERS" >> {tmp_path}/out'
    )
    assert cli("consume", queue, "--exec", command) == ""
    assert (tmp_path / "out").read_text() == 'hello mail 0:0 1 p k t {"n":3}\nagain mail 0:1 1    {}\n'
    assert cli.stats(queue)["lag"] == 0


def test_a_command_that_fails_is_a_nack_with_the_end_of_its_stderr(cli: Cli, queue: str) -> None:
    cli("publish", queue, "a")
    done = cli.invoke("consume", queue, "--exec", "head -c 5000 /dev/zero | tr '\\0' x >&2; echo oops >&2; exit 3")
    assert done.exit_code == 0
    assert "offset 0 of lane 0 failed: exit code 3: xxx" in done.stderr
    [dead] = cli.json("dead", "list", queue)
    assert dead["attempts"] == 2
    assert dead["error"].startswith("exit code 3: xxx")
    assert dead["error"].endswith("x\noops") or dead["error"].endswith("xoops")
    assert len(dead["error"]) < 2_100


def test_a_command_that_reads_nothing_or_dies_by_a_signal(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--file", "-", stdin=b"x" * 1_000_000)
    cli("consume", queue, "--exec", "true")
    assert cli.stats(queue)["lag"] == 0
    cli("publish", queue, "b")
    cli("consume", queue, "--exec", "kill -9 $$")
    assert cli.json("dead", "list", queue)[0]["error"] == "ended by signal 9"


def test_what_a_command_leaves_running_is_not_waited_for(cli: Cli, queue: str, tmp_path: Path) -> None:
    cli("publish", queue, "a")
    command = f"sleep 1000 > /dev/null & echo $! > {tmp_path}/pid; echo heard >&2"
    with cli.child("consume", queue, "--exec", command) as process:
        try:
            output, errors = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert cli.stats(queue)["lag"] == 0
    assert (output, errors) == (b"", b"heard\n")


def test_ctrl_c_ends_the_command_and_gives_its_message_back(cli: Cli, queue: str, tmp_path: Path) -> None:
    cli("publish", queue, "--lines", stdin="a\nb\n")
    command = f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/started; exec sleep 1000"
    with cli.child("consume", queue, "--exec", command) as process:
        until(lambda: (tmp_path / "started").exists(), "the command runs")
        assert cli.stats(queue)["leased"] == 1
        assert interrupt(process)[0] == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)
    assert (cli.stats(queue)["leased"], cli.stats(queue)["ready"]) == (0, 2)
    assert [one["attempt"] for one in cli.lines("consume", queue)] == [1, 1]


# Tail -----------------------------------------------------------------------------------------------------


def test_the_log_is_read_from_any_place_and_nobody_notices(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="a\nb\nc\n")
    assert cli("tail", queue, "--from", "first", "--no-follow", "--raw") == "a\nb\nc\n"
    assert cli("tail", queue, "--from", "1", "--no-follow", "--raw") == "b\nc\n"
    assert cli("tail", queue, "--from", "1h", "--max", "1", "--raw") == "a\n"
    assert cli("tail", queue, "--from", "2999-01-01", "--no-follow") == ""
    assert cli("tail", queue, "--no-follow") == ""
    assert [one["offset"] for one in cli.lines("tail", queue, "--from", "first", "--no-follow")] == [0, 1, 2]
    assert cli.stats(queue) == {}
    assert "is no place in a log" in cli.fails("tail", queue, "--from", "here", code=2)


def test_the_log_is_followed_from_now_on(cli: Cli, queue: str) -> None:
    cli("publish", queue, "before")
    with cli.child("tail", queue, "--raw") as process:
        # Whether it has begun cannot be seen: publish until it says so.
        numbers = itertools.count()

        def is_heard() -> bool:
            cli("publish", queue, str(next(numbers)))
            assert process.stdout is not None
            return bool(select.select([process.stdout], [], [], 0.1)[0])

        until(is_heard, "the tail sees a message")
        cli("publish", queue, "the end")
        seen = list(iter(lambda: first_line(process), "the end\n"))
        last = next(numbers) - 1
        assert [int(line) for line in seen] == list(range(last - len(seen) + 1, last + 1))
        assert interrupt(process) == (130, "")


def test_all_lanes_are_followed_or_one(cli: Cli) -> None:
    cli("queue", "create", "wide", "--lanes", "3")
    for number in range(30):
        cli("publish", "wide", str(number), "--partition", f"p{number}")
    whole = cli.lines("tail", "wide", "--from", "first", "--no-follow")
    assert sorted(int(one["payload"]) for one in whole) == list(range(30))
    lanes = {one["lane"] for one in whole}
    assert lanes == {0, 1, 2}
    alone = cli.lines("tail", "wide", "--from", "0", "--lane", "1", "--no-follow")
    assert alone == [one for one in whole if one["lane"] == 1]
    assert "say with --lane" in cli.fails("tail", "wide", "--from", "0", "--no-follow", code=2)
    assert "has lanes 0 to 2" in cli.fails("tail", "wide", "--lane", "3", code=2)


def test_a_log_whose_beginning_is_gone_is_read_from_what_is_left(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="a\nb\n")
    cli("consume", queue)
    cli("publish", queue, "c")
    until(lambda: cli.request("GET", f"/v1/queues/{queue}/stats")["messages"] == 1, "what is done is gone")
    done = cli.invoke("tail", queue, "--from", "0", "--no-follow", "--raw")
    assert (done.exit_code, done.stdout) == (0, "c\n")
    assert "going on with the first message that is left" in done.stderr
