"""A broker that closes while it does not know what a failed commit has left."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Closed, Message, Unavailable
from penstock.model.rows import CatalogRow, Commit
from tests.scenarios.rig import texts
from tests.scenarios.shaky import Machine, play


def declares_a_group(commit: Commit) -> bool:
    return any(row.kind == "group" and row.name == "second" for row in commit.catalog)


def test_a_group_whose_declaration_was_not_answered_loses_nothing_to_a_close() -> None:
    async def story(machine: Machine) -> None:
        store = machine.store
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "first")
        await broker.publish_many("q", [Message(b"a"), Message(b"b")])
        claim = await broker.claim("q", group="first", max=2)
        read = store.catalog

        async def away() -> list[CatalogRow]:
            raise Unavailable("cannot be read now")

        store.catalog = away  # type: ignore[method-assign]
        store.fail("after", 1, declares_a_group)
        with pytest.raises(Unavailable):
            await broker.declare_group("q", "second", start="beginning")
        settling = asyncio.ensure_future(broker.ack(claim))  # of a lane that has to be read again
        await asyncio.sleep(1)
        await broker.close()
        with pytest.raises(Closed):
            await settling
        store.catalog = read  # type: ignore[method-assign]
        again = await machine.open()
        assert texts(await again.claim("q", group="second", max=9)) == ["a", "b"]
        await again.close()

    play(story)
