"""One consumer group on one lane.

A work group is `WorkGroup` (`work.py`). Its state is in `state.py`: `leases.py`, `waiting.py` and `dead.py`, all
of them ranges of offsets (`entries.py`). Its commands are in `claim.py` (with `walk.py`), `settle.py`,
`expiry.py` and `admin.py`. A stream group is `StreamGroup` (`stream.py`). `settings.py` has the options in force.

Others import the names below from here, and a named limit from its module.
"""

from penstock.core.group.entries import Entry
from penstock.core.group.settings import Settings, settings_of
from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup

__all__ = ["Entry", "Settings", "StreamGroup", "WorkGroup", "settings_of"]
