"""Tickets of publishes and settles: who is told, when, and what one who fails costs the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Closed, Message
from penstock.api.results import Receipt
from penstock.api.ticket import Ticket
from penstock.node.broker import LocalBroker
from tests.scenarios.rig import Home, play, soon, texts, until


def begun(broker: LocalBroker, text: str) -> Ticket[Receipt]:
    ticket = broker.publish_many("q", [Message(text.encode())])
    assert ticket.in_order
    return ticket


def test_one_who_cannot_be_told_keeps_nobody_else_from_being_told(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "default")
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        told: asyncio.Future[Ticket[Receipt]] = asyncio.get_running_loop().create_future()

        def fail(ticket: Ticket[Receipt]) -> None:
            raise ValueError("nobody there")

        begun(broker, "first").then(fail)
        begun(broker, "second").then(told.set_result)
        assert (await soon(told)).result().first().offset == 1
        assert [str(context["exception"]) for context in failures] == ["nobody there"]
        assert texts(await broker.claim("q", max=10)) == ["first", "second"]

    play(home, scenario)


def test_who_does_not_want_to_know_any_more_is_not_told_and_his_message_is_there(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "default")
        told: list[object] = []
        ticket = begun(broker, "gone")
        ticket.then(told.append)
        ticket.close()
        assert texts(await soon(broker.claim("q", wait=5))) == ["gone"]
        assert not told

    play(home, scenario)


def test_a_message_can_be_claimed_when_its_publisher_is_told(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "default")
        loop = asyncio.get_running_loop()
        claims: list[asyncio.Task[Any]] = []
        begun(broker, "one").then(lambda _: claims.append(loop.create_task(broker.claim("q"))))
        await until(lambda: bool(claims))
        assert texts(await soon(claims[0])) == ["one"]

    play(home, scenario)


def test_nothing_is_begun_by_a_closed_broker(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.close()
        ticket = begun(broker, "late")
        assert ticket.is_done
        with pytest.raises(Closed):
            await ticket

    play(home, scenario)
