"""`penstock store`: the tools of operators, as commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep, time_ns

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import commands
from tests.cli.commands import Cli
from tests.cli.servers import DEADLINE_SECONDS, penstock, running
from tests.maintenance.rig import copy_files, flip, make, segment_of


def run(*arguments: str | Path, code: int = 0, **variables: str) -> Result:
    done = CliRunner().invoke(commands, [str(one) for one in arguments], env=variables, prog_name="penstock")
    assert done.exit_code == code, (done.output, done.exception)
    return done


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "penstock.db"
    make(str(path))
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return copy_files(made, tmp_path)


def test_verify_tells_people_and_programs(path: Path) -> None:
    assert "All is well." in run("store", "verify", path).stdout
    assert str(path) in run("store", "verify", PENSTOCK_STORE_PATH=str(path)).stdout
    report = json.loads(run("store", "verify", path, "--json").stdout)
    assert (report["ok"], report["findings"]) == (True, [])
    assert report["messages"] > 60


def test_verify_fails_on_damage_and_names_it(path: Path) -> None:
    flip(segment_of(path), 3_000)
    told = run("store", "verify", path, code=1)
    assert "record" in told.stdout
    assert "damaged" in told.stderr
    report = json.loads(run("store", "verify", path, "--json", code=1).stdout)
    assert not report["ok"]
    assert report["findings"][0]["file"] == str(segment_of(path))


def test_verify_of_nothing_is_an_error_and_makes_nothing(tmp_path: Path) -> None:
    assert "there is no store" in run("store", "verify", tmp_path / "none.db", code=1).stderr
    assert list(tmp_path.iterdir()) == []


def test_a_person_sees_a_bar(cli: Cli, path: Path) -> None:
    with cli.on_terminal("store", "verify", str(path)) as terminal:
        shown = terminal.until("All is well.")
    assert "%" in shown


def test_copy_tells_what_it_copied_and_refuses_a_second_time(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "penstock.db"
    told = run("store", "copy", path, target).stdout
    assert "Copied 6 queues" in told
    assert "and compared them" in told
    assert "not empty" in run("store", "copy", path, target, code=1).stderr
    done = json.loads(run("store", "copy", path, tmp_path / "other.db", "--json").stdout)
    assert (done["queues"], done["messages"] > 60) == (6, True)


def test_a_store_that_is_served_is_not_copied(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        told = run("store", "copy", tmp_path / "data" / "penstock.db", tmp_path / "copy.db", code=1)
        assert "stop it first" in told.stderr
        assert server.request("GET", "/v1/queues")[0] == 200
    assert not (tmp_path / "copy.db").exists()


def test_a_store_that_is_served_is_copied_online_and_closed(tmp_path: Path) -> None:
    source, target = tmp_path / "data" / "penstock.db", tmp_path / "copy.db"
    message = {"messages": [{"payload": "hello"}]}
    with running(tmp_path) as server:
        assert server.request("PUT", "/v1/queues/mail", {})[0] < 300
        assert server.request("POST", "/v1/queues/mail/messages", message)[0] < 300
        told = run("store", "copy", source, target, "--online").stdout
        assert f"Now start the servers with {target}." in told
        assert server.request("POST", "/v1/queues/mail/messages", message)[0] == 503
    refused = penstock("serve", "--store", str(source), "--port", "0", folder=tmp_path)
    assert refused.returncode == 1
    assert f"was copied to {target} and closed" in refused.stderr
    with running(tmp_path, "--store", str(target)) as server:
        assert server.request("GET", "/v1/queues/mail/stats")[1]["messages"] == 1
    done = json.loads(run("store", "reopen", source, "--json").stdout)
    assert done["copied_to"] == str(target)
    assert "is not closed" in run("store", "reopen", source, code=1).stderr
    with running(tmp_path) as server:
        assert server.request("POST", "/v1/queues/mail/messages", message)[0] < 300


def test_a_backup_of_a_running_server_is_listed_and_restored(tmp_path: Path) -> None:
    folder, restored = tmp_path / "backups", tmp_path / "restored.db"
    with running(tmp_path) as server:
        assert server.request("PUT", "/v1/queues/mail", {})[0] < 300
        assert server.request("POST", "/v1/queues/mail/messages", {"messages": [{"payload": "hello"}]})[0] < 300
        told = run("store", "backup", tmp_path / "data" / "penstock.db", folder, "--keep", "2").stdout
        assert "verified: all is well" in told
        done = json.loads(run("store", "backup", tmp_path / "data" / "penstock.db", folder, "--json").stdout)
        assert done["ok"]
        assert server.request("GET", "/v1/queues/mail/stats")[1]["messages"] == 1
    names = [one["name"] for one in json.loads(run("store", "backups", folder, "--json").stdout)]
    assert names[-1] == done["name"]
    assert names[0] in run("store", "backups", folder).stdout
    assert "verified: all is well" in run("store", "restore", folder, restored).stdout
    assert "name a new file" in run("store", "restore", folder, restored, code=1).stderr
    assert "All is well." in run("store", "verify", restored).stdout


def test_the_log_of_a_running_server_is_copied_and_any_moment_restored(tmp_path: Path) -> None:
    folder, store = tmp_path / "backups", tmp_path / "data" / "penstock.db"
    message = {"messages": [{"payload": "hello"}]}
    with running(tmp_path) as server:
        assert server.request("PUT", "/v1/queues/mail", {})[0] < 300
        watch = [sys.executable, "-m", "penstock", "store", "backup", str(store), str(folder), "--watch", "--json"]
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            try:
                assert watching.stdout.readline() == "{\n"  # the backup it begins with
                for _ in range(3):
                    assert server.request("POST", "/v1/queues/mail/messages", message)[0] < 300
                answered = time_ns() // 1_000_000
                wait_until(lambda: copied_to(folder) > answered)
            finally:
                watching.terminate()
    done = json.loads(run("store", "restore", folder, tmp_path / "newest.db", "--json").stdout)
    assert (done["ok"], done["left_out"], done["next_ms"]) == (True, 0, None)
    before = datetime.fromtimestamp((done["restored_ms"] - 1) / 1000, UTC).isoformat()
    told = run("store", "restore", folder, tmp_path / "before.db", "--at", before).stdout
    assert "Left out: " in told
    assert "verified: all is well" in told
    assert "knows the store up to" in run("store", "restore", folder, tmp_path / "x.db", "--at", "0s", code=1).stderr
    assert "is no time" in run("store", "restore", folder, tmp_path / "x.db", "--at", "tea", code=2).stderr


def copied_to(folder: Path) -> int:
    place = folder / "log" / "0" / "shipped.json"
    return int(json.loads(place.read_text())["until_ms"]) if place.exists() else 0


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert monotonic() < deadline
        sleep(0.05)


def test_a_damaged_backup_fails(path: Path, tmp_path: Path) -> None:
    flip(segment_of(path), 3_000)
    told = run("store", "backup", path, tmp_path / "backups", code=1)
    assert "damaged" in told.stderr
    assert "record" in told.stdout


def test_repair_tells_what_is_lost(path: Path, tmp_path: Path) -> None:
    for position in range(2_000, 12_000, 500):
        flip(segment_of(path), position)
    told = run("store", "repair", path, tmp_path / "repaired.db")
    assert "could not be read" in told.stdout
    assert "verified: all is well" in told.stdout
    assert "name a new file" in run("store", "repair", path, tmp_path / "repaired.db", code=1).stderr
    done = json.loads(run("store", "repair", path, tmp_path / "again.db", "--json").stdout)
    assert (done["ok"], done["lost"] > 0) == (True, True)
    assert {one["check"] for one in done["findings"]} >= {"log", "offsets"}
