"""Filters: SQL-92 conditions on a message's metadata, as in JMS selectors. Text → AST → Python closure.

The AST is public: the Spark back end compiles the same nodes to a column, and both must give the same answer on
every input. The semantics that make this possible are written down, case by case, in `docs/filters.md`; in short:
true, false and unknown (None); kinds that do not fit give unknown; an integer that meets a float becomes a double;
integers that leave 64 bits, division by zero and NaN are NULL.

May not know: payloads, queues, lanes, Spark, clocks, I/O. Text of a user is never evaluated as Python.
A message's next stop is `core/routing`, which asks filters where the message goes.
"""

from penstock.core.filters import syntax_tree
from penstock.core.filters.filter import FILTERS_CACHED_MAX, TEXT_CHARACTERS_MAX, Filter, parse
from penstock.core.filters.like import LIKE_CHARACTERS_MAX, like_parts
from penstock.core.filters.syntax_tree import DEPTH_MAX, IN_ITEMS_MAX

__all__ = [
    "DEPTH_MAX",
    "FILTERS_CACHED_MAX",
    "IN_ITEMS_MAX",
    "LIKE_CHARACTERS_MAX",
    "TEXT_CHARACTERS_MAX",
    "Filter",
    "like_parts",
    "parse",
    "syntax_tree",
]
