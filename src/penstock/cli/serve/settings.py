"""Flags that set the server's configuration: the same for `penstock serve` and `penstock config`.

The flags of a front come from the registry, when one of these commands runs: other commands do not wait for it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from penstock.config import Given, Loaded

Command = TypeVar("Command", bound=Callable[..., Any])


class Flag(NamedTuple):
    """A flag that sets one option."""

    section: str
    option: str
    metavar: str
    words: str


NAMED: Final = {
    "--store": Flag("store", "path", "PLACE", "The SQLite file, postgresql://user@host/database or mysql://…"),
    "--host": Flag("http", "host", "ADDRESS", "The address for HTTP; others have theirs, as in amqp.host."),
    "--port": Flag("http", "port", "NUMBER", "The port for HTTP; 0 takes a free one."),
    "--nodes": Flag("cluster", "nodes", "NUMBER", "Servers to start on this machine, on one database."),
    "--advertise": Flag("cluster", "advertise", "URL", "Where other servers reach this one."),
    "--log-level": Flag("log", "level", "LEVEL", "debug, info, warning or error."),
    "--log-format": Flag("log", "format", "FORMAT", "text or json."),
}
"""Flags of the server itself. All other options are set with --set."""


@functools.cache
def front_flags() -> dict[str, Flag]:
    """--amqp-port and its like: one for each port of each front but the first, whose is --port."""
    from penstock.fronts.registry import FRONTS

    flags = {}
    for entry in FRONTS[1:]:
        for option in entry.ports:
            over = option.removesuffix("port").strip("_")
            words = f"The port for {entry.title}{f' over {over}' if over else ''}; 0 takes a free one."
            flags[f"--{entry.name}-{option.replace('_', '-')}"] = Flag(entry.name, option, "NUMBER", words)
    return flags


@functools.cache
def off_flags() -> dict[str, Flag]:
    """--no-amqp and its like: one for each front but the first, which is always there."""
    from penstock.fronts.registry import FRONTS

    return {
        f"--no-{entry.name}": Flag(entry.name, "enabled", "", f"Do not listen for {entry.title}.")
        for entry in FRONTS[1:]
    }


def flag_of(section: str, option: str) -> str:
    """The flag that sets an option; its title where it has none."""
    named = {(flag.section, flag.option): name for name, flag in (NAMED | front_flags()).items()}
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
    """A command with `configuration_options`: it has the flags of the fronts too."""

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        params = super().get_params(context)
        place = 1 + next(index for index, param in enumerate(params) if param.name == "port")
        ports = [click.Option([name], metavar=flag.metavar, help=flag.words) for name, flag in front_flags().items()]
        offs = [click.Option([name], is_flag=True, help=flag.words) for name, flag in off_flags().items()]
        return [*params[:place], *ports, *offs, *params[place:]]


def configuration_options(command: Command) -> Command:
    """--config, the named flags and --set; the command gets them as one argument, `flags`."""

    @functools.wraps(command)
    def with_flags(
        *arguments: Any,
        config: str | None,
        insecure: bool,
        assignments: tuple[str, ...],
        **others: Any,
    ) -> Any:
        values = []
        for name, flag in (NAMED | front_flags()).items():
            text = others.pop(_argument(name))
            if text is not None:
                values.append((flag.section, flag.option, name, text))
        if insecure:
            values.append(("http", "insecure", "--insecure", "true"))
        given = [(name, flag) for name, flag in off_flags().items() if others.pop(_argument(name))]
        values += [(flag.section, flag.option, name, "false") for name, flag in given]
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
    for name, flag in reversed(NAMED.items()):
        decorated = click.option(name, metavar=flag.metavar, help=flag.words)(decorated)
    decorated = click.option(
        "--config",
        metavar="FILE",
        help="The configuration; else $PENSTOCK_CONFIG, else ./penstock.toml if there is one.",
    )(decorated)
    made: Command = decorated
    return made


def _argument(flag: str) -> str:
    """What click calls the flag's value."""
    return flag.removeprefix("--").replace("-", "_")


def _assignment(text: str) -> tuple[str, str, str, str]:
    title, equals, value = text.partition("=")
    section, dot, option = title.strip().partition(".")
    if not equals or not dot:
        raise click.BadParameter(
            f"{text!r} must be SECTION.OPTION=VALUE, for example http.port=8000", param_hint="--set"
        )
    return section, option, f"--set {title.strip()}", value.strip()
