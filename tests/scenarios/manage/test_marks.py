"""Marks: small durable documents by name, with versions that writers may insist on."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from penstock import InvalidArgument, LimitReached, MarkMoved, MarkPut, MessageTooLarge, NotFound, Unavailable
from penstock.api.staging import VALUE_BYTES_MAX
from penstock.node import marks
from tests.scenarios import shaky
from tests.scenarios.rig import Home, play


def test_a_mark_is_kept_with_its_version_through_a_restart(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        value = {"offsets": [1, 2, None], "text": "ü", "nested": {"a": 1.5}}
        first = await broker.put_mark("job/1", value)
        assert (first.name, first.version, first.value) == ("job/1", 1, value)
        assert (await broker.put_mark("job/1", 7)).version == 2
        await broker.put_mark("job/2", None)
        broker = await home.reopen(broker)
        assert ((await broker.mark("job/1")).version, (await broker.mark("job/1")).value) == (2, 7)
        assert (await broker.mark("job/2")).value is None
        await broker.delete_mark("job/1")
        broker = await home.reopen(broker)
        with pytest.raises(NotFound):
            await broker.mark("job/1")
        with pytest.raises(NotFound):
            await broker.delete_mark("job/1")
        assert (await broker.put_mark("job/1", 1)).version == 1

    play(home, scenario)


def test_a_writer_may_insist_on_a_version(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.put_mark("m", "a", expected_version=0)
        with pytest.raises(MarkMoved, match="at version 1"):
            await broker.put_mark("m", "b", expected_version=0)
        with pytest.raises(MarkMoved):
            await broker.put_mark("m", "b", expected_version=2)
        with pytest.raises(MarkMoved, match="does not exist"):
            await broker.put_mark("other", "b", expected_version=1)
        assert (await broker.mark("m")).value == "a"
        assert (await broker.put_mark("m", "b", expected_version=1)).version == 2

    play(home, scenario)


def test_of_many_writers_who_expect_the_same_version_one_wins(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for round_number in range(5):
            puts = (broker.put_mark("m", writer, expected_version=round_number) for writer in range(10))
            results = await asyncio.gather(*puts, return_exceptions=True)
            assert sum(isinstance(result, MarkMoved) for result in results) == 9
            assert (await broker.mark("m")).version == round_number + 1

    play(home, scenario)


def test_marks_are_listed_by_prefix_and_in_pages(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for number in range(25):
            await broker.put_mark(f"a/{number:02}", number)
        await broker.put_mark("b", "other")
        await broker.in_namespace("elsewhere").put_mark("a/x", 1)
        assert [mark.value for mark in await broker.marks("a/")] == list(range(25))
        assert [mark.name for mark in await broker.marks()][-1] == "b"
        assert [mark.name for mark in await broker.in_namespace("elsewhere").marks()] == ["a/x"]
        found: list[Any] = []
        after: str | None = ""
        while after is not None:
            page = await broker.marks_page("a/", after=after, max=10)
            found += [msgspec.json.decode(mark.value) for mark in page.marks]
            after = page.next
        assert found == list(range(25))

    play(memory_home, scenario)


def test_a_page_is_bounded_in_bytes(memory_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "PAGE_BYTES", 100)

    async def scenario(home: Home) -> None:
        broker = await home.open()
        for number in range(4):
            await broker.put_mark(f"m{number}", "x" * 60)
        page = await broker.marks_page()
        assert (len(page.marks), page.next) == (1, "m0")

    play(memory_home, scenario)


@pytest.mark.parametrize(
    ("name", "value", "version"),
    [("", 1, None), ("x\n", 1, None), ("x" * 256, 1, None), (7, 1, None), ("x", object(), None), ("x", 1, -1),
     ("x", 1, True)],
)  # fmt: skip
def test_what_is_no_mark_is_refused(memory_home: Home, name: Any, value: Any, version: Any) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        with pytest.raises(InvalidArgument):
            await broker.put_mark(name, value, expected_version=version)
        assert await broker.marks() == []

    play(memory_home, scenario)


def test_limits(memory_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.put_mark("large", "x" * (VALUE_BYTES_MAX - 2))
        with pytest.raises(MessageTooLarge):
            await broker.put_mark("large", "x" * (VALUE_BYTES_MAX - 1))
        monkeypatch.setattr(marks, "MARKS_MAX", 2)
        await broker.put_mark("second", 1)
        with pytest.raises(LimitReached, match="2 marks already"):
            await broker.put_mark("third", 1)
        await broker.put_mark("second", 2)  # one that is there may still change
        monkeypatch.setattr(marks, "MARKS_BYTES_MAX", VALUE_BYTES_MAX + 10)
        with pytest.raises(LimitReached, match="all marks"):
            await broker.put_mark("second", "x" * 50)
        await broker.put_mark("large", 0)
        await broker.put_mark("second", "x" * 50)

    play(memory_home, scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_put_that_fails_leaves_what_the_store_has(when: Any) -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        await broker.put_mark("m", 1)
        machine.store.fail(when, 1, lambda commit: any(row.kind == "mark" for row in commit.catalog))
        with pytest.raises(Unavailable):
            await broker.put_mark("m", 2, expected_version=1)
        if when == "before":
            assert (await broker.put_mark("m", 2, expected_version=1)).version == 2
        else:
            with pytest.raises(MarkMoved):
                await broker.put_mark("m", 2, expected_version=1)
        assert ((await broker.mark("m")).version, (await broker.mark("m")).value) == (2, 2)
        await broker.close()

    shaky.play(story)


def test_a_mark_cannot_be_put_twice_in_one_commit(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        with pytest.raises(InvalidArgument, match="twice"):
            await broker.commit_staged("t", [], marks=[MarkPut("m", 1), MarkPut("m", 2)])

    play(memory_home, scenario)


@pytest.mark.parametrize("text", [b"1e999", b"1" * 5_000, b"[" * 5_000 + b"]" * 5_000, b"{", b"1 2", b""])
def test_json_that_nobody_could_read_back_is_refused_before_it_is_kept(memory_home: Home, text: bytes) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        with pytest.raises(InvalidArgument, match="mark 'm'"):
            await broker.put_mark("m", msgspec.Raw(text))
        with pytest.raises(InvalidArgument, match="mark 'm'"):
            await broker.commit_staged("t", [], marks=[MarkPut("m", {"within": msgspec.Raw(text)})])
        assert await broker.marks() == []

    play(memory_home, scenario)
