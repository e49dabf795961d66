"""`penstock pipeline status`: the jobs that ran or run with this server, each as it said last."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli.connection import ServerAddress, json_option, server_options
from penstock.cli.moments import now_ms, span, span_text, when
from penstock.cli.output import counted, listed
from penstock.cli.pipeline.running import told_errors

TITLES: Final = ("job", "id", "on", "state", "messages", "rate", "behind", "to go", "updated", "says")
NUMBERS: Final = ("messages", "rate", "behind")


@click.command()
@click.argument("job", required=False)
@click.option("--forget", "forget_ms", type=span, metavar="SPAN", help="Drop rows of jobs that ended so long ago.")
@server_options
@json_option
def status(job: str | None, forget_ms: int | None, server: ServerAddress, as_json: bool) -> None:
    """List the pipeline's jobs, running ones first.

    \b
    Examples:
      penstock pipeline status
      penstock pipeline status archive --json
      penstock pipeline status --forget 30d
    """
    from penstock.spark.jobs.status import forget_statuses, read_statuses

    with told_errors(server), server.sync_client() as client:
        found = read_statuses(client, job or "")
        now = now_ms()
        if forget_ms is not None:
            old = [one for one in found if one.ended_ms is not None and now - one.ended_ms >= forget_ms]
            click.echo(f"{counted(forget_statuses(client, old), 'row')} forgotten.", err=True)
            found = [one for one in found if one not in old]
    rows = [
        (
            one.job,
            one.id,
            one.what,
            "silent" if one.is_silent(now) else one.state,
            one.rows,
            f"{one.rate:,.0f}/s",
            one.lag,
            None if one.eta_seconds is None else span_text(round(one.eta_seconds * 1000)),
            when(one.updated_ms, now),
            one.error or one.note or (f"{counted(one.restarts, 'restart')}" if one.restarts else None),
        )
        for one in found
    ]
    listed(found, TITLES, rows, numbers=NUMBERS, empty="No job has run yet.").show(as_json)
