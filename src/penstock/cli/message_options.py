"""A message on the command line: the flags that describe it, for `publish` and `schedule create`, and its headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.grouped_options import as_one
from penstock.cli.moments import moment, span

if TYPE_CHECKING:
    from penstock.model import Message

FLAGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "key": ("--key", {"help": "The routing key."}),
    "partition": ("--partition", {"help": "Messages of one partition keep their order."}),
    "headers": (
        "--header",
        {"multiple": True, "metavar": "NAME=VALUE", "help": "A header; NAME:=JSON for what is no text. Repeatable."},
    ),
    "priority": ("--priority", {"type": click.IntRange(0, 255), "default": 0, "help": "0 to 255, the highest first."}),
    "delay_ms": ("--delay", {"type": span, "metavar": "SPAN", "default": "0s", "help": "Not before this span."}),
    "not_before_ms": ("--at", {"type": moment, "metavar": "TIME", "help": "Not before this time."}),
    "ttl_ms": ("--ttl", {"type": span, "metavar": "SPAN", "help": "Not delivered later than this span."}),
    "dedup_id": ("--dedup-id", {"help": "Publishing the same id again changes nothing."}),
    "content_type": ("--content-type", {"help": "What the payload is, such as application/json."}),
    "correlation_id": ("--correlation-id", {"help": "An id that links this message to others; consumers see it."}),
    "trace_id": ("--trace-id", {"help": "The trace whose timeline it joins; see 'penstock trace'."}),
}
"""Field of `Message` → its flag, how it is read."""


def message_of(payload: bytes, fields: dict[str, Any]) -> Message:
    from penstock.model import Message

    return Message(payload, **fields)


def headers_of(texts: tuple[str, ...]) -> dict[str, Any] | None:
    """`NAME=VALUE` as text, `NAME:=JSON` as what the JSON says."""
    if not texts:
        return None
    headers: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":") if is_json else name
        if not equals or not name:
            raise click.BadParameter(f"{text!r} must be NAME=VALUE, or NAME:=JSON", param_hint="--header")
        if name in headers:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--header")
        headers[name] = _json(name, value) if is_json else value
    return headers


def _json(name: str, text: str) -> Any:
    import msgspec

    from penstock.model.errors import PenstockError
    from penstock.model.typed_headers import plain_headers

    try:
        return plain_headers({name: msgspec.json.decode(text.encode())})[name]
    except (msgspec.MsgspecError, PenstockError, UnicodeError, RecursionError) as error:
        raise click.BadParameter(f"{name}:={text} is not JSON: {error}", param_hint="--header") from None


def _fields(**given: Any) -> dict[str, Any]:
    return given | {"headers": headers_of(given["headers"]), "not_before_ms": given["not_before_ms"] or 0}


message_options = as_one(
    "fields", _fields, *(click.option(flag, name, **how) for name, (flag, how) in FLAGS.items()), names=FLAGS
)
"""The flags; the command gets them as one argument, `fields`: those of `Message` but the payload."""
