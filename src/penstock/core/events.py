"""Collects a group's delivery events between two seals. Their shape is in `model/events.py`."""

from __future__ import annotations

from penstock.model.events import Event, Kind


class Events:
    """Events by kind, consumer, attempt and detail: each is one record with several ranges."""

    __slots__ = ("by_key",)

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str, int, str], Event] = {}

    def add(
        self, kind: Kind, start: int, end: int, at_ms: int, consumer: str = "", attempt: int = 0, detail: str = ""
    ) -> None:
        """Note what happened to the offsets [start, end)."""
        key = (kind, consumer, attempt, detail)
        event = self.by_key.get(key)
        if event is None:
            self.by_key[key] = Event(kind, [(start, end)], at_ms, consumer, attempt, detail)
        elif event.ranges[-1][1] == start:
            event.ranges[-1] = (event.ranges[-1][0], end)
        else:
            event.ranges.append((start, end))

    def seal(self) -> list[Event]:
        """Hand over all that was collected."""
        events = list(self.by_key.values())
        self.by_key.clear()
        return events
