"""What importing Penstock loads: little, and of a client nothing of a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

from penstock.cli.dev.checkout import script_environment

EMPTY: Final = frozenset({"asyncio", "ssl", "socket", "msgspec", "zstandard", "httptools", "email", "multiprocessing"})
"""What is heavy, and needed only by who uses what is imported."""


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    source = f"{statement}\nimport sys\nprint(sorted(sys.modules))"
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, env=script_environment(), capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.replace("'", '"')))


@pytest.mark.parametrize(
    "statement", ["import penstock", "from penstock.client import Client", "from penstock import Client"]
)
def test_an_import_alone_loads_nothing_heavy(statement: str) -> None:
    loaded = loaded_by(statement)
    assert sorted(EMPTY & loaded) == []
    assert not [name for name in loaded if name.startswith(("penstock.node", "penstock.store", "penstock.batch"))]


@pytest.mark.parametrize(
    "statement",
    [
        "import penstock; penstock.Client('http://127.0.0.1:1').close()",
        "from penstock import AsyncClient, Message, Producer, Consumer, StreamReader, Retry",
        "from penstock import Broker, Transaction, Claim, Receipt, Page, QueueStats, Mark, Schedule, Trace, Staged",
        "from penstock.enqueue import enqueue",
    ],
)
def test_a_client_loads_nothing_of_a_broker(statement: str) -> None:
    rooms = ("penstock.node", "penstock.store", "penstock.fronts", "penstock.core", "penstock.embedded")
    assert [name for name in sorted(loaded_by(statement)) if name.startswith(rooms)] == []


def test_results_load_neither_sockets_nor_an_event_loop() -> None:
    loaded = loaded_by("from penstock import Broker, Message, encode, NotFound")
    assert sorted({"asyncio", "ssl", "socket"} & loaded) == []


def test_a_name_is_there_when_it_is_used() -> None:
    loaded = loaded_by("import penstock\nassert 'penstock.node' not in __import__('sys').modules\npenstock.sync.open")
    assert "penstock.node.node" in loaded
