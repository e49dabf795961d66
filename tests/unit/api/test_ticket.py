"""Tickets: what they promise to callers who await them, to callbacks, and to those who go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import uvloop

from penstock.api.ticket import Ticket, end_all, in_task, ticketed


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> list[dict[str, Any]]:
    """Play a scenario; what the event loop was told to complain about."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await scenario()

    asyncio.run(main())
    return complaints


# Waiting for one -----------------------------------------------------------------------------------------


def test_it_is_a_coroutine_for_asyncio() -> None:
    async def scenario() -> None:
        for wait in (asyncio.create_task, asyncio.ensure_future, lambda ticket: asyncio.wait_for(ticket, 5)):
            ticket: Ticket[str] = Ticket()
            asyncio.get_running_loop().call_soon(ticket.complete, "done")
            assert await wait(ticket) == "done"
        assert asyncio.iscoroutine(Ticket())
        both = await asyncio.gather(Ticket.done(1), Ticket.failed(KeyError("x")), return_exceptions=True)
        assert both[0] == 1
        assert isinstance(both[1], KeyError)

    assert not run(scenario)


def test_any_number_of_callers_may_await_it_also_when_it_is_done() -> None:
    async def scenario() -> None:
        ticket: Ticket[int] = Ticket(7)

        async def caller() -> int:
            return await ticket

        callers = [asyncio.create_task(caller()) for _ in range(3)]
        await asyncio.sleep(0)
        ticket.end()
        assert await asyncio.gather(*callers) == [7, 7, 7]
        assert await ticket == await ticket == 7

    assert not run(scenario)


def test_its_error_is_raised_to_every_caller() -> None:
    async def scenario() -> None:
        ticket: Ticket[int] = Ticket()
        caller = asyncio.create_task(ticket)
        await asyncio.sleep(0)
        ticket.fail(ValueError("no"))
        for wait in (caller, ticket):
            with pytest.raises(ValueError, match="no"):
                await wait

    assert not run(scenario)


def test_an_error_that_nobody_looks_at_is_not_logged() -> None:
    async def scenario() -> None:
        async def fails() -> None:
            raise ValueError("no")

        Ticket.failed(ValueError("no"))
        Ticket.of(fails())
        Ticket.of(fails()).map(repr)
        await asyncio.sleep(0.01)

    assert not run(scenario)


def test_there_is_no_result_before_the_end() -> None:
    ticket: Ticket[int] = Ticket(7)
    assert not ticket.is_done
    with pytest.raises(asyncio.InvalidStateError):
        ticket.result()
    ticket.end()
    assert ticket.result() == 7
    assert ticket.error is None


# Many that end together ----------------------------------------------------------------------------------


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop: asyncio.AbstractEventLoop = request.param()
    yield loop
    loop.close()


def test_callers_of_tickets_that_end_together_go_on_in_their_order(loop: asyncio.AbstractEventLoop) -> None:
    async def scenario() -> None:
        tickets: list[Ticket[int]] = [Ticket(number) for number in range(5)]
        told: list[int] = []

        async def caller(ticket: Ticket[int]) -> None:
            told.append(await ticket)

        callers = [asyncio.create_task(caller(ticket)) for ticket in tickets]
        await asyncio.sleep(0)
        end_all(tickets)
        assert not told
        await asyncio.gather(*callers)
        assert told == [0, 1, 2, 3, 4]

    loop.run_until_complete(scenario())


@pytest.mark.parametrize("moment", ["before the end", "after the end"])
def test_one_of_many_callers_that_is_cancelled_is_the_only_one(loop: asyncio.AbstractEventLoop, moment: str) -> None:
    async def scenario() -> None:
        tickets: list[Ticket[int]] = [Ticket(number) for number in range(3)]
        callers = [asyncio.create_task(_await(ticket)) for ticket in tickets]
        await asyncio.sleep(0)
        if moment == "before the end":
            callers[1].cancel()
        end_all(tickets)
        if moment == "after the end":
            callers[1].cancel()
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        assert [outcomes[0], type(outcomes[1]), outcomes[2]] == [0, asyncio.CancelledError, 2]
        assert await tickets[1] == 1

    loop.run_until_complete(scenario())


def test_a_caller_that_ends_the_program_keeps_no_other_from_going_on() -> None:
    """On asyncio's loop: uvloop ends with it."""
    loop = asyncio.new_event_loop()
    tickets: list[Ticket[int]] = [Ticket(number) for number in range(3)]

    async def interrupt() -> None:
        await tickets[0]
        raise KeyboardInterrupt

    callers = [loop.create_task(interrupt()), *(loop.create_task(_await(ticket)) for ticket in tickets[1:])]
    loop.call_later(0, end_all, tickets)
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert loop.run_until_complete(asyncio.gather(*callers[1:])) == [1, 2]
    assert isinstance(callers[0].exception(), KeyboardInterrupt)
    loop.close()


def test_a_caller_goes_on_in_its_own_context() -> None:
    name: ContextVar[str] = ContextVar("name")

    async def scenario() -> None:
        tickets: list[Ticket[int]] = [Ticket(0), Ticket(1)]

        async def caller(mine: str, ticket: Ticket[int]) -> str:
            name.set(mine)
            await ticket
            return name.get()

        callers = [asyncio.create_task(caller(mine, one)) for mine, one in zip("ab", tickets, strict=True)]
        await asyncio.sleep(0)
        end_all(tickets)
        assert await asyncio.gather(*callers) == ["a", "b"]

    assert not run(scenario)


# Callbacks -----------------------------------------------------------------------------------------------


def test_callbacks_are_called_in_order_before_complete_returns() -> None:
    told: list[tuple[str, int]] = []
    ticket: Ticket[int] = Ticket()
    ticket.then(lambda done: told.append(("first", done.result())))
    ticket.then(lambda done: told.append(("second", done.result())))
    ticket.complete(3)
    ticket.then(lambda done: told.append(("late", done.result())))
    assert told == [("first", 3), ("second", 3), ("late", 3)]


def test_a_callback_that_fails_is_logged_and_keeps_no_other_from_being_called() -> None:
    async def scenario() -> None:
        told: list[object] = []
        ticket: Ticket[int] = Ticket(1)

        def fail(_: Ticket[int]) -> None:
            raise ValueError("nobody there")

        ticket.then(fail)
        ticket.then(told.append)
        ticket.end()
        assert told == [ticket]

    assert [str(complaint["exception"]) for complaint in run(scenario)] == ["nobody there"]


# Derived tickets -----------------------------------------------------------------------------------------


def test_a_derived_ticket_has_what_was_made_of_the_result() -> None:
    ticket: Ticket[int] = Ticket()
    derived = ticket.map(lambda number: number + 1).map(str)
    assert not derived.is_done
    ticket.complete(1)
    assert derived.result() == "2"
    assert Ticket.done(3).map(str).result() == "3"


def test_a_derived_ticket_fails_with_its_source_and_with_what_makes_it() -> None:
    ticket: Ticket[int] = Ticket()
    derived = ticket.map(lambda number: 1 // number)
    ticket.fail(KeyError("source"))
    assert isinstance(derived.error, KeyError)
    assert isinstance(Ticket.done(0).map(lambda number: 1 // number).error, ZeroDivisionError)


def test_what_failed_can_be_recovered_by_a_result_or_by_another_ticket() -> None:
    async def scenario() -> None:
        assert Ticket.done(1).recover(lambda _: 2).result() == 1
        assert Ticket.failed(KeyError("x")).recover(str).result() == "'x'"
        second: Ticket[int] = Ticket()
        recovered: Ticket[int] = Ticket.failed(KeyError("x")).recover(lambda _: second)
        assert not recovered.is_done
        second.complete(5)
        assert await recovered == 5

    assert not run(scenario)


def test_changes_follow_in_their_order_also_behind_another_ticket() -> None:
    first: Ticket[int] = Ticket()
    second: Ticket[int] = Ticket()
    changed = first.map(lambda _: 0).recover(lambda _: second).map(lambda number: number + 1).map(str)
    first.fail(KeyError("x"))
    assert not changed.is_done
    second.complete(6)
    assert changed.result() == "7"


def test_an_error_in_a_rescue_is_the_tickets_error() -> None:
    ticket: Ticket[int] = Ticket()
    changed = ticket.recover(lambda error: 1 // int(str(error)))
    ticket.fail(ValueError("0"))
    assert isinstance(changed.error, ZeroDivisionError)


def test_a_task_is_awaited_with_what_was_made_of_its_result() -> None:
    async def scenario() -> None:
        assert await Ticket.of(asyncio.sleep(0, 4)).map(str) == "4"
        assert await Ticket.of(_raise(KeyError("x"))).recover(lambda _: 5) == 5
        late: Ticket[int] = Ticket()
        waiting = asyncio.create_task(Ticket.of(_raise(KeyError("x"))).recover(lambda _: late))
        await asyncio.sleep(0.01)
        late.complete(3)
        assert await waiting == 3

    assert not run(scenario)


def test_closing_closes_what_was_recovered_to() -> None:
    first: Ticket[int] = Ticket()
    second: Ticket[int] = Ticket()
    recovered = first.recover(lambda _: second)
    first.fail(KeyError("x"))
    recovered.close()
    assert second.is_closed


# Operations that must wait -------------------------------------------------------------------------------


def test_of_a_ticket_it_is_the_same_and_of_anything_else_a_task() -> None:
    async def scenario() -> None:
        ticket: Ticket[int] = Ticket()
        assert Ticket.of(ticket) is ticket
        told: list[int] = []
        other = Ticket.of(asyncio.sleep(0, 4))
        other.then(lambda done: told.append(done.result()))
        assert await other == 4
        await asyncio.sleep(0)
        assert told == [4]
        with pytest.raises(ValueError, match="no"):
            await Ticket.of(_raise(ValueError("no")))

    assert not run(scenario)


async def _raise(error: Exception) -> int:
    raise error


def test_only_what_waits_for_nothing_but_a_commit_is_in_order() -> None:
    async def scenario() -> None:
        committing: Ticket[int] = Ticket()
        assert committing.in_order
        assert committing.map(str).in_order
        assert Ticket.done(1).in_order
        waiting = Ticket.of(asyncio.sleep(0, 1))
        assert not waiting.in_order
        assert not waiting.map(str).in_order
        await waiting
        await asyncio.sleep(0)
        assert waiting.in_order

    assert not run(scenario)


# Those who go away ---------------------------------------------------------------------------------------


def test_a_caller_that_is_cancelled_leaves_the_operation_and_other_callers_alone() -> None:
    async def scenario() -> None:
        ticket: Ticket[int] = Ticket()
        gone, staying = asyncio.create_task(_await(ticket)), asyncio.create_task(_await(ticket))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert not ticket.is_closed
        ticket.complete(1)
        assert await staying == 1

    assert not run(scenario)


async def _await(ticket: Ticket[int]) -> int:
    return await ticket


def test_when_the_last_caller_goes_the_ticket_and_its_source_are_closed() -> None:
    async def scenario() -> None:
        for wait in (_await, lambda ticket: ticket):
            ticket: Ticket[int] = Ticket()
            caller = asyncio.create_task(wait(ticket.map(abs)))
            await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait([caller])
            assert ticket.is_closed
            ticket.complete(-1)
            assert ticket.result() == 1

    assert not run(scenario)


def test_a_task_that_never_began_to_wait_closes_its_ticket_when_it_is_cancelled() -> None:
    async def scenario() -> None:
        ticket: Ticket[int] = Ticket()
        task = asyncio.create_task(ticket)
        task.cancel()
        await asyncio.wait([task])
        assert ticket.is_closed

    assert not run(scenario)


def test_a_cancelled_caller_waits_until_the_task_inside_has_cleaned_up() -> None:
    async def scenario() -> None:
        cleaned = False

        async def operation() -> int:
            nonlocal cleaned
            try:
                await asyncio.sleep(3600)
                return 1
            finally:
                await asyncio.sleep(0)
                cleaned = True

        caller = asyncio.create_task(_await(Ticket.of(operation())))
        await asyncio.sleep(0.01)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        assert cleaned

    assert not run(scenario)


def test_closing_before_the_event_loop_goes_on_undoes_what_must_wait() -> None:
    async def scenario() -> None:
        begun: list[int] = []

        async def operation() -> None:
            begun.append(1)

        ticket = Ticket.of(operation())
        ticket.close()
        await asyncio.sleep(0.01)
        assert not begun
        assert isinstance(ticket.error, asyncio.CancelledError)

    assert not run(scenario)


def test_who_closed_it_is_not_called_back() -> None:
    told: list[object] = []
    ticket: Ticket[int] = Ticket()
    ticket.then(told.append)
    ticket.close()
    ticket.complete(1)
    assert not told
    ticket.close()
    assert ticket.result() == 1


# What a function raises ----------------------------------------------------------------------------------


def test_what_a_ticketed_function_raises_is_its_tickets_error() -> None:
    @ticketed
    def publish(number: int) -> Ticket[int]:
        """Documented."""
        if number < 0:
            raise ValueError("negative")
        return Ticket.done(number)

    assert publish(1).result() == 1
    assert isinstance(publish(-1).error, ValueError)
    assert publish.__doc__ == "Documented."


def test_a_coroutine_function_in_a_task_begins_when_it_is_called() -> None:
    begun: list[int] = []

    @in_task
    async def publish(number: int) -> int:
        """Documented."""
        begun.append(number)
        if number < 0:
            raise ValueError("negative")
        return number

    async def scenario() -> None:
        ticket = publish(1)
        await asyncio.sleep(0)
        assert begun == [1]
        assert await ticket == 1
        with pytest.raises(ValueError, match="negative"):
            await publish(-1)

    assert run(scenario) == []
    assert publish.__doc__ == "Documented."


def test_the_last_step_of_a_task_ends_its_ticket() -> None:
    steps: list[str] = []

    @in_task
    async def publish() -> None:
        asyncio.get_running_loop().call_soon(steps.append, "a turn later")

    async def scenario() -> None:
        publish().then(lambda _: steps.append("done"))
        await asyncio.sleep(0.01)
        assert steps == ["done", "a turn later"]

    assert run(scenario) == []


def test_a_task_that_is_cancelled_before_it_began_ends_its_ticket() -> None:
    @in_task
    async def publish() -> None:
        pytest.fail("nobody wants it")

    async def scenario() -> None:
        ticket = publish()
        [task] = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        await asyncio.sleep(0.01)
        assert isinstance(ticket.error, asyncio.CancelledError)

    assert run(scenario) == []
