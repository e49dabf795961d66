"""`penstock pipeline triage`: dead letters by what they died of, and redriving them group by group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.moments import when
from penstock.cli.names import complete_queue, yes_option
from penstock.cli.output import confirm, counted, print_table, printable
from penstock.cli.pipeline.running import (
    Job,
    JobContext,
    given,
    names_text,
    place_options,
    run_job,
    short_id,
    told_errors,
)

if TYPE_CHECKING:
    from penstock.spark.jobs.frame import Summary
    from penstock.spark.jobs.triage.plans import Plan


@click.command()
@click.argument("queues", nargs=-1, shell_complete=complete_queue)
@click.option("--group", help="Only this group's dead letters; those of all groups unless given.")
@click.option("--examples", type=click.IntRange(0), help="How many examples of each kind to show; 3 unless given.")
@click.option(
    "--redrive",
    type=click.IntRange(1),
    multiple=True,
    metavar="NUMBER",
    help="Redrive what the last triage of the same QUEUES and --group listed under this number. Repeatable.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="With --redrive: letters a second at the most.")
@yes_option
@place_options
def triage(yes: bool, place: JobContext, **options: Any) -> None:
    """Group dead letters by reason; redrive a group.

    QUEUES are names or patterns; all queues unless given. Error texts that differ only in numbers, ids, quoted texts,
    paths and addresses count as the same. A redrive goes to the group that the letters are dead for, and to no other;
    a message that is no longer dead, or died again since the triage, is left alone.

    \b
    Examples:
      penstock pipeline triage
      penstock pipeline triage orders --group billing --examples 5
      penstock pipeline triage orders --group billing --redrive 1 --rate 100
    """
    redrive, group, asked = options["redrive"], options["group"], given(options)
    if options["rate"] is not None and not redrive:
        raise click.UsageError("--rate is for --redrive; give that too")
    if redrive:
        plans = _plans(place, asked["queues"], group, redrive)
        for plan in plans:
            click.echo(_plan_text(plan), err=True)
        confirm(f"Redrive {'these' if len(plans) > 1 else 'this'}?", yes)
    id = short_id("triage", asked["queues"], group)
    show = show_redriven if redrive else show_groups
    run_job(Job("triage", asked, id, names_text(options["queues"]), show=show), place)


def _plans(place: JobContext, queues: str, group: str | None, numbers: tuple[int, ...]) -> list[Plan]:
    """The groups behind these numbers. Asks before Spark starts, so that no one waits for a question."""
    from penstock.spark.jobs.triage.plans import load_plans, plans_id

    with told_errors(place.server), place.server.sync_client() as client:
        return load_plans(client, plans_id(queues, group), numbers)


def _plan_text(plan: Plan) -> str:
    error = f": {plan.error}" if plan.error else ""
    where = f"{counted(plan.dead, 'dead letter')} of queue {plan.queue}, group {plan.group}"
    return printable(f"{plan.number}: {where} ({plan.reason}{error})")


# For people ----------------------------------------------------------------------------------------------


def show_groups(summary: Summary) -> None:
    """A table of the groups, and under it the examples of each."""
    plans = summary.details["plans"]
    if not plans:
        click.echo("There are no dead letters.")
        return
    names = ("number", "dead", "queue", "group", "reason", "error", "attempts")
    rows = [
        (*(None if plan[name] == "" else plan[name] for name in names), when(plan["first_ms"]), when(plan["last_ms"]))
        for plan in plans
    ]
    print_table((*names, "first", "last"), rows, numbers=("number", "dead", "attempts"))
    examples = [
        (
            plan["number"],
            f"{one['lane']}:{one['offset']}",
            one.get("partition"),
            one["error"] or None,
            one.get("payload"),
        )
        for plan in plans
        for one in plan["examples"]
    ]
    if examples:
        click.echo("\nexamples:")
        print_table(("number", "place", "partition", "error", "payload"), examples, numbers=("number",))
    if summary.details["groups"] > len(plans):
        click.echo(f"\nThere are {summary.details['groups']:,} groups; these are the largest.", err=True)
    click.echo("\nRedrive one with --redrive NUMBER.", err=True)


def show_redriven(summary: Summary) -> None:
    for plan in summary.details["plans"]:
        end = "" if plan["finished"] else "; stopped before the end, run it again to go on"
        click.echo(
            printable(
                f"{plan['number']}: {counted(plan['redriven'], 'dead letter')} of queue {plan['queue']} redriven for "
                f"group {plan['group']}, of {plan['dead']:,} that were listed{end}"
            )
        )
