"""Writes docs/options.md: every option of queues, groups and exchanges, from the classes that define them.

    .venv/bin/python tools/make_options.py

Types, defaults and words come from src/penstock/model/options.py. A test compares the page with what this makes, and
tries every limit that it names.
"""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from penstock.model import ExchangeConfig, GroupConfig, QueueConfig, options
from penstock.model.limits import ATTEMPTS_MAX, INTEGER_MAX, LANES_MAX, PAYLOAD_BYTES_MAX, SPAN_MS_MAX, TIME_MS_MAX
from penstock.model.options import FIXED_GROUP_OPTIONS, FIXED_QUEUE_OPTIONS

ROOT: Final = Path(__file__).resolve().parents[1]
RESULT: Final = ROOT / "docs" / "options.md"

Config = type[QueueConfig] | type[GroupConfig] | type[ExchangeConfig]

INTRODUCTION: Final = """# Options

Made by `tools/make_options.py` from `src/penstock/model/options.py`; do not edit.

Options are passed by name: `await broker.declare_queue("mail", max_attempts=3)`. Declaring again changes the options
that are named and leaves the others. Those marked *fixed* cannot change after the first declaration. Names that end in
`_ms` are spans in milliseconds, ten years at the most.
"""

SECTIONS: Final[list[tuple[Config, str, tuple[str, ...]]]] = [
    (QueueConfig, "Queues: `declare_queue`", FIXED_QUEUE_OPTIONS),
    (GroupConfig, "Groups: `declare_group`", FIXED_GROUP_OPTIONS),
    (ExchangeConfig, "Exchanges: `declare_exchange`", ExchangeConfig.__struct_fields__),
]

NUMBERS: Final[dict[str, tuple[float, float]]] = {
    "lanes": (1, LANES_MAX),
    "max_attempts": (0, ATTEMPTS_MAX),
    "max_message_bytes": (0, PAYLOAD_BYTES_MAX),
    "backoff_factor": (1.0, 1000.0),
    "backoff_jitter": (0.0, 1.0),
    "rate": (0.001, 1e9),
    "start": (0, TIME_MS_MAX),
}
FROM_ONE: Final = ("lease_ms", "max_in_flight", "unused_ms")


def render() -> str:
    parts = [INTRODUCTION]
    for config, title, fixed in SECTIONS:
        parts.append(f"\n## {title}\n\n")
        if config is GroupConfig:
            parts.append("Where the default is *queue's*, a group that says nothing has its queue's value.\n\n")
        parts.append("| option | type | default | limits | what it does |\n| --- | --- | --- | --- | --- |\n")
        parts += [row(config, field, name_of_fixed=fixed) for field in msgspec.structs.fields(config)]
    return "".join(parts)


def row(config: Config, field: msgspec.structs.FieldInfo, name_of_fixed: tuple[str, ...]) -> str:
    words = docstrings(config).get(field.name) or inherited_words(field.name)
    fixed = " *Fixed.*" if field.name in name_of_fixed else ""
    cells = (f"`{field.name}`", type_text(field.type), default_text(config, field), limits_text(field), words + fixed)
    return f"| {' | '.join(cells)} |\n"


def docstrings(config: Config) -> dict[str, str]:
    """The string under each field in the class's source, by name."""
    module = ast.parse(Path(options.__file__).read_text())
    body = next(node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == config.__name__)
    found: dict[str, str] = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(ast.Constant(str(text))):
                    found[field.target.id] = " ".join(text.split())
    return found


def inherited_words(name: str) -> str:
    words = docstrings(QueueConfig).get(name)
    if words is None:
        raise SystemExit(f"the option {name} has no docstring in options.py")
    return words


def type_text(annotation: Any) -> str:
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", type(None): ""}
    if annotation in names:
        return names[annotation]
    if getattr(annotation, "__origin__", None) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    parts = [type_text(part) for part in get_args(annotation)]
    return " or ".join(part for part in parts if part)


def default_text(config: Config, field: msgspec.structs.FieldInfo) -> str:
    if field.default is None:
        return "*queue's*" if config is GroupConfig and field.name in QueueConfig.__struct_fields__ else "none"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, str):
        return f"`{field.default}`" if field.default else "empty"
    return f"{field.default:,}".replace(",", " ")


def limits(name: str) -> tuple[float, float] | None:
    """The lowest and highest number that an option takes."""
    if name in NUMBERS:
        return NUMBERS[name]
    low = 1 if name in FROM_ONE else 0
    if name in options._SPANS:
        return low, SPAN_MS_MAX
    return (low, INTEGER_MAX) if name in options._SIZES else None


def limits_text(field: msgspec.structs.FieldInfo) -> str:
    found = limits(field.name)
    if found is None:
        return ""
    low, high = found
    if high in (SPAN_MS_MAX, INTEGER_MAX, TIME_MS_MAX):
        return f"{low:g} or more"
    return f"{low:g} to {high:,.0f}".replace(",", " ")


if __name__ == "__main__":
    RESULT.write_text(render())
