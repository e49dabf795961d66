"""What every engine refuses before it touches a row: the part of the contract that needs no store.

It may not know any engine, nor what is stored: a commit is judged by itself. Next stop: the engines,
`store/memory/engine.py` and `store/sqlite/engine.py`.
"""

from __future__ import annotations

from penstock.model.errors import InvalidArgument
from penstock.model.rows import REGISTRAR_SLOT, Commit, slot_of


def check_commit(commit: Commit) -> None:
    """Refuse what no engine may apply: a lane changed twice, or one whose slot's epoch the commit does not name."""
    changed = [change.lane for change in commit.lanes]
    if len(set(changed)) != len(changed):
        twice = next(lane for lane in changed if changed.count(lane) > 1)
        raise InvalidArgument(f"lane {twice} has two changes in one commit; merge them into one")
    for lane in (*changed, *commit.lanes_deleted):
        if slot_of(lane) not in commit.epochs:
            raise InvalidArgument(f"the commit changes lane {lane} but names no epoch for its slot {slot_of(lane)}")
    if changes_enqueued(commit) and REGISTRAR_SLOT not in commit.epochs:
        raise InvalidArgument(f"the commit changes enqueued rows but names no epoch for slot {REGISTRAR_SLOT}")


def changes_enqueued(commit: Commit) -> bool:
    return bool(commit.enqueued_deleted or commit.enqueued_failed or commit.enqueued_retried)
