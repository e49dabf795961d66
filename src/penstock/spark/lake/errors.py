"""What can be wrong with a lake, one class each. Messages name the place, the value and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.model.errors import PenstockError


class LakeError(PenstockError):
    """The lake cannot do what was asked of it; nothing half-done is visible."""

    code = "lake"


class LakeMissing(LakeError):
    """There is no lake, or no such table in it, where one was asked for."""

    code = "lake_missing"


class WrongLake(LakeError):
    """The lake holds another server's queues, or was made by a newer version."""

    code = "wrong_lake"


class LakeGap(LakeError):
    """Offsets are missing between what the lake has and what it is given."""

    code = "lake_gap"


class LakeConflict(LakeError):
    """Another writer moved the same lane's high-water offset, or removed the same files, first."""

    code = "lake_conflict"


class LakeDamaged(LakeError):
    """A file that the log names is missing, cut short or not readable."""

    code = "lake_damaged"


class LakeFull(LakeError):
    """No space is left where the lake is."""

    code = "lake_full"


_NAMED: Final = re.compile(rf"^(?:.*: )?{re.escape(__name__)}\.(\w+): (.+)$", re.MULTILINE)


@contextmanager
def told_by_tasks() -> Iterator[None]:
    """Raise the error of ours that a task of Spark failed with: it comes back as text within pages of others."""
    try:
        yield
    except Exception as error:
        known = translated(error)
        if known is None:
            raise
        raise known from error


def translated(error: Exception) -> LakeError | None:
    found = _NAMED.findall(str(error))
    every: list[type[LakeError]] = [LakeError, *LakeError.__subclasses__()]
    kinds = {kind.__name__: kind for kind in every}
    for name, message in reversed(found):
        if name in kinds:
            return kinds[name](message)
    return None
