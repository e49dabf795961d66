"""A store that a tool has for itself: no server uses it, and none can take anything of it meanwhile.

A server that uses it is a reason to refuse, never to fence it. On a file the kernel's lock says so; on a database it is
the members' leases, by the database's clock. Next stop: `copy.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from penstock.model.errors import PenstockError, Unavailable
from penstock.model.rows import SLOTS, Member
from penstock.store.contract import FullStore
from penstock.store.folders import make_folder
from penstock.store.open import label_of, open_engine, scheme_of
from penstock.store.sqlite import server_lock
from penstock.version import VERSION

LEASE_MS: Final = 30_000
BEAT_SECONDS: Final = 5.0


class Held(NamedTuple):
    """A store, with every slot of it."""

    label: str
    store: FullStore
    incarnation: int
    epochs: dict[int, int]


@asynccontextmanager
async def held(place: str, tool: str, *, must_exist: bool, above: int = 0) -> AsyncIterator[Held]:
    """Open a store and own all of it, under an incarnation above a number; raises while a server uses it."""
    async with AsyncExitStack() as stack:
        if not scheme_of(place):
            lock_file(stack, Path(place), must_exist=must_exist)
        store = await open_engine(place, must_exist=must_exist)
        stack.push_async_callback(store.close)
        label = label_of(place)
        if scheme_of(place):
            await _check_unused(store, label)
        await store.skip_incarnations(above)
        joined = await store.join(Member(tool, "", VERSION, LEASE_MS))
        stack.push_async_callback(_leave, store, joined.incarnation)
        if scheme_of(place):
            epochs = await store.take(range(SLOTS), joined.incarnation)
        else:
            epochs = await store.acquire(range(SLOTS), tool)
        if len(epochs) < SLOTS:
            await _check_unused(store, label, joined.incarnation)
            raise Unavailable(f"{label}: others have taken {SLOTS - len(epochs)} of its {SLOTS} slots; try again")
        beating = asyncio.create_task(_beat(store, joined.incarnation))
        stack.callback(beating.cancel)
        yield Held(label, store, joined.incarnation, epochs)


def lock_file(stack: ExitStack | AsyncExitStack, path: Path, *, must_exist: bool) -> None:
    """Hold the lock of a file's server until the stack ends; raises while a server has it."""
    if must_exist and not path.is_file():
        return  # the engine says so
    try:
        make_folder(path.parent)
        stack.enter_context(server_lock.held(path))
    except server_lock.Locked as locked:
        process = f", process {locked}," if str(locked) else ""
        raise Unavailable(f"a server{process} uses {path.absolute()}; stop it first") from None
    except OSError as error:
        raise Unavailable(f"{error.filename or path}: {error.strerror or error}") from None


async def _check_unused(store: FullStore, label: str, but: int = 0) -> None:
    view = await store.heartbeat(0)
    others = [row for row in view.nodes if row.is_live and row.incarnation != but]
    if others:
        names = ", ".join(f"{row.name} ({row.url or 'no server: a program or a tool'})" for row in others)
        raise Unavailable(f"{label} is used by {names}; stop them first, or wait until their leases have run out")


async def _beat(store: FullStore, incarnation: int) -> None:
    """Keep the lease. A heartbeat that fails is not the last word: the next one or the commit tells."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        with suppress(PenstockError):
            await store.heartbeat(incarnation)


async def _leave(store: FullStore, incarnation: int) -> None:
    with suppress(PenstockError):
        await store.leave(incarnation)
