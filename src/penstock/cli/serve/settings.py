"""Flags that set the server's configuration: the same for `penstock serve` and `penstock config`.

The flags of a front come from the registry, when one of these commands runs: other commands do not wait for it.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from penstock.config import Given, Loaded


class Flag(NamedTuple):
    """A flag that sets one option: to the text behind it, or to a value of its own."""

    section: str
    option: str
    words: str
    metavar: str | None = None
    value: str | None = None


@functools.cache
def named_flags() -> dict[str, Flag]:
    """The flags that have names of their own, in the order of --help; every other option is set with --set."""
    from penstock.fronts.registry import FRONTS

    ports, offs = {}, {}
    for entry in FRONTS[1:]:  # the ports of the first are --port, and it is always there
        for option in entry.ports:
            over = option.removesuffix("port").strip("_")
            words = f"The port for {entry.title}{f' over {over}' if over else ''}; 0 takes a free one."
            ports[f"--{entry.name}-{option.replace('_', '-')}"] = Flag(entry.name, option, words, "NUMBER")
        offs[f"--no-{entry.name}"] = Flag(entry.name, "enabled", f"Do not listen for {entry.title}.", value="false")
    insecure = "Listen where others can reach the server although it asks for no token."
    return {
        "--store": Flag("store", "path", "The SQLite file, postgresql://user@host/database or mysql://…", "PLACE"),
        "--host": Flag("http", "host", "The address for HTTP; others have theirs, as in amqp.host.", "ADDRESS"),
        "--port": Flag("http", "port", "The port for HTTP; 0 takes a free one.", "NUMBER"),
        **ports,
        **offs,
        "--nodes": Flag("cluster", "nodes", "Servers to start on this machine, on one database.", "NUMBER"),
        "--advertise": Flag("cluster", "advertise", "Where other servers reach this one.", "URL"),
        "--log-level": Flag("log", "level", "debug, info, warning or error.", "LEVEL"),
        "--log-format": Flag("log", "format", "text or json.", "FORMAT"),
        "--insecure": Flag("http", "insecure", insecure, value="true"),
    }


def flag_of(section: str, option: str) -> str:
    """The flag that sets an option; its title where it has none."""
    named = {(flag.section, flag.option): name for name, flag in named_flags().items() if flag.value is None}
    return named.get((section, option), f"{section}.{option}")


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


class ConfiguredCommand(click.Command):
    """A command with the flags of the configuration, which it gets as one argument, `flags`."""

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        named = [
            click.Option([name], metavar=flag.metavar, is_flag=flag.value is not None, help=flag.words)
            for name, flag in named_flags().items()
        ]
        where = "The configuration; else $PENSTOCK_CONFIG, else ./penstock.toml if there is one."
        file = click.Option(["--config"], metavar="FILE", help=where)
        every = click.Option(
            ["--set", "assignments"],
            multiple=True,
            metavar="SECTION.OPTION=VALUE",
            help="Set any option of the configuration.",
        )
        return [file, *named, every, *super().get_params(context)]

    def invoke(self, context: click.Context) -> Any:
        given = context.params
        values = []
        for name, flag in named_flags().items():
            text = given.pop(name.removeprefix("--").replace("-", "_"))
            if text is not None and text is not False:
                values.append((flag.section, flag.option, name, flag.value or text))
        values += [_assignment(text) for text in given.pop("assignments")]
        given["flags"] = Flags(given.pop("config"), values)
        return super().invoke(context)


def _assignment(text: str) -> tuple[str, str, str, str]:
    title, equals, value = text.partition("=")
    section, dot, option = title.strip().partition(".")
    if not equals or not dot:
        raise click.BadParameter(
            f"{text!r} must be SECTION.OPTION=VALUE, for example http.port=8000", param_hint="--set"
        )
    return section, option, f"--set {title.strip()}", value.strip()
