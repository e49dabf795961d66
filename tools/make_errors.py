"""Writes docs/errors.md: every error with its answer in each protocol, from the catalogue.

    .venv/bin/python tools/make_errors.py

Rows come from `CATALOGUE` in src/penstock/model/errors.py, words from the docstrings of the classes. A test compares
the page with what this makes.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Final

from penstock.model.errors import CATALOGUE, CLASSES, PenstockError, Row
from penstock.wire.amqp091 import codes
from penstock.wire.mqtt.reasons import Reason

ROOT: Final = Path(__file__).resolve().parents[1]
RESULT: Final = ROOT / "docs" / "errors.md"

INTRODUCTION: Final = """# Errors

Made by `tools/make_errors.py` from `src/penstock/model/errors.py`; do not edit.

Every error has a code that stays the same across releases, and one row here. Python raises the class; HTTP answers the
status with the code in its body; AMQP 0.9.1 closes the channel, or the connection where the table says so, with the
reply code; MQTT 5 sends the reason. The columns for AMQP 1.0 and SQS are what those fronts will answer.

**Retry** says whether the same request may succeed later though nobody changes anything; the clients try those again by
themselves. *In doubt* means that the operation may have been carried out all the same: clients repeat it only where
that is safe, as a publish with a dedup id is.
"""

MEANING: Final = "\n## What they mean\n\n| code | class | what it means, and what to do |\n| --- | --- | --- |\n"
ANSWERS: Final = """
## How they are answered

| code | HTTP | AMQP 0.9.1 | MQTT 5 | AMQP 1.0 | SQS | retry |
| --- | --- | --- | --- | --- | --- | --- |
"""


def render() -> str:
    """The page."""
    seen = [row for row in CATALOGUE if row.code in CLASSES]
    meanings = [f"| `{row.code}` | `{CLASSES[row.code].__name__}` | {words(CLASSES[row.code])} |\n" for row in seen]
    return "".join([INTRODUCTION, MEANING, *meanings, ANSWERS, *(answers(row) for row in seen)])


def words(kind: type[PenstockError]) -> str:
    return inspect.getdoc(kind) or ""


def answers(row: Row) -> str:
    reply = f"{row.amqp091} {codes.NAMES[row.amqp091]}" + (" (connection)" if row.closes == "connection" else "")
    reason = f"0x{row.mqtt:02X} {Reason(row.mqtt).name}"
    retry = ", ".join(["yes"] * row.retryable + ["in doubt"] * row.may_be_done)
    return f"| `{row.code}` | {row.http} | {reply} | {reason} | `{row.amqp10}` | `{row.sqs}` | {retry} |\n"


if __name__ == "__main__":
    RESULT.write_text(render())
