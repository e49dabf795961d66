"""What is sent again and what is not: lost answers, refusals, pauses, limits. And the errors that answers become."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from penstock import (
    AsyncClient,
    Claim,
    InvalidFilter,
    LeaseLost,
    Message,
    NotFound,
    Overloaded,
    PenstockError,
    QueueFull,
    Retry,
    Unavailable,
    encode,
)
from penstock.api.results import Lease
from penstock.client.transport.channel import OutcomeUnknown, is_repeat
from penstock.model import errors
from penstock.model.errors import CLASSES
from tests.clients.http.rig import Asked, Responder, ToldServer, answer, refusal, run

FAST = Retry(attempts=5, pause_seconds=0.001, pause_seconds_max=0.002)
STORED = {"count": 1, "parts": [{"queue": "q", "lane": 0, "offset": 7, "count": 1}]}
QUEUE = {"name": "q", "options": {}}
CLAIM = Claim("q", 0, Lease(1, 2, 3), 0, [])


def lose(times: int, then: bytes) -> Responder:
    """No answer so many times, and then one."""
    seen = 0

    def respond(_: Asked) -> bytes | None:
        nonlocal seen
        seen += 1
        return None if seen <= times else then

    return respond


def told(respond: Responder, work: Callable[[AsyncClient], Awaitable[Any]], **options: Any) -> tuple[Any, list[Asked]]:
    """What work comes to, and what the server was asked meanwhile."""

    async def main() -> tuple[Any, list[Asked]]:
        options.setdefault("retry", FAST)
        async with ToldServer(respond) as server, AsyncClient(server.url, **options) as client:
            try:
                result: Any = await work(client)
            except PenstockError as error:
                result = error
            return result, server.asked

    return run(main())


# Publishes ------------------------------------------------------------------------------------------------


def test_a_publish_whose_answer_was_lost_is_sent_again_under_the_same_id() -> None:
    place, asked = told(lose(2, answer(STORED)), lambda client: client.publish("q", Message(b"x")))
    assert place.offset == 7
    assert len(asked) == 3
    assert len({one.query["publish_id"] for one in asked}) == 1
    assert len({one.body for one in asked}) == 1


def test_every_publish_has_an_id_of_its_own() -> None:
    async def twice(client: AsyncClient) -> None:
        await client.publish("q", Message(b"x"))
        await client.publish_many("q", [Message(b"x")])
        await client.publish_batch("q", encode([Message(b"x")]))
        await client.publish_to("e", Message(b"x"))
        await client.in_namespace("other").publish("q", Message(b"x"))

    _, asked = told(lambda _: answer(STORED), twice)
    assert len({one.query["publish_id"] for one in asked}) == 5


@pytest.mark.parametrize("kind", ["own dedup id", "own publish id", "own ids in a batch"])
def test_a_callers_own_ids_are_kept_and_make_it_repeatable(kind: str) -> None:
    async def publish(client: AsyncClient) -> Any:
        message = Message(b"x", dedup_id="mine")
        if kind == "own dedup id":
            return await client.publish("q", message)
        if kind == "own publish id":
            return (await client.publish_many("q", [Message(b"x")], publish_id="all")).first()
        return (await client.publish_batch("q", encode([message]))).first()

    place, asked = told(lose(1, answer(STORED)), publish, idempotent=False)
    assert place.offset == 7
    assert [one.query.get("publish_id") for one in asked] == (["all"] * 2 if kind == "own publish id" else [None] * 2)


@pytest.mark.parametrize("batch", [encode([Message(b"x")]), encode([Message(b"x", dedup_id="1"), Message(b"y")])])
def test_without_ids_a_lost_answer_is_an_error_and_not_a_second_publish(batch: Any) -> None:
    error, asked = told(lose(1, answer(STORED)), lambda client: client.publish_batch("q", batch), idempotent=False)
    assert isinstance(error, OutcomeUnknown)
    assert isinstance(error, Unavailable)
    assert "not known whether it was carried out" in str(error)
    assert len(asked) == 1


def test_without_ids_a_publish_that_was_turned_away_is_sent_again() -> None:
    answers = [refusal(429, "overloaded"), refusal(503, "too_many_connections"), answer(STORED)]
    place, asked = told(lambda _: answers.pop(0), lambda c: c.publish("q", Message(b"")), idempotent=False)
    assert place.offset == 7
    assert len(asked) == 3
    error, asked = told(
        lambda _: refusal(503, "unavailable", "gone"), lambda c: c.publish("q", Message(b"")), idempotent=False
    )
    assert (type(error), str(error), len(asked)) == (Unavailable, "gone", 1)


# What is sent again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_that_is_away_is_asked_again(status: int) -> None:
    answers = [answer("?", status), refusal(503, "fenced"), refusal(503, "closed"), answer(QUEUE)]
    options, asked = told(lambda _: answers.pop(0), lambda client: client.queue_options("q"))
    assert options == {}
    assert len(asked) == 4


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_argument"), (404, "not_found"), (409, "lease_lost"), (429, "queue_full")]
)
def test_a_refusal_is_final(status: int, code: str) -> None:
    error, asked = told(lambda _: refusal(status, code, "because"), lambda client: client.queue_options("q"))
    assert (type(error), str(error), len(asked)) == (CLASSES[code], "because", 1)
    assert not getattr(error, "__notes__", [])


def test_retry_after_is_respected() -> None:
    answers = [refusal(503, "unavailable", retry_after="1"), answer(QUEUE)]
    began = time.monotonic()
    told(lambda _: answers.pop(0), lambda client: client.queue_options("q"))
    assert time.monotonic() - began >= 1.0


def test_attempts_have_a_limit() -> None:
    error, asked = told(lambda _: None, lambda client: client.queue_options("q"))
    assert isinstance(error, Unavailable)
    assert "no answer after 5 attempts" in str(error)
    assert len(asked) == 5
    error, asked = told(lambda _: refusal(429, "overloaded", "full"), lambda client: client.queue_options("q"))
    assert (type(error), str(error), len(asked)) == (Overloaded, "full", 5)
    error, asked = told(lambda _: None, lambda client: client.queue_options("q"), retry=Retry(attempts=1))
    assert "the first attempt" in str(error)
    assert len(asked) == 1


def test_attempts_have_a_time_limit() -> None:
    retry = Retry(attempts=10_000, seconds=0.2, pause_seconds=0.02, pause_seconds_max=0.02)
    began = time.monotonic()
    error, asked = told(lambda _: None, lambda client: client.queue_options("q"), retry=retry)
    assert isinstance(error, Unavailable)
    assert time.monotonic() - began < 30
    assert 1 < len(asked) < 10_000


def test_pauses_are_random_and_grow_to_their_limit() -> None:
    retry = Retry(pause_seconds=0.1, pause_seconds_max=1.0)
    for attempt, most in ((1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (5_000, 1.0)):
        pauses = [retry.pause(attempt) for _ in range(200)]
        assert 0 <= min(pauses) < most / 4
        assert most / 2 < max(pauses) <= most


def test_no_answer_in_time_is_a_lost_answer() -> None:
    async def silent(asked: Asked) -> bytes:
        await asyncio.sleep(0 if len(server_asked) else 30)
        return answer(STORED)

    server_asked: list[Asked] = []

    def respond(asked: Asked) -> Any:
        made = silent(asked)
        if server_asked:
            return made
        server_asked.append(asked)
        made.close()
        return asyncio.sleep(30, answer(STORED))

    place, asked = told(respond, lambda client: client.publish("q", Message(b"x")), timeout=0.3)
    assert place.offset == 7
    assert [one.query for one in asked] == [asked[0].query] * 2


def test_the_wait_of_a_claim_is_on_top_of_the_timeout() -> None:
    async def late(_: Asked) -> bytes:
        await asyncio.sleep(0.4)
        return refusal(404, "not_found")

    error, asked = told(late, lambda client: client.claim("q", wait=5), timeout=0.2)
    assert isinstance(error, NotFound)
    assert len(asked) == 1


# What a repeat may find -----------------------------------------------------------------------------------


def test_a_settle_that_was_sent_before_says_that_it_may_have_been_its_own() -> None:
    error, asked = told(lose(1, refusal(409, "lease_lost", "gone")), lambda client: client.ack(CLAIM))
    assert isinstance(error, LeaseLost)
    assert "not known whether this call settled it" in str(error)
    assert len(asked) == 2
    error, _ = told(lambda _: refusal(409, "lease_lost", "gone"), lambda client: client.ack(CLAIM))
    assert (type(error), str(error)) == (LeaseLost, "gone")


def test_one_that_claims_too_says_so_and_is_told_by_a_note() -> None:
    error, asked = told(lose(1, refusal(409, "lease_lost", "gone")), lambda client: client.settle_and_claim(CLAIM))
    assert isinstance(error, LeaseLost)
    assert "not known whether this call settled it" in str(error)
    assert is_repeat(error)
    assert [one.target.partition("?")[0] for one in asked] == ["/v1/leases/1-2-3/next"] * 2


def test_a_transaction_that_was_sent_before_says_so_too() -> None:
    async def commit(client: AsyncClient) -> None:
        async with client.transaction() as transaction:
            transaction.ack(CLAIM).publish("q", Message(b"x"))

    error, asked = told(lose(1, refusal(409, "lease_lost", "gone")), commit)
    assert isinstance(error, LeaseLost)
    assert "not known whether this call committed it" in str(error)
    assert asked[0].body == asked[1].body
    assert b"dedup_id" in asked[0].body


def test_a_transaction_of_plain_publishes_without_ids_is_not_repeated() -> None:
    async def commit(client: AsyncClient) -> None:
        async with client.transaction() as transaction:
            transaction.publish("q", Message(b"x"))

    error, asked = told(lose(1, answer({"count": 1, "results": []})), commit, idempotent=False)
    assert isinstance(error, OutcomeUnknown)
    assert len(asked) == 1
    assert b"dedup_id" not in asked[0].body


def test_a_transaction_that_settles_nothing_is_not_repeated_without_ids() -> None:
    async def commit(client: AsyncClient) -> None:
        async with client.transaction() as transaction:
            transaction.settle("1-1-1", ()).publish("q", Message(b"x"))

    error, asked = told(lose(1, answer({"count": 1, "results": []})), commit, idempotent=False)
    assert isinstance(error, OutcomeUnknown)
    assert len(asked) == 1


def test_a_delete_that_was_sent_before_is_done_when_there_is_nothing_left() -> None:
    gone = refusal(404, "not_found", "no such queue")
    assert told(lose(1, gone), lambda client: client.delete_queue("q"))[0] is None
    assert told(lose(1, gone), lambda client: client.unbind("e", "q"))[0] is None
    assert isinstance(told(lambda _: gone, lambda client: client.delete_queue("q"))[0], NotFound)


def test_a_claim_that_acknowledges_is_not_repeated() -> None:
    error, asked = told(lose(1, refusal(404, "not_found")), lambda client: client.claim("q", ack=True))
    assert isinstance(error, OutcomeUnknown)
    assert len(asked) == 1
    error, asked = told(lose(1, refusal(404, "not_found")), lambda client: client.claim("q"))
    assert isinstance(error, NotFound)
    assert len(asked) == 2


def test_a_read_that_is_repeated_names_the_one_that_was_lost() -> None:
    error, asked = told(lose(1, refusal(404, "not_found")), lambda client: client.read("q", "g", consumer="me"))
    assert isinstance(error, NotFound)
    first, second = (msgspec.json.decode(one.body) for one in asked)
    assert "lost" not in first
    assert second["lost"] == [first["turn"]]
    assert second["turn"] != first["turn"]


# Errors ---------------------------------------------------------------------------------------------------


def test_every_error_comes_back_as_itself() -> None:
    for code, kind in CLASSES.items():
        error, _ = told(
            lambda _, code=code: refusal(400, code, "why"),  # type: ignore[misc]
            lambda client: client.queue_options("q"),
        )
        assert type(error) is kind
        assert (str(error), error.code) == ("why", code)
    assert len(CLASSES) == len(
        [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)]
    )


def test_a_filters_column_comes_along() -> None:
    body = {"error": {"code": "invalid_filter", "message": "what", "detail": {"column": 9}}}
    error, _ = told(lambda _: answer(body, 400), lambda client: client.browse("q", filter="?"))
    assert isinstance(error, InvalidFilter)
    assert error.column == 9


@pytest.mark.parametrize(
    ("said", "kind", "code"),
    [
        (refusal(401, "unauthorized", "token"), errors.Unauthorized, "unauthorized"),
        (refusal(418, "teapot", "no"), errors.UnknownError, "teapot"),
        (refusal(503, "newer", "no"), Unavailable, "unavailable"),
        (answer("<html>", 413), errors.MessageTooLarge, "too_large"),
        (answer(None, 500), PenstockError, "error"),
    ],
)
def test_errors_that_are_not_the_brokers(said: bytes, kind: type[PenstockError], code: str) -> None:
    error, _ = told(lambda _: said, lambda client: client.queue_options("q"))
    assert (type(error), error.code) == (kind, code)


def test_an_answer_that_cannot_be_read_is_an_error() -> None:
    error, _ = told(lambda _: answer({"other": 1}), lambda client: client.queue_options("q"))
    assert type(error) is PenstockError
    assert "cannot be read" in str(error)


def test_a_full_queue_is_not_waited_for() -> None:
    error, asked = told(lambda _: refusal(429, "queue_full", retry_after="1"), lambda c: c.publish("q", Message(b"")))
    assert isinstance(error, QueueFull)
    assert len(asked) == 1


def test_the_token_is_sent_and_a_bad_one_refused() -> None:
    _, asked = told(lambda _: answer(QUEUE), lambda client: client.queue_options("q"), token="secret")
    assert asked[0].headers["authorization"] == "Bearer secret"
    for token in ("", "a\r\nb", "é"):
        with pytest.raises(errors.InvalidArgument, match="token"):
            AsyncClient(token=token)


def test_options_are_checked() -> None:
    wrong: list[dict[str, Any]] = [
        {"timeout": 0},
        {"timeout": True},
        {"connect_timeout": "1"},
        {"connections": 0},
        {"namespace": ""},
        {"consumer": "a\n"},
        {"retry": Retry(attempts=0)},
        {"retry": Retry(seconds=-1)},
    ]
    for options in wrong:
        with pytest.raises(errors.InvalidArgument):
            AsyncClient(**options)
