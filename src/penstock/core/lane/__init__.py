"""A lane: one ordered log with dense offsets, and the state of every group on it.

`Lane` (`lane.py`) is the owner's copy of the truth. Its state is in `state.py`, its commands in `append.py` (publish,
within the queue's limits), `seal.py` (what goes into a commit) and `retention.py` (what leaves the log).
The groups are next door, in `core/group`; the batches known in memory are in `core/log.py`.

Others import from here.
"""

from penstock.core.lane.lane import Lane
from penstock.core.lane.seal import ROW_BYTES_MAX, ROW_MESSAGES_MAX, Sealed
from penstock.core.lane.state import Group

__all__ = ["ROW_BYTES_MAX", "ROW_MESSAGES_MAX", "Group", "Lane", "Sealed"]
