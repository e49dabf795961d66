"""`penstock dead`, `trace`, `schedule`, `stats` and `top`: as tables, as JSON, and live."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.commands import Cli, interrupt
from tests.cli.servers import running, until


@pytest.fixture
def queue(cli: Cli) -> str:
    cli("queue", "create", "mail")
    return "mail"


# Dead letters ---------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_counted_redriven_and_purged(cli: Cli, queue: str) -> None:
    assert "has no group 'default'" in cli.fails("dead", "list", queue)
    cli.kill(queue, "a", "b", error="timeout after 5 s")
    cli.kill(queue, "c", error="bad address")
    lines = cli("dead", "list", queue).splitlines()
    assert lines[0].split() == ["place", "reason", "error", "attempts", "died", "consumer", "payload"]
    assert [(line.split()[0], line.split()[-1]) for line in lines[1:]] == [("0:0", "a"), ("0:1", "b"), ("0:2", "c")]
    assert "timeout after 5 s" in lines[1]
    assert " ago (" in lines[1]

    def chosen(*flags: str) -> list[str]:
        return [one["message"]["payload"] for one in cli.json("dead", "list", queue, *flags)]

    assert chosen("--error", "timeout") == ["a", "b"]
    assert chosen("--reason", "expired") == []
    assert chosen("--offsets", "1:2") == ["b", "c"]
    assert chosen("--offsets", "1") == ["b"]
    assert chosen("--offsets", "1:") == ["b", "c"]
    assert chosen("--offsets", ":0") == ["a"]
    assert chosen("--max", "1") == ["a"]
    assert "there may be more" in cli.invoke("dead", "list", queue, "--max", "1").stderr

    assert [line.split()[0] for line in cli("dead", "reasons", queue).splitlines()] == ["count", "2", "1"]
    reasons = cli.json("dead", "reasons", queue)
    assert [(one["count"], one["error"]) for one in reasons] == [(2, "timeout after 5 s"), (1, "bad address")]

    assert cli.json("dead", "redrive", queue, "--error", "timeout", "--offsets", "0") == {
        "queue": "mail",
        "group": "default",
        "redriven": 1,
    }
    assert cli("consume", queue, "--raw") == "a\n"
    assert "Let the chosen dead letters" in cli.fails("dead", "purge", queue, "--error", "bad")
    assert cli("dead", "purge", queue, "--error", "bad", "--yes") == "1 dead letter purged.\n"
    assert cli("dead", "redrive", queue) == "1 dead letter redriven.\n"
    assert cli.json("dead", "purge", queue, "--yes")["purged"] == 0
    assert cli("dead", "list", queue) == "There are no such dead letters.\n"
    assert cli("dead", "reasons", queue) == "There are no dead letters.\n"


def test_dead_letters_are_chosen_by_a_filter(cli: Cli, queue: str) -> None:
    cli("publish", queue, "eu", "--header", "region=eu")
    cli("publish", queue, "us", "--header", "region=us")
    cli("consume", queue, "--reject")
    condition = ("--filter", "region = 'eu'")
    assert [one["message"]["payload"] for one in cli.json("dead", "list", queue, *condition)] == ["eu"]
    exported = cli("dead", "export", queue, *condition).splitlines()
    assert [json.loads(line)["message"]["payload"] for line in exported] == ["eu"]
    assert cli.json("dead", "redrive", queue, *condition)["redriven"] == 1
    assert cli.fails("dead", "list", queue, "--filter", "region =").startswith("Error: ")
    assert cli.fails("dead", "export", queue, "--filter", "region =").startswith("Error: ")


def test_dead_letters_are_exported_as_lines(cli: Cli, queue: str, tmp_path: Path) -> None:
    cli("publish", queue, "--lines", stdin="".join(f"{number}\n" for number in range(1_200)))
    cli("consume", queue, "--reject", "--error", "no")
    done = cli.invoke("dead", "export", queue)
    assert [json.loads(line)["message"]["payload"] for line in done.stdout.splitlines()] == [
        str(number) for number in range(1_200)
    ]
    assert done.stderr == "1,200 dead letters exported.\n"
    cli("dead", "export", queue, "--file", str(tmp_path / "dead"), "--offsets", "7:8", "--error", "no")
    assert [json.loads(line)["message"]["offset"] for line in (tmp_path / "dead").read_text().splitlines()] == [7, 8]
    assert cli("dead", "export", queue, "--reason", "attempts") == ""
    assert cli("dead", "export", queue, "--error", "yes") == ""
    assert "no queue 'nowhere'" in cli.fails("dead", "export", "nowhere")


@pytest.mark.parametrize("offsets", ["", ":", "a", "1:b", "9:3", "-1:2"])
def test_offsets_that_are_none_are_a_usage_error(cli: Cli, offsets: str) -> None:
    assert "--offsets" in cli.fails("dead", "list", "mail", f"--offsets={offsets}", code=2)


# Traces ---------------------------------------------------------------------------------------------------


def test_a_trace_is_a_timeline(cli: Cli, queue: str) -> None:
    assert cli("trace", "show", "order-1") == "Nothing is known of order-1. Timelines are kept for a week.\n"
    cli("publish", queue, "a", "--trace-id", "order-1")
    assert cli("trace", "add", "order-1", "printed", "--detail", "in colour") == "Noted printed on order-1.\n"
    added = cli.json("trace", "add", "order-1", "sent", "--queue", queue, "--offset", "0", "--consumer", "me")
    assert added == {"trace_id": "order-1", "name": "sent"}
    cli("consume", queue, "--consumer", "worker")

    def kinds() -> list[str]:
        return [one.get("name") or one["kind"] for one in cli.json("trace", "show", "order-1")["entries"]]

    until(lambda: "acked" in kinds(), "the delivery is on the timeline")
    assert kinds() == ["published", "printed", "sent", "claimed", "acked"]
    lines = cli("trace", "show", "order-1").splitlines()
    assert lines[0].startswith("order-1, from ")
    assert lines[1].split() == ["time", "after", "what", "message", "group", "consumer", "attempt", "detail"]
    assert "+0 ms" in lines[2]
    assert "mail 0:0" in lines[2]
    assert "in colour" in lines[3]
    assert "worker" in lines[6]
    assert len(cli.json("trace", "show", "order-1", "--max", "2")["entries"]) == 2
    assert "give both, or neither" in cli.fails("trace", "add", "x", "y", "--offset", "3", code=2)
    assert "no queue 'nowhere'" in cli.fails("trace", "add", "x", "y", "--queue", "nowhere", "--offset", "3")


# Schedules ------------------------------------------------------------------------------------------------


def test_a_schedule_is_created_shown_paused_resumed_and_deleted(cli: Cli, queue: str) -> None:
    assert cli("schedule", "list") == "There are no schedules.\n"
    said = cli(
        "schedule",
        "create",
        "nightly",
        "--queue",
        queue,
        "--cron",
        "0 3 * * *",
        "--timezone",
        "Europe/Berlin",
        "digest",
        "--header",
        "n:=1",
        "--description",
        "the digest",
        "--key",
        "k",
    )
    assert re.match(r"Schedule nightly: fires in \d+ (h|min|s) \(", said)
    shown = cli.json("schedule", "show", "nightly")
    assert shown["message"] == {"payload": "digest", "headers": {"n": 1}, "key": "k"}
    assert (shown["cron"], shown["timezone"], shown["paused"]) == ("0 3 * * *", "Europe/Berlin", False)
    text = cli("schedule", "show", "nightly")
    assert re.search(r"payload +digest", text)
    assert re.search(r'headers +\{"n":1\}', text)
    assert "0 3 * * * (Europe/Berlin)" in cli("schedule", "list")

    assert cli("schedule", "pause", "nightly") == "Schedule nightly is paused.\n"
    paused = cli.json("schedule", "show", "nightly")
    assert paused["paused"] is True
    assert {**shown, "paused": True, "next_ms": None} == paused
    assert cli.json("schedule", "resume", "nightly") == {"schedule": "nightly", "paused": False}
    assert cli.json("schedule", "show", "nightly") == shown
    assert cli.json("schedule", "pause", "nightly")["paused"] is True
    assert "fires in" in cli("schedule", "resume", "nightly")

    assert "pass --yes" in cli.fails("schedule", "delete", "nightly")
    assert cli("schedule", "delete", "nightly", "--yes") == "Schedule nightly deleted.\n"
    assert "no schedule 'nightly'" in cli.fails("schedule", "show", "nightly")


def test_a_schedule_fires_into_its_queue(cli: Cli, queue: str, tmp_path: Path) -> None:
    (tmp_path / "ping").write_bytes(b"ping")
    made = cli.json(
        "schedule", "create", "beat", "--queue", queue, "--every", "100ms", "--file", str(tmp_path / "ping")
    )
    assert made["interval_ms"] == 100
    assert cli("consume", queue, "--wait", "20s", "--max", "1", "--raw") == "ping\n"
    until(lambda: cli.json("schedule", "list")[0]["fired"] > 0, "the schedule says that it fired")
    assert cli.json("schedule", "delete", "beat", "--yes") == {"deleted": "beat"}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--every", "1s"), "say where to"),
        (("--queue", "a", "--exchange", "b", "--every", "1s"), "say where to"),
        (("--queue", "a"), "say when"),
        (("--queue", "a", "--every", "1s", "--cron", "* * * * *"), "say when"),
        (("--queue", "a", "--every", "60"), "no span"),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_a_usage_error(cli: Cli, flags: tuple[str, ...], complaint: str) -> None:
    assert complaint in cli.fails("schedule", "create", "x", "payload", *flags, code=2)


def test_a_bad_cron_expression_is_the_servers_to_refuse(cli: Cli, queue: str) -> None:
    assert "cron" in cli.fails("schedule", "create", "x", "--queue", queue, "--cron", "every day")


# Stats and top --------------------------------------------------------------------------------------------


def test_counts_of_all_queues_and_of_one(cli: Cli) -> None:
    assert cli("stats") == "There are no queues.\n"
    cli("queue", "create", "a.one")
    cli("queue", "create", "b.two")
    cli("publish", "a.one", "--lines", stdin="x\n" * 1_500)
    cli("group", "create", "a.one", "g")
    cli("consume", "a.one", "--max", "1")
    lines = [line.split() for line in cli("stats").splitlines()]
    assert lines[1] == ["a.one", "g", "work", "1,500", "1,500", "1,500", "0", "0", "0", "1,500", "no"]
    assert lines[2] == ["default", "work", "1,499", "0", "0", "0", "1,499", "no"]
    assert lines[3][:5] == ["b.two", "-", "-", "0", "0"]
    assert [one["queue"] for one in cli.json("stats")] == ["a.one", "b.two"]
    assert [one["queue"] for one in cli.json("stats", "--prefix", "b.")] == ["b.two"]
    assert cli.json("stats", "a.one")["published"] == 1_500
    assert "b.two" not in cli("stats", "a.one")
    assert "leave it out" in cli.fails("stats", "a.one", "--prefix", "a", code=2)
    assert "no queue 'nowhere'" in cli.fails("stats", "nowhere")


def test_all_pages_of_the_counts_are_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.commands.stats.PAGE", 2)
    names = [f"q{number}" for number in range(5)]
    for name in names:
        cli("queue", "create", name)
    assert [one["queue"] for one in cli.json("stats")] == names


def test_top_prints_one_frame(cli: Cli) -> None:
    assert cli("top", "--once", "--interval", "100ms") == "There are no queues.\n"
    cli("queue", "create", "quiet")
    cli("queue", "create", "busy")
    cli("publish", "busy", "--lines", stdin="x\n" * 3)
    cli("consume", "busy", "--max", "1")
    lines = [line.split() for line in cli("top", "--once", "--interval", "100ms").splitlines()]
    assert lines == [
        ["queue", "in/s", "out/s", "ready", "leased", "scheduled", "dead", "lag", "groups", "paused"],
        ["busy", "0", "0", "2", "0", "0", "0", "2", "1", "no"],
        ["quiet", "0", "0", "0", "0", "0", "0", "0", "0", "no"],
    ]
    by_name = cli.json("top", "--once", "--interval", "100ms", "--sort", "queue", "--prefix", "q")
    assert [row["queue"] for row in by_name["queues"]] == ["quiet"]
    assert "draws on a terminal" in cli.fails("top", code=2)
    assert "the shortest is 100ms" in cli.fails("top", "--once", "--interval", "1ms", code=2)


def test_rates_are_what_happened_between_two_looks(cli: Cli, queue: str) -> None:
    cli("publish", queue, "before")
    cli("consume", queue)
    with cli.child("top", "--json", "--interval", "100ms") as process:
        assert process.stdout is not None
        frames = [json.loads(process.stdout.readline())]
        cli("publish", queue, "--lines", stdin="x\n" * 500)
        cli("consume", queue, "--max", "200")

        def total(name: str) -> float:
            return float(sum(frame["queues"][0][name] * frame["seconds"] for frame in frames))

        def is_seen() -> bool:
            assert process.stdout is not None
            frames.append(json.loads(process.stdout.readline()))
            return round(total("in_rate")) >= 500 and round(total("out_rate")) >= 200

        until(is_seen, "the frames add up")
        assert (round(total("in_rate")), round(total("out_rate"))) == (500, 200)
        assert frames[-1]["queues"][0]["lag"] == 300
        assert interrupt(process) == (130, "")


def test_top_on_a_terminal_redraws_and_ends_with_q(cli: Cli, queue: str) -> None:
    with cli.on_terminal("top", "--interval", "100ms") as terminal:
        terminal.until("q quits")
        cli("publish", queue, "--lines", stdin="x\n" * 4_321)
        cli("group", "create", queue, "g")
        terminal.until("4,321")
        terminal.type("q")
        assert terminal.end() == 0
    assert b"\x1b[?1049l" in terminal.seen  # the screen as it was before


# Tokens ---------------------------------------------------------------------------------------------------


def test_a_command_without_the_token_says_how_to_give_it(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "http.token=secret") as server:
        cli = Cli(server, "default")
        assert "the server wants a token; give it with --token" in cli.fails("queue", "list")
        assert "the token is not the server's; give it with --token" in cli.fails("queue", "list", "--token", "x")
        cli("queue", "list", "--token", "secret")
