"""Answers with messages that may be large: no more of them at once than `answers.py` lets through, decoded on a thread.

Small ones are made at once, for the price of adding up their bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.api.results import Slice
from penstock.fronts.answers import LARGE_BYTES, on_thread
from penstock.fronts.http.request import Answer, Stream
from penstock.fronts.http.routes import Call
from penstock.wire.http.shapes import BATCHES_TYPE

Kind = TypeVar("Kind", Answer, Stream)


async def counted(call: Call, size: int, make: Callable[[], Awaitable[Kind]]) -> Kind:
    """Make an answer of about `size` bytes. A large one waits until the server may have it under way."""
    if size < LARGE_BYTES:
        return await make()
    share = await call.server.answers.take(size)
    try:
        answer = await make()
    except BaseException:
        share.give_back()
        raise
    answer.share = share
    return answer


async def decoded_answer(call: Call, slices: Sequence[Slice], make: Callable[[], Awaitable[Answer]]) -> Answer:
    """An answer of decoded messages."""
    size = sum([part.unfolded for part in slices])
    if size < LARGE_BYTES:
        return await make()

    async def unfolded() -> Answer:
        await asyncio.to_thread(_unfold, slices)
        # One after the other: others have their turn between two, and it is seen which clients have gone meanwhile.
        async with call.server.answers.making:
            await asyncio.sleep(0)
            return await make()

    return await counted(call, size, unfolded)


def _unfold(slices: Sequence[Slice]) -> None:
    """Decompress what is compressed: the readers keep it."""
    for part in slices:
        part.payloads()


async def batches_answer(call: Call, slices: Sequence[Slice], parts_of: Callable[[], tuple[bytes, ...]]) -> Answer:
    """An answer of batches as they are stored; only those that must be cut are decoded."""
    whole = cut = 0
    for part in slices:
        batch = part.reader.batch
        if part.stop - part.start == batch.count:
            whole += len(batch.body)
        else:
            cut += part.unfolded
    if whole + cut < LARGE_BYTES:
        return Answer(200, parts_of(), BATCHES_TYPE)

    async def make() -> Answer:
        return Answer(200, await on_thread(parts_of) if cut >= LARGE_BYTES else parts_of(), BATCHES_TYPE)

    return await counted(call, whole + cut, make)
