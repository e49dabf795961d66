"""One consumer group on one lane.

A work group is `WorkGroup` (`work.py`). Its state is in `state.py`: `leases.py`, `waiting.py` and `dead.py`, all
of them ranges of offsets (`entries.py`). Its commands are in `claim.py` (with `walk.py` and `limits.py`), `settle.py`,
`expiry.py` and `admin.py`. A stream group is `StreamGroup` (`stream.py`). `settings.py` has the options in force.

Others may import `WorkGroup`, `StreamGroup`, `Settings`, `settings_of` and `Entry`, and the named limits of a module.
"""
