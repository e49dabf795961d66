"""Arguments that name things of a server: queues, groups, exchanges and schedules, completed by the shell.

Pressing TAB never hangs or fails: without a quick answer there are no suggestions.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import click

from penstock.cli.connection import DEFAULT_URL, ServerAddress
from penstock.cli.output import confirm

COMPLETION_SECONDS: Final = 0.7

Names = Callable[[Any, click.Context], Awaitable[Iterable[str]]]


async def _queues(client: Any, _context: click.Context) -> Iterable[str]:
    return [name for name in await client.queues() if not name.startswith("$")]


async def _groups(client: Any, context: click.Context) -> Iterable[str]:
    # Behind an option without its value yet, click leaves arguments as they are.
    queue = context.params.get("queue") or next(iter(context.args), None)
    return await client.groups(queue) if queue else []


async def _exchanges(client: Any, _context: click.Context) -> Iterable[str]:
    return await client.exchanges()  # type: ignore[no-any-return]


async def _schedules(client: Any, _context: click.Context) -> Iterable[str]:
    return [schedule.name for schedule in await client.schedules()]


def completions(names: Names, context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names that begin so, as far as the server gives them in time."""
    import asyncio

    given = context.params
    server = ServerAddress(
        given.get("url") or DEFAULT_URL, given.get("token") or "", given.get("namespace") or "default"
    )

    async def ask() -> list[str]:
        async with asyncio.timeout(COMPLETION_SECONDS), server.client() as client:
            # A shell reads one name a line.
            return sorted(
                name for name in await names(client, context) if name.startswith(incomplete) and name.isprintable()
            )

    try:
        return asyncio.run(ask())
    except Exception:  # whatever it is, a TAB is no place to say so
        return []


complete_queue: Final = functools.partial(completions, _queues)
complete_group: Final = functools.partial(completions, _groups)
complete_exchange: Final = functools.partial(completions, _exchanges)
complete_schedule: Final = functools.partial(completions, _schedules)

queue_argument: Final = click.argument("queue", shell_complete=complete_queue)
group_argument: Final = click.argument("group", shell_complete=complete_group)
exchange_argument: Final = click.argument("exchange", shell_complete=complete_exchange)
schedule_argument: Final = click.argument("schedule", shell_complete=complete_schedule)
group_option: Final = click.option(
    "--group", "-g", default="default", show_default=True, shell_complete=complete_group, help="The consumer group."
)
prefix_option: Final = click.option("--prefix", default="", help="Only queues whose names begin so.")
all_option: Final = click.option("--all", "show_all", is_flag=True, help="Also the system's own, such as $events.")
yes_option: Final = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def max_option(default: int, limit: int, what: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--max, for a list that may be long; the command gets it as `most`."""
    words = f"Show at most this many{what}."
    return click.option("--max", "most", type=click.IntRange(1, limit), default=default, show_default=True, help=words)


def confirmed(question: str | Callable[..., str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--yes: without it, a person is asked first. The question is given the command's arguments by name."""
    ask = question.format if isinstance(question, str) else question

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @yes_option
        @functools.wraps(command)
        def asking(*, yes: bool, **given: Any) -> Any:
            confirm(ask(**given), yes)
            return command(**given)

        return asking

    return decorate
