"""Large publishes: compressed on a thread, so that the event loop waits for none of it.

What is small is encoded where it is sealed, together with what others publish. Next stop: `append.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from penstock.batch import EncodedBatch, decode_meta, encode
from penstock.node.publish.parts import LARGE_BYTES, Part

Made = TypeVar("Made")


async def on_thread(make: Callable[[], Made]) -> Made:
    """What is made on a thread. A thread's own result would be kept until the next full garbage collection."""
    made: list[Made] = []
    await asyncio.to_thread(lambda: made.append(make()))
    return made.pop()


def are_large(parts: Sequence[Part]) -> bool:
    """Whether some messages are to be encoded that have so many bytes."""
    return any(part.batch is None and part.size >= LARGE_BYTES for part in parts)


async def encoded(parts: Sequence[Part]) -> list[Part]:
    """The same parts, those with many bytes encoded: what goes to several queues once."""
    known: dict[tuple[int, ...], EncodedBatch] = {}
    found: list[Part] = []
    for part in parts:
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
