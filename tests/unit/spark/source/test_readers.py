"""The readers as Spark calls them, against a real server and without a JVM: what they plan, read, await and refuse."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import logging
import pickle
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from penstock import Client, Message
from penstock.api.results import Scan
from penstock.api.scan import QueueLanes
from penstock.model.errors import InvalidArgument, NotFound, Overloaded, PenstockError, WrongKind
from penstock.spark.source.heads import HeadReader
from penstock.spark.source.options import queue_choice
from penstock.spark.source.planning import Heads
from penstock.spark.source.readers import PenstockBatchReader, PenstockStreamReader
from penstock.spark.source.reading import DataLoss
from penstock.spark.source.source import PenstockSource
from tests.spark.rig import Server, running_server, until

_names = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Client:
    return server.client


@pytest.fixture
def queue(client: Client) -> str:
    name = f"queue-{next(_names)}"
    client.declare_queue(name)
    return name


def source(server: Server, queue: str, **options: object) -> PenstockSource:
    given = {"url": server.url, "queue": queue, **{name: str(value) for name, value in options.items()}}
    return PenstockSource(CaseInsensitiveDict(given))


def batch(server: Server, queue: str, **options: object) -> PenstockBatchReader:
    made = source(server, queue, **options)
    return made.reader(schema=made.schema())


def stream(server: Server, queue: str, **options: object) -> PenstockStreamReader:
    made = source(server, queue, **({"startingOffsets": "earliest"} | options))
    return made.streamReader(schema=made.schema())


def copied(reader: Any) -> Any:
    """As it comes to an executor."""
    return pickle.loads(pickle.dumps(reader))


def rows(reader: Any, parts: Sequence[InputPartition] | None = None) -> list[dict[str, Any]]:
    chosen = reader.partitions() if parts is None else parts
    tables = [pa.Table.from_batches([one]) for part in chosen for one in copied(reader).read(part)]
    found: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
    return found


def filled(client: Client, queue: str, count: int, start: int = 0, chunk: int = 100) -> None:
    for low in range(start, start + count, chunk):
        high = min(low + chunk, start + count)
        client.publish_many(queue, [Message(b"%d" % number, partition=str(number % 17)) for number in range(low, high)])


def run(reader: PenstockStreamReader, start: dict[str, Any] | None = None) -> tuple[list[list[int]], dict[str, Any]]:
    """Batches until there is nothing new: the numbers in each, and where it ends."""
    batches: list[list[int]] = []
    position = reader.initialOffset() if start is None else start
    while (end := reader.latestOffset(position, reader.getDefaultReadLimit())) != position:
        batches.append([int(row["payload"]) for row in rows(reader, reader.partitions(position, end))])
        reader.commit(end)
        position = end
    return batches, position


# Batch ---------------------------------------------------------------------------------------------------


def test_every_message_once_over_lanes_and_slices(server: Server, client: Client) -> None:
    client.declare_queue("lanes", lanes=3)
    filled(client, "lanes", 2_000)
    for least in (1, 3, 40):
        reader = batch(server, "lanes", minPartitions=least)
        found = rows(reader)
        assert sorted(int(row["payload"]) for row in found) == list(range(2_000))
        assert len(reader.partitions()) >= max(3, least)
        assert {row["queue"] for row in found} == {"lanes"}
        places = [(row["lane"], row["offset"]) for row in found]
        assert places == sorted(places)
        ends = {one.lane: one.end for one in client.lanes("lanes").lanes}
        assert places == [(lane, offset) for lane in sorted(ends) for offset in range(ends[lane])]


def test_several_queues_and_patterns(server: Server, client: Client) -> None:
    for name in ("shop-eu", "shop-us", "mail", "odd,name*"):
        client.declare_queue(name)
        client.publish(name, Message(name.encode()))
    assert [row["queue"] for row in rows(batch(server, "shop-*"))] == ["shop-eu", "shop-us"]
    assert [row["queue"] for row in rows(batch(server, "mail,shop-?s"))] == ["mail", "shop-us"]
    assert [row["queue"] for row in rows(batch(server, '["odd,name*"]'))] == ["odd,name*"]
    with pytest.raises(NotFound, match=r"no queue 'nowhere'"):
        rows(batch(server, "mail,nowhere"))
    with pytest.raises(NotFound, match=r"'nothing-\*', and no queue is called so"):
        rows(batch(server, "nothing-*"))


def test_offsets_of_a_batch(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 250)

    def numbers(**options: object) -> list[int]:
        return [int(row["payload"]) for row in rows(batch(server, queue, **options))]

    start, end = json.dumps({queue: {"0": 30}}), json.dumps({queue: {"0": 220}})
    assert numbers(startingOffsets=start, endingOffsets=end) == list(range(30, 220))
    assert numbers(startingOffsets=start) == list(range(30, 250))
    assert numbers(endingOffsets=end, startingOffsets=json.dumps({queue: {"0": -2}})) == list(range(220))
    assert numbers(startingOffsets=end, endingOffsets=end) == []
    with pytest.raises(InvalidArgument, match="would start at offset 220 and end at 30"):
        numbers(startingOffsets=end, endingOffsets=start)
    with pytest.raises(InvalidArgument, match="says nothing of lane 0"):
        numbers(startingOffsets="{}")
    beyond = json.dumps({queue: {"0": 260}})
    with pytest.raises(
        DataLoss, match=f"lane 0 of queue '{queue}', offsets 250 to 259: the read is to end at offset 260"
    ):
        numbers(endingOffsets=beyond)
    assert numbers(endingOffsets=beyond, failOnDataLoss="false") == list(range(250))
    with pytest.raises(DataLoss, match="offsets from 260 on: the lane ends at offset 250"):
        numbers(startingOffsets=beyond, endingOffsets=beyond)


def test_times_of_a_batch(server: Server, client: Client, queue: str) -> None:
    client.publish(queue, Message(b"1"))
    first = rows(batch(server, queue))[0]["published_at"]
    until(lambda: _publish_later(client, queue, first), "a message of a later millisecond")
    found = rows(batch(server, queue))
    last = found[-1]["published_at"]
    text = last.isoformat()
    assert [row["offset"] for row in rows(batch(server, queue, startingTimestamp=text))] == [found[-1]["offset"]]
    before = rows(batch(server, queue, endingTimestamp=int(last.timestamp() * 1000)))
    assert [row["offset"] for row in before] == [row["offset"] for row in found[:-1]]
    with pytest.raises(InvalidArgument, match="has not come yet"):
        batch(server, queue, startingTimestamp="2100-01-01")
    # A time wins over offsets.
    both = batch(server, queue, startingTimestamp=text, startingOffsets=json.dumps({queue: {"0": 0}}))
    assert len(rows(both)) == 1


def _publish_later(client: Client, queue: str, first: dt.datetime) -> bool:
    place = client.publish(queue, Message(b"2"))
    scan = client.scan(queue, 0, place.offset, place.offset + 1)
    return scan.slices[0].published_ms > first.timestamp() * 1000


def test_a_stream_that_begins_at_a_time(server: Server, client: Client, queue: str) -> None:
    client.publish(queue, Message(b"1"))
    first = rows(batch(server, queue))[0]["published_at"]
    until(lambda: _publish_later(client, queue, first), "a message of a later millisecond")
    last = rows(batch(server, queue))[-1]
    reader = stream(server, queue, startingTimestamp=last["published_at"].isoformat())
    assert reader.initialOffset()["queues"][queue]["lanes"] == {"0": last["offset"]}
    assert run(reader)[0] == [[2]]


def test_times_for_each_lane_and_what_no_message_matches(server: Server, client: Client, queue: str) -> None:
    name = f"{queue}-lanes"
    client.declare_queue(name, lanes=2)
    filled(client, name, 40)
    everything = rows(batch(server, name))
    newest = max(row["published_at"] for row in everything)
    until(lambda: time.time() > newest.timestamp() + 0.005, "a later millisecond")
    later = int(time.time() * 1000)
    of_lane = [row["offset"] for row in everything if row["lane"] == 0]
    times = json.dumps({name: {"0": 0, "1": later}})
    assert [(row["lane"], row["offset"]) for row in rows(batch(server, name, startingOffsetsByTimestamp=times))] == [
        (0, offset) for offset in of_lane
    ]
    assert rows(batch(server, name, endingOffsetsByTimestamp=times))[0]["lane"] == 1
    with pytest.raises(NotFound, match=f"no message of lane 1 of queue '{name}'"):
        rows(batch(server, name, startingOffsetsByTimestamp=times, startingOffsetsByTimestampStrategy="error"))
    reader = stream(server, name, startingOffsetsByTimestamp=times)
    assert reader.initialOffset()["queues"][name]["lanes"] == {"0": 0, "1": len(everything) - len(of_lane)}


def test_lanes_that_are_assigned(server: Server, client: Client, queue: str) -> None:
    name = f"{queue}-lanes"
    client.declare_queue(name, lanes=3)
    filled(client, name, 60)

    def reader(assign: object, **options: object) -> Any:
        given = {"url": server.url, "assign": json.dumps(assign), **{key: str(value) for key, value in options.items()}}
        return PenstockSource(CaseInsensitiveDict(given))

    made = reader({name: [0, 2]})
    assert {row["lane"] for row in rows(made.reader(schema=made.schema()))} == {0, 2}
    streaming = reader({name: [2]}, startingOffsets="earliest")
    read = streaming.streamReader(schema=streaming.schema())
    expected = [int(row["payload"]) for row in rows(batch(server, name)) if row["lane"] == 2]
    batches, position = run(read)
    assert batches == [expected]
    assert list(position["queues"][name]["lanes"]) == ["2"]
    with pytest.raises(InvalidArgument, match=f"assign names lane 3 of queue '{name}', which has lanes 0 to 2"):
        rows(reader({name: [3]}).reader(schema=made.schema()))
    with pytest.raises(NotFound, match="no queue 'nowhere'"):
        rows(reader({"nowhere": [0]}).reader(schema=made.schema()))


def test_queues_by_a_regular_expression(server: Server, client: Client, queue: str) -> None:
    for number in (1, 2):
        client.declare_queue(f"{queue}-r{number}")
        client.publish(f"{queue}-r{number}", Message(b"%d" % number))
    given = {"url": server.url, "subscribePattern": rf"{queue}-r\d", "startingOffsets": "earliest"}
    made = PenstockSource(CaseInsensitiveDict(given))
    assert [row["queue"] for row in rows(made.reader(schema=made.schema()))] == [f"{queue}-r1", f"{queue}-r2"]
    reader = made.streamReader(schema=made.schema())
    batches, position = run(reader)
    assert batches == [[1, 2]]
    client.declare_queue(f"{queue}-r3")  # found while the stream runs
    client.publish(f"{queue}-r3", Message(b"3"))
    until(lambda: f"{queue}-r3" in reader.reportLatestOffset()["queues"], "the new queue is seen")
    assert [numbers for numbers in run(reader, position)[0] if numbers] == [[3]]
    none = PenstockSource(CaseInsensitiveDict(given | {"subscribePattern": "none-.*"}))
    with pytest.raises(NotFound, match=r"option subscribePattern is 'none-\.\*', and no queue is called so"):
        rows(none.reader(schema=made.schema()))


def test_queues_of_another_namespace(server: Server, client: Client, queue: str) -> None:
    shop = client.in_namespace("shop")
    shop.declare_queue(queue)
    shop.publish(queue, Message(b"1"))
    assert len(rows(batch(server, queue, namespace="shop"))) == 1
    assert rows(batch(server, queue)) == []
    assert run(stream(server, f"{queue}*", namespace="shop", cursor="c"))[0] == [[1]]
    assert list(shop.groups(queue)) == ["c"]
    assert list(client.groups(queue)) == []


def test_columns_in_their_order_and_bodies_only_where_wanted(
    server: Server, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.publish(queue, Message(b"body", key="k", headers={"a": 1}))
    answers: list[Scan] = []
    scan = Client.scan

    def kept(self: Client, *arguments: Any, **named: Any) -> Scan:
        answers.append(scan(self, *arguments, **named))
        return answers[-1]

    monkeypatch.setattr(Client, "scan", kept)
    assert rows(batch(server, queue, columns="key,offset")) == [{"key": "k", "offset": 0}]
    assert [part.body for part in answers[-1].slices] == [None]
    assert "payload" not in rows(batch(server, queue, includePayload="false"))[0]
    assert [part.body for part in answers[-1].slices] == [None]
    assert rows(batch(server, queue, columns="payload,lane")) == [{"payload": b"body", "lane": 0}]
    assert [part.meta for part in answers[-1].slices] == [None]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "ofset"}, "option columns names 'ofset': did you mean offset?"),
        ({"columns": "state"}, "column 'state' is what a group makes of a message: name it with option group"),
        ({"columns": "payload", "includePayload": "false"}, "leave one of them out"),
        ({"columns": "offset", "group": "g"}, "option group adds state, attempts, reason"),
    ],
)
def test_columns_that_cannot_be(server: Server, options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        source(server, "any", **options).schema()
    assert words in str(error.value)


def test_a_schema_of_the_user_chooses_columns(server: Server, client: Client, queue: str) -> None:
    client.publish(queue, Message(b"x", ttl_ms=5))
    made = source(server, queue)
    own = StructType([StructField("ttl_ms", LongType()), StructField("offset", LongType())])
    assert rows(made.reader(schema=own)) == [{"ttl_ms": 5, "offset": 0}]
    with pytest.raises(InvalidArgument, match="the schema says lane bigint; it must be lane int"):
        made.reader(schema=StructType([StructField("lane", LongType())]))
    with pytest.raises(InvalidArgument, match="the schema says offset bigint NOT NULL; it must be offset bigint"):
        made.reader(schema=StructType([StructField("offset", LongType(), False)]))
    with pytest.raises(InvalidArgument, match="the schema has a column 'wrong'"):
        made.reader(schema=StructType([StructField("wrong", LongType())]))


def test_a_condition_is_evaluated_by_the_server(server: Server, client: Client, queue: str) -> None:
    for low in range(0, 500, 50):
        client.publish_many(
            queue, [Message(b"%d" % n, headers={"n": n, "even": n % 2 == 0}) for n in range(low, low + 50)]
        )
    found = rows(batch(server, queue, where="even = TRUE AND n >= 100", minPartitions=3))
    assert [int(row["payload"]) for row in found] == list(range(100, 500, 2))
    assert rows(batch(server, queue, where="n > 1000")) == []


def test_the_delivery_state_of_a_group(server: Server, client: Client, queue: str) -> None:
    client.declare_group(queue, "workers", max_attempts=1)
    client.declare_group(queue, "keeper")  # keeps what the first is done with
    filled(client, queue, 40)
    client.ack(client.claim(queue, group="workers", max=10))
    client.nack(client.claim(queue, group="workers", max=10), error="no")
    held = client.claim(queue, group="workers", max=10)
    assert held
    found = rows(batch(server, queue, group="workers", columns="offset,state,attempts,reason"))
    states = ["done"] * 10 + ["dead"] * 10 + ["leased"] * 10 + ["ready"] * 10
    assert [row["state"] for row in found] == states
    assert {row["reason"] for row in found[10:20]} == {"attempts"}
    assert {row["attempts"] for row in found[20:30]} == {1}
    assert list(rows(batch(server, queue, group="workers"))[0])[-3:] == ["state", "attempts", "reason"]
    with pytest.raises(NotFound, match=rf"queue '{queue}' has no group 'nobody' .*; it has keeper, workers"):
        rows(batch(server, queue, group="nobody"))
    client.declare_group(queue, "followers", kind="stream")
    with pytest.raises(WrongKind, match=r"group 'followers' .* has no delivery state"):
        rows(batch(server, queue, group="followers"))


def test_a_group_that_is_deleted_under_a_read_is_no_gap(server: Server, client: Client, queue: str) -> None:
    client.declare_group(queue, "workers")
    filled(client, queue, 10)
    reader = batch(server, queue, group="workers", failOnDataLoss="false")
    planned = reader.partitions()
    client.delete_group(queue, "workers")
    with pytest.raises(NotFound):
        rows(reader, planned)


# Gaps and faults -----------------------------------------------------------------------------------------


def shortened(client: Client, kept: int = 100) -> str:
    """A queue whose oldest messages are gone."""
    name = f"short-{next(_names)}"
    client.declare_queue(name, retain_messages=kept)
    filled(client, name, 500)
    until(lambda: client.lanes(name).lanes[0].first == 500 - kept, "retention")
    return name


def test_a_batch_over_what_is_gone(server: Server, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    queue = shortened(client)
    start = json.dumps({queue: {"0": 350}})
    with pytest.raises(DataLoss, match=f"lane 0 of queue '{queue}', offsets 350 to 399: removed by retention") as error:
        rows(batch(server, queue, startingOffsets=start))
    assert "failOnDataLoss=false" in str(error.value)
    with caplog.at_level(logging.WARNING):
        found = rows(batch(server, queue, startingOffsets=start, failOnDataLoss="false"))
    assert [row["offset"] for row in found] == list(range(400, 500))
    assert "offsets 350 to 399: removed by retention" in caplog.text
    assert "(messages lost: 50)" in caplog.text


def test_retention_that_is_faster_than_the_read(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"short-{next(_names)}"
    client.declare_queue(name, retain_messages=100)
    filled(client, name, 100)
    strict, lenient = batch(server, name), batch(server, name, failOnDataLoss="false")
    planned, lenient_planned = strict.partitions(), lenient.partitions()
    filled(client, name, 50, start=100, chunk=50)
    filled(client, name, 150, start=150, chunk=50)
    until(lambda: client.lanes(name).lanes[0].first > 0, "retention")
    with pytest.raises(DataLoss, match="offsets 0 to 99: removed by retention"):
        rows(strict, planned)
    with caplog.at_level(logging.WARNING):
        assert rows(lenient, lenient_planned) == []
    assert "(messages lost: 100)" in caplog.text


def test_a_queue_that_is_deleted_or_replaced_under_a_read(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 100)
    strict, lenient = batch(server, queue), batch(server, queue, failOnDataLoss="false")
    planned, lenient_planned = strict.partitions(), lenient.partitions()
    client.delete_queue(queue)
    with pytest.raises(DataLoss, match="offsets 0 to 99: the queue was deleted while it was read"):
        rows(strict, planned)
    client.declare_queue(queue)
    filled(client, queue, 100)
    with pytest.raises(DataLoss, match="offsets 0 to 99: the queue was deleted and declared again"):
        rows(strict, planned)
    assert rows(lenient, lenient_planned) == []


@pytest.mark.parametrize(
    "fault",
    [
        lambda scan: msgspec.structs.replace(scan, slices=scan.slices[1:]),
        lambda scan: msgspec.structs.replace(scan, slices=[*scan.slices[:1], *scan.slices]),
        lambda scan: msgspec.structs.replace(scan, slices=scan.slices[:-1]),
        lambda scan: msgspec.structs.replace(scan, next_offset=scan.next_offset + 1),
        lambda scan: msgspec.structs.replace(scan, next_offset=scan.next_offset - 1),
        lambda scan: msgspec.structs.replace(scan, slices=list(reversed(scan.slices))),
        lambda scan: msgspec.structs.replace(
            scan, slices=[msgspec.structs.replace(part, base=part.base + 1) for part in scan.slices]
        ),
    ],
    ids=["first missing", "twice", "last missing", "ends later", "ends earlier", "other order", "shifted"],
)
def test_an_answer_that_is_not_the_slice_is_never_taken(
    server: Server, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    filled(client, queue, 300)
    scan = Client.scan
    monkeypatch.setattr(Client, "scan", lambda *given, **named: fault(scan(*given, **named)))
    with pytest.raises(PenstockError, match=f"the read of offsets 0 to 299 of lane 0 of queue '{queue}' went wrong"):
        rows(batch(server, queue, failOnDataLoss="false"))


def small_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each answer has one batch only; gives the offsets that were asked for."""
    asked: list[int] = []
    scan = Client.scan

    def one_batch(self: Client, queue: str, lane: int, start: int, end: int, **named: Any) -> Scan:
        asked.append(start)
        return scan(self, queue, lane, start, end, max_bytes=1, **named)

    monkeypatch.setattr(Client, "scan", one_batch)
    return asked


def test_a_slice_of_many_answers(server: Server, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(client, queue, 500, chunk=10)
    asked = small_answers(monkeypatch)
    start, end = json.dumps({queue: {"0": 5}}), json.dumps({queue: {"0": 487}})
    found = rows(batch(server, queue, startingOffsets=start, endingOffsets=end))
    assert [int(row["payload"]) for row in found] == list(range(5, 487))
    assert asked == [5, *range(10, 487, 10)]


def test_a_server_that_is_killed_between_two_answers(
    server: Server, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(client, queue, 500, chunk=10)
    small_answers(monkeypatch)
    reader = batch(server, queue)
    parts = reader.partitions()
    rows_of_slice = reader.read(parts[0])
    found = next(rows_of_slice).column("offset").to_pylist()
    server.restart()
    for more in rows_of_slice:
        found += more.column("offset").to_pylist()
    assert found == list(range(500))


def test_a_server_that_has_others_to_serve_makes_a_read_slower_only(
    server: Server, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(client, queue, 10)
    scan = Client.scan
    refusals = [Overloaded("too many scans"), Overloaded("too many scans")]

    def refused(self: Client, *given: Any, **named: Any) -> Scan:
        if refusals:
            raise refusals.pop()
        return scan(self, *given, **named)

    monkeypatch.setattr(Client, "scan", refused)
    assert len(rows(batch(server, queue))) == 10
    assert "waits for the server: too many scans" in caplog.text


def test_a_reader_is_small_when_it_travels(server: Server, queue: str) -> None:
    for reader in (batch(server, queue), stream(server, queue, cursor="c")):
        assert len(pickle.dumps(reader)) < 2_000


# Streams -------------------------------------------------------------------------------------------------


def test_a_stream_in_batches_of_so_many_rows(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 1_050)
    batches, end = run(stream(server, queue, maxRowsPerTrigger=200))
    assert [len(numbers) for numbers in batches] == [200] * 5 + [50]
    assert list(itertools.chain(*batches)) == list(range(1_050))
    lanes = client.lanes(queue)
    assert end == {"v": 1, "queues": {queue: {"id": lanes.queue_id, "lanes": {"0": 1_050}}}}


def test_rows_are_shared_half_evenly_and_half_in_proportion_to_the_backlog(server: Server, client: Client) -> None:
    for name, count in (("big", 900), ("small", 100)):
        client.declare_queue(name)
        filled(client, name, count)
    reader = stream(server, "big,small", maxRowsPerTrigger=100)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert [one["lanes"]["0"] for one in end["queues"].values()] == [71, 29]


def test_all_available_is_all(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 300)
    reader = stream(server, queue, maxRowsPerTrigger=10, minRowsPerTrigger=5)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["queues"][queue]["lanes"] == {"0": 300}


def test_a_batch_has_so_many_bytes(server: Server, client: Client, queue: str) -> None:
    for _ in range(10):
        client.publish_many(queue, [Message(bytes(range(256)) * 4)] * 10)
    size = client.lanes(queue).lanes[0].bytes
    reader = stream(server, queue, maxBytesPerTrigger=size // 2)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert 30 <= end["queues"][queue]["lanes"]["0"] <= 50
    tiny = stream(server, queue, maxBytesPerTrigger=1)
    assert tiny.latestOffset(start, tiny.getDefaultReadLimit())["queues"][queue]["lanes"]["0"] == 10
    few = stream(server, queue, maxBytesPerTrigger=size, maxRowsPerTrigger=7)
    assert few.latestOffset(start, few.getDefaultReadLimit())["queues"][queue]["lanes"]["0"] == 7


def test_what_goes_while_a_batch_is_measured_is_a_gap_of_the_batch(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 50)
    reader = stream(server, queue, maxBytesPerTrigger=10, failOnDataLoss="false")
    start = reader.initialOffset()
    assert reader.reportLatestOffset()["queues"][queue]["lanes"] == {"0": 50}  # seen, and remembered for a moment
    reader._heads._age_s = 3600.0
    client.delete_queue(queue)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["queues"][queue]["lanes"] == {"0": 50}
    reader._heads._age_s = 0.0
    assert rows(reader, reader.partitions(start, end)) == []
    with pytest.raises(DataLoss, match="offsets 0 to 49: the queue was deleted since"):
        stream(server, queue).partitions(start, end)


def test_a_batch_waits_for_rows_and_not_for_ever(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 5)
    patient = stream(server, queue, minRowsPerTrigger=10, maxTriggerDelay="1h")
    limit = patient.getDefaultReadLimit()
    start = patient.initialOffset()
    assert patient.latestOffset(start, limit) == start
    filled(client, queue, 5, start=5)
    until(lambda: patient.latestOffset(start, limit) != start, "enough rows")
    impatient = stream(server, queue, minRowsPerTrigger=100, maxTriggerDelay="50ms")
    assert impatient.latestOffset(start, limit) == start
    until(lambda: impatient.latestOffset(start, limit) != start, "the delay")
    ending = stream(server, queue, minRowsPerTrigger=100, maxTriggerDelay="1h")
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(start, limit) != start


def test_available_now_ends_at_what_was_there(server: Server, client: Client) -> None:
    client.declare_queue("now-a")
    filled(client, "now-a", 300)
    reader = stream(server, "now-*", maxRowsPerTrigger=100)
    reader.prepareForTriggerAvailableNow()
    filled(client, "now-a", 300, start=300)
    client.declare_queue("now-b")
    filled(client, "now-b", 10)
    batches, end = run(reader, stream(server, "now-a").initialOffset())
    assert [len(numbers) for numbers in batches] == [100, 100, 100]
    again = stream(server, "now-*")
    again.prepareForTriggerAvailableNow()
    batches, end = run(again, end)
    assert sorted(itertools.chain(*batches)) == sorted([*range(300, 600), *range(10)])
    assert sorted(end["queues"]) == ["now-a", "now-b"]


def test_a_start_at_the_latest_offset_stays_there(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 10)
    reader = stream(server, queue, startingOffsets="latest")
    first = reader.initialOffset()
    filled(client, queue, 10, start=10)
    assert reader.initialOffset() == first
    until(lambda: reader.latestOffset(first, reader.getDefaultReadLimit()) != first, "new rows")
    assert run(reader, first)[0] == [list(range(10, 20))]


def test_a_queue_that_appears_is_read_from_its_beginning(server: Server, client: Client) -> None:
    reader = stream(server, "later-*", startingOffsets="latest")
    start = reader.initialOffset()
    assert start == {"v": 1, "queues": {}}
    client.declare_queue("later-1")
    filled(client, "later-1", 30)
    until(lambda: reader.latestOffset(start, reader.getDefaultReadLimit()) != start, "the queue")
    batches, _ = run(reader, start)
    assert batches == [[], list(range(30))]


def test_a_queue_of_a_pattern_that_no_offset_names_is_read_from_its_beginning(server: Server, client: Client) -> None:
    """It may have appeared a moment ago: a start that was settled before it stands."""
    for name in ("named-a", "named-b"):
        client.declare_queue(name)
        filled(client, name, 10)
    starting = json.dumps({"named-a": {"0": 4}})
    reader = stream(server, "named-*", startingOffsets=starting)
    start = reader.initialOffset()
    assert sorted(start["queues"]) == ["named-a"]
    batches, _ = run(reader, start)
    assert sorted(itertools.chain(*batches)) == sorted([*range(4, 10), *range(10)])
    with pytest.raises(InvalidArgument, match="says nothing of lane 0 of queue 'named-b'"):
        stream(server, "named-*,named-b", startingOffsets=starting).initialOffset()
    with pytest.raises(InvalidArgument, match="says nothing of lane 0 of queue 'named-b'"):
        rows(batch(server, "named-*", startingOffsets=starting))


def test_the_backlog_is_reported(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 30)
    reader = stream(server, queue, maxRowsPerTrigger=10)
    assert reader.reportLatestOffset()["queues"][queue]["lanes"] == {"0": 30}


def test_a_server_is_asked_only_so_often(
    server: Server, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream(server, queue)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    asked: list[str] = []
    lanes = Client.lanes

    def counted(self: Client, name: str, time_ms: int | None = None) -> QueueLanes:
        asked.append(name)
        return lanes(self, name, time_ms)

    monkeypatch.setattr("penstock.spark.source.heads.AGE_S_MIN", 3600.0)
    monkeypatch.setattr(Client, "lanes", counted)
    for _ in range(1_000):
        reader.latestOffset(start, limit)
    assert len(asked) == 1


def test_a_server_that_was_away_is_asked_again_at_once(
    server: Server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long every time is asked for less often; what took long once, while a server died, is not."""
    reader = HeadReader(stream(server, queue)._spec.access, queue_choice(queue))
    now_s, asked_at = 100.0, list[float]()
    monkeypatch.setattr("penstock.spark.source.heads.monotonic", lambda: now_s)

    def slowly(seconds: float) -> None:
        def now(time_ms: int | None = None) -> Heads:
            nonlocal now_s
            asked_at.append(now_s)
            now_s += seconds
            return {}

        monkeypatch.setattr(reader, "now", now)

    def until_asked() -> float:
        nonlocal now_s
        began, count = now_s, len(asked_at)
        while len(asked_at) == count:
            now_s += 0.01
            reader.recent()
        return round(asked_at[-1] - began, 2)

    slowly(0.002)
    until_asked()
    assert until_asked() <= 0.06
    slowly(2.0)  # it died, and another took over
    assert until_asked() <= 0.06
    slowly(0.002)
    assert until_asked() <= 0.06
    slowly(2.0)  # it is so slow
    until_asked(), until_asked()
    assert 20.0 <= until_asked() <= 20.1


def test_the_same_batch_again_is_the_same_rows(server: Server, client: Client) -> None:
    client.declare_queue("again", lanes=3)
    filled(client, "again", 500)
    first = stream(server, "again", maxRowsPerTrigger=100)
    start = first.initialOffset()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    once = rows(first, first.partitions(start, end))
    filled(client, "again", 500, start=500)
    second = stream(server, "again", minPartitions=9)
    assert rows(second, second.partitions(start, end)) == once
    assert len(once) == 100


# Checkpoints that do not fit -----------------------------------------------------------------------------


def gap_of(server: Server, queue: str, start: dict[str, Any], **options: object) -> str:
    reader = stream(server, queue, **options)
    with pytest.raises(DataLoss) as error:
        reader.latestOffset(start, reader.getDefaultReadLimit())
    return str(error.value)


def test_a_checkpoint_from_before_retention(server: Server, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    queue = shortened(client)
    start = {"v": 1, "queues": {queue: {"id": client.lanes(queue).queue_id, "lanes": {"0": 350}}}}
    assert f"lane 0 of queue '{queue}', offsets 350 to 399: removed by retention" in gap_of(server, queue, start)
    reader = stream(server, queue, failOnDataLoss="false", maxRowsPerTrigger=60)
    with caplog.at_level(logging.WARNING):
        batches, end = run(reader, start)
    assert batches == [[], list(range(400, 460)), list(range(460, 500))]
    assert end["queues"][queue]["lost"] == 50
    assert "(messages lost: 50)" in caplog.text


def test_a_batch_that_was_planned_before_retention(server: Server, client: Client) -> None:
    queue = shortened(client)
    made = client.lanes(queue).queue_id
    start = {"v": 1, "queues": {queue: {"id": made, "lanes": {"0": 350}}}}
    end = {"v": 1, "queues": {queue: {"id": made, "lanes": {"0": 410}}}}
    with pytest.raises(DataLoss, match="offsets 350 to 399"):
        stream(server, queue).partitions(start, end)
    reader = stream(server, queue, failOnDataLoss="false")
    assert [row["offset"] for row in rows(reader, reader.partitions(start, end))] == list(range(400, 410))


def test_a_checkpoint_of_a_queue_that_was_replaced(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 50)
    _, end = run(stream(server, queue))
    client.delete_queue(queue)
    client.declare_queue(queue)
    filled(client, queue, 80, start=1000)
    assert f"queue '{queue}': it was deleted and declared again" in gap_of(server, queue, end)
    batches, _ = run(stream(server, queue, failOnDataLoss="false"), end)
    assert batches == [[], list(range(1000, 1080))]


def test_a_checkpoint_of_another_queue(server: Server, client: Client, queue: str) -> None:
    client.declare_queue("another")
    filled(client, "another", 10)
    _, end = run(stream(server, queue))
    words = gap_of(server, "another", end)
    assert f"queue '{queue}': it is in the checkpoint" in words
    assert "the option queue does not choose it" in words
    assert run(stream(server, "another", failOnDataLoss="false"), end)[0] == [[], list(range(10))]


def test_a_checkpoint_beyond_the_end(server: Server, client: Client, queue: str) -> None:
    filled(client, queue, 10)
    start = {"v": 1, "queues": {queue: {"id": client.lanes(queue).queue_id, "lanes": {"0": 99}}}}
    assert f"lane 0 of queue '{queue}', offsets from 99 on: the lane ends at offset 10" in gap_of(server, queue, start)
    batches, end = run(stream(server, queue, failOnDataLoss="false"), start)
    assert batches == [[]]
    assert end["queues"][queue]["lanes"] == {"0": 10}


def test_a_queue_that_is_gone(server: Server, client: Client, queue: str) -> None:
    _, end = run(stream(server, queue))
    client.delete_queue(queue)
    assert f"queue '{queue}'" in gap_of(server, queue, end)
    with pytest.raises(NotFound):
        stream(server, queue).initialOffset()


# The cursor ----------------------------------------------------------------------------------------------


def lag(client: Client, queue: str, group: str) -> int:
    return next(one.lag for one in client.stats(queue).groups if one.group == group)


def test_a_cursor_follows_the_query_and_never_goes_back(server: Server, client: Client) -> None:
    client.declare_queue("shown", lanes=2)
    filled(client, "shown", 100)
    reader = stream(server, "shown", cursor="report", maxRowsPerTrigger=40)
    start = reader.initialOffset()
    assert client.groups("shown")["report"] == {"kind": "stream", "auto_commit": False}
    assert lag(client, "shown", "report") == 100
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert lag(client, "shown", "report") == 100
    reader.latestOffset(first, reader.getDefaultReadLimit())
    assert lag(client, "shown", "report") == 60
    run(reader, first)
    assert lag(client, "shown", "report") == 0
    # The checkpoint was lost: another query of the same name begins anew.
    again = stream(server, "shown", cursor="report", maxRowsPerTrigger=40)
    again.latestOffset(again.initialOffset(), again.getDefaultReadLimit())
    again.commit(first)
    assert lag(client, "shown", "report") == 0


def test_a_cursor_that_somebody_deleted_comes_back(server: Server, client: Client, queue: str) -> None:
    reader = stream(server, queue, cursor="report")
    start = reader.initialOffset()
    filled(client, queue, 10)
    client.delete_group(queue, "report")
    until(lambda: reader.latestOffset(start, reader.getDefaultReadLimit()) != start, "rows")
    _, end = run(reader, start)
    until(lambda: reader.latestOffset(end, reader.getDefaultReadLimit()) == end and has(client, queue), "the group")
    assert lag(client, queue, "report") == 0


def has(client: Client, queue: str) -> bool:
    return "report" in client.groups(queue)


def test_a_cursor_needs_a_name_of_its_own(server: Server, client: Client, queue: str) -> None:
    client.declare_group(queue, "workers")
    with pytest.raises(PenstockError, match="a cursor needs a name of its own"):
        stream(server, queue, cursor="workers").initialOffset()
