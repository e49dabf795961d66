"""docs/options.md: that it is current, and that every limit it names is the one in force."""

from __future__ import annotations

import pytest

from penstock.model import ExchangeConfig, GroupConfig, QueueConfig, make_config
from penstock.model.errors import InvalidArgument
from tools import make_options

LIMITED = [
    (config, name, limits)
    for config in (QueueConfig, GroupConfig)
    for name in config.__struct_fields__
    if (limits := make_options.limits(name)) is not None
]


def test_the_page_is_what_the_tool_makes() -> None:
    assert make_options.RESULT.read_text() == make_options.render(), "run tools/make_options.py"


@pytest.mark.parametrize(("config", "name", "limits"), LIMITED)
def test_the_limits_are_in_force(
    config: type[QueueConfig] | type[GroupConfig], name: str, limits: tuple[float, float]
) -> None:
    others: dict[str, object] = {"ordered": True} if name == "debounce_ms" else {}
    low, high = limits
    step = 0.0001 if name in ("backoff_factor", "backoff_jitter", "rate") else 1
    for good in (low, high):
        assert getattr(make(config, others | {name: good}), name) == good
    for bad in (low - step, high + step):
        with pytest.raises(InvalidArgument, match=name):
            make(config, others | {name: bad})


def make(config: type[QueueConfig] | type[GroupConfig], options: dict[str, object]) -> QueueConfig | GroupConfig:
    return make_config(QueueConfig, options) if config is QueueConfig else make_config(GroupConfig, options)


def test_every_option_is_on_the_page() -> None:
    text = make_options.render()
    for config in (QueueConfig, GroupConfig, ExchangeConfig):
        for name in config.__struct_fields__:
            assert f"| `{name}` |" in text
