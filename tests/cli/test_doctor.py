"""`penstock doctor`: one page for people, JSON for programs, exit code 1 where something is wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from click.testing import CliRunner, Result

from penstock.cli.main import commands
from tests.cli.servers import running


def run(*arguments: str | Path, code: int = 0) -> Result:
    done = CliRunner().invoke(commands, [str(one) for one in arguments], prog_name="penstock")
    assert done.exit_code == code, (done.output, done.exception)
    return done


FREE = ("--port", "0", "--amqp-port", "0", "--mqtt-port", "0", "--mqtt-websocket-port", "0")


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    told = run("doctor", "--store", tmp_path / "penstock.db", *FREE).stdout
    assert "there is no store" in told
    assert "0 wrong" in told
    assert list(tmp_path.iterdir()) == []


def test_a_running_server_is_well(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        store = ("--store", tmp_path / "data" / "penstock.db")
        ports = ("--port", server.url.rsplit(":", 1)[1], *FREE[2:])
        found = json.loads(run("doctor", *store, *ports, "--json").stdout)
        checks = {(one["about"], one["text"]): one["state"] for one in found["checks"]}
        assert found["ok"]
        assert checks["ready", "the server says: ready"] == "fine"
        assert any("a server uses the store: process" in text for _, text in checks)
        assert any("the server listens" in text for _, text in checks)


def test_a_port_that_another_program_has_is_wrong(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        told = run("doctor", "--store", tmp_path / "penstock.db", *FREE[:2], "--amqp-port", port, *FREE[4:], code=1)
        assert f"amqp.port {port}: another program has it" in told.stdout
        assert "1 wrong" in told.stdout
