"""docs/errors.md: that it is current, and that it has every error that a caller can see."""

from __future__ import annotations

from penstock.model.errors import CLASSES
from tools import make_errors


def test_the_page_is_what_the_tool_makes() -> None:
    assert make_errors.RESULT.read_text() == make_errors.render(), "run tools/make_errors.py"


def test_every_error_is_in_both_tables() -> None:
    text = make_errors.render()
    for code, kind in CLASSES.items():
        assert f"| `{code}` | `{kind.__name__}` | {kind.__doc__} |" in text
        assert f"\n| `{code}` | {kind.row.http} | {kind.row.amqp091} " in text
