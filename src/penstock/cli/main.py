"""The `penstock` command: parses arguments and hands over. Each command's work is in the module of its name.

Those modules are imported when their command runs, so that `penstock version` does not wait for the broker.
"""

from __future__ import annotations

import click

from penstock.cli.groups import BenchmarkGroup, SuggestingGroup

# Arguments that are another program's business: everything after the command's name is passed on as it is.
PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def main() -> None:
    commands(prog_name="penstock")


@click.group(cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def commands() -> None:
    """Penstock: a durable message queue.

    \b
    Examples:
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
def demo() -> None:
    """See the embedded broker at work.

    A shop's orders are published, packed, retried, replayed and redriven, on a real file in a temporary folder, which
    is gone afterwards. It takes about a second and says what happens at each step.

    \b
    Example:
      penstock demo
    """
    from penstock.cli import demo as work

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
    from penstock.cli import test as work

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
    """
    from penstock.cli import checkout

    checkout.become_script("tests/simulation/run.py", arguments)
