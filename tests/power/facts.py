"""What a workload was answered before the power was lost, and what it had begun: read from its notes.

What was answered must be so afterwards; what was begun and not answered may be so or not; nothing else may be there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class QueueFacts:
    """Of one queue; messages by their ids."""

    begun: set[str] = field(default_factory=set)
    published: dict[str, int | None] = field(default_factory=dict)
    """Answered, with the offset; None for those that were buffered."""
    settling: set[str] = field(default_factory=set)
    """Someone began to ack or reject them, alone or in a transaction."""
    acked: set[str] = field(default_factory=set)
    rejecting: set[str] = field(default_factory=set)
    rejected: set[str] = field(default_factory=set)


@dataclass
class Facts:
    queues: dict[str, QueueFacts] = field(default_factory=lambda: defaultdict(QueueFacts))
    moves: list[tuple[list[str], list[str]]] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)
    committing: int = 0
    committed: int = 0
    backups: dict[str, int] = field(default_factory=dict)
    """By name: the notes that came before the backup was begun."""
    shipped: int = 0
    """The notes that came before the last copy of the log was begun that is durable."""
    restored: dict[str, int] = field(default_factory=dict)
    """By path: the notes that came before what it holds for certain."""
    pruned: bool = False
    broken: list[str] = field(default_factory=list)
    """Promises that were broken before the power was lost."""

    @classmethod
    def read(cls, notes: list[bytes]) -> Facts:
        facts = cls()
        began = 0
        for number, note in enumerate(notes):
            match json.loads(note):
                case ["declared", queues]:
                    facts.declared = queues
                case ["publish", queue, ids]:
                    facts.queues[queue].begun.update(ids)
                case ["published", queue, ids, offsets]:
                    facts.queues[queue].published.update(zip(ids, offsets, strict=True))
                case ["delivered", queue, ids]:
                    facts._delivered(queue, ids)
                case ["ack", queue, ids]:
                    facts.queues[queue].settling.update(ids)
                case ["acked", queue, ids]:
                    facts.queues[queue].acked.update(ids)
                case ["reject", queue, ids]:
                    facts.queues[queue].rejecting.update(ids)
                case ["rejected", queue, ids]:
                    facts.queues[queue].rejected.update(ids)
                case ["move", sources, made]:
                    facts.moves.append((sources, made))
                    facts.queues["source"].settling.update(sources)
                    facts.queues["moved"].begun.update(made)
                case ["moved", sources, made]:
                    facts.queues["source"].acked.update(sources)
                    facts.queues["moved"].published.update(dict.fromkeys(made))
                case ["commit", offset]:
                    facts.committing = max(facts.committing, offset)
                case ["committed", offset]:
                    facts.committed = max(facts.committed, offset)
                case ["back up" | "ship", _]:
                    began = number
                case ["backed up", _, name]:
                    facts.backups[name] = began
                    facts.shipped = began  # it needs no log to be restored
                case ["shipped", _]:
                    facts.shipped = began
                case ["restored", path]:
                    facts.restored[path] = facts.shipped
                case ["prune"]:
                    facts.pruned = True
                case ["closed"]:
                    pass
                case other:
                    raise ValueError(f"nobody knows what {other} means")
        return facts

    def _delivered(self, queue: str, ids: list[str]) -> None:
        seen = self.queues[queue]
        settled = seen.acked | seen.rejected
        self.broken += [f"{queue}: {id} came again after its verdict was answered" for id in ids if id in settled]
        self.broken += [f"{queue}: {id} was delivered and never published" for id in ids if id not in seen.begun]
