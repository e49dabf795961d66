"""The configuration as text: what is in force as data for a table or JSON, and a commented example file."""

from __future__ import annotations

import json
from textwrap import wrap
from typing import Any, Final

import msgspec

from penstock.config.load import Loaded
from penstock.config.options import OPTIONS, SECTIONS, Option, number_words, type_words

WIDTH: Final = 100

EXAMPLE_HEAD: Final = """\
# Penstock's configuration, with every option at its default: take a # away to change one.
# Stronger than this file are environment variables (PENSTOCK_HTTP_PORT=8000) and flags (--port 8000).
"""

EXAMPLE_DECLARATIONS: Final = """\
# What should exist. `penstock serve` declares it when it starts, `penstock apply FILE` on a running server.
# Options that are not named keep the value they have; nothing is deleted.

# [queues.mail]
# max_attempts = 5
# ordered = true

# [queues.mail.groups.sending]
# rate = 10.0

# [exchanges.orders]
# kind = "topic"
# bindings = [{ target = "mail", pattern = "order.*.paid" }]

# [schedules.nightly]
# queue = "mail"
# cron = "0 3 * * *"
# timezone = "Europe/Berlin"
# message = { payload = "send the digest" }

# [namespaces.staging.queues.mail]
# max_attempts = 1
"""


class Shown(msgspec.Struct, frozen=True):
    """One option as it is in force; a secret's value is hidden."""

    option: str
    value: Any
    source: str
    where: str


def in_force(loaded: Loaded) -> list[Shown]:
    return [
        Shown(option.title, option.shown(getattr(loaded.config.section(section), name)), *loaded.sources[section, name])
        for (section, name), option in OPTIONS.items()
    ]


def toml_value(value: Any) -> str:
    """A default as TOML writes it. Escapes of JSON strings are escapes of TOML strings."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return number_words(value)
    return json.dumps(value, ensure_ascii=False)


def example() -> str:
    """A TOML file with every option at its default, as comments."""
    parts = [EXAMPLE_HEAD]
    for section, kind in SECTIONS.items():
        parts.append(f"\n[{section}]\n# {kind.__doc__}\n")
        parts += [_example_option(option) for (owner, _), option in OPTIONS.items() if owner == section]
    return "".join([*parts, "\n", EXAMPLE_DECLARATIONS])


def _example_option(option: Option) -> str:
    choices = f" ({type_words(option)})" if option.choices else ""
    lines = "".join(f"# {line}\n" for line in wrap(option.words + choices, WIDTH))
    return f"\n{lines}# {option.name} = {toml_value(option.default)}\n"
