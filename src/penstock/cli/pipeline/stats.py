"""`penstock pipeline stats`: what happened in queues and groups, as tables and sparklines."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.moments import absolute, instant, span_text
from penstock.cli.names import complete_queue
from penstock.cli.output import note, print_table
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

if TYPE_CHECKING:
    from penstock.spark.jobs.frame import Summary

STEPS_MS: Final = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.:-=+*#"
WIDTH: Final = 60
"""Characters of a sparkline at most: of a longer series, neighbours are added up."""
COUNTS: Final = ("published", "delivered", "acked", "retried", "dead")
TIMES: Final = ("p50", "p95", "p99", "max")


@click.command()
@click.argument("queues", nargs=-1, shell_complete=complete_queue)
@click.option("--group", help="Only this group, beside the queue's own numbers.")
@click.option("--start", type=instant, metavar="TIME", help="From then on: a time, or 2h for that ago.")
@click.option("--end", type=instant, metavar="TIME", help="Until then.")
@click.option("--by", type=click.Choice(list(STEPS_MS)), help="The step of the series; what suits the range else.")
@click.option("--update/--no-update", default=True, show_default=True, help="Sum up what was archived since.")
@click.option("--reasons", type=click.IntRange(1), help="How many reasons of dead letters to show; 10 unless given.")
@click.option("--lookback-hours", type=click.IntRange(0), help="How long hand-outs are looked for; 24 unless given.")
@lake_options
@watch_options
@place_options
def stats(every_ms: int | None, place: JobContext, **options: Any) -> None:
    """Show what happened in queues, minute by minute.

    QUEUES are names or patterns; all that were archived unless given. Numbers come from the lake, so archive first; no
    server is needed. Percentiles hold for any range: the lake keeps sketches of all times, which can be merged.

    \b
    Examples:
      penstock pipeline stats
      penstock pipeline stats orders --group billing --start 2h --by minute
      penstock pipeline stats 'mail.*' --start 2026-05-01T00:00:00Z --end 2026-06-01T00:00:00Z --json
    """
    lake = options["lake"]
    what = f"{names_text(options['queues'])} in {lake}"
    run_job(Job("stats", given(options), short_id(lake), what, every_ms, needs_server=False, show=show), place)


# For people ----------------------------------------------------------------------------------------------


def show(summary: Summary) -> None:
    """Totals, the way they went, and why messages died."""
    details = summary.details
    if "commits" in details:
        note(f"Summed up {details['messages']:,} messages and {details['events']:,} events.")
    if details.get("missed_events"):
        note(f"{details['missed_events']:,} events expired from the lake before they were summed up.")
    totals = details["totals"]
    if not totals:
        known = "covers_from_ms" in details
        span = f"{absolute(details['covers_from_ms'])} to {absolute(details['covers_to_ms'] + 60_000)}" if known else ""
        click.echo("Nothing happened in this range" + (f"; the lake tells of {span}." if known else "."))
        return
    first, last = min(row["first_ms"] for row in totals), max(row["last_ms"] for row in totals)
    step_ms = STEPS_MS[details["by"]]
    click.echo(f"{absolute(first)} to {absolute(last + 60_000)}\n")
    print_table(
        ("queue", "group", *COUNTS, "bytes"),
        [(row["queue"], row["group"], *(row[name] for name in COUNTS), row["bytes"]) for row in totals],
        numbers=(*COUNTS, "bytes"),
    )
    _show_times(totals)
    bars = BARS if _can_print(BARS) else ASCII_BARS
    click.echo(f"\neach {details['by']}:")
    print_table(
        ("queue", "group", "what", "most", "trend"),
        _trends(details["series"], first, last, step_ms, bars),
        numbers=("most",),
    )
    if details["reasons"]:
        click.echo("\ndied of:")
        names = ("dead", "queue", "group", "reason", "error")
        rows = [
            (*(row[name] for name in names), absolute(row["first_ms"]), absolute(row["last_ms"]))
            for row in details["reasons"]
        ]
        print_table((*names, "first", "last"), rows, numbers=("dead",))


def _show_times(totals: Sequence[dict[str, Any]]) -> None:
    rows = [
        (row["queue"], row["group"], words, times["count"], *(span_text(times[name]) for name in TIMES))
        for row in totals
        for words, times in (("waited in the queue", row["waited_ms"]), ("worked with", row["worked_ms"]))
        if times is not None
    ]
    if rows:
        click.echo()
        print_table(("queue", "group", "time", "messages", *TIMES), rows, numbers=("messages", *TIMES))


def _trends(
    series: Sequence[dict[str, Any]], first_ms: int, last_ms: int, step_ms: int, bars: str
) -> list[tuple[str, str | None, str, int, str]]:
    """A line for each count that is not 0 all the way."""
    start = first_ms // step_ms
    length = last_ms // step_ms - start + 1
    values: dict[tuple[str, str | None, str], list[int]] = defaultdict(lambda: [0] * length)
    for row in series:
        for name in COUNTS:
            if row[name]:
                values[row["queue"], row["group"], name][row["at_ms"] // step_ms - start] += row[name]
    return [(*key, max(line), sparkline(line, bars)) for key, line in values.items()]


def sparkline(values: Sequence[int], bars: str = BARS, width: int = WIDTH) -> str:
    """One character for each value, from none to the greatest; a blank for 0."""
    together = max(1, -(-len(values) // width))
    joined = [sum(values[at : at + together]) for at in range(0, len(values), together)]
    most = max(joined, default=0)
    return "".join(" " if value == 0 else bars[-(-value * len(bars) // most) - 1] for value in joined)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
