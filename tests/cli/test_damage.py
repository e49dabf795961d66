"""Commands on a store with damaged messages: what can be read is printed, the rest is named on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Cli
from tests.cli.servers import running
from tests.damage import FLIP, lane_of

WARNING = "warning: damaged in the store, passed over: lane 0, offsets 1 to 1"


@pytest.mark.parametrize("part", ["body", "meta"])
def test_every_list_goes_on_and_warns(tmp_path: Path, part: str) -> None:
    path = tmp_path / "penstock.db"
    with running(tmp_path, "--store", str(path)) as server:
        cli = Cli(server, "default")
        cli("queue", "create", "mail", "--retain-ms", "1000000000")
        cli("group", "create", "mail", "s", "--stream")
        for text in ("a", "b", "c"):
            cli("publish", "mail", text, "--key", "k")
        server.process.terminate()  # so that the tables are brought up to date
        server.end()
    FLIP[part](path, lane_of(path, "mail"), 1)
    with running(tmp_path, "--store", str(path)) as server:
        cli = Cli(server, "default")
        for command in (["tail", "mail", "--from", "first", "--no-follow"], ["consume", "mail", "--group", "s"]):
            done = cli.invoke(*command, "--raw")
            assert (done.exit_code, done.stdout) == (0, "a\nc\n"), done.output
            assert done.stderr.count(WARNING) == 1
        assert cli("consume", "mail", "--reject", "--raw") == "a\nc\n"
        listed = cli.invoke("dead", "list", "mail")
        assert listed.stdout.count("rejected") == 2
        assert WARNING in listed.stderr
        exported = cli.invoke("dead", "export", "mail", "--reason", "rejected")
        assert len(exported.stdout.splitlines()) == 2
        assert WARNING in exported.stderr
        assert "damaged" in cli("dead", "reasons", "mail")
