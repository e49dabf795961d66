"""Options as typed keyword arguments: the same as the configuration's fields, and checked before a program runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final, get_type_hints

import pytest

from penstock.api.options import ExchangeOptions, GroupOptions, QueueOptions
from penstock.model import ExchangeConfig, GroupConfig, QueueConfig
from tools import make_typed_options
from tools.source import ROOT

PAIRS: Final = [(QueueOptions, QueueConfig), (GroupOptions, GroupConfig), (ExchangeOptions, ExchangeConfig)]


def test_the_file_is_what_the_tool_makes() -> None:
    made = make_typed_options.RESULT.read_text()
    assert made == make_typed_options.render(), "run python -m tools.make_typed_options"


@pytest.mark.parametrize(("options", "config"), PAIRS)
def test_options_are_the_fields_of_the_configuration(options: type, config: type) -> None:
    assert get_type_hints(options) == get_type_hints(config)


WRONG: Final = """
import penstock

async def main(broker: penstock.Broker, client: penstock.AsyncClient, plain: penstock.Client) -> None:
    await broker.declare_queue("q", lanez=2)  # wrong
    await broker.declare_queue("q", lease_ms="30")  # wrong
    await client.declare_group("q", "g", kind="works")  # wrong
    await client.declare_exchange("x", kid="topic")  # wrong
    plain.declare_queue("q", overflow="drop")  # wrong
    await broker.queue("q").declare(orderd=True)  # wrong
    await broker.publsh("q", penstock.Message(b""))  # wrong
    sorted(broker.queues())  # wrong
    await broker.declare_queue("q", ordered=True, lease_ms=1, overflow="reject")
    await client.declare_group("q", "g", kind="work", start="now")
    plain.declare_exchange("x", kind="topic")
    sorted(await client.queues())
"""


def test_mypy_finds_a_misspelt_option_and_a_wrong_type(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    found = {int(number) for number in re.findall(r"program\.py:(\d+): error", done.stdout)}
    expected = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
    assert found == expected, done.stdout
