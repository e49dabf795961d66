"""Every option of a read: what it becomes, what is refused, and in which words."""

from __future__ import annotations

import pytest

from penstock.cli.dev.checkout import root
from penstock.model import is_events_queue
from penstock.model.errors import InvalidArgument, InvalidFilter, UnknownOption
from penstock.spark.source.options import (
    EARLIEST,
    LATEST,
    OPTIONS,
    ROWS_PER_TRIGGER,
    TRIGGER_DELAY_MS,
    Bound,
    QueueChoice,
    ReadOptions,
    as_pattern,
    chosen_queues,
    moment_ms,
    prefixes,
    read_options,
)
from penstock.spark.source.planning import SLICE_ROWS


def batch(**options: str) -> ReadOptions:
    return read_options({"url": "http://127.0.0.1:1", "queue": "orders", **options}, streaming=False)


def stream(**options: str) -> ReadOptions:
    return read_options({"url": "http://127.0.0.1:1", "queue": "orders", **options}, streaming=True)


def test_the_defaults_of_a_batch_read() -> None:
    options = batch()
    assert options.url == "http://127.0.0.1:1"
    assert options.token is None
    assert options.namespace == "default"
    assert options.queues == QueueChoice(("orders",), (), "orders")
    assert options.starting == Bound(everywhere=EARLIEST, text="earliest", option="startingOffsets")
    assert options.ending == Bound(everywhere=LATEST, text="latest", option="endingOffsets")
    assert options.fail_on_data_loss
    assert options.payload
    assert (options.columns, options.where, options.group, options.partitions_min) == (None, None, None, None)


def test_the_defaults_of_a_stream() -> None:
    options = stream()
    assert options.starting == Bound(everywhere=LATEST, text="latest", option="startingOffsets")
    assert options.rows_max == ROWS_PER_TRIGGER == 500_000
    assert options.delay_ms == TRIGGER_DELAY_MS
    assert (options.bytes_max, options.rows_min, options.cursor) == (None, None, None)


def test_names_are_read_in_any_case() -> None:
    options = read_options({"URL": "u", "Queue": "q", "STARTINGoffsets": "LATEST"}, streaming=True)
    assert (options.url, options.queues.names, options.starting.everywhere) == ("u", ("q",), LATEST)


def test_each_option_arrives() -> None:
    options = stream(
        token="secret",
        namespace="shop",
        maxRowsPerTrigger="10",
        maxBytesPerTrigger="20",
        minRowsPerTrigger="3",
        maxTriggerDelay="2m",
        minPartitions="7",
        failOnDataLoss="FALSE",
        columns="offset, payload",
        includePayload="true",
        where="region = 'eu'",
        cursor="report",
    )
    assert (options.token, options.namespace) == ("secret", "shop")
    assert (options.rows_max, options.bytes_max, options.rows_min, options.delay_ms) == (10, 20, 3, 120_000)
    assert (options.partitions_min, options.fail_on_data_loss) == (7, False)
    assert (options.columns, options.payload, options.where) == (("offset", "payload"), True, "region = 'eu'")
    assert options.cursor == "report"
    assert batch(group="workers").group == "workers"


def test_the_documentation_names_every_option_and_has_the_numbers_of_the_code() -> None:
    page = (root() / "docs" / "pipeline.md").read_text().partition("## Reading")[2].partition("An option that")[0]
    table = [line.split("|") for line in page.splitlines() if line.startswith("|")]
    rows = {name: line for name in OPTIONS for line in table if f"`{name}`" in line[1]}
    assert set(rows) == set(OPTIONS)
    assert f"{ROWS_PER_TRIGGER:,}" in rows["maxRowsPerTrigger"][2]
    assert f"{SLICE_ROWS:,}" in rows["minPartitions"][2]
    assert f"`{TRIGGER_DELAY_MS // 60_000}m`" in rows["maxTriggerDelay"][2]


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(stream(token="secret"))


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("maxRowPerTriger", "did you mean maxRowsPerTrigger?"),
        ("maxOffsetsPerTrigger", "did you mean maxRowsPerTrigger?"),
        ("queues", "did you mean queue?"),
        ("startingOffset", "did you mean startingOffsets?"),
        ("includePayloads", "did you mean includePayload?"),
        ("zzz", "there are url, token, namespace, queue,"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(given: str, hint: str) -> None:
    with pytest.raises(UnknownOption) as error:
        stream(**{given: "1"})
    assert hint in str(error.value)
    assert repr(given.lower()) in str(error.value)


@pytest.mark.parametrize(
    "name", ["maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "cursor"]
)
def test_options_of_streams_are_refused_for_batches(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"option {name} is for streams"):
        batch(**{name: "1s" if name == "maxTriggerDelay" else "1"})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "group"])
def test_options_of_batches_are_refused_for_streams(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"batch reads"):
        stream(**{name: "latest"})


def test_both_kinds_pass_while_it_is_not_known_which_it_is() -> None:
    given = {"url": "u", "queue": "q", "cursor": "c", "group": "g", "startingOffsets": "latest"}
    assert read_options(given, streaming=None).cursor == "c"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minPartitions": "0"}, "option minPartitions is 0; it must be 1 to"),
        ({"minPartitions": "two"}, "option minPartitions must be a whole number, not 'two'"),
        ({"failOnDataLoss": "no"}, "option failOnDataLoss must be true or false, not 'no'"),
        ({"includePayload": "1"}, "option includePayload must be true or false, not '1'"),
        ({"columns": "offset,offset"}, "option columns names a column twice"),
        ({"token": " "}, "option token is empty"),
        ({"startingOffsets": "first"}, "option startingOffsets must be earliest, latest or JSON such as"),
        ({"startingOffsets": '{"orders": 3}'}, "option startingOffsets must be JSON such as"),
        ({"startingOffsets": '{"orders": {"x": 3}}'}, "option startingOffsets has a lane 'x' of queue 'orders'"),
        ({"startingOffsets": '{"orders": {"1024": 3}}'}, "option startingOffsets has a lane '1024'"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "has offset -3 for lane 0 of queue 'orders'"),
        ({"startingOffsets": "latest"}, "a batch read that starts at the latest offset has no rows"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "a batch read that starts at the latest offset has no rows"),
        ({"endingOffsets": "earliest"}, "a read that ends at the earliest offset has no rows"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "a read that ends at the earliest offset has no rows"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp must be a time such as"),
        ({"endingTimestamp": "1969-01-01"}, "it must be in the years 1970 to 9999"),
        ({"path": "other"}, "queue is given twice"),
        ({"queue": ""}, "option queue is empty"),
        ({"queue": "a,,b"}, "option queue has 0 characters"),
        ({"queue": "[]"}, "option queue is an empty list"),
        ({"queue": "[1]"}, "option queue must be JSON such as"),
    ],
)
def test_a_wrong_value_is_refused_in_words(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        batch(**options)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger is 0"),
        ({"maxRowsPerTrigger": "5", "minRowsPerTrigger": "6"}, "no batch can have both"),
        ({"maxTriggerDelay": "5s"}, "give that option too"),
        ({"maxTriggerDelay": "5", "minRowsPerTrigger": "6"}, "must be a span such as 500ms"),
    ],
)
def test_a_wrong_value_of_a_stream_is_refused_in_words(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        stream(**options)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["url", "queue"])
def test_what_must_be_there(name: str) -> None:
    given = {"url": "u", "queue": "q"}
    del given[name]
    with pytest.raises(InvalidArgument, match=f"option {name} is missing"):
        read_options(given, streaming=False)


def test_a_minimum_above_the_usual_maximum_raises_that() -> None:
    assert stream(minRowsPerTrigger="600000").rows_max == 600_000


def test_a_filter_that_does_not_parse_is_refused_at_once() -> None:
    with pytest.raises(InvalidFilter):
        batch(where="region = ")


def test_a_time_wins_over_offsets() -> None:
    options = batch(startingTimestamp="1000", startingOffsets='{"orders": {"0": 5}}', endingTimestamp="2000")
    assert options.starting == Bound(time_ms=1000, text="1000", option="startingTimestamp")
    assert options.ending == Bound(time_ms=2000, text="2000", option="endingTimestamp")


def test_offsets_as_json() -> None:
    text = '{"orders": {"0": 23, "1": -2}}'
    assert batch(startingOffsets=text).starting == Bound(
        offsets={"orders": {0: 23, 1: EARLIEST}}, text=text, option="startingOffsets"
    )


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1767225600123", 1_767_225_600_123),
        ("2026-01-01", 1_767_225_600_000),
        ("2026-01-01T00:00:00", 1_767_225_600_000),
        ("2026-01-01T00:00:00.123Z", 1_767_225_600_123),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    assert moment_ms(text, "startingTimestamp") == time_ms


@pytest.mark.parametrize(("text", "span_ms"), [("500ms", 500), ("30 s", 30_000), ("15m", 900_000), ("1H", 3_600_000)])
def test_spans(text: str, span_ms: int) -> None:
    assert stream(minRowsPerTrigger="1", maxTriggerDelay=text).delay_ms == span_ms


@pytest.mark.parametrize(
    ("text", "names", "patterns"),
    [
        ("orders", ["orders"], []),
        ("b, a,b", ["b", "a"], []),
        ("orders-*", [], ["orders-*"]),
        ("a,orders-?,x[12]", ["a"], ["orders-?", "x[12]"]),
        ('["a,b", "c*"]', ["a,b", "c*"], []),
        ("$events, orders", ["$events", "orders"], ["$events-*"]),
        ('["$events"]', ["$events"], []),
        ("a[,]b,c", ["c"], ["a[,]b"]),
    ],
)
def test_queues(text: str, names: list[str], patterns: list[str]) -> None:
    assert batch(queue=text).queues == QueueChoice(tuple(names), tuple(patterns), text)


def test_load_with_a_name_is_the_queue() -> None:
    assert read_options({"url": "u", "path": "orders"}, streaming=False).queues.names == ("orders",)


def test_patterns_choose_among_what_exists() -> None:
    existing = ["orders-eu", "orders-us", "Orders-xx", "$events", "mail"]
    assert chosen_queues(batch(queue="orders-*,gone").queues, existing) == ["gone", "orders-eu", "orders-us"]
    assert chosen_queues(batch(queue="*").queues, existing) == ["Orders-xx", "mail", "orders-eu", "orders-us"]
    assert chosen_queues(batch(queue="$*").queues, existing) == ["$events"]


def test_events_are_those_of_every_server() -> None:
    existing = ["$events", "$events-0", "$events-41", "$eventsx", "$other", "events", "orders"]
    events = ["$events", "$events-0", "$events-41"]
    assert chosen_queues(batch(queue="$events").queues, existing) == events
    assert chosen_queues(batch(queue="$events,orders").queues, existing) == [*events, "orders"]
    assert chosen_queues(batch(queue='["$events"]').queues, existing) == ["$events"]
    assert chosen_queues(batch(queue="$events-0").queues, existing) == ["$events-0"]
    assert [name for name in existing if is_events_queue(name)] == events


@pytest.mark.parametrize("name", ["plain", "a,b", "a*b?[c]", " spaces ", "[", "]", ",", "[,]", "ä-🚰"])
def test_any_name_can_be_a_pattern(name: str) -> None:
    """Beside patterns, where a list in JSON has no place."""
    chosen = batch(queue=f"x-*,{as_pattern(name)},$events").queues
    others = ["a", "b", "aXb", "a*bX[c]", "a*b?c", "spaces", "", "Plain", "x-y"]
    assert chosen_queues(chosen, [name, *others]) == sorted(["$events", "x-y", name])


def test_only_names_that_a_pattern_can_match_are_asked_for() -> None:
    assert prefixes(batch(queue="orders-*,mail").queues) == ["orders-"]
    assert prefixes(batch(queue="orders-*,orders-eu-?,$events,b[12]").queues) == ["$events-", "b", "orders-"]
    assert prefixes(batch(queue="orders-*,*").queues) == [""]
    assert prefixes(batch(queue="orders").queues) == []


# As Spark's Kafka connector has them ---------------------------------------------------------------------


def chosen_by(**options: str) -> QueueChoice:
    return read_options({"url": "http://127.0.0.1:1", **options}, streaming=True).queues


def test_queues_by_a_regular_expression() -> None:
    existing = ["orders-eu", "orders-us", "orders-us-2", "mail", "$events", "$events-1"]
    assert chosen_queues(chosen_by(subscribePattern="orders-(eu|us)"), existing) == ["orders-eu", "orders-us"]
    assert chosen_queues(chosen_by(subscribePattern=".*"), existing) == sorted(existing[:4])
    assert chosen_queues(chosen_by(subscribePattern=r"\$events.*"), existing) == ["$events", "$events-1"]
    assert prefixes(chosen_by(subscribePattern="orders-.*")) == [""]
    with pytest.raises(InvalidArgument, match=r"subscribePattern is 'orders-\(', which is no regular expression"):
        chosen_by(subscribePattern="orders-(")


def test_queues_by_their_lanes() -> None:
    chosen = chosen_by(assign='{"orders": [2, 0], "mail": [0]}')
    assert (chosen.names, chosen.lanes) == (("orders", "mail"), {"orders": (0, 2), "mail": (0,)})
    for text in ('{"orders": []}', '{"orders": [0, 0]}', '{"orders": [-1]}', '{"orders": [100000]}'):
        with pytest.raises(InvalidArgument, match="lanes are 0, 1, 2"):
            chosen_by(assign=text)
    with pytest.raises(InvalidArgument, match="names no queue"):
        chosen_by(assign="{}")
    with pytest.raises(InvalidArgument, match="option assign must be JSON such as"):
        chosen_by(assign="orders")


def test_only_one_way_to_choose_queues() -> None:
    with pytest.raises(InvalidArgument, match="options queue and assign both say"):
        chosen_by(queue="orders", assign='{"orders": [0]}')
    with pytest.raises(InvalidArgument, match="options subscribePattern and assign both say"):
        chosen_by(subscribePattern="orders", assign='{"orders": [0]}')
    with pytest.raises(InvalidArgument, match="option queue is missing"):
        chosen_by()


def test_times_for_each_lane() -> None:
    text = '{"orders": {"0": 1767225600000, "1": "2026-01-01T00:00:01Z"}}'
    expected = {"orders": {0: 1_767_225_600_000, 1: 1_767_225_601_000}}
    found = batch(startingOffsetsByTimestamp=text, startingOffsets="earliest").starting
    assert (found.times, found.option) == (expected, "startingOffsetsByTimestamp")
    assert batch(endingOffsetsByTimestamp=text).ending.times == expected
    assert batch(startingOffsetsByTimestamp=text, startingTimestamp="5").starting.time_ms == 5  # the one for all wins
    with pytest.raises(InvalidArgument, match="a lane 'x' of queue 'orders'"):
        batch(startingOffsetsByTimestamp='{"orders": {"x": 1}}')
    with pytest.raises(InvalidArgument, match="must be a time such as"):
        batch(startingOffsetsByTimestamp='{"orders": {"0": "soon"}}')
    with pytest.raises(InvalidArgument, match="endingOffsetsByTimestamp is for batch reads"):
        stream(endingOffsetsByTimestamp=text)


def test_what_to_do_where_no_message_is_as_new() -> None:
    assert not batch(startingTimestamp="5").starting.needs_match
    assert batch(startingTimestamp="5", startingOffsetsByTimestampStrategy="error").starting.needs_match
    with pytest.raises(InvalidArgument, match="it must be one of latest, error"):
        batch(startingTimestamp="5", startingOffsetsByTimestampStrategy="newest")
    with pytest.raises(InvalidArgument, match="give startingTimestamp or startingOffsetsByTimestamp too"):
        batch(startingOffsetsByTimestampStrategy="error")


def test_a_starting_time_that_has_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.source.options.now_ms", lambda: 1_767_225_600_000)
    for given in ("1767225660000", "2026-01-01T00:01:00Z"):  # clocks differ by a minute
        assert batch(startingTimestamp=given).starting.time_ms == 1_767_225_660_000
    for name, given in (
        ("startingTimestamp", "1767225660001"),
        ("startingOffsetsByTimestamp", '{"orders": {"0": 1, "1": 1767225660001}}'),
    ):
        with pytest.raises(InvalidArgument, match=f"option {name} is .*2026-01-01 00:01:00 UTC has not come yet"):
            stream(**{name: given})
    assert batch(endingTimestamp="1867225660001").ending.time_ms == 1_867_225_660_001
