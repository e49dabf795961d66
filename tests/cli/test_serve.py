"""`penstock serve` as people and process managers meet it: real processes, real signals, real mistakes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from tests.cli.servers import DEADLINE_SECONDS, Server, penstock, running, until
from tests.curl import CURL


def test_it_serves_stops_cleanly_and_keeps_the_data(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.port != 0
        assert server.request("PUT", "/v1/queues/a", {})[0] == 201
        assert server.request("POST", "/v1/queues/a/messages", {"messages": [{"payload": "x"}]})[0] == 200
        assert server.stop() == 0
    assert (tmp_path / "data" / "penstock.db").is_file()
    with running(tmp_path) as server:
        status, answer = server.request("POST", "/v1/queues/a/claim", {})
        assert (status, answer["messages"][0]["payload"]) == (200, "x")
        lease = answer["lease"]
        server.signal(signal.SIGINT)
        assert server.end() == 0
    with running(tmp_path) as server:  # leases are kept
        assert server.request("POST", f"/v1/leases/{lease}/settle", {"verdicts": [{"action": "ack"}]})[0] == 204


def test_the_lines_to_try_work_when_pasted(tmp_path: Path) -> None:
    for token in ("", "s3cret"):
        with running(tmp_path, PENSTOCK_HTTP_TOKEN=token) as server:
            lines = [line.strip() for line in server.output if line.startswith("  curl")]
            assert len(lines) == 3
            environment = {"PENSTOCK_TOKEN": token, "PATH": "/usr/bin:/bin"}
            answers = [
                subprocess.run(
                    ["sh", "-c", f"{CURL}{line} -sS -f"], env=environment, capture_output=True, text=True, check=True
                )
                for line in lines
            ]
            assert json.loads(answers[2].stdout)["messages"][0]["payload"] == "hello, world"
            assert token == "" or token not in "".join(server.output)
            assert server.stop() == 0


def test_a_long_poll_is_answered_empty_at_once_when_the_server_stops(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.request("PUT", "/v1/queues/a", {})
        answers: list[tuple[int, object]] = []

        def poll() -> None:
            answers.append(server.request("POST", "/v1/queues/a/claim", {"wait": 60}))

        thread = threading.Thread(target=poll)
        thread.start()
        until(lambda: any(group["group"] == "default" for group in groups(server)), "the claim has made its group")
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10
        thread.join(DEADLINE_SECONDS)
    [(status, answer)] = answers
    assert status == 200
    assert isinstance(answer, dict)
    assert answer["messages"] == []


def groups(server: Server) -> list[dict[str, str]]:
    found: list[dict[str, str]] = server.request("GET", "/v1/queues/a/stats")[1]["groups"]
    return found


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "http.stop_seconds=600") as server:
        server.request("PUT", "/v1/queues/a", {})
        status, _ = server.request("POST", "/v1/queues/a/messages", {"messages": [{"payload": "x" * 16_000_000}]})
        assert status == 200
        # A client that asks for much and reads nothing: its answer is under way and holds the stop up.
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(b"GET /v1/queues/a/messages/0/0 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert slow.recv(8) == b"HTTP/1.1"
            server.signal(signal.SIGTERM)
            until(lambda: any("stopping" in line for line in server.errors), "it says that it stops")
            server.signal(signal.SIGTERM)
            assert server.end() == -signal.SIGTERM


def test_the_file_of_a_killed_server_is_free(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.process.kill()
        server.end()
    with running(tmp_path) as server:
        assert server.request("GET", "/healthz")[0] == 200
        assert server.stop() == 0


# What it cannot do -----------------------------------------------------------------------------------------


def refused(folder: Path, *arguments: str, **variables: str) -> str:
    """What a server that does not start says: all of it on standard error, and no traceback."""
    done = penstock("serve", "--port", "0", *arguments, folder=folder, **variables)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
    return done.stderr.removeprefix("Error: ").strip()


def test_a_second_server_on_the_same_file_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        error = refused(tmp_path)
        assert error.startswith(f"another penstock, process {server.process.pid}, is serving data/penstock.db; stop it")
        assert server.request("PUT", "/v1/queues/a", {})[0] == 201  # the first is not fenced
        assert server.stop() == 0


def test_a_second_server_is_refused_although_the_lock_file_was_deleted(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        (tmp_path / "data/penstock.db.lock").unlink()
        assert refused(tmp_path).startswith("another penstock is serving data/penstock.db; stop it")
        assert server.request("PUT", "/v1/queues/a", {})[0] == 201
        assert server.stop() == 0


def test_what_is_stored_is_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with running(tmp_path) as server:
            assert server.request("PUT", "/v1/queues/a", {})[0] == 201
            for path in (tmp_path / "data", *(tmp_path / "data").rglob("*")):
                assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
            assert server.stop() == 0
    finally:
        os.umask(before)


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refused(tmp_path, "--port", str(port))
    assert error.startswith(f"cannot listen on 127.0.0.1:{port}: it is in use")
    assert "\n" not in error


def test_a_port_for_mqtt_in_use_is_told_with_the_way_out(tmp_path: Path) -> None:
    for flag, other in (("--mqtt-port", "--mqtt-websocket-port"), ("--mqtt-websocket-port", "--mqtt-port")):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            error = refused(tmp_path, "--no-amqp", flag, str(port), other, "0")
        assert error.startswith(f"cannot listen on 127.0.0.1:{port}: it is in use, perhaps by another penstock")
        assert f"choose another {flag}, or --no-mqtt to do without MQTT" in error


def test_mqtt_is_listened_for_where_the_server_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        found = re.search(r"MQTT is at mqtt://127.0.0.1:(\d+) and ws://127.0.0.1:(\d+)/mqtt", "".join(server.output))
        assert found is not None
        for port in map(int, found.groups()):
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
            assert b"penstock_mqtt_connections " in answer.read()
        assert server.stop() == 0
    with running(tmp_path, "--no-mqtt") as server:
        assert "MQTT" not in "".join(server.output)
        assert server.stop() == 0


def test_an_address_of_another_machine_is_told(tmp_path: Path) -> None:
    error = refused(tmp_path, "--host", "192.0.2.1", "--insecure")
    assert "this machine has no such address" in error


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    error = refused(tmp_path, "--store", "plain/penstock.db")
    assert error.startswith("plain")
    assert "choose a place that can be written with --store" in error
    assert "\n" not in error


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert refused(tmp_path, "--store", "folder").startswith("folder is a folder; --store (store.path) names a file")


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader, " * 500)
    error = refused(tmp_path, "--store", "letter.txt")
    assert "letter.txt" in error
    assert "choose another file with --store" in error
    assert "\n" not in error
    assert (tmp_path / "letter.txt").read_text() == "Dear reader, " * 500


def test_someone_elses_database_is_left_as_it_is(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE things (a)")
    connection.close()
    before = (tmp_path / "other.db").read_bytes()
    assert "other.db" in refused(tmp_path, "--store", "other.db")
    assert (tmp_path / "other.db").read_bytes() == before


def test_a_bad_configuration_names_its_lines_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[http]\nprot = 1\n\n[queues.a]\nlanes = 0\n")
    error = refused(tmp_path, PENSTOCK_HTPP_PORT="1")
    assert "penstock.toml:2: unknown option http.prot; did you mean port?" in error
    assert "penstock.toml:5: lanes is 0" in error
    assert "unknown variable PENSTOCK_HTPP_PORT" in error
    assert not (tmp_path / "data").exists()


def test_an_address_that_others_can_reach_needs_a_token(tmp_path: Path) -> None:
    assert refused(tmp_path, "--host", "0.0.0.0").startswith("--host: http.host is '0.0.0.0', where others can reach")


# Configuration ---------------------------------------------------------------------------------------------


def test_what_the_file_declares_is_there_and_the_second_start_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[store]\npath = "here/x.db"\n[queues.mail]\nmax_attempts = 7\n[queues.mail.groups.sending]\n'
        '[exchanges.orders]\nkind = "topic"\nbindings = [{ target = "mail", pattern = "#" }]\n'
    )
    for counts in ("4 created", "4 unchanged"):
        with running(tmp_path) as server:
            assert server.output[1] == f"Configured by penstock.toml; declared from it: {counts}\n"
            assert server.request("GET", "/v1/queues/mail")[1]["options"] == {"max_attempts": 7}
            assert server.stop() == 0
    assert (tmp_path / "here" / "x.db").is_file()
    file.write_text('[store]\npath = "here/x.db"\n\n[queues.mail]\nlanes = 3\n')
    assert refused(tmp_path).startswith("penstock.toml:4: queue mail exists and cannot change so: lanes 1 → 3")
    file.write_text('[store]\npath = "here/x.db"\n[exchanges.orders]\nbindings = [\n{ target = "nowhere" }]\n')
    assert refused(tmp_path).startswith("penstock.toml:5: binding orders → nowhere: there is no queue 'nowhere'")


def test_limits_are_in_force(tmp_path: Path) -> None:
    limits = ("--set", "limits.queues=2", "--set", "limits.schedules=0", "--set", "http.max_body_bytes=2048")
    with running(tmp_path, *limits) as server:
        assert server.request("PUT", "/v1/queues/a", {})[0] == 201  # $events is the first
        status, answer = server.request("PUT", "/v1/queues/b", {})
        assert (status, answer["error"]["code"]) == (403, "limit_reached")
        schedule = {"queue": "a", "interval_ms": 1000, "message": {"payload": ""}}
        assert server.request("PUT", "/v1/schedules/s", schedule)[0] == 403
        assert server.request("POST", "/v1/queues/a/messages", {"messages": [{"payload": "x" * 3000}]})[0] == 413
        assert server.stop() == 0


def test_logs_are_json_lines_where_that_is_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, "--log-format", "json") as server:
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.errors]
    assert [line["message"] for line in lines if line["logger"] == "penstock.serve"][-1] == "stopped"


def test_requests_are_logged_and_metrics_are_off_where_that_is_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "log.requests=true", "--set", "metrics.enabled=false") as server:
        status, _ = server.request("GET", "/v1/queues", **{"X-Request-Id": "asked-1"})
        assert status == 200
        assert server.request("GET", "/metrics")[0] == 404
        assert server.stop() == 0
        assert any("asked-1" in line for line in server.errors)


def test_the_token_is_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, "--host", "0.0.0.0", PENSTOCK_HTTP_TOKEN="s3cret") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.request("GET", "/v1/queues")[0] == 401
        assert server.request("GET", "/v1/queues", Authorization="Bearer s3cret")[0] == 200
        assert server.stop() == 0


# penstock config -------------------------------------------------------------------------------------------


def test_config_says_what_is_in_force_and_from_where(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[http]\ntoken = 'hush'\n[queues.a]\n")
    arguments = ("config", "--port", "8000", "--set", "log.requests=true")
    done = penstock(*arguments, "--json", folder=tmp_path, PENSTOCK_NODE_EVENTS="0")
    answer = json.loads(done.stdout)
    found = {one.pop("option"): one for one in answer["options"]}
    assert found["http.port"] == {"value": 8000, "source": "flag", "where": "--port"}
    assert found["log.requests"] == {"value": True, "source": "flag", "where": "--set log.requests"}
    assert found["node.events"] == {"value": False, "source": "environment", "where": "PENSTOCK_NODE_EVENTS"}
    assert found["http.token"] == {"value": "••••", "source": "file", "where": "penstock.toml:2"}
    assert found["http.host"] == {"value": "127.0.0.1", "source": "default", "where": ""}
    assert answer["declares"] == {"queues": 1}
    table = penstock(*arguments, folder=tmp_path).stdout
    assert "hush" not in table
    assert [line.split() for line in table.splitlines() if line.startswith("http.port")] == [
        ["http.port", "8000", "--port"]
    ]


def test_config_check_and_example(tmp_path: Path) -> None:
    example = penstock("config", "--example", folder=tmp_path)
    (tmp_path / "penstock.toml").write_text(example.stdout)
    done = penstock("config", "--check", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "The configuration is fine (penstock.toml).\n")
    (tmp_path / "penstock.toml").write_text("[http]\nport = 'x'\n")
    done = penstock("config", "--check", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "penstock.toml:2: http.port is 'x'" in done.stderr


def test_a_flag_that_is_no_assignment_is_refused(tmp_path: Path) -> None:
    done = penstock("config", "--set", "port", folder=tmp_path)
    assert done.returncode == 2
    assert "must be SECTION.OPTION=VALUE" in done.stderr


def test_as_many_files_as_connections_may_be_open(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = min(3_000, hard - 500) if hard != resource.RLIM_INFINITY else 3_000
    with running(tmp_path, "--set", f"http.max_connections={connections}", limits=(256, hard)) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert int(line.split()[3]) >= connections


def test_too_few_open_files_are_a_warning(tmp_path: Path) -> None:
    with running(tmp_path, limits=(256, 256)) as server:
        assert server.request("GET", "/healthz")[0] == 200
        until(lambda: any("allows 256 open files" in line for line in server.errors), "it warns")
