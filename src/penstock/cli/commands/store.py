"""`penstock store`: tools that work on a store itself, whether a server runs or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import json_option
from penstock.cli.moments import absolute, moment, precise, span
from penstock.cli.output import Answer, counted, listed, note, print_table, printable, printable_lines, said
from penstock.cli.tool import StageBar, run_tool, store_argument

if TYPE_CHECKING:
    from penstock.maintenance.backup import BackupMade, Restored
    from penstock.maintenance.repair import Repaired
    from penstock.maintenance.verify import Finding, Report

FINDING_TITLES = ("check", "queue", "lane", "offsets", "problem")


@click.group(cls=SuggestingGroup)
def store() -> None:
    """Tools for a store: verify it, copy it, back it up, restore it, repair it.

    STORE is a file or a URL as 'penstock serve --store' takes it: data/penstock.db unless given, or what
    PENSTOCK_STORE_PATH says.

    \b
    Examples:
      penstock store verify
      penstock store verify postgresql://user@host/database
      penstock store copy data/penstock.db postgresql://user@host/database
      penstock store backup data/penstock.db /backups/penstock
    """


# Verifying -----------------------------------------------------------------------------------------------


@store.command()
@store_argument
@json_option
def verify(place: str, as_json: bool) -> None:
    """Look for damage in a store.

    Every checksum is compared, offsets must be dense, rows must fit together; of SQLite also the file's pages, every
    record of the log, and the tables against the log. Nothing is changed, and servers may go on meanwhile. The exit
    code is 1 if anything is wrong.

    \b
    Examples:
      penstock store verify
      penstock store verify /var/lib/penstock/data.db --json
      penstock store verify 'postgresql://user@host/database?schema=penstock'
    """
    from penstock.maintenance import verify as work

    with StageBar() as bar:
        report = run_tool(work.verify(place, bar))
    Answer(report, lambda: print_report(report)).show(as_json)
    if not report.ok:
        raise SystemExit(1)


def print_report(report: Report) -> None:
    looked_at = [
        counted(report.queues, "queue"),
        counted(report.messages, "message"),
        f"{counted(report.batches, 'batch').removesuffix('s')}{'es' if report.batches != 1 else ''}",
        counted(report.bytes, "byte"),
        counted(report.ids, "id"),
    ]
    if report.records is not None:
        looked_at.append(f"{counted(report.records, 'record')} of the log")
    click.echo(f"{printable(report.store)}: looked at {', '.join(looked_at)} in {report.seconds:.1f} s.")
    for warning in report.warnings:
        click.echo(f"Note: {printable(warning)}.")
    if report.ok:
        click.echo("All is well.")
        return
    print_findings(report.findings)
    if report.more_findings:
        click.echo(f"and {counted(report.more_findings, 'more finding')}.")
    note("The store is damaged. docs/operate.md says what to do; 'store repair' sets damage of an SQLite store aside.")


def print_findings(findings: list[Finding]) -> None:
    print_table(FINDING_TITLES, [finding_row(one) for one in findings], numbers=("lane",))


def finding_row(one: Finding) -> tuple[object, ...]:
    offsets = None if one.start is None or one.end is None else f"{one.start} to {one.end - 1}"
    problem = one.problem if one.file is None or one.file in one.problem else f"{one.problem} ({one.file})"
    return (one.check, one.queue, one.lane, offsets, problem)


# Copying -------------------------------------------------------------------------------------------------


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--online", is_flag=True, help="While servers use FROM; at the end it is closed for them.")
@json_option
def copy(source: str, target: str, online: bool, as_json: bool) -> None:
    """Copy a store to another one, of the same or another engine.

    Every queue, message, group, lease, dead letter, dedup id, schedule, mark, staged transaction, exchange and binding
    is there afterwards, with the same offsets, and is compared. TO must be empty or not there. No server may use either
    store meanwhile, and FROM stays as it is.

    With --online servers go on with FROM. When TO has caught up, FROM is closed: its servers are refused every commit,
    what they have answered is copied, and TO is ready. Start the servers anew with TO then. If it fails before that,
    FROM is open again and nothing is lost; if it is killed, 'penstock store reopen' opens FROM.

    \b
    Examples:
      penstock store copy data/penstock.db postgresql://user@host/database
      penstock store copy data/penstock.db postgresql://user@host/database --online
      penstock store copy 'postgresql://user@host/database?schema=penstock' mysql://user@host/penstock
      penstock store copy mysql://user@host/penstock /var/lib/penstock/data.db --json
    """
    from penstock.maintenance import copy as work
    from penstock.maintenance import online as online_work

    with StageBar() as bar:
        done = run_tool(online_work.copy_online(source, target, bar) if online else work.copy(source, target, bar))
    text = (
        f"Copied {counted(done.queues, 'queue')} with {counted(done.messages, 'message')} and "
        f"{counted(done.ids, 'id')} from {done.source} to {done.target} in {done.seconds:.1f} s, and compared them."
    )
    if done.enqueued:
        text += f" {counted(done.enqueued, 'enqueued message')} of applications came along."
    if isinstance(done, online_work.CopiedOnline):
        text += (
            f" After {counted(done.rounds, 'round')} {done.source} was closed; {done.target} was ready "
            f"{done.pause_seconds:.2f} s later. Now start the servers with {done.target}."
        )
    said(done, text).show(as_json)


@store.command()
@store_argument
@json_option
def reopen(place: str, as_json: bool) -> None:
    """Let servers use a store again that 'store copy --online' has closed.

    What came to the copy since is not in it: servers must not use both.

    \b
    Example:
      penstock store reopen data/penstock.db
    """
    from penstock.maintenance import online as work

    copy_at = run_tool(work.reopen(place))
    said({"store": place, "copied_to": copy_at}, f"Servers can use it again. It was copied to {copy_at}.").show(as_json)


# Backups -------------------------------------------------------------------------------------------------


@store.command()
@click.argument("place", metavar="STORE")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--keep", type=click.IntRange(1), help="Delete all but the newest so many; all stay unless given.")
@click.option("--watch", is_flag=True, help="Go on: copy the log as it grows, so that any moment can be restored.")
@click.option("--every", type=span, default="1s", show_default=True, help="With --watch: how often the log is copied.")
@click.option(
    "--full-every", type=span, default="1d", show_default=True, help="With --watch: how often a new backup is made."
)
@json_option
def backup(place: str, folder: Path, keep: int | None, watch: bool, every: int, full_every: int, as_json: bool) -> None:
    """Make a backup of an SQLite store, or keep one up to date.

    A server may use it meanwhile: all that it answered before is in the backup. Segments of the log that FOLDER has
    from an earlier backup are not copied again. The backup is verified; the exit code is 1 if it is damaged, as the
    store then is. Such a backup stays, and no older one is deleted for it.

    With --watch it goes on until it is stopped: what is new in the log is copied every second, and 'store restore --at'
    restores any moment since the oldest backup. The store keeps what is not copied yet. Started again, it goes on
    where it was. It ends with exit code 1 when anything fails.

    \b
    Examples:
      penstock store backup data/penstock.db /backups/penstock
      penstock store backup data/penstock.db /backups/penstock --keep 14 --json
      penstock store backup data/penstock.db /backups/penstock --watch --full-every 6h --keep 28
    """
    from penstock.maintenance import backup as work

    with StageBar() as bar:
        if watch:
            watching = work.Watching(place, folder, every / 1000, full_every / 1000, keep, bar)
            run_tool(watching.run(lambda done: backup_answer(done).show(as_json)))
            return
        done = run_tool(work.back_up(place, folder, keep=keep, progress=bar))
    backup_answer(done).show(as_json)
    if not done.ok:
        raise SystemExit(1)


def backup_answer(done: BackupMade) -> Answer:
    text = (
        f"Backup {done.name} of {done.store} in {done.folder}: {counted(done.queues, 'queue')} with "
        f"{counted(done.messages, 'message')}; {counted(done.bytes_copied, 'byte')} copied, "
        f"{counted(done.bytes_had, 'byte')} were there, in {done.seconds:.1f} s."
    )
    gone = f" Deleted {', '.join(done.deleted)}." if done.deleted else ""
    return Answer(done, lambda: print_verified(text + gone, done.findings))


@store.command()
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def backups(folder: Path, as_json: bool) -> None:
    """List the backups in a folder, the oldest first.

    \b
    Example:
      penstock store backups /backups/penstock
    """
    from penstock.maintenance import backup as work

    async def listing() -> list[work.Backup]:
        return work.list_backups(folder)

    found = run_tool(listing())
    rows = [(one.name, absolute(one.made_ms), one.bytes, one.segments, absolute(one.until_ms)) for one in found]
    titles, empty = ("backup", "made", "bytes", "segments", "with the log until"), f"There are no backups in {folder}."
    listed(found, titles, rows, numbers=("bytes", "segments"), empty=empty).show(as_json)


@store.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("target", metavar="STORE")
@click.option("--backup", "name", metavar="NAME", help="This one as it is, as 'store backups' names it.")
@click.option(
    "--at", "at_ms", type=moment, metavar="TIME", help="As the store was then: 2026-05-01T12:00:00.250Z, or 10m ago."
)
@json_option
def restore(folder: Path, target: str, name: str | None, at_ms: int | None, as_json: bool) -> None:
    """Make an SQLite store from a backup, as it was at any moment that the log behind the backup goes to.

    STORE is a file that is not there yet. Without options it is the newest that FOLDER has. With --at it has every
    commit up to TIME and none behind; the answer says when the last one was made, and how many are left out. With both
    options, that backup is what the log is added to.

    Every checksum is compared, and the new store is verified; the exit code is 1 if it is damaged. To restore into a
    database, copy the file there with 'penstock store copy'.

    \b
    Examples:
      penstock store restore /backups/penstock data/penstock.db
      penstock store restore /backups/penstock old.db --at 2026-11-18T09:59:59Z
      penstock store restore /backups/penstock old.db --backup 20261118T070000Z
    """
    from penstock.maintenance import backup as work

    with StageBar() as bar:
        done = run_tool(work.restore(folder, target, name=name, at_ms=at_ms, progress=bar))
    Answer(done, lambda: print_verified(restored_text(done), done.findings)).show(as_json)
    if not done.ok:
        raise SystemExit(1)


def restored_text(done: Restored) -> str:
    text = (
        f"Restored backup {done.backup} and {counted(done.commits, 'commit')} of the log to {done.store}: "
        f"{counted(done.queues, 'queue')} with {counted(done.messages, 'message')}, in {done.seconds:.1f} s.\n"
        f"Its last commit is of {precise(done.restored_ms)}. "
    )
    if done.next_ms is None:
        return text + "Nothing later is known."
    return text + (
        f"Left out: {counted(done.left_out, 'commit')}, the first of {precise(done.next_ms)}, the last of "
        f"{precise(done.last_ms)}."
    )


def print_verified(text: str, findings: list[Finding]) -> None:
    click.echo(printable_lines(text))
    if findings:
        print_findings(findings)
        note("It is damaged, as the store was when it was made.")
    else:
        click.echo("It is verified: all is well.")


# Repairing -----------------------------------------------------------------------------------------------


@store.command()
@click.argument("source", metavar="DAMAGED")
@click.argument("target", metavar="STORE")
@json_option
def repair(source: str, target: str, as_json: bool) -> None:
    """Make a sound SQLite store of what can be read of a damaged one.

    DAMAGED stays as it is; STORE is a new file. Tables are read as far as their pages are whole and rebuilt from the
    log. A message that cannot be read keeps its offset and is never delivered; its bytes are set aside in the folder
    STORE-damaged. What is in doubt is delivered again. No server may use DAMAGED meanwhile. If there is a backup that
    is new enough, restore that instead.

    \b
    Examples:
      penstock store repair data/penstock.db repaired.db
      penstock store repair data/penstock.db repaired.db --json
    """
    from penstock.maintenance import repair as work

    with StageBar() as bar:
        done = run_tool(work.repair(source, target, bar))
    Answer(done, lambda: print_repaired(done)).show(as_json)
    if not done.ok:
        raise SystemExit(1)


def print_repaired(done: Repaired) -> None:
    if done.findings:
        print_findings(done.findings)
    text = (
        f"{done.target} has {counted(done.queues, 'queue')} with {counted(done.messages, 'message')} of {done.source}; "
        f"{counted(done.lost, 'message')} could not be read."
    )
    click.echo(printable(text))
    if done.aside is not None:
        click.echo(f"What could not be read is set aside in {printable(done.aside)}.")
    click.echo("The new store is verified: all is well." if done.ok else "The new store is damaged too: see above.")
