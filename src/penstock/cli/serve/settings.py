"""Flags that set the server's configuration: the same for `penstock serve` and `penstock config`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from penstock.config import Given, Loaded

Command = TypeVar("Command", bound=Callable[..., Any])

NAMED: Final = {
    "--store": ("store", "path", "PLACE", "The SQLite file, postgresql://user@host/database or mysql://…"),
    "--host": ("http", "host", "ADDRESS", "The address for HTTP; amqp.host and mqtt.host have the others."),
    "--port": ("http", "port", "NUMBER", "The port for HTTP; 0 takes a free one."),
    "--amqp-port": ("amqp", "port", "NUMBER", "The port for AMQP 0.9.1; 0 takes a free one."),
    "--mqtt-port": ("mqtt", "port", "NUMBER", "The port for MQTT; 0 takes a free one."),
    "--mqtt-websocket-port": (
        "mqtt",
        "websocket_port",
        "NUMBER",
        "The same for MQTT over WebSocket.",
    ),
    "--nodes": ("cluster", "nodes", "NUMBER", "Servers to start on this machine, on one database."),
    "--advertise": ("cluster", "advertise", "URL", "Where other servers reach this one."),
    "--log-level": ("log", "level", "LEVEL", "debug, info, warning or error."),
    "--log-format": ("log", "format", "FORMAT", "text or json."),
}
"""Flag → section, option, what its value is, what it does. All other options are set with --set."""


class Flags(NamedTuple):
    """What the command line says about the configuration."""

    file: str | None
    values: list[tuple[str, str, str, str]]
    """section, option, flag, text"""

    def load(self) -> Loaded:
        """The configuration in force; whatever is wrong with it ends the command, with all of it told."""
        from penstock import config
        from penstock.toml_file import FileProblems

        given: list[Given] = [config.Given(*value) for value in self.values]
        try:
            return config.load(self.file, os.environ, given)
        except FileProblems as error:
            raise click.ClickException("\n       ".join(error.problems)) from None


def configuration_options(command: Command) -> Command:
    """--config, the named flags and --set; the command gets them as one argument, `flags`."""

    @functools.wraps(command)
    def with_flags(
        *arguments: Any,
        config: str | None,
        insecure: bool,
        no_amqp: bool,
        no_mqtt: bool,
        assignments: tuple[str, ...],
        **others: Any,
    ) -> Any:
        values = []
        for flag, (section, option, _, _) in NAMED.items():
            text = others.pop(flag.removeprefix("--").replace("-", "_"))
            if text is not None:
                values.append((section, option, flag, text))
        if insecure:
            values.append(("http", "insecure", "--insecure", "true"))
        if no_amqp:
            values.append(("amqp", "enabled", "--no-amqp", "false"))
        if no_mqtt:
            values.append(("mqtt", "enabled", "--no-mqtt", "false"))
        values += [_assignment(text) for text in assignments]
        return command(*arguments, flags=Flags(config, values), **others)

    decorated: Any = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="SECTION.OPTION=VALUE",
        help="Set any option of the configuration.",
    )(with_flags)
    help_insecure = "Listen where others can reach the server although it asks for no token."
    decorated = click.option("--insecure", is_flag=True, help=help_insecure)(decorated)
    decorated = click.option("--no-amqp", is_flag=True, help="Do not listen for AMQP.")(decorated)
    decorated = click.option("--no-mqtt", is_flag=True, help="Do not listen for MQTT.")(decorated)
    for flag, (_, _, metavar, words) in reversed(NAMED.items()):
        decorated = click.option(flag, metavar=metavar, help=words)(decorated)
    decorated = click.option(
        "--config",
        metavar="FILE",
        help="The configuration; else $PENSTOCK_CONFIG, else ./penstock.toml if there is one.",
    )(decorated)
    made: Command = decorated
    return made


def _assignment(text: str) -> tuple[str, str, str, str]:
    title, equals, value = text.partition("=")
    section, dot, option = title.strip().partition(".")
    if not equals or not dot:
        raise click.BadParameter(
            f"{text!r} must be SECTION.OPTION=VALUE, for example http.port=8000", param_hint="--set"
        )
    return section, option, f"--set {title.strip()}", value.strip()
