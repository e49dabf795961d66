"""The loop behind `penstock consume`: claims, keeps leases alive, settles, and gives back what is left at the end.

Knows the client and what the command asked for, not how messages are printed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock.cli.executing import execute
from penstock.cli.output import note, note_damage
from penstock.cli.show_message import Show
from penstock.model.errors import LeaseLost, PenstockError

if TYPE_CHECKING:
    from penstock.api.results import Claim
    from penstock.client.client import AsyncClient

POLL_SECONDS: Final = 20.0
"""How long one claim waits while following; the next follows at once."""
LEAVE_SECONDS: Final = 5.0
"""What giving back may take when the command ends."""


Verdict = Literal["ack", "nack", "reject", "release"]


class Wishes(NamedTuple):
    """What the command line asked for."""

    queue: str
    group: str
    most: int | None
    follow: bool
    wait_ms: int
    error: str
    command: str | None
    partition: str | None
    consumer: str | None
    lease_ms: int
    verdict: Verdict
    batch: int
    show: Show

    def batch_after(self, done: int) -> int:
        """How many to ask for next; 0 when it is enough."""
        return self.batch if self.most is None else min(self.batch, self.most - done)

    @property
    def patience(self) -> float:
        return POLL_SECONDS if self.follow else self.wait_ms / 1000

    @property
    def lease_seconds(self) -> float:
        return self.lease_ms / 1000


# Work groups ---------------------------------------------------------------------------------------------


class Held:
    """The claims that this command holds, and the task that keeps their leases alive."""

    def __init__(self, client: AsyncClient, lease_seconds: float) -> None:
        self._client = client
        self._lease_seconds = lease_seconds
        self._claims: list[Claim] = []
        self._keeper = asyncio.create_task(self._keep())

    def add(self, claim: Claim) -> None:
        self._claims.append(claim)

    def settled(self, claim: Claim) -> None:
        self._claims.remove(claim)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            for claim in list(self._claims):
                with suppress(PenstockError):  # settling it will say
                    await self._client.extend(claim, self._lease_seconds)

    async def give_back(self) -> None:
        """Everything that is still held, as if it had never been handed out."""
        self._keeper.cancel()
        for claim in self._claims:
            with suppress(LeaseLost):
                await self._client.release(claim)
        self._claims.clear()


@asynccontextmanager
async def holding(client: AsyncClient, wishes: Wishes) -> AsyncIterator[Held]:
    held = Held(client, wishes.lease_seconds)
    try:
        yield held
    except BaseException:
        # Ctrl+C, a reader that went away, a server that did: try, with a deadline.
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await held.give_back()
                # A claim answered after we stopped listening is found by its consumer's name; unless
                # others may have that too.
                if wishes.consumer is None:
                    await client.detach(wishes.queue, wishes.group)
        raise
    await held.give_back()


async def consume_work(client: AsyncClient, wishes: Wishes) -> None:
    """Claim, show or execute, settle."""
    stop_on_sigterm()
    done = 0
    async with holding(client, wishes) as held:
        while (size := wishes.batch_after(done)) > 0:
            claim = await client.claim(
                wishes.queue,
                group=wishes.group,
                max=size,
                wait=wishes.patience,
                consumer=wishes.consumer,
                lease_seconds=wishes.lease_seconds,
                partition=wishes.partition,
            )
            if len(claim):
                held.add(claim)
                done += len(claim)
                try:
                    is_settled = await deal_with(client, wishes, claim)
                except LeaseLost as lost:
                    note(f"what was printed last could not be settled, and comes again: {lost}")
                    is_settled = True
                if is_settled:
                    held.settled(claim)
            elif not wishes.follow:
                return


async def deal_with(client: AsyncClient, wishes: Wishes, claim: Claim) -> bool:
    """Show or execute a claim's messages and settle them; False where they are held until the end."""
    if wishes.command is not None:
        await run_command(client, wishes.command, claim)
        return True
    wishes.show(claim.messages)
    if wishes.verdict == "ack":
        await client.ack(claim)
    elif wishes.verdict == "nack":
        await client.nack(claim, error=wishes.error)
    elif wishes.verdict == "reject":
        await client.reject(claim, error=wishes.error)
    else:
        return False
    return True


async def run_command(client: AsyncClient, command: str, claim: Claim) -> None:
    for received in claim.messages:
        failure = await execute(command, received)
        try:
            if failure is None:
                await client.ack(claim, [received.offset])
            else:
                note(f"offset {received.offset} of lane {received.lane} failed: {failure}")
                await client.nack(claim, [received.offset], error=failure)
        except LeaseLost as lost:
            note(f"offset {received.offset} of lane {received.lane} was dealt with too late, and comes again: {lost}")


# Stream groups -------------------------------------------------------------------------------------------


async def consume_stream(client: AsyncClient, wishes: Wishes) -> None:
    """Read, show, commit."""
    stop_on_sigterm()
    consumer = wishes.consumer
    done = 0
    try:
        while (size := wishes.batch_after(done)) > 0:
            read = await client.read(wishes.queue, wishes.group, max=size, wait=wishes.patience, consumer=consumer)
            note_damage(read.damaged)
            if len(read) or read.damaged:
                wishes.show(read.messages)
                await client.commit(wishes.queue, wishes.group, read.next_offset, lane=read.lane)
                done += len(read)
            elif not wishes.follow:
                break
    finally:
        # What was read but not committed is left to the next consumer.
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await client.detach(wishes.queue, wishes.group, consumer=consumer)


def stop_on_sigterm() -> None:
    """A polite end is as good as Ctrl+C: both cancel this task."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread, which gets the signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
