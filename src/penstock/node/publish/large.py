"""Large publishes: compressed on a thread, so that the event loop waits for none of it.

What is small is encoded where it is sealed, together with what others publish. Next stop: `append.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

import msgspec

from penstock.batch import EncodedBatch, decode_meta, encode
from penstock.core.lane import ROW_BYTES_MAX
from penstock.node.publish.parts import LARGE_BYTES, Part

Made = TypeVar("Made")


async def on_thread(make: Callable[[], Made]) -> Made:
    """What is made on a thread. A thread's own result would be kept until the next full garbage collection."""
    made: list[Made] = []
    await asyncio.to_thread(lambda: made.append(make()))
    return made.pop()


def are_large(parts: Sequence[Part]) -> bool:
    """Whether some messages are to be encoded that have so many bytes."""
    for part in parts:  # noqa: SIM110 - asked at every publish, and a generator costs more than the answer
        if part.batch is None and part.size >= LARGE_BYTES:
            return True
    return False


async def encoded(parts: Sequence[Part]) -> list[Part]:
    """The same parts, those with many bytes encoded: what goes to several queues once."""
    known: dict[tuple[int, ...], EncodedBatch] = {}
    found: list[Part] = []
    for part in chain.from_iterable(map(_pieces, parts)):
        if are_large([part]):
            same = tuple(map(id, part.messages))
            if same not in known:
                known[same] = await on_thread(partial(encode, part.messages))
            batch = known[same]
            meta = decode_meta(batch.meta, batch.count)
            found.append(msgspec.structs.replace(part, messages=(), batch=batch, meta=meta))
        else:
            found.append(part)
    return found


def _pieces(part: Part) -> list[Part]:
    """A part as one for each batch that it becomes, as when it is sealed: inside one, messages count as the average.

    What has an id or comes from a spool stays together: it is known by what a lane got at once.
    """
    if not are_large([part]) or part.publish_id is not None or part.origin is not None:
        return [part]
    pieces: list[list[int]] = []
    size = 0
    for place, message in enumerate(part.messages):
        size += len(message.payload)
        if not pieces or size > ROW_BYTES_MAX:
            pieces.append([])
            size = len(message.payload)
        pieces[-1].append(place)
    places = range(len(part.messages)) if part.indexes is None else part.indexes
    return [
        msgspec.structs.replace(
            part, messages=part.messages[piece[0] : piece[-1] + 1], indexes=[places[place] for place in piece]
        )
        for piece in pieces
    ]
