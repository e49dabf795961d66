"""CRC-32 is the same number whoever computes it: what one machine wrote, another must be able to read."""

from __future__ import annotations

import importlib
import random
import sys
import zlib
from collections.abc import Callable

import pytest

from penstock.model import checksum

Checksum = Callable[[bytes | memoryview, int], int]


@pytest.fixture(params=["as installed", "without zlib-ng"])
def crc32(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Checksum:
    if request.param == "as installed":
        return checksum.crc32
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    monkeypatch.delitem(sys.modules, "penstock.model.checksum")
    without: Checksum = importlib.import_module("penstock.model.checksum").crc32
    return without


def test_known_numbers(crc32: Checksum) -> None:
    assert crc32(b"123456789", 0) == 0xCBF43926
    assert crc32(b"", 0) == 0
    assert crc32(b"", 0xFFFFFFFF) == 0xFFFFFFFF


def test_every_length_and_beginning_is_as_zlib_has_it(crc32: Checksum) -> None:
    # Fast ways through memory go in steps of up to a few hundred bytes, with the ends done apart.
    chance = random.Random(11)
    data = chance.randbytes(300_000)
    for length in [*range(700), 4095, 4096, 65_537, 200_003, 299_000]:
        start = chance.randrange(0, 999)
        piece, before = memoryview(data)[start : start + length], chance.randrange(1 << 32)
        assert crc32(piece, before) == zlib.crc32(piece, before), (length, start, before)


def test_it_goes_on_from_where_another_stopped(crc32: Checksum) -> None:
    assert crc32(b"world", zlib.crc32(b"hello ")) == zlib.crc32(b"hello world")
    assert zlib.crc32(b"world", crc32(b"hello ", 0)) == zlib.crc32(b"hello world")


def test_zlib_ng_does_it_where_it_is_installed() -> None:
    zlib_ng = pytest.importorskip("zlib_ng.zlib_ng")
    assert checksum.crc32 is zlib_ng.crc32
