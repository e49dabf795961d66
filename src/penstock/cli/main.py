"""The `penstock` command: parses arguments and hands over. Each command's work is in the module of its name.

Those modules are imported when their command runs, so that `penstock version` does not wait for the broker. The
commands that talk to a server are whole in their modules, which import little but click until one of them runs.
"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.command_groups import BenchmarkGroup, SuggestingGroup
from penstock.cli.commands.cluster import cluster
from penstock.cli.commands.consume import consume
from penstock.cli.commands.dead import dead
from penstock.cli.commands.enqueued import enqueued
from penstock.cli.commands.exchanges import exchange
from penstock.cli.commands.groups import group
from penstock.cli.commands.publish import publish
from penstock.cli.commands.queues import queue
from penstock.cli.commands.schedules import schedule
from penstock.cli.commands.spool import spool
from penstock.cli.commands.stats import stats
from penstock.cli.commands.store import store
from penstock.cli.commands.tail import tail
from penstock.cli.commands.top import top
from penstock.cli.commands.traces import trace
from penstock.cli.connection import json_option, server_options
from penstock.cli.pipeline.commands import pipeline
from penstock.cli.serve.settings import ConfiguredCommand, Flags

# Arguments that are another program's business: everything after the command's name is passed on as it is.
PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def main() -> None:
    commands(prog_name="penstock")


@click.group(cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def commands() -> None:
    """Penstock: a durable message queue.

    \b
    Examples:
      penstock serve                 start a server on ./data and http://127.0.0.1:7333
      penstock queue create mail     make a queue on it; then publish and consume
      penstock demo                  see messages published, worked, retried and replayed
      penstock test                  run every check and test of a checkout
      penstock COMMAND --help        what a command does, with examples
    """


@commands.command()
def version() -> None:
    """Print the versions of Penstock, Python and SQLite.

    \b
    Example:
      penstock version
    """
    import platform
    import sqlite3

    from penstock.version import VERSION

    click.echo(f"penstock {VERSION} (Python {platform.python_version()}, SQLite {sqlite3.sqlite_version})")


@commands.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    It completes commands and options, and the names of queues, groups, exchanges and schedules from the server, where
    that answers at once. It is for a 'penstock' that is found on the PATH.

    \b
    Examples:
      eval "$(penstock completion bash)"                      in ~/.bashrc
      eval "$(penstock completion zsh)"                       in ~/.zshrc
      penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root()
    click.echo(kind(root.command, {}, "penstock", "_PENSTOCK_COMPLETE").source())


@commands.command(cls=ConfiguredCommand)
def serve(flags: Flags) -> None:
    """Start a server.

    It keeps its data in one SQLite file with a log beside it, or in a database, and speaks HTTP, AMQP 0.9.1 and MQTT.
    Options come from a TOML file, from variables such as PENSTOCK_HTTP_PORT, and from flags, each stronger than the one
    before. Queues, groups, exchanges and schedules that the file declares are made. Several servers may share one
    database: --nodes starts some on this machine, and those of other machines join by naming the same store. SIGTERM or
    Ctrl+C stops the server gracefully, a second one at once.

    \b
    Examples:
      penstock serve
      penstock serve --store /var/lib/penstock/data.db --port 8000
      penstock serve --config penstock.toml --set http.max_connections=500
      penstock serve --store postgresql://user@host/database --nodes 3
      PENSTOCK_HTTP_TOKEN=… penstock serve --host 0.0.0.0
    """
    from penstock.cli.serve import command as work

    work.run(flags)


@commands.command(cls=ConfiguredCommand)
@click.option("--check", is_flag=True, help="Only say whether it is good: exit code 0, or 1 with what is wrong.")
@click.option("--example", "show_example", is_flag=True, help="Print a commented file with every option instead.")
@json_option
def config(**asked: Any) -> None:
    """Show the configuration in force.

    Every option with its value and where it comes from: the default, a line of the file, a variable or a flag. Takes
    the flags of 'penstock serve'. Secrets are not printed.

    \b
    Examples:
      penstock config
      penstock config --config penstock.toml --check
      penstock config --example > penstock.toml
    """
    from penstock.cli.commands import config as work

    work.run(**asked)


@commands.command(cls=ConfiguredCommand)
@json_option
def doctor(**asked: Any) -> None:
    """See at a glance what is well and what is not.

    Versions, the store, its disk and how long a sync takes, clocks, limits, ports, and faults that are known: each line
    is ok, to mind, or wrong, with what to do about it. Takes the flags of 'penstock serve': run it where the server
    runs, with the same configuration. A server may run or not, and nothing is changed. The exit code is 1 if anything
    is wrong.

    \b
    Examples:
      penstock doctor
      penstock doctor --config penstock.toml
      penstock doctor --store postgresql://user@host/database --json
    """
    from penstock.cli.commands import doctor as work

    work.run(**asked)


@commands.command()
@click.argument("file", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Only show the difference.")
@click.option(
    "--prune", is_flag=True, help="Delete what the file does not name, in the namespaces that it declares in."
)
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@server_options
@json_option
def apply(**asked: Any) -> None:
    """Declare what a file asks for.

    FILE is TOML with tables such as [queues.mail], [queues.mail.groups.sending], [exchanges.orders] and
    [schedules.nightly]. Applying it again changes nothing. Options that it does not name stay as they are.

    \b
    Examples:
      penstock apply queues.toml --dry-run
      penstock apply queues.toml
      penstock apply queues.toml --prune --yes --namespace staging
    """
    from penstock.cli.commands import apply as work

    work.run(**asked)


@commands.command()
def demo() -> None:
    """See the whole product at work, Spark included.

    A small shop on a real server: orders are published, paid, retried and die, Spark archives what happened and tells
    it in numbers, and the dead letters are redriven. All of it is in a temporary folder, which is gone afterwards. It
    takes up to two minutes and says what happens at each step.

    \b
    Example:
      penstock demo
    """
    from penstock.cli.commands import demo as work

    work.run()


@commands.command(context_settings=PASS_ON)
@click.option("--fast", is_flag=True, help="Only pytest: leave out ruff and mypy.")
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def test(fast: bool, pytest_arguments: tuple[str, ...]) -> None:
    """Check and test a checkout.

    The stages are ruff check, ruff format, mypy --strict, and pytest on all cores. Every stage runs even if one
    before it failed; the exit code is 0 only if all passed. With PYTEST_ARGUMENTS only pytest runs, in one process,
    with exactly those; paths are relative to the checkout.

    \b
    Examples:
      penstock test
      penstock test --fast
      penstock test tests/unit -k layering -x
    """
    from penstock.cli.dev import test as work

    raise SystemExit(work.run(fast, pytest_arguments))


@commands.group(cls=BenchmarkGroup)
def bench() -> None:
    """Run a benchmark of a checkout.

    The benchmarks are the scripts in its folder bench/. What follows the benchmark's name is passed on to it.

    \b
    Examples:
      penstock bench --help          the benchmarks there are
      penstock bench core --help     the options of one
      penstock bench core
    """


@commands.command(context_settings=PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def simulate(arguments: tuple[str, ...]) -> None:
    """Run the broker on a virtual clock.

    Its store fails, stalls and crashes as the seed says, and a checker looks for messages lost, doubled, early or
    out of order. ARGUMENTS are passed on to tests/simulation/run.py.

    \b
    Examples:
      penstock simulate --seeds 1000
      penstock simulate --seeds 1 --start 4711
      penstock simulate --power              cuts the power of real files
    """
    from penstock.cli.dev import checkout

    checkout.become_script("tests/simulation/run.py", arguments)


@commands.command(context_settings=PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def torture(arguments: tuple[str, ...]) -> None:
    """Run real nodes on a real database while everything dies.

    Nodes are killed and paused, networks split and cut, the database crashes and is replaced by its replica, clocks
    jump; producers and consumers of every feature go on, and a checker looks for messages lost, doubled, early or out
    of order. ARGUMENTS are passed on to tests/torture/run.py.

    \b
    Examples:
      penstock torture --minutes 30
      penstock torture --minutes 2 --nodes 1 --seed 7
    """
    from penstock.cli.dev import checkout

    checkout.become_script("tests/torture/run.py", arguments)


for command in (
    queue,
    group,
    exchange,
    publish,
    consume,
    tail,
    dead,
    spool,
    trace,
    schedule,
    enqueued,
    stats,
    top,
    cluster,
    store,
    pipeline,
):
    commands.add_command(command)
