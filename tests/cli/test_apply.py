"""`penstock apply` on a running server: the difference, doing it, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cli.servers import Server, penstock, running

FILE = """
[queues.mail]
max_attempts = 7
[queues.mail.groups.sending]
[exchanges.orders]
kind = "topic"
bindings = [{ target = "mail", pattern = "order.*" }]
[schedules.nightly]
queue = "mail"
cron = "0 3 * * *"
message = { payload = "digest" }
[namespaces.staging.queues.mail]
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(shared: Server) -> Server:
    """The server with nothing declared."""
    for namespace in ("default", "staging"):
        for kind in ("schedules", "exchanges", "queues"):
            for one in shared.request("GET", f"/v1/{kind}?namespace={namespace}")[1][kind]:
                if one["name"] and not one["name"].startswith("$"):
                    shared.request("DELETE", f"/v1/{kind}/{one['name']}?namespace={namespace}")
    return shared


def apply(server: Server, folder: Path, text: str, *arguments: str, **variables: str) -> CompletedProcess[str]:
    (folder / "queues.toml").write_text(text)
    return penstock("apply", "queues.toml", *arguments, folder=folder, PENSTOCK_URL=server.url, **variables)


def queues(server: Server, namespace: str = "default") -> dict[str, dict[str, object]]:
    found = server.request("GET", f"/v1/queues?namespace={namespace}")[1]["queues"]
    return {queue["name"]: queue["options"] for queue in found if not queue["name"].startswith("$")}


def test_a_dry_run_shows_the_difference_and_does_nothing(server: Server, tmp_path: Path) -> None:
    done = apply(server, tmp_path, FILE, "--dry-run")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "+ queue mail",
        "+ group mail/sending",
        "+ exchange orders",
        "+ binding orders → mail by 'order.*'",
        "+ schedule nightly",
        "+ staging: queue mail",
        "Would be: 6 created.",
    ]
    assert queues(server) == {}


def test_applied_twice_is_applied_once(server: Server, tmp_path: Path) -> None:
    assert apply(server, tmp_path, FILE).stdout.splitlines()[-1] == "6 created."
    assert queues(server) == {"mail": {"max_attempts": 7}}
    assert queues(server, "staging") == {"mail": {}}
    assert server.request("GET", "/v1/exchanges/orders/bindings")[1]["bindings"] == [
        {"target": "mail", "pattern": "order.*"}
    ]
    assert apply(server, tmp_path, FILE).stdout.splitlines()[-1] == "6 unchanged."


def test_a_change_is_shown_as_old_and_new(server: Server, tmp_path: Path) -> None:
    apply(server, tmp_path, FILE)
    changed = FILE.replace("max_attempts = 7", "max_attempts = 9").replace('payload = "digest"', 'payload = "news"')
    lines = apply(server, tmp_path, changed, "--dry-run").stdout.splitlines()
    assert lines[0] == "~ queue mail: max_attempts 7 → 9"
    assert '~ schedule nightly: message {"payload": "digest"} → {"payload": "news"}' in lines
    assert apply(server, tmp_path, changed).stdout.splitlines()[-1] == "2 changed, 4 unchanged."
    assert queues(server) == {"mail": {"max_attempts": 9}}


def test_programs_get_json(server: Server, tmp_path: Path) -> None:
    apply(server, tmp_path, FILE)
    done = apply(server, tmp_path, FILE.replace("= 7", "= 8"), "--json")
    answer = json.loads(done.stdout)
    assert answer["applied"] is True
    first = answer["steps"][0]
    assert first == {
        "action": "change",
        "kind": "queue",
        "namespace": "default",
        "name": "mail",
        "where": "queues.toml:2",
        "changes": [{"option": "max_attempts", "old": 7, "new": 8}],
    }
    binding = next(step for step in answer["steps"] if step["kind"] == "binding")
    assert (binding["exchange"], binding["binding"]["pattern"]) == ("orders", "order.*")


def test_nothing_is_done_where_something_cannot_be(server: Server, tmp_path: Path) -> None:
    apply(server, tmp_path, FILE)
    done = apply(server, tmp_path, "[queues.new]\n[queues.mail]\nlanes = 4\n")
    assert done.returncode == 1
    assert "! queue mail: lanes 1 → 4" in done.stdout
    assert "nothing was done" in done.stderr
    assert set(queues(server)) == {"mail"}


def test_pruning_needs_a_yes(server: Server, tmp_path: Path) -> None:
    apply(server, tmp_path, FILE)
    smaller = "[queues.other]\n"
    done = apply(server, tmp_path, smaller, "--prune")
    assert done.returncode == 1
    assert "--prune would delete 3 things" in done.stderr
    assert set(queues(server)) == {"mail"}
    assert "- queue mail" in apply(server, tmp_path, smaller, "--prune", "--dry-run").stdout
    assert apply(server, tmp_path, smaller, "--prune", "--yes").stdout.splitlines()[-1] == "1 created, 3 deleted."
    assert set(queues(server)) == {"other"}
    assert set(queues(server, "staging")) == {"mail"}  # the file says nothing about that namespace


def test_the_namespace_can_be_chosen(server: Server, tmp_path: Path) -> None:
    apply(server, tmp_path, "[queues.a]\n", "--namespace", "staging")
    assert set(queues(server, "staging")) == {"a"}
    apply(server, tmp_path, "[queues.b]\n", PENSTOCK_NAMESPACE="staging")
    assert set(queues(server, "staging")) == {"a", "b"}
    assert queues(server) == {}


def test_a_mistake_in_the_file_is_told_with_its_line_before_anything_is_done(server: Server, tmp_path: Path) -> None:
    done = apply(server, tmp_path, "[queues.a]\n[queues.b]\nlanes = -1\n")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: queues.toml:3: lanes is -1")
    assert queues(server) == {}


def test_a_step_that_the_server_refuses_names_its_line(server: Server, tmp_path: Path) -> None:
    done = apply(server, tmp_path, '[exchanges.x]\nbindings = [\n{ target = "nowhere" }]\n')
    assert done.returncode == 1
    assert done.stderr.startswith("Error: queues.toml:3: binding x → nowhere: there is no queue 'nowhere'")
    assert "Traceback" not in done.stderr


def test_a_token_is_brought(tmp_path: Path) -> None:
    with running(tmp_path, PENSTOCK_HTTP_TOKEN="s3cret") as server:
        assert apply(server, tmp_path, "[queues.a]\n").returncode == 1
        assert apply(server, tmp_path, "[queues.a]\n", PENSTOCK_TOKEN="s3cret").returncode == 0
        assert apply(server, tmp_path, "[queues.a]\n", "--token", "wrong").returncode == 1
        assert server.stop() == 0


def test_no_server_is_told_with_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.stop() == 0
        done = apply(server, tmp_path, "[queues.a]\n")
    assert done.returncode == 1
    assert "start one with: penstock serve" in done.stderr
    assert "Traceback" not in done.stderr
