"""What applications enqueued and no server has published yet: taken along by a copy, where the target can hold it.

Next stop: `copy.py` and `online.py`.
"""

from __future__ import annotations

from typing import Final

from penstock.model import INTEGER_MAX
from penstock.model.errors import InvalidArgument, StoreCorrupt
from penstock.store.contract import FullStore

READ_BYTES: Final = 8 << 20


async def check_can_hold(old: FullStore, new: FullStore, source: str, target: str) -> None:
    """Raise where there are enqueued messages and no place for them."""
    enqueueing = old.enqueueing
    if enqueueing is None or new.enqueueing is not None:
        return
    failed = await enqueueing.count_failed()
    if failed:
        raise InvalidArgument(
            f"{source} has {failed} enqueued messages that could not be published, and {target} has no place for them; "
            "retry or delete them with 'penstock enqueued' first"
        )
    if await enqueueing.list_all(-INTEGER_MAX, 1):
        raise InvalidArgument(
            f"{source} has enqueued messages that no server has published yet, and {target} has no place for them; let "
            "a server run until they are"
        )


async def carry(old: FullStore, new: FullStore, target: str) -> int:
    """Copy enqueued messages with their ids, times and failures, and compare them; how many there are."""
    if old.enqueueing is None or new.enqueueing is None:
        return 0
    after, count = -INTEGER_MAX, 0
    while page := await old.enqueueing.list_all(after, READ_BYTES):
        for kept in page:
            await new.enqueueing.put_back(kept)
            if await new.enqueueing.list_all(kept.row.id - 1, 1) != [kept]:
                raise StoreCorrupt(f"enqueued message {kept.row.id} is not the same in {target}; delete it")
        after, count = page[-1].row.id, count + len(page)
    return count
