"""Options of queues, groups and exchanges on the command line: `--option KEY=VALUE` for all, flags for the common ones.

A value's type is that of the option in `QueueConfig`, `GroupConfig` or `ExchangeConfig`; its limits are the server's
business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from penstock.cli.grouped_options import Decorator, as_one

FLAGS: Final[dict[str, tuple[Any, str]]] = {
    "lanes": (int, "Ordered logs that the queue is split into."),
    "ordered": (bool, "Deliver the messages of one partition strictly one after the other."),
    "prioritized": (bool, "Deliver higher priorities first."),
    "ephemeral": (bool, "Memory only: faster, and gone when the server stops."),
    "lease_ms": (int, "How long a claimed message stays with its consumer."),
    "max_attempts": (int, "Hand-outs before a message is dead; 0 = no limit."),
    "backoff_ms": (int, "Pause after the first failed attempt; it doubles with each further one."),
    "delay_ms": (int, "Added to every message's own delay."),
    "ttl_ms": (int, "Messages are not delivered later than this after publishing."),
    "max_length": (int, "Messages that may wait for delivery, per lane."),
    "max_in_flight": (int, "Messages leased at once, per group and lane."),
    "rate": (float, "Messages handed out per second, per group and lane."),
    "dead_letter_to": (str, "queue:NAME or exchange:NAME: dead messages are also copied there."),
    "retain_ms": (int, "Keep the log this long for readers, done or not."),
    "description": (str, "For people."),
}
"""Option → its type, what it does."""
QUEUE_FLAGS: Final = tuple(FLAGS)
GROUP_FLAGS: Final = (
    "ordered",
    "prioritized",
    "lease_ms",
    "max_attempts",
    "backoff_ms",
    "max_in_flight",
    "rate",
    "dead_letter_to",
)


def options_of(config: str, flags: tuple[str, ...] = ()) -> Decorator[Any]:
    """--option and the flags; the command gets them all as one argument, `options`. `config` names the struct."""

    def options(texts: tuple[str, ...], **given: Any) -> dict[str, Any]:
        found = typed(config, texts)
        for name, value in given.items():
            if value is not None and name in found:
                raise click.UsageError(f"{name} is given twice: as --option and as {_flag(name)}")
            if value is not None:
                found[name] = value
        return found

    every = click.option(
        "--option",
        "-o",
        "texts",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Any option of {config}; null takes an optional one away.",
    )
    return as_one("options", options, *map(_flag_option, flags), every, names=("texts", *flags))


def _flag_option(name: str) -> Decorator[Any]:
    kind, words = FLAGS[name]
    flag = f"{_flag(name)}/--no-{_flag(name)[2:]}" if kind is bool else _flag(name)
    return click.option(flag, name, type=kind, default=None, help=words)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def assignments(
    texts: tuple[str, ...], flag: str, example: str, name_of: Callable[[str], str] = str.strip
) -> dict[str, str]:
    """`KEY=VALUE` texts by key, each given once."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = name_of(key)
        if not equals or not name:
            raise click.BadParameter(f"{text!r} must be KEY=VALUE, for example {example}", param_hint=flag)
        if name in found:
            raise click.BadParameter(f"{name} is given twice", param_hint=flag)
        found[name] = value.strip()
    return found


def typed(config: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """`KEY=VALUE` texts as options with values of their types."""
    if not texts:
        return {}
    from typing import get_type_hints

    from penstock import model

    hints = get_type_hints(getattr(model, config))
    given = assignments(texts, "--option", "max_attempts=3", lambda key: key.strip().replace("-", "_"))
    return {name: _value(config, hints, name, value) for name, value in given.items()}


def _value(config: str, hints: dict[str, Any], name: str, text: str) -> Any:
    import msgspec

    from penstock.model import suggestion

    if name not in hints:
        raise click.BadParameter(f"{config} has no option {name!r}; {suggestion(name, hints)}", param_hint="--option")
    if text == "null" and type(None) in getattr(hints[name], "__args__", ()):
        return None
    try:
        return msgspec.convert(text, hints[name], strict=False)
    except msgspec.ValidationError as error:
        raise click.BadParameter(f"{name} is {text!r}: {error}", param_hint="--option") from None
