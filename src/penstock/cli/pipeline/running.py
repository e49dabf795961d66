"""Running a job of the pipeline: a Spark session, progress, the row for `pipeline status`, the summary, the exit code.

Spark is imported here and nowhere above: `penstock --help` and `penstock pipeline status` need none of it.
"""

from __future__ import annotations

import importlib
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from penstock.cli.connection import ServerAddress, error_text, json_option, server_options
from penstock.cli.grouped_options import as_one
from penstock.cli.moments import span, span_text
from penstock.cli.option_values import assignments
from penstock.cli.output import cell_text, json_line, note, print_json, print_table, printable_lines
from penstock.cli.pipeline.display import display
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.sync import Client
    from penstock.spark.jobs.frame import Progress, Summary

INSTALL: Final = "pip install 'penstock[spark]'"
PACKAGES: Final = frozenset({"pyspark", "py4j", "pyarrow", "numpy", "deltalake", "pyroaring"})


class JobContext(NamedTuple):
    """Where a job runs and how it tells: what all jobs are asked."""

    server: ServerAddress
    master: str | None
    config: dict[str, str]
    as_json: bool
    restarts: int | None = None
    """How often a job starts again after a fault that may pass; None is the usual number."""


class Job(NamedTuple):
    """One job as the command line asks for it."""

    name: str
    options: dict[str, Any]
    """Those of its struct, without what `JobContext` says."""
    id: str
    """The same for the same work: it has one row, however often it runs."""
    what: str
    every_ms: int | None = None
    """Run again and again, with this pause; None is once."""
    needs_server: bool = True
    goes_on: bool = False
    """Whether it ends only when it is stopped, so that a stop is no failure."""
    show: Callable[[Summary], None] | None = None
    """Prints its summary for people, where facts and tables are not all of it."""


# Options -------------------------------------------------------------------------------------------------


def _place(
    server: ServerAddress, master: str | None, conf: tuple[str, ...], as_json: bool, restarts: int | None
) -> JobContext:
    return JobContext(server, master, assignments(conf, "--conf", "spark.driver.memory=4g"), as_json, restarts)


place_options = as_one(
    "place",
    _place,
    server_options,
    click.option(
        "--master", metavar="URL", help="Spark's master, such as spark://host:7077; else all cores of this machine."
    ),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark. Repeatable."),
    click.option(
        "--restarts",
        type=click.IntRange(0),
        help="How often in a row to start again after a fault that may pass; 8 unless given.",
    ),
    json_option,
)
"""--url, --token, --namespace, --master, --conf, --restarts and --json; the command gets them as one, `place`."""


def _storage(storage_option: tuple[str, ...]) -> dict[str, str]:
    return assignments(storage_option, "--storage-option", "aws_region=eu-central-1")


lake_options = as_one(
    "storage_options",
    _storage,
    click.option(
        "--lake",
        envvar="PENSTOCK_LAKE",
        default="./lake",
        show_default=True,
        show_envvar=True,
        help="A folder, or the URL of an object store.",
    ),
    click.option(
        "--storage-option", multiple=True, metavar="KEY=VALUE", help="For the lake's object store. Repeatable."
    ),
)
"""--lake and --storage-option; the command gets `lake` and `storage_options`."""


def _pause(watch: bool, every: int | None) -> int | None:
    if every is not None and not watch:
        raise click.UsageError("--every is the pause between the runs of --watch; give that too")
    return (60_000 if every is None else every) if watch else None


watch_options = as_one(
    "every_ms",
    _pause,
    click.option("--watch/--once", help="Run again and again until stopped, or once; once unless given."),
    click.option(
        "--every", type=span, metavar="SPAN", help="With --watch: the pause between two runs; 1m unless given."
    ),
)
"""--watch, --once and --every, for jobs that are run again; the command gets `every_ms`, None for once."""


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as a job takes them; it has defaults for the rest."""
    found = {name: value for name, value in options.items() if value is not None and value != ()}
    lists = {name: list(value) for name, value in found.items() if isinstance(value, tuple)}
    queues = {"queues": queues_text(options["queues"])} if "queues" in options else {}
    return found | lists | queues


def names_text(queues: tuple[str, ...]) -> str:
    return ", ".join(queues) or "all queues"


def queues_text(names: tuple[str, ...]) -> str:
    """Queues as the source takes them: none named are all of them."""
    if not names:
        return "*"
    return ",".join(names) if any(set("*?[") & set(name) for name in names) else json.dumps(list(names))


def short_id(*parts: object) -> str:
    return blake2b(json.dumps([str(part) for part in parts]).encode(), digest_size=5).hexdigest()


# Running -------------------------------------------------------------------------------------------------


def run_job(job: Job, place: JobContext) -> None:
    """Run it, print its summary, and leave with its exit code."""
    with told_errors(place.server):
        module = job_module(job.name)
        options = getattr(module, f"{job.name.capitalize()}Options")
        client = status_client(job, place.server)
        known = {"url": place.server.url, "token": place.server.token or None, "namespace": place.server.namespace}
        fields = set(options.__struct_fields__)
        asked = options(**{name: value for name, value in known.items() if name in fields}, **job.options)
        try:
            code = run_in_session(job, place, module, asked, client)
        finally:
            if client is not None:
                client.close()
    raise SystemExit(code)


def run_in_session(job: Job, place: JobContext, module: ModuleType, options: Any, client: Client | None) -> int:
    from penstock.spark.jobs.frame import Progress
    from penstock.spark.jobs.restarts import RESTARTS, restarting
    from penstock.spark.session import is_running, spark_session

    if (check := getattr(module, "check", None)) is not None:
        check(options)  # what cannot work is said before Spark starts, which takes a while
    is_own = not is_running()  # a session that was there before the job stays after it
    note(f"Starting Spark for {job.name} …")
    spark = spark_session(f"penstock {job.name}", master=place.master, config=place.config)
    try:
        while True:
            progress = Progress(job.name, job.id, what=job.what, client=client, display=display())
            with progress, progress.interruptible():
                restarts = RESTARTS if place.restarts is None else place.restarts
                summary = restarting(partial(module.run, spark, options, progress), progress, restarts)
                progress.finish(summary)
            if job.show is None or place.as_json:
                print_summary(summary, progress, place.as_json, is_line=job.every_ms is not None)
            else:
                job.show(summary)
            if progress.stopping or job.every_ms is None or pause(progress, job.every_ms):
                return exit_code(job, summary, progress)
    finally:
        if is_own:
            # Where Spark's own process has ended there is nothing to stop, and what ended it is told already.
            with suppress(OSError):
                spark.stop()


def pause(progress: Progress, milliseconds: int) -> bool:
    """Whether it was stopped meanwhile."""
    with progress.interruptible():
        return progress.wait(milliseconds / 1000)


def exit_code(job: Job, summary: Summary, progress: Progress) -> int:
    if summary.details.get("ok") is False:
        return 1
    is_cut = progress.stopping and not job.goes_on and job.every_ms is None
    return 128 + signal.SIGINT if is_cut else 0


def job_module(name: str) -> ModuleType:
    """A job's module; what it imports may be missing."""
    try:
        importlib.import_module("pyspark")
        return importlib.import_module(f"penstock.spark.jobs.{name}.job")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise click.ClickException(
            f"pipeline jobs run on Spark, and {error.name} is not installed. Install it with:  {INSTALL}"
        ) from None


def status_client(job: Job, server: ServerAddress) -> Client | None:
    """A client for the job's row. Where no server answers, a job that needs none goes on without a row."""
    client = server.sync_client()
    try:
        client.check_ready()
    except PenstockError:
        client.close()
        if job.needs_server:
            raise
        return None
    return client


@contextmanager
def told_errors(server: ServerAddress) -> Iterator[None]:
    """What goes wrong becomes one paragraph and exit code 1; Ctrl+C ends without a word."""
    try:
        yield
    except PenstockError as error:
        raise click.ClickException(error_text(error, server)) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except ConnectionError as error:
        raise click.ClickException(f"Spark's own process has ended ({error}); run the job again, it goes on") from None
    except Exception as error:
        text = spark_error_text(error)
        if text is None:
            raise
        raise click.ClickException(printable_lines(text)) from None


def spark_error_text(error: Exception) -> str | None:
    """Of what Spark raises, the part that says something; None if it was not Spark."""
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("penstock.") and ": " in line]
    if own:  # an error of ours that a worker raised: its text stands behind its class
        return own[-1].partition(": ")[2]
    return "\n".join(lines[:3]) or type(error).__name__


# Summaries -----------------------------------------------------------------------------------------------


def print_summary(summary: Summary, progress: Progress, as_json: bool, *, is_line: bool = False) -> None:
    if as_json:
        if is_line:
            click.echo(json_line(summary))
        else:
            print_json(summary)
        return
    rate = summary.rows / summary.seconds if summary.seconds > 0 else 0.0
    tables = {name: value for name, value in summary.details.items() if is_table(value)}
    facts = [
        (name.replace("_", " "), fact_text(value)) for name, value in summary.details.items() if name not in tables
    ]
    rows: list[tuple[str, str]] = [
        ("job", summary.job + (" (stopped)" if progress.stopping else "")),
        ("messages", f"{summary.rows:,}"),
        ("time", f"{span_text(round(summary.seconds * 1000))}, {rate:,.0f} messages/s"),
        *facts,
    ]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        click.echo(f"{name.ljust(width)}  {text}")
    for name, table in tables.items():
        click.echo(f"\n{name.replace('_', ' ')}:")
        titles = list(table[0])
        numbers = [title for title in titles if isinstance(table[0][title], int)]
        print_table(titles, [[one.get(title) for title in titles] for one in table], numbers=numbers)


def is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def fact_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(cell_text, value)) or "none"
    return cell_text(json_line(value) if isinstance(value, dict) else value)
