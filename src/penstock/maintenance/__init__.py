"""Tools for operators: what a store holds is verified, copied and told, on any engine, through the store's contract.

`verify.py` walks over everything and says what is not as it must be; `lanes.py` and `declared.py` have the rules;
`copy.py` moves a store to another engine; `holding.py` keeps servers away meanwhile. What only SQLite's files need is
in `store/sqlite/`. Others import the modules from here.
"""
