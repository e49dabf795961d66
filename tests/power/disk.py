"""A disk that loses its power: of what was written and not synced, any part may be there afterwards.

It takes the calls that a program made of its file system, one by one, and keeps for every sector, size and name all
versions since the last sync. `survivors` chooses among them by chance. What it assumes:

- a sector of 512 bytes is written whole or not at all, in any order; of several versions any one may be there;
- the size of a file is apart from its data: room whose data is lost is zeros. A sync of the file keeps both;
- names are apart from files: one that was made, removed or renamed is durable with the next sync of its folder, and not
  before, whatever was synced of the file. Changes of different names survive independently; a rename is one change.

Real file systems keep more than that. It may not know who wrote or what: `recorder.py` does.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

import msgspec

SECTOR_BYTES: Final = 512
PAGE_SECTORS: Final = 8
"""What a kernel writes at a time: 4 KiB."""
_ZEROS: Final = bytes(SECTOR_BYTES)
_ROOT: Final = 0

Kind = Literal["create", "folder", "remove", "rename", "link", "write", "resize", "grow", "sync", "note"]


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A call that succeeded; paths are relative to the folder that is watched, which is the empty path itself."""

    kind: Kind
    path: str
    target: str = ""
    """The new name of `rename` and `link`."""
    number: int = 0
    """Where `write` begins, the size after `resize` and at least after `grow`; the events that `sync` keeps."""
    data: bytes = b""

    def __str__(self) -> str:
        what = f" {len(self.data)} bytes at {self.number}" if self.kind == "write" else ""
        return f"{self.kind} {self.path}{' ' + self.target if self.target else ''}{what}"


class Chances(NamedTuple):
    """How likely it is of each kind of change that it survives, and how many sectors share their fate."""

    data: float
    sizes: float
    names: float
    grain: int

    @classmethod
    def drawn(cls, random: Random) -> Chances:
        data, sizes, names = random.choices((0.0, 0.5, 1.0), k=3)
        return cls(data, sizes, names, random.choice((1, PAGE_SECTORS, 1 << 30)))


NOTHING: Final = Chances(0.0, 0.0, 0.0, 1)
EVERYTHING: Final = Chances(1.0, 1.0, 1.0, 1)
"""As after a kill: the kernel has it all."""


class _Version(NamedTuple):
    event: int
    data: bytes
    is_cut: bool
    """Freed by a change of size: there with that change, and not without it."""


@dataclass
class _File:
    """Versions of its size and of each sector; the first of each is durable."""

    sizes: list[tuple[int, int]] = field(default_factory=lambda: [(-1, 0)])
    sectors: dict[int, list[_Version]] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)

    def write(self, event: int, position: int, data: bytes) -> None:
        self.grow(event, position + len(data))
        at = 0
        while at < len(data):
            sector, start = divmod(position + at, SECTOR_BYTES)
            part = data[at : at + SECTOR_BYTES - start]
            old = self._now(sector)
            self._put(sector, _Version(event, old[:start] + part + old[start + len(part) :], is_cut=False))
            at += len(part)

    def grow(self, event: int, size: int) -> None:
        if size > self.sizes[-1][1]:
            self.sizes.append((event, size))

    def resize(self, event: int, size: int) -> None:
        self.sizes.append((event, size))
        last, start = divmod(size, SECTOR_BYTES)
        for sector in [sector for sector in self.sectors if sector >= last]:
            kept = self._now(sector)[:start] if sector == last else b""
            self._put(sector, _Version(event, kept.ljust(SECTOR_BYTES, b"\0"), is_cut=True))

    def _now(self, sector: int) -> bytes:
        return self.sectors[sector][-1].data if sector in self.sectors else _ZEROS

    def _put(self, sector: int, version: _Version) -> None:
        self.sectors.setdefault(sector, [_Version(-1, _ZEROS, is_cut=False)]).append(version)
        self.dirty.add(sector)

    def sync(self, upto: int) -> None:
        """Nothing older than the last change before an event comes back."""
        self.sizes = self.sizes[_last_before(upto, [event for event, _ in self.sizes]) :]
        for sector in list(self.dirty):
            versions = self.sectors[sector]
            versions = versions[_last_before(upto, [version.event for version in versions]) :]
            self.sectors[sector] = [versions[0]._replace(is_cut=False), *versions[1:]]
            if len(versions) == 1:
                self.dirty.discard(sector)

    def survivor(self, chances: Chances, random: Random) -> FileImage:
        survives = random.random() < chances.sizes
        changed, size = self.sizes[_chosen(len(self.sizes), survives, chances.sizes, random)]
        fates: dict[int, bool] = {}
        found = {}
        for sector in sorted(self.sectors):
            if sector * SECTOR_BYTES >= size:
                break
            versions = self.sectors[sector]
            if sector in self.dirty:
                versions = _with_size(versions, changed)
                survives = fates.setdefault(sector // chances.grain, random.random() < chances.data)
                found[sector] = versions[_chosen(len(versions), survives, chances.data, random)].data
            else:
                found[sector] = versions[0].data
        return FileImage(size, {sector: data for sector, data in found.items() if data != _ZEROS})


def _last_before(upto: int, events: list[int]) -> int:
    return max(at for at, event in enumerate(events) if event < upto)


def _with_size(versions: list[_Version], changed: int) -> list[_Version]:
    """Those that a sector can have with the size of a certain event."""
    cuts = [at for at, version in enumerate(versions) if version.is_cut]
    first = max((at for at in cuts if versions[at].event <= changed), default=0)
    end = min((at for at in cuts if versions[at].event > changed), default=len(versions))
    return versions[first:end]


def _chosen(count: int, survives: bool, chance: float, random: Random) -> int:
    """Which of several versions, of which the first is durable and the last the newest."""
    if count == 1 or not survives:
        return 0
    return count - 1 if chance == 1.0 or random.random() < 0.5 else random.randrange(1, count)


class FileImage(NamedTuple):
    """A file as it is found: its size, and the sectors in which something is."""

    size: int
    sectors: dict[int, bytes]


Image = dict[str, FileImage | None]
"""What is found after the power is back, by path; None for a folder. A folder comes before what is in it."""


class _NameChange(NamedTuple):
    """Names that change together, with what they lead to from then on."""

    event: int
    names: dict[tuple[int, str], int | None]

    def without(self, names: Container[tuple[int, str]]) -> _NameChange:
        return _NameChange(self.event, {name: inode for name, inode in self.names.items() if name not in names})


class Disk:
    """Files and folders, and how much of them is durable."""

    def __init__(self) -> None:
        self.events = 0
        self._files: dict[int, _File | None] = {_ROOT: None}
        self._durable: dict[tuple[int, str], int] = {}
        self._now: dict[tuple[int, str], int] = {}
        self._changes: list[_NameChange] = []

    def apply(self, event: Event) -> None:
        """The next event."""
        number, self.events = self.events, self.events + 1
        match event.kind:
            case "create" | "folder":
                if self._find(event.path) is None:
                    self._make(number, event.path, _File() if event.kind == "create" else None)
            case "remove":
                self._change(number, {self._name(event.path): None})
            case "rename":
                self._change(number, {self._name(event.target): self._inode(event.path), self._name(event.path): None})
            case "link":
                self._change(number, {self._name(event.target): self._inode(event.path)})
            case "write":
                self._file(event.path).write(number, event.number, event.data)
            case "resize":
                self._file(event.path).resize(number, event.number)
            case "grow":
                self._file(event.path).grow(number, event.number)
            case "sync":
                self._sync(self._inode(event.path), event.number)
            case "note":
                pass

    def survivors(self, random: Random, chances: Chances) -> Image:
        """What the power leaves if it is lost now."""
        names: dict[tuple[int, str], int | None] = {**self._durable}
        lost: set[tuple[int, str]] = set()
        for change in self._changes:
            # A later change of a name builds upon the earlier one.
            if lost.isdisjoint(change.names) and random.random() < chances.names:
                names.update(change.names)
            else:
                lost.update(change.names)
        return dict(self._walk(names, _ROOT, "", chances, random))

    def _walk(
        self, names: dict[tuple[int, str], int | None], folder: int, path: str, chances: Chances, random: Random
    ) -> Iterator[tuple[str, FileImage | None]]:
        for (parent, name), inode in sorted(names.items()):
            if parent != folder or inode is None:
                continue
            file = self._files[inode]
            if file is None:
                yield f"{path}{name}", None
                yield from self._walk(names, inode, f"{path}{name}/", chances, random)
            else:
                yield f"{path}{name}", file.survivor(chances, random)

    def _make(self, event: int, path: str, file: _File | None) -> None:
        inode = len(self._files)
        self._files[inode] = file
        self._change(event, {self._name(path): inode})

    def _change(self, event: int, names: dict[tuple[int, str], int | None]) -> None:
        self._changes.append(_NameChange(event, names))
        _lead(self._now, names)

    def _sync(self, inode: int, upto: int) -> None:
        file = self._files[inode]
        if file is not None:
            file.sync(upto)
            return
        kept: list[_NameChange] = []
        for change in self._changes:
            if change.event < upto and any(folder == inode for folder, _ in change.names):
                _lead(self._durable, change.names)
                # A rename between folders is durable with either: what came before it in the other never comes back.
                kept = [earlier.without(change.names) for earlier in kept]
            else:
                kept.append(change)
        self._changes = kept

    def _file(self, path: str) -> _File:
        file = self._files[self._inode(path)]
        assert file is not None, f"{path} is a folder"
        return file

    def _inode(self, path: str) -> int:
        inode = self._find(path)
        assert inode is not None, f"{path} was never made"
        return inode

    def _find(self, path: str) -> int | None:
        inode: int | None = _ROOT
        for name in filter(None, path.split("/")):
            inode = None if inode is None else self._now.get((inode, name))
        return inode

    def _name(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return self._inode(folder), name


def _lead(names: dict[tuple[int, str], int], changed: dict[tuple[int, str], int | None]) -> None:
    for name, inode in changed.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def lay(image: Image, folder: Path) -> None:
    """Make the files of an image in an empty folder."""
    for path, file in image.items():
        if file is None:
            (folder / path).mkdir(mode=0o700)
            continue
        opened = os.open(folder / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for sector, data in file.sectors.items():
                os.pwrite(opened, data, sector * SECTOR_BYTES)
            os.ftruncate(opened, file.size)
        finally:
            os.close(opened)


def events_of(image: Image, begin: int) -> Iterator[Event]:
    """What makes the files of an image, durably, on a disk that had so many events before."""
    upto = begin + 2 * len(image) + sum(len(file.sectors) for file in image.values() if file is not None)
    for path, file in image.items():
        yield Event("folder" if file is None else "create", path)
        if file is not None:
            yield Event("resize", path, number=file.size)
            yield from (
                Event("write", path, number=sector * SECTOR_BYTES, data=data[: file.size - sector * SECTOR_BYTES])
                for sector, data in file.sectors.items()
            )
    yield from (Event("sync", path, number=upto) for path in ("", *image))


def digest(image: Image) -> bytes:
    """The same for the same image."""
    found = blake2b(digest_size=16)
    for path, file in image.items():
        found.update(repr((path, None if file is None else (file.size, sorted(file.sectors)))).encode())
        for sector in () if file is None else sorted(file.sectors):
            found.update(file.sectors[sector])  # type: ignore[union-attr]
    return found.digest()
