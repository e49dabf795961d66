"""The disk that loses its power keeps what was synced, and of the rest any part, but nothing that was never there."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.power.disk import EVERYTHING, NOTHING, Chances, Disk, Event, Image, digest, events_of, lay

ANY = Chances(0.5, 0.5, 0.5, 1)
SYNC = 1 << 30
"""A sync of all events before it."""


def disk_of(*events: Event) -> Disk:
    disk = Disk()
    for event in events:
        disk.apply(event)
    return disk


def contents(image: Image, path: str) -> bytes | None:
    file = image.get(path)
    if file is None:
        return None
    return b"".join(file.sectors.get(sector, bytes(512)) for sector in range(-(-file.size // 512)))[: file.size]


def outcomes(disk: Disk, path: str, chances: Chances = ANY) -> set[bytes | None]:
    return {contents(disk.survivors(Random(seed), chances), path) for seed in range(200)}


def written(data: bytes, position: int = 0, path: str = "a") -> Event:
    return Event("write", path, number=position, data=data)


MADE = (Event("create", "a"), Event("sync", "", number=SYNC))


def test_what_was_not_synced_may_be_there_by_half() -> None:
    disk = disk_of(*MADE, written(b"1" * 1024))
    assert outcomes(disk, "a") == {
        b"", bytes(1024), b"1" * 1024, b"1" * 512 + bytes(512), bytes(512) + b"1" * 512
    }  # fmt: skip
    assert contents(disk.survivors(Random(0), NOTHING), "a") == b""
    assert contents(disk.survivors(Random(0), EVERYTHING), "a") == b"1" * 1024


def test_what_was_synced_stays() -> None:
    disk = disk_of(*MADE, written(b"old"), Event("sync", "a", number=SYNC), written(b"new"))
    assert outcomes(disk, "a") == {b"old", b"new"}


def test_a_sync_does_not_keep_what_was_written_after_it_began() -> None:
    disk = disk_of(*MADE, written(b"old"), written(b"new"), Event("sync", "a", number=3))
    assert outcomes(disk, "a") == {b"old", b"new"}


def test_several_versions_may_each_be_the_one_that_is_there() -> None:
    disk = disk_of(*MADE, written(b"1"), written(b"2"), written(b"3"))
    assert outcomes(disk, "a") == {b"", b"\0", b"1", b"2", b"3"}


def test_a_cut_takes_the_data_with_it_or_leaves_all() -> None:
    synced = (written(b"1" * 700), Event("sync", "a", number=SYNC))
    disk = disk_of(*MADE, *synced, Event("resize", "a", number=0), written(b"2" * 5))
    assert outcomes(disk, "a") == {b"1" * 700, b"", b"\0" * 5, b"2" * 5}


def test_a_name_is_durable_with_its_folder_alone() -> None:
    disk = disk_of(Event("create", "a"), written(b"1"), Event("sync", "a", number=SYNC))
    assert outcomes(disk, "a") == {None, b"1"}
    disk.apply(Event("sync", "", number=SYNC))
    assert outcomes(disk, "a") == {b"1"}


def test_a_file_is_lost_with_its_folder() -> None:
    inside = (Event("create", "b/a"), written(b"1", path="b/a"))
    disk = disk_of(Event("folder", "b"), *inside, Event("sync", "b/a", number=SYNC), Event("sync", "b", number=SYNC))
    assert outcomes(disk, "b/a") == {None, b"1"}


def test_a_rename_is_one_change() -> None:
    disk = disk_of(*MADE, written(b"1"), Event("sync", "a", number=SYNC), Event("rename", "a", "b"))
    images = [disk.survivors(Random(seed), ANY) for seed in range(50)]
    assert {tuple(image) for image in images} == {("a",), ("b",)}


def test_a_rename_between_folders_is_durable_with_either() -> None:
    disk = disk_of(Event("folder", "b"), Event("sync", "", number=SYNC), Event("create", "b/a"))
    disk.apply(Event("rename", "b/a", "c"))
    disk.apply(Event("sync", "", number=SYNC))
    assert {tuple(disk.survivors(Random(seed), EVERYTHING)) for seed in range(20)} == {("b", "c")}


def test_a_removed_name_may_come_back() -> None:
    disk = disk_of(*MADE, written(b"1"), Event("sync", "a", number=SYNC), Event("remove", "a"))
    assert outcomes(disk, "a") == {None, b"1"}


def test_a_later_change_of_a_name_does_not_survive_the_earlier_one() -> None:
    disk = disk_of(Event("create", "a"), Event("remove", "a"), Event("create", "a"), written(b"2"))
    assert outcomes(disk, "a", Chances(1.0, 1.0, 0.5, 1)) == {None, b"", b"2"}


def test_an_image_is_laid_and_made_again(tmp_path: Path) -> None:
    disk = disk_of(
        Event("folder", "b"), Event("create", "b/a"), written(b"1" * 700, 600, "b/a"), Event("grow", "b/a", number=5000)
    )
    image = disk.survivors(Random(0), EVERYTHING)
    lay(image, tmp_path)
    assert (tmp_path / "b/a").read_bytes() == bytes(600) + b"1" * 700 + bytes(3700)
    again = disk_of(*events_of(image, 0))
    assert digest(again.survivors(Random(0), NOTHING)) == digest(image)


@pytest.mark.parametrize("path", ["b", "a"])
def test_a_different_image_has_a_different_digest(path: str) -> None:
    one = disk_of(*MADE, written(b"1")).survivors(Random(0), EVERYTHING)
    other = disk_of(Event("create", path), written(b"2", path=path)).survivors(Random(0), EVERYTHING)
    assert digest(one) != digest(other)
