"""Tools for operators: a store is verified, copied, backed up, repaired and looked at.

`verify.py` walks over everything and says what is not as it must be; `lanes.py` and `declared.py` have the rules.
`copy.py` moves a store to another engine; `holding.py` keeps servers away meanwhile. `backup.py` and `repair.py` are
for SQLite, whose files `store/sqlite/` knows; `mending.py` has the rules of a repair. `doctor.py` looks at what is
cheap to look at. Others import the modules from here.
"""
