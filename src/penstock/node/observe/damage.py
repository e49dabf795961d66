"""What was found damaged in the store, as it is shown with the node's readiness.

It may not know how damage is found. Next stop: the store itself, which finds what a crash left.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.store.contract import Store


@dataclass(eq=False, repr=False)
class Damage:
    """What nobody has looked at yet."""

    _store: Store

    def notes(self) -> list[str]:
        """What is damaged, for people to read, without names: whoever may ask for readiness may see it."""
        return self._store.damage()
