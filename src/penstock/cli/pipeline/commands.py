"""`penstock pipeline …`: the jobs on Spark. A command turns flags into a job's options; `running.py` runs it.

A job's options are described in its module under `penstock/spark/jobs/`; the flags here have the same names.
"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.commands.exchanges import KINDS
from penstock.cli.message_options import headers_of
from penstock.cli.moments import instant, span
from penstock.cli.names import complete_exchange, complete_queue
from penstock.cli.option_values import assignments
from penstock.cli.pipeline.running import (
    Job,
    JobContext,
    given,
    lake_options,
    names_text,
    place_options,
    run_job,
    short_id,
    watch_options,
)
from penstock.cli.pipeline.stats import stats
from penstock.cli.pipeline.status import status
from penstock.cli.pipeline.triage import triage

queues_argument = click.argument("queues", nargs=-1, shell_complete=complete_queue)
from_option = click.option(
    "--from",
    "queues",
    multiple=True,
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="A queue or a pattern such as 'orders.*'; all of them unless given. Repeatable.",
)
events_option = click.option(
    "--events/--no-events", default=True, show_default=True, help="Delivery events ($events) too."
)
start_option = click.option(
    "--start", type=instant, metavar="TIME", help="Only what was published then or later: a time, or 2h for that ago."
)
end_option = click.option("--end", type=instant, metavar="TIME", help="Only what was published before then.")
live_option = click.option(
    "--live/--no-live", default=True, show_default=True, help="Also what is in the log and not in the lake yet."
)
unit_option = click.option(
    "--unit-rows", type=click.IntRange(1), help="Offsets that are read and published as one; 200,000 unless given."
)
dedup_option = click.option(
    "--keep-dedup-ids", is_flag=True, help="Keep dedup ids, so that of messages with the same only one is taken."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only count what would be done.")


@click.group(cls=SuggestingGroup)
def pipeline() -> None:
    """Archive, replay and route messages with Spark, and tell what happened to them.

    Jobs run on all cores of this machine, or on a cluster with --master. Each can be stopped and run again at any
    time: it goes on where it was, and does nothing twice. They need: pip install 'penstock[spark]'

    \b
    Examples:
      penstock pipeline archive --watch           keep ./lake up to date
      penstock pipeline verify                    is the lake complete?
      penstock pipeline replay again-1 --from orders --to-queue orders-again --start 2h
      penstock pipeline route large --from orders --where "amount > 1000"
      penstock pipeline stats --start 2h          throughput, times, dead letters
      penstock pipeline triage                    what dead letters died of
      penstock pipeline status
    """


@pipeline.command()
@queues_argument
@events_option
@click.option("--watch/--once", help="Go on until stopped, or end when all is archived; the latter unless given.")
@click.option(
    "--interval", "interval_ms", type=span, metavar="SPAN", help="With --watch: between two commits; 10s unless given."
)
@click.option("--rows-per-batch", type=click.IntRange(1), help="Messages of one commit; 1,000,000 unless given.")
@click.option("--cursor", help="The stream group that shows the lag; 'archive' unless given.")
@click.option("--hold/--no-hold", default=None, help="Retention waits for the archive, or no longer does.")
@click.option(
    "--allow-gaps", is_flag=True, help="Go on where messages were removed before they were archived, or are damaged."
)
@click.option("--checkpoint", metavar="PLACE", help="Keep Spark's checkpoint there; it is not needed.")
@click.option("--keep-days", type=click.IntRange(1), help="How long old versions of the lake can be read; 7 if new.")
@click.option(
    "--tidy/--no-tidy", default=None, help="With --watch: merge small files and clean the lake's log; on unless given."
)
@lake_options
@place_options
def archive(interval_ms: int | None, place: JobContext, **options: Any) -> None:
    """Copy queues and delivery events to the lake.

    QUEUES are names or patterns; all queues unless given. The lake is Parquet under a Delta log: Spark, DuckDB, Polars
    and Trino read it. Every message is there exactly once.

    \b
    Examples:
      penstock pipeline archive
      penstock pipeline archive orders 'mail.*' --watch --hold
      penstock pipeline archive --lake s3://bucket/lake --storage-option aws_region=eu-central-1
    """
    queues, lake, watch = options["queues"], options["lake"], options["watch"]
    if interval_ms is not None and not watch:
        raise click.UsageError("--interval is the time between the commits of --watch; give that too")
    if options["tidy"] is not None and not watch:
        raise click.UsageError("--tidy is for --watch; without it, run penstock pipeline compact now and then")
    options["interval_seconds"] = None if interval_ms is None else interval_ms / 1000
    id = short_id(lake, *sorted(queues))
    run_job(Job("archive", given(options), id, f"{names_text(queues)} → {lake}", goes_on=watch), place)


@pipeline.command()
@queues_argument
@events_option
@click.option("--payload", is_flag=True, help="Compare payloads and headers too; reads every file whole.")
@lake_options
@watch_options
@place_options
def verify(every_ms: int | None, place: JobContext, **options: Any) -> None:
    """Compare the lake with the server.

    Every offset up to the lake's mark must be there once, every file readable, and what the server still has the same.
    The exit code is 1 if anything is wrong. Nothing is changed.

    \b
    Examples:
      penstock pipeline verify
      penstock pipeline verify orders --payload --json
    """
    queues, lake = options["queues"], options["lake"]
    id = short_id(lake, *sorted(queues))
    run_job(Job("verify", given(options), id, f"{names_text(queues)} in {lake}", every_ms), place)


@pipeline.command()
@click.option("--older-than-days", type=click.IntRange(0), help="Merge files of days that ended so long ago.")
@click.option("--target-bytes", type=click.IntRange(1), help="How large merged files should be; 128 MiB unless given.")
@click.option("--expire-days", type=click.IntRange(0), help="How many days to keep; all unless given.")
@click.option("--expire-queue", "expire_queues", multiple=True, help="Only this queue's messages expire. Repeatable.")
@click.option("--vacuum-hours", type=click.IntRange(0), help="Free files that left the lake so long ago.")
@click.option("--no-vacuum", is_flag=True, help="Free nothing, and leave the lake's log as it is.")
@click.option("--alone", is_flag=True, help="No archive runs on this lake now: allows --vacuum-hours 0.")
@dry_run_option
@lake_options
@watch_options
@place_options
def compact(no_vacuum: bool, every_ms: int | None, place: JobContext, **options: Any) -> None:
    """Merge small files of the lake, expire old days, clean its log, free space.

    Readers are not disturbed: files that leave the lake stay for the days that it keeps, a week unless archive was told
    otherwise. While `archive --watch` runs, it does all this itself, but for --expire-days.

    \b
    Examples:
      penstock pipeline compact
      penstock pipeline compact --expire-days 365 --dry-run
    """
    lake, asked = options["lake"], given(options)
    if no_vacuum and "vacuum_hours" in asked:
        raise click.UsageError("--no-vacuum and --vacuum-hours contradict each other")
    if no_vacuum:
        asked["vacuum"] = False
    run_job(Job("compact", asked, short_id(lake), lake, every_ms, needs_server=False), place)


@pipeline.command()
@click.argument("name")
@from_option
@click.option("--to-queue", shell_complete=complete_queue, help="Where messages go.")
@click.option("--to-exchange", shell_complete=complete_exchange, help="Or the exchange that they go through.")
@click.option("--routing-key", help="For the exchange; else each message's own key.")
@start_option
@end_option
@click.option("--partition", "partitions", multiple=True, help="Only messages of this partition. Repeatable.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=TEXT",
    callback=lambda _context, _option, texts: assignments(texts, "--header", "region=eu") or None,
    help="Only messages with this header. Repeatable.",
)
@click.option("--where", metavar="CONDITION", help="Only messages that this filter lets through.")
@live_option
@dedup_option
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Messages a second at the most.")
@unit_option
@dry_run_option
@lake_options
@place_options
def replay(place: JobContext, **options: Any) -> None:
    """Publish messages of the lake and the log again.

    NAME is the replay's: the same name again goes on with it, or finds it done. Where a message came from is in its
    headers x-original-queue, x-original-offset and so on.

    \b
    Examples:
      penstock pipeline replay again-1 --from orders --to-queue orders-again --start 2h --dry-run
      penstock pipeline replay again-1 --from orders --to-queue orders-again --start 2h
      penstock pipeline replay eu-2 --from 'orders.*' --to-exchange shop --where "region = 'eu'" --rate 500
    """
    target = options["to_queue"] or options["to_exchange"] or "nowhere"
    run_job(Job("replay", given(options), options["name"], f"{names_text(options['queues'])} → {target}"), place)


@pipeline.command()
@click.argument("to_queue", metavar="QUEUE", shell_complete=complete_queue)
@from_option
@click.option("--where", metavar="CONDITION", help="What this filter lets through.")
@click.option("--exchange", shell_complete=complete_exchange, help="Or what reaches QUEUE from it by its bindings now.")
@click.option("--kind", type=click.Choice(KINDS), help="Or what a binding of such an exchange would let through:")
@click.option("--pattern", help="its key, pattern or condition,")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _context, _option, texts: headers_of(texts),
    help="or its headers; NAME:=JSON for what is no text,",
)
@click.option("--match", type=click.Choice(("all", "any")), help="all of which, or any of which, are asked for.")
@click.option("--name", help="What was routed to QUEUE under this name is not routed again; else under its condition.")
@start_option
@end_option
@live_option
@dedup_option
@unit_option
@dry_run_option
@lake_options
@watch_options
@place_options
def route(every_ms: int | None, place: JobContext, **options: Any) -> None:
    """Give a queue what it would have got before it was bound.

    History is the lake and the log. Which messages of it reach QUEUE is decided exactly as live routing decides it.
    They keep all their fields; messages that have expired are left out. Where QUEUE is bound already, let --end be the
    time of that: messages since then are there.

    \b
    Examples:
      penstock pipeline route large --from orders --where "amount > 1000" --dry-run
      penstock pipeline route large --from orders --where "amount > 1000"
      penstock pipeline route billing --from orders --exchange shop --end 2026-05-01T12:00:00Z
      penstock pipeline route eu --from 'orders.*' --kind topic --pattern 'order.eu.#'
    """
    queues, to_queue = options["queues"], options["to_queue"]
    condition = [options[name] for name in ("where", "exchange", "kind", "pattern", "match", "headers")]
    id = options["name"] or short_id(to_queue, *sorted(queues), *condition)
    run_job(Job("route", given(options), id, f"{names_text(queues)} → {to_queue}", every_ms), place)


pipeline.add_command(stats)
pipeline.add_command(triage)
pipeline.add_command(status)
