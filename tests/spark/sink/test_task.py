"""The sink's tasks and commits against a real server, without a JVM: retries, replays, races, back-pressure, kills."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Message
from penstock.api.staging import Committed
from penstock.model.errors import InvalidArgument, NotFound, Overloaded, QueueFull
from penstock.spark.sink import commit
from penstock.spark.sink.ledger import forget_sink, list_sinks
from penstock.spark.sink.replay import SinkConflict
from penstock.spark.sink.tally import PAGE_OFFSETS
from penstock.spark.sink.task import TaskDone
from tests.spark.rig import Server, running_server, until
from tests.spark.sink_rig import (
    StreamRun,
    all_messages,
    batch_writer_of,
    enter_task,
    leave_task,
    payloads,
    plain_rows,
    source_rows,
    stream_writer_of,
)


@pytest.fixture
def source(server: Server, queue: str) -> str:
    """A queue that rows pretend to come from."""
    name = f"{queue}-source"
    server.client.declare_queue(name, lanes=2)
    return name


@pytest.fixture(autouse=True)
def no_task() -> Iterator[None]:
    yield
    leave_task()


def options(server: Server, queue: str, **more: str) -> dict[str, str]:
    return {"url": server.url, "queue": queue, "checkpointLocation": f"/checkpoints/{queue}"} | more


def write(writer_options: dict[str, str], *tasks: pa.RecordBatch) -> None:
    """A whole batch write."""
    writer = batch_writer_of(writer_options, tasks[0])
    done = []
    for partition, rows in enumerate(tasks):
        enter_task(partition, partition)
        done.append(writer.write(iter([rows])))
    leave_task()
    writer.commit(list(done))


# Batch writes --------------------------------------------------------------------------------------------


def test_a_write_is_published_in_the_order_of_partitions_and_rows(server: Server, queue: str) -> None:
    rows = plain_rows(range(5))
    writer = batch_writer_of({"url": server.url, "queue": queue}, rows)
    enter_task(1, 0)
    later = writer.write(iter([plain_rows("de"), plain_rows("f")]))
    enter_task(0, 1)
    first = writer.write(iter([plain_rows("ab"), plain_rows("c")]))
    assert payloads(server.client, queue) == [], "what is staged is seen by nobody"
    writer.commit([later, first])
    assert payloads(server.client, queue) == list("abcdef")


def test_only_the_attempt_whose_report_arrived_counts(server: Server, queue: str) -> None:
    """A speculative task and its twin both stage all rows; so does an attempt that failed at its end."""
    rows = plain_rows(range(100))
    writer = batch_writer_of({"url": server.url, "queue": queue}, rows)
    enter_task(0, 0)
    writer.write(iter([rows]))
    enter_task(0, 1)
    chosen = writer.write(iter([rows]))
    enter_task(0, 2)
    writer.write(iter([rows]))
    assert isinstance(chosen, TaskDone)
    assert len(server.client.staged(chosen.transaction).chunks) == 3
    writer.commit([chosen])
    assert payloads(server.client, queue) == [str(number) for number in range(100)]
    assert server.client.staged(chosen.transaction).chunks == []


def test_attempts_of_two_drivers_with_the_same_numbers_do_not_mix(server: Server, queue: str) -> None:
    """A driver that was killed leaves chunks behind; the next one numbers its attempts from 0 again."""
    named = {"url": server.url, "queue": queue, "transactionId": f"{queue}-once"}
    killed = batch_writer_of(named, plain_rows("a"))
    enter_task(0, 0)
    killed.write(iter([plain_rows(["stale"])]))
    write(named, plain_rows(["fresh"]))
    assert payloads(server.client, queue) == ["fresh"]


def test_a_transaction_id_writes_once(server: Server, queue: str) -> None:
    named = {"url": server.url, "queue": queue, "transactionId": f"{queue}-day-1"}
    for _ in range(3):
        write(named, plain_rows("ab"), plain_rows("c"))
    again = batch_writer_of(named, plain_rows("a"))
    enter_task(0, 0)
    done = again.write(iter([plain_rows("ab")]))
    assert isinstance(done, TaskDone)
    assert done.chunks == [], "nothing is sent that is known to be there"
    write({"url": server.url, "queue": queue, "transactionId": f"{queue}-day-2"}, plain_rows("d"))
    assert payloads(server.client, queue) == list("abcd")


def test_without_a_transaction_id_each_write_is_its_own(server: Server, queue: str) -> None:
    for _ in range(2):
        write({"url": server.url, "queue": queue}, plain_rows("ab"))
    assert payloads(server.client, queue) == list("abab")


def test_an_aborted_write_leaves_nothing(server: Server, queue: str) -> None:
    writer = batch_writer_of({"url": server.url, "queue": queue}, plain_rows("a"))
    enter_task(0, 0)
    done = writer.write(iter([plain_rows("ab")]))
    writer.abort([done, None])
    assert isinstance(done, TaskDone)
    assert server.client.staged(done.transaction).state == "unknown"
    assert payloads(server.client, queue) == []


def test_a_batch_write_by_source_offset_leaves_out_what_it_wrote(server: Server, queue: str, source: str) -> None:
    named = {"url": server.url, "queue": queue, "identity": "source", "sinkName": f"{queue}-backfill"}
    write(named, source_rows(source, range(10)))
    write(named, source_rows(source, range(5, 12)), source_rows(source, range(3), lane=1))
    write(named, source_rows(source, range(12)))
    expected = [f"0:{offset}" for offset in range(12)] + [f"1:{offset}" for offset in range(3)]
    assert sorted(payloads(server.client, queue)) == sorted(expected)


def test_rows_go_where_their_columns_say(server: Server, queue: str) -> None:
    other, exchange = f"{queue}-other", f"{queue}-exchange"
    server.client.declare_queue(other)
    server.client.declare_exchange(exchange, kind="topic")
    server.client.bind(exchange, other, pattern="eu.*")
    rows = pa.record_batch(
        {
            "payload": ["1", "2", "3", "4", "5"],
            "queue": pa.array([queue, other, queue, None, None], pa.string()),
            "exchange": pa.array([None, None, None, exchange, exchange], pa.string()),
            "routing_key": pa.array([None, None, None, "eu.x", "us.x"], pa.string()),
        }
    )
    write({"url": server.url}, rows)
    assert payloads(server.client, queue) == ["1", "3"]
    assert payloads(server.client, other) == ["2", "4"], "the fifth reaches no queue"
    assert all_messages(server.client, other)[1] == Message(b"4", key="eu.x")


def test_a_task_of_many_rows_stages_many_chunks(server: Server, queue: str) -> None:
    rows = [plain_rows(range(start, start + 4_000)) for start in range(0, 50_000, 4_000)]
    writer = batch_writer_of({"url": server.url, "queue": queue}, rows[0])
    enter_task(0, 0)
    done = writer.write(iter(rows))
    assert isinstance(done, TaskDone)
    assert len(done.chunks) == 7, "at most 10,000 rows each, whole Arrow batches as far as they fit"
    writer.commit([done])
    assert payloads(server.client, queue) == [str(number) for number in range(52_000)]


def test_large_payloads_are_cut_into_chunks_by_bytes(server: Server, queue: str) -> None:
    rows = pa.record_batch({"payload": pa.array([bytes([number]) * 3_000_000 for number in range(8)], pa.binary())})
    write({"url": server.url, "queue": queue}, rows)
    found = all_messages(server.client, queue)
    assert [(len(message.payload), message.payload[0]) for message in found] == [(3_000_000, n) for n in range(8)]


def test_a_queue_that_does_not_exist_is_named(server: Server) -> None:
    for target in ("queue", "exchange"):  # before a task begins
        with pytest.raises(NotFound, match=f"there is no {target} no-such-one in namespace 'default' of http"):
            batch_writer_of({"url": server.url, target: "no-such-one"}, plain_rows("a"))


def test_a_row_without_a_target_stages_nothing(server: Server, queue: str) -> None:
    rows = pa.record_batch({"payload": ["1", "2"], "queue": pa.array([queue, None], pa.string())})
    writer = batch_writer_of({"url": server.url, "transactionId": f"{queue}-t"}, rows)
    enter_task(0, 0)
    with pytest.raises(InvalidArgument, match="has no target"):
        writer.write(iter([rows]))
    assert payloads(server.client, queue) == []


# Streams by source offset --------------------------------------------------------------------------------


def test_a_replayed_batch_is_published_once(server: Server, queue: str, source: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    tasks = source_rows(source, range(10)), source_rows(source, range(7), lane=1)
    for batch in (0, 0, 0):
        run.run(batch, *tasks)
    run.run(1, source_rows(source, range(10, 15)))
    expected = [f"0:{offset}" for offset in range(10)] + [f"1:{offset}" for offset in range(7)]
    assert payloads(server.client, queue) == expected + [f"0:{offset}" for offset in range(10, 15)]


def test_a_batch_planned_anew_loses_and_repeats_nothing(server: Server, queue: str, source: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    run.run(0, source_rows(source, range(10)))
    run.run(1, source_rows(source, range(10, 20)))
    run.run(1, source_rows(source, range(10, 26)))
    run.run(2, source_rows(source, range(26, 30)))
    assert payloads(server.client, queue) == [f"0:{offset}" for offset in range(30)]


def test_another_query_on_the_same_checkpoint_goes_on(server: Server, queue: str, source: str) -> None:
    """The checkpoint was deleted: batches begin at 0, offsets at the beginning, under another query's name."""
    run = StreamRun(options(server, queue), "query-1")
    run.run(0, source_rows(source, range(10)))
    again = StreamRun(
        options(server, queue, checkpointLocation=f"file:///checkpoints/../checkpoints/{queue}/"), "query-2"
    )
    again.run(0, source_rows(source, range(4)))
    again.run(1, source_rows(source, range(4, 12)))
    again.run(1, source_rows(source, range(4, 12)))
    assert payloads(server.client, queue) == [f"0:{offset}" for offset in range(12)]


def test_a_queue_declared_anew_is_another_source(server: Server, queue: str, source: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    run.run(0, source_rows(source, range(3)))
    server.client.delete_queue(source)
    server.client.declare_queue(source)
    again = StreamRun(options(server, queue), "query-2")
    again.run(0, source_rows(source, range(3)))
    assert payloads(server.client, queue) == ["0:0", "0:1", "0:2"] * 2


def test_several_rows_of_one_offset_are_all_kept(server: Server, queue: str, source: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    # Of offset 1 in one task twice, of offset 2 in two tasks.
    tasks = source_rows(source, [0, 1, 1, 2]), source_rows(source, [2, 3])
    run.run(0, *tasks)
    run.run(0, *tasks)
    again = StreamRun(options(server, queue), "query-2")
    again.run(0, source_rows(source, [3, 2, 2, 1, 1, 0, 4]))
    assert payloads(server.client, queue) == ["0:0", "0:1", "0:1", "0:2", "0:2", "0:3", "0:4"]


def test_a_late_second_row_of_an_offset_is_an_error_and_nothing_is_published(
    server: Server, queue: str, source: str
) -> None:
    run = StreamRun(options(server, queue), "query-1")
    run.run(0, source_rows(source, range(5)))
    with pytest.raises(SinkConflict, match=r"source offset 3 .*identity=batch"):
        run.run(1, source_rows(source, [5, 6, 3]))
    assert len(payloads(server.client, queue)) == 5
    run.run(1, source_rows(source, [5, 6]))
    assert len(payloads(server.client, queue)) == 7


def test_offsets_over_several_pages_and_full_pages(server: Server, queue: str, source: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    run.run(0, source_rows(source, range(PAGE_OFFSETS - 3)))
    [name] = [name for name, text in list_sinks(server.client).items() if queue in text]

    def pages() -> set[str]:
        return {mark.name.rpartition("/")[2] for mark in server.client.marks(f"{name}/")}

    assert pages() == {"0"}
    run.run(1, source_rows(source, range(PAGE_OFFSETS - 3, PAGE_OFFSETS + 3)))
    assert pages() == {"1"}, "a full page is a number in the head"
    again = StreamRun(options(server, queue), "query-2")
    again.run(0, source_rows(source, range(PAGE_OFFSETS - 10, PAGE_OFFSETS + 5)))
    found = payloads(server.client, queue)
    assert found == [f"0:{offset}" for offset in range(PAGE_OFFSETS + 5)]
    assert forget_sink(server.client, name) == 2
    assert name not in list_sinks(server.client)


def test_two_queries_under_one_name_cannot_both_commit(server: Server, queue: str, source: str) -> None:
    one, other = (StreamRun(options(server, queue), query) for query in ("query-1", "query-2"))
    rows = [source_rows(source, range(5))]
    first, second = one.write(0, 0, rows), other.write(0, 0, rows)
    one.commit(0, [first], rows)
    with pytest.raises(SinkConflict, match="has changed since this batch began"):
        other.commit(0, [second], rows)
    other.run(0, *rows)
    assert payloads(server.client, queue) == [f"0:{offset}" for offset in range(5)]


def test_a_commit_that_a_killed_run_still_carries_out_is_not_taken_for_ours(
    server: Server, queue: str, source: str
) -> None:
    """Its transaction has the same name; ours was planned again and has more rows."""
    run = StreamRun(options(server, queue), "query-1")
    narrow, wide = [source_rows(source, range(3))], [source_rows(source, range(6))]
    old, new = run.write(0, 0, narrow), run.write(0, 0, wide)
    assert old.transaction == new.transaction
    run.commit(0, [old], narrow)
    with pytest.raises(SinkConflict, match="has changed since this batch began"):
        run.commit(0, [new], wide)
    run.run(0, *wide)
    assert payloads(server.client, queue) == [f"0:{offset}" for offset in range(6)]


def test_a_commit_that_comes_in_between_is_not_taken_for_ours(
    server: Server, queue: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, when the other commit goes through after we have looked at the ledger: the server says `repeated`."""
    run = StreamRun(options(server, queue), "query-1")
    narrow, wide = [source_rows(source, range(3))], [source_rows(source, range(6))]
    old, new = run.write(0, 0, narrow), run.write(0, 0, wide)
    publish = commit._commit

    def late(*arguments: Any) -> Committed:
        monkeypatch.setattr(commit, "_commit", publish)
        run.commit(0, [old], narrow)
        return publish(*arguments)

    monkeypatch.setattr(commit, "_commit", late)
    with pytest.raises(SinkConflict, match="has changed since this batch began"):
        run.commit(0, [new], wide)
    run.run(0, *wide)
    assert payloads(server.client, queue) == [f"0:{offset}" for offset in range(6)]


def test_another_query_that_commits_in_between(
    server: Server, queue: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (StreamRun(options(server, queue), query) for query in ("query-1", "query-2"))
    rows = [source_rows(source, range(3))]
    first, second = one.write(0, 0, rows), other.write(0, 0, rows)
    publish = commit._commit

    def late(*arguments: Any) -> Committed:
        monkeypatch.setattr(commit, "_commit", publish)
        one.commit(0, [first], rows)
        return publish(*arguments)

    monkeypatch.setattr(commit, "_commit", late)
    with pytest.raises(SinkConflict, match="has changed since this batch began"):
        other.commit(0, [second], rows)
    assert payloads(server.client, queue) == ["0:0", "0:1", "0:2"]


def test_a_task_that_saw_another_ledger_stops_the_commit(server: Server, queue: str, source: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    rows = [source_rows(source, range(3)), source_rows(source, range(3, 6))]
    old = run.write(0, 0, rows[:1])
    StreamRun(options(server, queue), "query-2").run(0, rows[0])
    new = run.write(0, 1, rows[1:])
    with pytest.raises(SinkConflict, match="has changed since"):
        run.commit(0, [old, new], rows)
    assert payloads(server.client, queue) == ["0:0", "0:1", "0:2"]


def test_rows_whose_source_is_not_on_the_server(server: Server, queue: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    with pytest.raises(InvalidArgument, match=r"'elsewhere', which is not on .*sourceUrl"):
        run.run(0, source_rows("elsewhere", range(3)))
    rows = source_rows("elsewhere", range(3)).append_column("queue_id", pa.array([77] * 3, pa.int64()))
    run.run(0, rows)
    run.run(0, rows)
    assert payloads(server.client, queue) == ["0:0", "0:1", "0:2"]


def test_rows_from_another_server(server: Server, queue: str, tmp_path: Path) -> None:
    with running_server(tmp_path) as elsewhere:
        elsewhere.client.declare_queue("far-away")
        run = StreamRun(options(server, queue, sourceUrl=elsewhere.url), "query-1")
        for _ in range(2):
            run.run(0, source_rows("far-away", range(3)))
    assert payloads(server.client, queue) == ["0:0", "0:1", "0:2"]


def test_rows_without_a_source_offset_are_refused(server: Server, queue: str, source: str) -> None:
    rows = source_rows(source, range(2))
    rows = rows.set_column(2, "offset", pa.array([0, None], pa.int64()))
    with pytest.raises(InvalidArgument, match="column offset is NULL in 1 of 2 rows"):
        StreamRun(options(server, queue), "query-1").run(0, rows)


# Streams by batch ----------------------------------------------------------------------------------------


def test_batches_without_identity_are_known_by_their_number(server: Server, queue: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    run.run(0, plain_rows("abc"), plain_rows("de"))
    run.run(0, plain_rows("ed"), plain_rows("cba"))  # the same rows, as another shuffle may hand them out
    run.run(1, plain_rows("f"))
    assert payloads(server.client, queue) == list("abcdef")


def test_a_changed_batch_is_an_error_and_nothing_is_lost(server: Server, queue: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    run.run(0, plain_rows("abc"))
    for changed in ("abcd", "abx"):
        with pytest.raises(SinkConflict, match="batch 0 of this query was written before with 3 rows"):
            run.run(0, plain_rows(changed))
    assert payloads(server.client, queue) == list("abc")
    StreamRun(options(server, queue, changedBatch="skip"), "query-1").run(0, plain_rows("abx"))
    assert payloads(server.client, queue) == list("abc")
    StreamRun(options(server, queue, changedBatch="write"), "query-1").run(0, plain_rows("abcd"))
    assert payloads(server.client, queue) == list("abcabcd")


def test_every_written_column_counts_for_a_change(server: Server, queue: str) -> None:
    def rows(**other: object) -> pa.RecordBatch:
        values = {"partition": "p", "priority": 1, "headers": [("a", "1"), ("b", "2")]} | other
        headers = pa.array([values["headers"]], pa.map_(pa.string(), pa.string()))
        return pa.record_batch(
            {
                "payload": ["same"],
                "partition": [values["partition"]],
                "priority": pa.array([values["priority"]], pa.int32()),
                "headers": headers,
            }
        )

    run = StreamRun(options(server, queue), "query-1")
    run.run(0, rows())
    run.run(0, rows(headers=[("b", "2"), ("a", "1")]))
    for other in (
        {"partition": "q"},
        {"partition": None},
        {"priority": 2},
        {"headers": [("a", "2")]},
        {"headers": None},
    ):
        with pytest.raises(SinkConflict, match="batch 0 of this query was written before"):
            run.run(0, rows(**other))


def test_two_queries_number_their_batches_apart(server: Server, queue: str) -> None:
    one, other = (StreamRun(options(server, queue, sinkName=queue), query) for query in ("query-1", "query-2"))
    one.run(0, plain_rows("a"))
    other.run(0, plain_rows("b"))
    one.run(0, plain_rows("a"))
    assert payloads(server.client, queue) == list("ab")


def test_an_empty_batch_is_nothing(server: Server, queue: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    run.run(0, plain_rows(""), plain_rows(""))
    assert [text for text in list_sinks(server.client).values() if queue in text] == []
    run.run(1, plain_rows("a"))
    assert payloads(server.client, queue) == ["a"]


def test_a_task_without_a_report_stops_the_commit(server: Server, queue: str) -> None:
    with pytest.raises(Exception, match="a task has no report"):
        stream_writer_of(options(server, queue), plain_rows("a")).commit([None], 0)


# Back-pressure and kills ---------------------------------------------------------------------------------


def test_a_full_queue_slows_and_does_not_fail(server: Server, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    full = f"{queue}-full"
    server.client.declare_queue(full, max_length=10)
    server.client.publish_many(full, [Message(b"old")] * 10)
    writing = threading.Thread(
        target=write, args=({"url": server.url, "queue": full, "timeout": "60"}, plain_rows(range(10)))
    )
    writing.start()
    until(lambda: any("publishing 1 chunks" in text for text in caplog.messages), "the commit waits")
    assert payloads(server.client, full) == ["old"] * 10
    server.client.ack(server.client.claim(full, max=10))
    writing.join()
    assert payloads(server.client, full)[-10:] == [str(number) for number in range(10)]


def test_a_queue_that_stays_full_fails_after_the_timeout(server: Server, queue: str) -> None:
    full = f"{queue}-full"
    server.client.declare_queue(full, max_length=1)
    with pytest.raises(QueueFull, match=r"given up after .*option timeout.*max_length"):
        write({"url": server.url, "queue": full, "timeout": "300ms"}, plain_rows("ab"))
    assert payloads(server.client, full) == []


def test_a_task_that_fails_does_not_wait_for_what_it_sends(
    server: Server, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A chunk is on its way to a server that is gone when the next row turns out to be wrong."""

    def rows() -> Iterator[pa.RecordBatch]:
        server.kill()
        yield plain_rows(range(10_000))
        yield plain_rows(range(10_000))
        until(lambda: any("staging 10000 rows" in text for text in caplog.messages), "the first chunk waits")
        raise RuntimeError("a row that is wrong")

    writer = batch_writer_of({"url": server.url, "queue": queue, "timeout": "100"}, plain_rows("a"))
    enter_task(0, 0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="a row that is wrong"):
        writer.write(rows())
    assert time.monotonic() - began < 50


def test_a_server_killed_between_stage_and_commit(server: Server, queue: str, source: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    rows = [source_rows(source, range(100))]
    done = run.write(0, 0, rows)
    server.restart()
    run.commit(0, [done], rows)
    run.run(0, *rows)
    assert payloads(server.client, queue) == [f"0:{offset}" for offset in range(100)]


def test_a_server_killed_while_a_task_stages(server: Server, queue: str, source: str) -> None:
    run = StreamRun(options(server, queue), "query-1")
    parts = [source_rows(source, range(start, start + 10_000)) for start in range(0, 60_000, 10_000)]
    writer = stream_writer_of(run.options, parts[0])
    restarted = threading.Thread(target=server.restart)

    def rows() -> Iterator[pa.RecordBatch]:
        for number, part in enumerate(parts):
            if number == 3:
                restarted.start()
            yield part

    enter_task(0, 1, "query-1", 0)
    done = writer.write(rows())
    restarted.join()
    assert isinstance(done, TaskDone)
    run.commit(0, [done], parts)
    assert payloads(server.client, queue) == [f"0:{offset}" for offset in range(60_000)]


def test_a_server_killed_while_a_large_commit_is_published(server: Server, queue: str, source: str) -> None:
    """More than one store commit holds: it is decided first, and carried on when the server is back."""
    run = StreamRun(options(server, queue), "query-1")
    chance = random.Random(4)
    rows = source_rows(source, range(9_000))
    large = pa.array([f"{offset}:".encode() + chance.randbytes(9_000) for offset in range(9_000)], pa.binary())
    parts = [rows.set_column(3, "payload", large)]
    done = run.write(0, 0, parts)
    committing = threading.Thread(target=run.commit, args=(0, [done], parts))
    committing.start()
    until(lambda: server.client.staged(done.transaction).state in ("committing", "committed"), "it is decided")
    server.restart()
    committing.join()
    run.run(0, *parts)
    found = [int(message.payload.partition(b":")[0]) for message in all_messages(server.client, queue)]
    assert found == list(range(9_000))


def test_staging_that_is_full_slows_the_tasks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The bytes that may be staged are another write's: when that is committed, this one goes on."""
    with running_server(tmp_path, "--set", "limits.staging_bytes=1100000") as server:
        server.client.declare_queue("q")
        chance = random.Random(3)
        rows = pa.record_batch({"payload": pa.array([chance.randbytes(700) for _ in range(1_000)], pa.binary())})
        first = batch_writer_of({"url": server.url, "queue": "q"}, rows)
        enter_task(0, 0)
        held = first.write(iter([rows]))
        with pytest.raises(Overloaded, match=r"given up after .*limit of 1100000"):
            write({"url": server.url, "queue": "q", "timeout": "200ms"}, rows)
        caplog.clear()
        writing = threading.Thread(target=write, args=({"url": server.url, "queue": "q"}, rows))
        writing.start()
        until(lambda: any("staging 1000 rows" in text for text in caplog.messages), "the task waits")
        first.commit([held])
        writing.join()
        assert len(all_messages(server.client, "q")) == 2_000
