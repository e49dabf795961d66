"""docs/configuration.md: that it is current, and that every limit it names is the one in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import load
from penstock.config.options import OPTIONS, BadValue, Option, checked
from tools import make_configuration

LIMITED = [option for option in OPTIONS.values() if option.low is not None]


def test_the_page_is_what_the_tool_makes() -> None:
    assert make_configuration.RESULT.read_text() == make_configuration.render(), "run tools/make_configuration.py"


@pytest.mark.parametrize("option", LIMITED, ids=lambda option: option.title)
def test_the_limits_are_in_force(option: Option) -> None:
    assert option.low is not None
    assert option.high is not None
    low, high = option.kind(option.low), option.kind(option.high)
    step = 0.001 if option.kind is float else 1
    for good in (low, high, option.default):
        assert checked(option, good) == good
    for bad in (low - step, high + step):
        with pytest.raises(BadValue, match="it must be"):
            checked(option, bad)


def test_every_option_is_on_the_page() -> None:
    text = make_configuration.render()
    for option in OPTIONS.values():
        assert f"| `{option.name}` |" in text
        assert option.words in text


def test_the_declarations_of_the_page_are_good(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(make_configuration.declarations())
    assert load(tmp_path / "x.toml", {}).declarations["default"].exchanges["orders"].bindings
