"""What all commands have in common: completion, errors, colours, and names and payloads of somebody hostile."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.connection import error_text
from penstock.cli.main import commands
from penstock.model.errors import NotFound
from tests.cli.commands import Cli
from tests.cli.servers import DEADLINE_SECONDS, running


@pytest.fixture
def queue(cli: Cli) -> str:
    cli("queue", "create", "mail")
    return "mail"


# Completion -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(cli: Cli, shell: str) -> None:
    script = cli("completion", shell)
    assert "_PENSTOCK_COMPLETE" in script
    program = shutil.which(shell)
    if program is not None:
        assert subprocess.run([program, "-n"], input=script, text=True, check=False).returncode == 0
    assert "csh" in cli.fails("completion", "csh", code=2)


def complete(cli: Cli, *words: str, **variables: str) -> list[str]:
    """What bash would offer for the last word."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock"],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_SECONDS,
        env=cli.environment()
        | variables
        | {
            "_PENSTOCK_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["penstock", *words]),
            "COMP_CWORD": str(len(words)),
        },
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_options_and_names_are_completed(cli: Cli) -> None:
    for name in ("mail", "market", "orders"):
        cli("queue", "create", name)
    cli("group", "create", "mail", "sending")
    cli("exchange", "create", "mailbox", "--kind", "fanout")
    cli("schedule", "create", "nightly", "--queue", "mail", "--every", "1h")
    assert complete(cli, "exch") == ["exchange"]
    assert complete(cli, "queue", "cr") == ["create"]
    assert complete(cli, "consume", "--no-a") == ["--no-ack"]
    assert complete(cli, "consume", "ma") == ["mail", "market"]
    assert complete(cli, "group", "show", "mail", "s") == ["sending"]
    assert complete(cli, "consume", "mail", "--group", "s") == ["sending"]
    assert complete(cli, "exchange", "show", "mail") == ["mailbox"]
    assert complete(cli, "schedule", "pause", "n") == ["nightly"]


def test_completion_without_a_server_offers_nothing_and_says_nothing(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert complete(cli, "consume", "ma", PENSTOCK_URL=url) == []
    assert complete(cli, "consume", "ma", PENSTOCK_URL=url) == []
    assert complete(cli, "consume", "ma", PENSTOCK_URL="nonsense://") == []


# Errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("queue", "list"), ("queue", "delete", "a", "--yes"), ("publish", "a", "b"), ("publish", "a", "--lines"),
        ("consume", "a"), ("consume", "a", "--follow"), ("tail", "a"), ("dead", "export", "a"), ("stats",),
        ("top", "--once"), ("schedule", "list"), ("trace", "show", "a"), ("exchange", "list"), ("group", "list", "a"),
    ],
)  # fmt: skip
def test_no_server_is_told_at_once_with_its_address_and_what_to_do(arguments: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    began = time.monotonic()
    done = CliRunner().invoke(commands, [*arguments, "--url", url])
    assert done.exit_code == 1
    assert f"there is no server at {url}" in done.stderr
    assert "start one with: penstock serve" in done.stderr
    assert time.monotonic() - began < 10


def test_a_url_that_is_none_is_told(cli: Cli) -> None:
    assert "it must be like http://" in cli.fails("queue", "list", "--url", "ftp://x")
    assert "it must be like http://" in cli.fails("dead", "export", "a", "--url", "ftp://x")


def test_the_token_is_sent_by_every_kind_of_command(tmp_path: Path) -> None:
    with running(tmp_path, PENSTOCK_HTTP_TOKEN="s3cret") as server:
        cli = Cli(server, "default")
        for arguments in (("queue", "create", "a"), ("dead", "export", "a"), ("tail", "a", "--no-follow")):
            assert "token" in cli.fails(*arguments).lower()
        cli.variables["PENSTOCK_TOKEN"] = "s3cret"
        cli("queue", "create", "a")
        cli("publish", "a", "b")
        assert cli("consume", "a", "--reject", "--raw") == "b\n"
        assert len(cli("dead", "export", "a").splitlines()) == 1
        assert server.stop() == 0


# Terminals ------------------------------------------------------------------------------------------------

HOSTILE = "ev\u009b31m\u202eil"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202e\x7f\r"
HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_no_control_character_of_somebody_else_is_printed(cli: Cli, flags: tuple[str, ...]) -> None:
    queue = "/v1/queues/ev%C2%9B31m%E2%80%AEil"
    cli.request("PUT", queue, {"description": ESCAPES, "keep_done_ms": 3_600_000})
    message = {"payload": ESCAPES, "key": ESCAPES, "partition": ESCAPES, "headers": {ESCAPES: ESCAPES}, "trace_id": "t"}
    cli.request("POST", f"{queue}/messages", {"messages": [message]})
    cli.request("PUT", f"{queue}/groups/{HOSTILE_GROUP}", {})
    cli.request("PUT", "/v1/exchanges/ev%C2%9Bil", {"kind": "fanout", "description": ESCAPES})
    cli.request(
        "PUT",
        "/v1/schedules/ev%C2%9Bil",
        {"queue": HOSTILE, "interval_ms": 3_600_000, "message": message, "description": ESCAPES},
    )
    cli.request("POST", "/v1/traces/t/events", {"name": "n", "detail": ESCAPES, "consumer": "\u009bme"})
    claim = cli.request("POST", f"{queue}/claim", {"max": 1, "consumer": "\u009bme"})
    verdict = {"action": "reject", "error": ESCAPES}
    cli.request("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": [verdict]})
    exports = [] if flags else [("dead", "export", HOSTILE)]
    for arguments in [
        ("queue", "list"),
        ("queue", "show", HOSTILE),
        ("queue", "pause", HOSTILE),
        ("queue", "resume", HOSTILE),
        ("group", "list", HOSTILE),
        ("group", "create", HOSTILE, "\u009bg"),
        ("exchange", "list"),
        ("exchange", "show", "ev\u009bil"),
        ("schedule", "list"),
        ("schedule", "show", "ev\u009bil"),
        ("trace", "show", "t"),
        ("dead", "list", HOSTILE),
        ("dead", "reasons", HOSTILE),
        *exports,
        ("tail", HOSTILE, "--from", "first", "--no-follow"),
        ("dead", "redrive", HOSTILE),
        ("consume", HOSTILE, "--no-ack"),
        ("stats",),
        ("stats", HOSTILE),
        ("top", "--once", "--interval", "100ms"),
    ]:
        done = cli.invoke(*arguments, *flags)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        assert done.stdout
        assert not HARMFUL.search(done.output), arguments
        assert not flags or is_json(done.stdout)
    assert not HARMFUL.search(cli.fails("queue", "show", "no\u009bsuch"))
    assert not HARMFUL.search(cli.fails("consume", HOSTILE, "--group", "no\u009bsuch"))


HOSTILE_GROUP = "gr%C2%9Boup"


def test_an_error_is_printed_without_control_characters() -> None:
    assert error_text(NotFound("a\x1b[31m\u009b\u202e\nb"), None) == "a\\e[31m\\x9b\\u202e\nb"


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return all(isinstance(json.loads(line), dict) for line in text.splitlines())
    return True


def test_the_same_in_json_is_what_was_published(cli: Cli, queue: str) -> None:
    cli.request("POST", "/v1/queues/mail/messages", {"messages": [{"payload": ESCAPES, "headers": {ESCAPES: 1}}]})
    [message] = cli.lines("consume", queue)
    assert (message["payload"], message["headers"]) == (ESCAPES, {ESCAPES: 1})


def test_colours_are_for_terminals_alone(cli: Cli, queue: str) -> None:
    cli("publish", queue, "hello")

    def on_terminal(*arguments: str) -> bytes:
        with cli.on_terminal(*arguments) as terminal:
            assert terminal.end() == 0
        return terminal.seen

    for arguments in (("stats",), ("tail", queue, "--from", "first", "--no-follow"), ("queue", "list")):
        assert b"\x1b[" in on_terminal(*arguments)
        assert "\x1b" not in cli(*arguments)


def test_a_table_in_a_pipe_is_not_cut(cli: Cli) -> None:
    name = "q" * 250
    cli("queue", "create", name, "--description", "d" * 1_000)
    line = cli("queue", "list").splitlines()[1]
    assert line == f"{name}  description={'d' * 1_000}"
