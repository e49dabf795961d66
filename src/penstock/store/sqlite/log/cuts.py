"""What a crash or a bad disk left at the end of the log: which of them it was, told, and kept for people to look at.

| kind | what is there | was it answered? |
| --- | --- | --- |
| torn | part of a record was never written: a sector of it is empty | no |
| damaged | all of it was written, and it is not a record, or its checksum is not that of its bytes | perhaps |
| short | the file ends before the room that was set aside, or in the middle of a record | perhaps |

No record goes to such a place again: the next begins a new segment. What is cut off is a file of its own in the folder
`cut` of the log. Nobody deletes it but a person, who has thereby looked at it. This module may not know commits,
SQLite or turns. Next stop: back to `log.py`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final, Literal, NamedTuple

from penstock.store.folders import sync_folder
from penstock.store.sqlite.log.segments import Segment

SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""
_COPY_BYTES: Final = 1 << 20

_log = logging.getLogger("penstock.store.log")


class Cut(NamedTuple):
    """Bytes at the end of a segment that are no record."""

    kind: Literal["torn", "damaged", "short"]
    position: int
    end: int


def find_cut(segment: Segment, position: int) -> Cut | None:
    """What is behind the last record of the newest segment; None where that is room and nothing else."""
    end = segment.written_end(position)
    head = segment.head_at(position)
    stop = end if head is None else position + head.size
    is_beyond = stop > segment.bytes
    if segment.bytes < segment.room() or (is_beyond and head is not None and segment.has_rows(position, head)):
        return Cut("short", position, end)
    if end == position:
        return None
    if is_beyond:
        stop = end  # the head is damaged: no record is written that does not fit
    return Cut("torn" if _lacks_sector(segment, position, stop) else "damaged", position, end)


def _lacks_sector(segment: Segment, position: int, stop: int) -> bool:
    """Whether nothing was ever written to one of the sectors between two places: room is zeros."""
    while position < stop:
        behind = min(stop, position - position % _COPY_BYTES + _COPY_BYTES)
        data = segment.read(position, behind)
        first = SECTOR_BYTES - position % SECTOR_BYTES
        sectors = [data[:first], *(data[at : at + SECTOR_BYTES] for at in range(first, len(data), SECTOR_BYTES))]
        if any(sector.count(0) == len(sector) for sector in sectors):
            return True
        position = behind
    return False


class Cuts:
    """The folder of what was cut off."""

    def __init__(self, log: Path) -> None:
        self._folder = log / "cut"
        self._kept: list[Path] = []

    def look(self) -> None:
        """See what is kept from before."""
        self._kept = sorted(self._folder.iterdir()) if self._folder.is_dir() else []

    def notes(self) -> list[str]:
        """What nobody has looked at yet, for people to read."""
        self._kept = [path for path in self._kept if path.exists()]
        return [
            f"the end of the log was cut off ({_MEANINGS.get(path.suffix[1:], 'nobody knows why')}); "
            f"look at cut/{path.name} in the log's folder, then move it away"
            for path in self._kept
        ]

    def keep(self, segment: Segment, cut: Cut) -> None:
        """Copy what is about to be cut off, durably, and say so."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._new_file(segment, cut)
        sync_folder(self._folder)
        sync_folder(self._folder.parent)
        if path not in self._kept:
            self._kept.append(path)
        level = logging.WARNING if cut.kind == "torn" else logging.ERROR
        size = cut.end - cut.position
        _log.log(
            level,
            "%s: %d bytes at byte %d are cut off (%s) and kept in %s",
            segment.path,
            size,
            cut.position,
            _MEANINGS[cut.kind],
            path,
        )

    def _new_file(self, segment: Segment, cut: Cut) -> Path:
        """A file of its own, never over another; one that has the same bytes already will do."""
        number = 1
        while True:
            again = "" if number == 1 else f"-{number}"
            path = self._folder / f"{segment.number:010d}-{cut.position}{again}.{cut.kind}"
            try:
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                if path.stat().st_size == cut.end - cut.position and _is_same(path, segment, cut):
                    return path
                number += 1
                continue
            try:
                with os.fdopen(file, "wb") as copy:
                    for start in range(cut.position, cut.end, _COPY_BYTES):
                        copy.write(segment.read(start, min(start + _COPY_BYTES, cut.end)))
                    copy.flush()
                    os.fsync(copy.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            return path


def _is_same(path: Path, segment: Segment, cut: Cut) -> bool:
    with path.open("rb") as file:
        return all(
            file.read(_COPY_BYTES) == segment.read(start, min(start + _COPY_BYTES, cut.end))
            for start in range(cut.position, cut.end, _COPY_BYTES)
        )


_MEANINGS: Final = {
    "torn": "a record that was never written whole; nobody was told that it is there",
    "damaged": "it was written whole and fails its checksum; it may have been answered",
    "short": "the file is shorter than it was made; what is missing may have been answered",
}
