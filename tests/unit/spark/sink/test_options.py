"""The options of a write: defaults, every refusal, and that nothing given is ignored."""

from __future__ import annotations

import pytest

from penstock.model.errors import InvalidArgument, UnknownOption
from penstock.spark.sink.options import WriteOptions, write_options

URL = {"url": "http://127.0.0.1:7333"}


def streamed(**options: str) -> WriteOptions:
    return write_options(URL | options, streaming=True)


def written(**options: str) -> WriteOptions:
    return write_options(URL | options, streaming=False)


def test_defaults() -> None:
    options = streamed(queue="orders", checkpointLocation="/data/check", queryName="copy")
    assert options.queue == "orders"
    assert options.exchange is None
    assert options.target == "queue orders"
    assert options.identity == "auto"
    assert options.changed_batch == "fail"
    assert options.timeout_s == 600.0
    assert options.namespace == "default"
    assert options.source_url == options.url == "http://127.0.0.1:7333"
    assert options.checkpoint == "/data/check"
    assert options.transaction_id is None


def test_case_of_names_does_not_matter() -> None:
    given = {"URL": "http://127.0.0.1:1", "Exchange": "e", "ROUTINGKEY": "k", "SinkName": "s"}
    options = write_options(given, streaming=True)
    assert (options.exchange, options.routing_key, options.sink_name) == ("e", "k", "s")
    assert options.target == "exchange e"


def test_a_path_is_a_queue() -> None:
    assert written(path="orders").queue == "orders"
    with pytest.raises(InvalidArgument, match="given twice"):
        written(path="orders", queue="orders")


def test_the_token_is_not_shown() -> None:
    assert "geheim" not in repr(written(queue="q", token="geheim"))


def test_a_token_is_for_the_server_that_it_was_given_for() -> None:
    assert streamed(queue="q", token="t", namespace="n").source_token == "t"
    elsewhere = streamed(queue="q", token="t", namespace="n", sourceUrl="http://127.0.0.2:1")
    assert (elsewhere.source_token, elsewhere.source_namespace) == (None, "n")
    named = streamed(queue="q", token="t", sourceUrl="http://127.0.0.2:1", sourceToken="u", sourceNamespace="m")
    assert (named.token, named.source_token, named.source_namespace) == ("t", "u", "m")


@pytest.mark.parametrize(
    ("given", "near"), [("que", "queue"), ("routing_key", "routingKey"), ("sinkname2", "sinkName")]
)
def test_an_unknown_option_is_refused_with_the_nearest(given: str, near: str) -> None:
    with pytest.raises(UnknownOption, match=rf"{given}.*did you mean {near}\?"):
        written(queue="q", **{given: "x"})


def test_an_unknown_option_that_is_near_none_lists_all() -> None:
    with pytest.raises(UnknownOption, match="there are url, token"):
        written(queue="q", zzzz="x")


def test_url_is_needed() -> None:
    with pytest.raises(InvalidArgument, match="option url is missing"):
        write_options({"queue": "q"}, streaming=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queue": ""}, "option queue is empty"),
        ({"queue": "a", "exchange": "b"}, "give one of them"),
        ({"queue": "a", "routingKey": "k"}, "only an exchange looks at it"),
        ({"queue": "q" * 256}, "256 characters"),
        ({"exchange": "e", "routingKey": "k" * 256}, "option routingKey has 256 characters"),
        ({"queue": "a", "identity": "rows"}, "must be one of auto, source, batch"),
        ({"queue": "a", "changedBatch": "ignore"}, "must be one of fail, skip, write"),
        ({"queue": "a", "transactionId": "t"}, "for batch writes"),
        ({"queue": "a", "identity": "batch", "sourceUrl": "http://x"}, "sourceUrl is for identity=source"),
        ({"queue": "a", "identity": "batch", "sourceToken": "x"}, "sourceToken is for identity=source"),
        ({"queue": "a", "identity": "source", "changedBatch": "skip"}, "changedBatch is for identity=batch"),
    ],
)
def test_refused_of_a_stream(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        streamed(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"changedBatch": "skip"}, "for streams"),
        ({"identity": "source"}, "needs option sinkName"),
        ({"sinkName": "s"}, "only keeps a ledger with identity=source"),
        ({"sinkName": "s", "identity": "batch"}, "only keeps a ledger with identity=source"),
        ({"sourceUrl": "http://x"}, "sourceUrl is for identity=source"),
        ({"identity": "source", "sinkName": "s", "transactionId": "t"}, "give one"),
    ],
)
def test_refused_of_a_batch_write(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        written(queue="q", **given)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("2.5", 2.5), ("500ms", 0.5), ("30s", 30.0), ("10m", 600.0), ("24 h", 86_400.0)]
)
def test_timeouts(text: str, seconds: float) -> None:
    assert written(queue="q", timeout=text).timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "5 weeks", "25h"])
def test_timeouts_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument, match="option timeout"):
        written(queue="q", timeout=text)
