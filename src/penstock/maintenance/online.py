"""A store copied while its servers run, with a pause at the end: then it is closed, and servers go on with the copy.

The target follows the source in rounds. Then the source is closed: a member that never leaves takes every slot, so no
commit of any server passes from that moment on, whatever that server believes; the last round copies what was left.
Nothing that was answered is missing, for an answer leaves a server after its commit. A source that is closed refuses
servers that start; `reopen` undoes it. Next stop: `following.py`, which has the rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import Final

from penstock.maintenance.copy import TOOL, Copied, check_empty, check_places
from penstock.maintenance.enqueued import carry, check_can_hold
from penstock.maintenance.following import Following, Source
from penstock.maintenance.holding import Held, held
from penstock.maintenance.verify import Progress, no_progress
from penstock.model.errors import InvalidArgument, Unavailable
from penstock.model.rows import SLOTS, Member
from penstock.store.closing import CLOSED, closed_for
from penstock.store.contract import FullStore
from penstock.store.open import label_of, open_engine, scheme_of
from penstock.store.sqlite import snapshot as sqlite_snapshot
from penstock.version import VERSION

ROUND_SECONDS: Final = 0.5
"""A round that takes no longer is the last before the pause: the next would take about as long."""
ROUND_SHARE: Final = 0.7
"""So is one that took more than this of the one before: what is left does not become less."""
ROUNDS_MOST: Final = 20
SEIZE_SECONDS: Final = 10.0
TRIES: Final = 5
TRY_AGAIN_SECONDS: Final = 2.0
"""Where applications had just enqueued something and the target has no place for it."""
FOR_EVER_MS: Final = 100 * 365 * 86_400_000


class CopiedOnline(Copied):
    """The same, and how long nobody could write."""

    rounds: int = 0
    """Before the pause."""
    pause_seconds: float = 0.0


async def copy_online(source: str, target: str, progress: Progress = no_progress) -> CopiedOnline:
    """Copy a store that is in use to an empty one, and close it."""
    started = monotonic()
    check_places(source, target)
    done = CopiedOnline(label_of(source), label_of(target))
    async with AsyncExitStack() as stack:
        old = await open_engine(source, must_exist=True)
        stack.push_async_callback(old.close)
        new = await stack.enter_async_context(held(target, TOOL, must_exist=False))
        await check_empty(new)
        following = Following(new, progress, done)
        took = 0.0
        while done.rounds < ROUNDS_MOST:
            began = monotonic()
            async with _reading(source, old) as rows:
                await following.round(rows, f"round {done.rounds + 1}")
                await following.copy_traces(rows)
            done.rounds += 1
            took, before = monotonic() - began, took or inf
            if took < ROUND_SECONDS or took > ROUND_SHARE * before:
                break
        await _cut_over(old, new, following, done)
    done.seconds = round(monotonic() - started, 3)
    return done


async def _cut_over(old: FullStore, new: Held, following: Following, done: CopiedOnline) -> None:
    """The pause. Where something was just enqueued that the target has no place for, servers publish it first."""
    for tries_left in reversed(range(TRIES)):
        paused = monotonic()
        try:
            async with _closed(old, done) as incarnation:
                await check_can_hold(old, new.store, done.source, done.target)
                await following.round(old, "the last round")
                await new.store.skip_incarnations(incarnation)
                done.enqueued = await carry(old, new.store, done.target)
                await following.finish(old, await old.reserve_ids(1))
        except InvalidArgument:
            if not tries_left:
                raise
            await asyncio.sleep(TRY_AGAIN_SECONDS)
        else:
            done.pause_seconds = round(monotonic() - paused, 3)
            return


@asynccontextmanager
async def _reading(place: str, store: FullStore) -> AsyncIterator[Source]:
    """The store as it is read while others write. A file is not opened as a store for it: that would take turns."""
    if scheme_of(place):
        yield store
    else:
        with sqlite_snapshot.taken(Path(place)) as snapshot:
            yield snapshot


# Closing -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _closed(store: FullStore, done: Copied) -> AsyncIterator[int]:
    """Close the store for good, unless what is done meanwhile fails; the incarnation that has it."""
    joined = await store.join(Member(f"{CLOSED}{done.target}"[:200], "", VERSION, FOR_EVER_MS))
    try:
        await _seize(store, joined.incarnation, done.source)
        yield joined.incarnation
    except BaseException:
        await asyncio.shield(store.leave(joined.incarnation))
        raise


async def _seize(store: FullStore, incarnation: int, label: str) -> None:
    """Take every slot from whoever has it. A server may take one back in between: then once more."""
    deadline = monotonic() + SEIZE_SECONDS
    missing = set(range(SLOTS))
    while missing:
        await store.acquire(sorted(missing), TOOL)
        missing -= set(await store.take(sorted(missing), incarnation))
        if missing and monotonic() > deadline:
            raise Unavailable(f"{label}: servers keep {len(missing)} of its {SLOTS} slots; try again")


async def reopen(place: str) -> str:
    """Let servers use a store again that was closed; where it was copied to."""
    store = await open_engine(place, must_exist=True)
    try:
        closed = await closed_for(store)
        if not closed:
            raise InvalidArgument(f"{label_of(place)} is not closed")
        for incarnation in closed:
            await store.leave(incarnation)
        return ", ".join(closed.values())
    finally:
        await store.close()
