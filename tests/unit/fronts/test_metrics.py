"""The metrics page: parsed back as a scraper would, with hostile names, more queues than the cap, and real numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import Message
from penstock.embedded import open_store
from penstock.fronts.http import measures
from penstock.fronts.http.measures import OTHER, HttpMeasures
from penstock.fronts.metrics import render
from penstock.model.rows import BatchHead
from penstock.node.broker import LocalBroker
from penstock.store.memory.engine import MemoryStore
from tests.local import open_local
from tests.nodes import node_of
from tests.scenarios.rig import ManualClock

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(page: bytes) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def play(scenario: Callable[[LocalBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await open_local(None) as broker:
            await asyncio.wait_for(scenario(broker), 60)

    asyncio.run(main())


def test_what_happened_to_a_queue_is_on_the_page() -> None:
    async def scenario(broker: LocalBroker) -> None:
        await broker.declare_queue("q", backoff_ms=60_000, backoff_jitter=0.0)
        await broker.publish_many("q", [Message(b"x") for _ in range(10)])
        claim = await broker.claim("q", max=6)
        first = claim.messages[0].offset
        await broker.ack(claim, [first, first + 1])
        await broker.nack(claim, [first + 2], error="no")
        await broker.reject(claim, [first + 3])
        samples = parsed(await render(broker))
        group = {"namespace": "default", "queue": "q", "group": "default"}
        expected = {"ready": 4, "leased": 2, "scheduled": 1, "dead": 1, "lag": 7}
        assert {name: value(samples, f"penstock_group_{name}", **group) for name in expected} == expected
        counted = {"delivered": 6, "acked": 2, "nacked": 1, "rejected": 1, "dead": 1, "released": 0}
        assert {name: value(samples, f"penstock_group_{name}_total", **group) for name in counted} == counted
        assert value(samples, "penstock_queue_published_total", namespace="default", queue="q") == 10
        assert value(samples, "penstock_messages_total", event="published") == 10
        assert value(samples, "penstock_messages_total", event="acked") == 2
        commits = value(samples, "penstock_commits_total")
        assert commits == value(samples, "penstock_commit_seconds_count") > 3
        assert value(samples, "penstock_commit_seconds_bucket", le="+Inf") == commits
        assert value(samples, "penstock_commits_failed_total") == 0
        assert value(samples, "penstock_cache_hits_total") == 1
        assert value(samples, "process_resident_memory_bytes") > 1_000_000

    play(scenario)


HOSTILE = ['with "quotes"', "back\\slash\\n", "🦊 é", 'x",queue="y', "a{b}=1", " "]


def test_names_of_any_kind_come_back_as_they_were() -> None:
    async def scenario(broker: LocalBroker) -> None:
        for name in HOSTILE:
            await broker.declare_queue(name)
            await broker.declare_group(name, name)
            await broker.publish(name, Message(b"x"))
        samples = parsed(await render(broker))
        for name in HOSTILE:
            assert value(samples, "penstock_queue_messages", namespace="default", queue=name) == 1
            assert value(samples, "penstock_group_ready", namespace="default", queue=name, group=name) == 1

    play(scenario)


def test_past_the_cap_the_largest_lags_are_shown_and_the_rest_is_one_sum() -> None:
    async def scenario(broker: LocalBroker) -> None:
        for number in range(20):
            await broker.declare_queue(f"q{number}")
            await broker.declare_group(f"q{number}", "g")
            await broker.publish_many(f"q{number}", [Message(b"x") for _ in range(number + 1)])
        await broker.declare_queue(OTHER)  # a user's own, which must not be taken for the sum
        samples = parsed(await render(broker, 5))
        shown = {dict(labels)["queue"] for name, labels in samples if name == "penstock_group_lag"}
        assert shown == {"q19", "q18", "q17", "q16", "q15", OTHER}
        assert value(samples, "penstock_group_lag", namespace="", queue=OTHER, group=OTHER) == sum(range(1, 16))
        assert value(samples, "penstock_queue_messages", namespace="", queue=OTHER) == sum(range(1, 16))
        assert value(samples, "penstock_queues", state="shown") == 5
        assert value(samples, "penstock_queues", state="other") == 17  # $events and the user's own among them
        assert value(samples, "penstock_messages_total", event="published") == sum(range(1, 21))
        everything = parsed(await render(broker, 1_000))
        assert ("penstock_queue_messages", frozenset({"namespace": "", "queue": OTHER}.items())) not in everything
        assert value(everything, "penstock_queue_messages", namespace="default", queue=OTHER) == 0

    play(scenario)


def test_the_cap_at_its_edge() -> None:
    async def scenario(broker: LocalBroker) -> None:
        await broker.declare_queue("a")
        queues = len(node_of(broker).catalog.by_id)
        at, past, none = [(await broker.measures(queues_max=most)) for most in (queues, queues - 1, 0)]
        assert (len(at.queues), at.rest.queues) == (queues, 0)
        assert (len(past.queues), past.rest.queues) == (queues - 1, 1)
        assert (len(none.queues), none.rest.queues) == (0, queues)

    play(scenario)


def test_a_deleted_queue_leaves_no_counter() -> None:
    async def scenario(broker: LocalBroker) -> None:
        for name in ("q", "kept"):
            await broker.declare_queue(name)
            await broker.declare_group(name, "g")
            await broker.publish(name, Message(b"x"))
            await broker.ack(await broker.claim(name, group="g"))
        assert len(node_of(broker).counters.groups) == 2
        await broker.delete_queue("q")
        assert len(node_of(broker).counters.groups) == 1
        await broker.delete_group("kept", "g")
        assert node_of(broker).counters.groups == {}
        samples = parsed(await render(broker))
        assert value(samples, "penstock_messages_total", event="acked") == 2  # the totals never fall

    play(scenario)


def test_lag_is_as_old_as_the_oldest_message_not_done() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with await open_store(MemoryStore(), clock) as broker:
            await broker.declare_queue("q")
            await broker.declare_group("q", "g")

            async def lag() -> float | None:
                numbers = await broker.measures()
                return next(queue for queue in numbers.queues if queue.stats.queue == "q").lag_seconds[0]

            assert await lag() == 0.0
            await broker.publish("q", Message(b"1"))
            clock.time_ms += 5_000
            await broker.publish("q", Message(b"2"))
            clock.time_ms += 2_500
            assert await lag() == 7.5
            claim = await broker.claim("q", group="g")
            assert await lag() == 7.5  # leased is not done
            await broker.ack(claim)
            assert await lag() == 2.5
            for lane in node_of(broker).lanes.loaded():
                lane.log.tail.clear()  # as after a restart: heads are in the store alone
            assert await lag() == 2.5
            assert node_of(broker).survey._heads  # and the next scrape need not read it again
            await broker.ack(await broker.claim("q", group="g"))
            assert await lag() == 0.0

    asyncio.run(main())


def test_a_store_that_does_not_answer_costs_the_age_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.node.observe.survey.READS_S", 0.02)

    class Silent(MemoryStore):
        async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
            found: asyncio.Future[list[BatchHead]] = asyncio.get_running_loop().create_future()
            return await found

    async def main() -> None:
        store = Silent()
        async with await open_store(store, ManualClock()) as broker:
            await broker.declare_queue("q")
            await broker.declare_group("q", "g")
            await broker.publish("q", Message(b"1"))
            for lane in node_of(broker).lanes.loaded():
                lane.log.tail.clear()
            samples = parsed(await asyncio.wait_for(render(broker), 20))
            group = {"namespace": "default", "queue": "q", "group": "g"}
            assert value(samples, "penstock_group_lag", **group) == 1
            assert ("penstock_group_lag_seconds", frozenset(group.items())) not in samples

    asyncio.run(main())


def test_a_scrape_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: LocalBroker) -> None:
        await broker.declare_queue("q")
        await broker.declare_queue("two", lanes=2)
        node = node_of(broker)
        node.lanes.drop({*node.catalog.queue("default", "q").lanes, node.catalog.queue("default", "two").lanes[1]})
        loaded = node.lanes.count
        samples = parsed(await render(broker))
        assert node.lanes.count == loaded
        assert value(samples, "penstock_queues", state="unloaded") == 2
        assert not [labels for _, labels in samples if dict(labels).get("queue") in ("q", "two")]

    play(scenario)


def test_others_run_while_many_queues_are_surveyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.node.observe.survey.SLICE_S", 0.0)

    async def scenario(broker: LocalBroker) -> None:
        for number in range(50):
            await broker.declare_queue(f"q{number}")
        ran = 0

        async def other() -> None:
            nonlocal ran
            while True:
                ran += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await node_of(broker).survey.numbers(10)
        task.cancel()
        assert ran > 50

    play(scenario)


def test_http_requests_by_route_and_status() -> None:
    async def scenario(broker: LocalBroker) -> None:
        http = HttpMeasures()
        http.request("/v1/queues/{queue}", 200, 0.002, 10, 100)
        http.request("/v1/queues/{queue}", 201, 0.2, 10, 100)
        http.request("/v1/queues/{queue}", 503, 20.0, 10, 100)
        http.connections, http.long_polls = 3, 2
        samples = parsed(await render(broker, 10, [http]))
        route = "/v1/queues/{queue}"
        assert value(samples, "penstock_http_requests_total", route=route, status="2xx") == 2
        assert value(samples, "penstock_http_requests_total", route=route, status="5xx") == 1
        assert value(samples, "penstock_http_request_seconds_count", route=route) == 3
        assert value(samples, "penstock_http_request_seconds_bucket", route=route, le="0.0025") == 1
        assert value(samples, "penstock_http_request_seconds_sum", route=route) == pytest.approx(20.202)
        assert value(samples, "penstock_http_connections") == 3
        assert value(samples, "penstock_http_long_polls") == 2
        assert value(samples, "penstock_http_received_bytes_total") == 30
        assert value(samples, "penstock_http_sent_bytes_total") == 300

    play(scenario)


def test_routes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "ROUTES_MAX", 3)
    http = HttpMeasures()
    for number in range(10):
        http.request(f"/{number}", 200, 0.1, 10, 100)
    assert set(http.routes) == {"/0", "/1", "/2", OTHER}
    assert http.routes[OTHER].statuses[2] == 7
