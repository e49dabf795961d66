"""From bindings to a Spark column: which messages of history would have reached a queue, had they been routed today.

`binding_column` is one binding of one kind of exchange; `route_column` is the whole way from an exchange to a queue,
through exchanges bound to exchanges and through alternates. Both read the source's columns `key` and `typed_headers`
(and a filter what it names) and answer true or false, never NULL, as `core/routing/exchanges.py` and
`core/routing/router.py` do: `tests/spark/filters/test_routing.py` holds them to it.

May not know: the server, the lake, or what is done with the rows.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.core.filters.syntax_tree import INTEGER_MIN
from penstock.core.routing.exchanges import same_header
from penstock.core.routing.tries import check_pattern
from penstock.model import INTEGER_MAX, Binding, ExchangeConfig, ExchangeKind, check_headers
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.filters.columns import filter_column, joined
from penstock.spark.filters.regex import mqtt_regex, topic_regex
from penstock.spark.filters.values import header_of


class Routes(msgspec.Struct, frozen=True):
    """The exchanges of a namespace and the bindings of each, as the server tells them."""

    exchanges: Mapping[str, ExchangeConfig]
    bindings: Mapping[str, Sequence[Binding]]


# One binding ---------------------------------------------------------------------------------------------


def binding_column(kind: ExchangeKind, binding: Binding) -> Column:
    """Whether a binding of an exchange of this kind matches; raises what binding it would raise."""
    pattern = binding.pattern
    if kind == "filter":
        return F.coalesce(filter_column(pattern), F.lit(False))
    check_pattern(pattern, f"a {kind} binding's key")
    match kind:
        case "direct":
            return _key() == F.lit(pattern)
        case "topic":
            words = F.when(_key() == "", F.lit("")).otherwise(F.concat(F.lit("."), _key()))
            return F.rlike(words, F.lit(topic_regex(pattern)))
        case "mqtt":
            return F.rlike(_key(), F.lit(mqtt_regex(pattern)))
        case "fanout":
            return F.lit(True)
        case "headers":
            return _headers_column(binding)


def _key() -> Column:
    """A message without a key has the empty key."""
    return F.coalesce(F.col("key"), F.lit(""))


# Headers -------------------------------------------------------------------------------------------------


def _headers_column(binding: Binding) -> Column:
    check_headers(binding.headers or {})
    asked = [
        _has_header(name, value) for name, value in (binding.headers or {}).items() if not name.startswith("x-")
    ]  # an x- header is not asked for
    if not asked:
        return F.lit(binding.match == "all")
    return joined(Column.__and__ if binding.match == "all" else Column.__or__, asked)


def _has_header(name: str, value: Any) -> Column:
    """There at all if the binding says None, else equal as `same_header` has it: 1 is 1.0 and is not TRUE."""
    header = header_of(name)
    if value is None:
        return header.isNotNull()
    return F.coalesce(_equals(header, value), F.lit(False))


def _equals(header: Column, value: Any) -> Column:
    """May be NULL where it is not equal."""
    kind = header["kind"]
    match value:
        case bool():
            return (kind == "boolean") & (header["integer"] == int(value))
        case int() | float():
            return _equals_number(header, value)
        case str():
            return (kind == "text") & (header["text"] == F.lit(value))
        case bytes():
            return (kind == "bytes") & (header["text"] == F.lit(base64.b64encode(value).decode()))
        case dt.datetime():
            moment = F.lit(value.astimezone(dt.UTC).isoformat()).cast("timestamp")
            return F.try_to_timestamp(F.when(kind == "time", header["text"])) == moment
    same = F.udf(_nested_equals(value), "boolean", useArrow=False)  # Arrow would want pandas
    return same(F.when(kind == "nested", header["text"]))


def _equals_number(header: Column, value: int | float) -> Column:
    """Exactly, unlike in filters: an integer equals a float only if the float is that integer."""
    kind = header["kind"]
    matches = []
    if isinstance(value, int):
        matches.append((kind == "integer") & (header["integer"] == F.lit(value)))
        if int(float(value)) == value:
            matches.append((kind == "float") & (header["float"] == F.lit(float(value))))
    elif not math.isnan(value):  # NaN equals nothing here, but itself in Spark
        matches.append((kind == "float") & (header["float"] == F.lit(value)))
        if value.is_integer() and INTEGER_MIN <= int(value) <= INTEGER_MAX:
            matches.append((kind == "integer") & (header["integer"] == F.lit(int(value))))
    return joined(Column.__or__, [F.coalesce(one, F.lit(False)) for one in matches]) if matches else F.lit(False)


def _nested_equals(value: Any) -> Callable[[str | None], bool | None]:
    """Lists and dicts item by item, by the broker's own function: the one thing here that runs in Python."""

    def same(text: str | None) -> bool | None:
        return None if text is None else same_header(msgspec.msgpack.decode(base64.b64decode(text)), value)

    return same


# The whole way -------------------------------------------------------------------------------------------


def route_column(routes: Routes, exchange: str, queue: str) -> Column:
    """Whether a message published to an exchange reaches a queue, through whatever stands in between."""
    order = _reachable(routes, exchange)
    reached: dict[str, Column] = {exchange: F.lit(True)}
    matched = {name: _matched(routes, name) for name in order}
    # Each round goes one exchange further; a way that enters none twice is at most as long as there are exchanges.
    for _ in range(len(order) - 1):
        reached = _one_further(routes, exchange, order, matched, reached)
    ways = [
        reached[binding.exchange] & column
        for name in order
        if name in reached
        for binding, column in matched[name]
        if binding.target_kind == "queue" and binding.target == queue
    ]
    return joined(Column.__or__, ways) if ways else F.lit(False)


Matched = Mapping[str, Sequence[tuple[Binding, Column]]]


def _one_further(
    routes: Routes, start: str, order: Sequence[str], matched: Matched, reached: Mapping[str, Column]
) -> dict[str, Column]:
    ways: dict[str, list[Column]] = {start: [F.lit(True)]}
    for name in order:
        if name not in reached:
            continue
        for binding, column in matched[name]:
            if binding.target_kind == "exchange" and binding.target != start:
                ways.setdefault(binding.target, []).append(reached[name] & column)
        alternate = routes.exchanges[name].alternate
        if alternate is not None and alternate in routes.exchanges and alternate != start:
            ways.setdefault(alternate, []).append(reached[name] & _none_of([column for _, column in matched[name]]))
    return {name: joined(Column.__or__, columns) for name, columns in ways.items()}


def _none_of(columns: list[Column]) -> Column:
    return ~joined(Column.__or__, columns) if columns else F.lit(True)


def _matched(routes: Routes, exchange: str) -> list[tuple[Binding, Column]]:
    kind = routes.exchanges[exchange].kind
    return [(binding, binding_column(kind, binding)) for binding in routes.bindings[exchange]]


def _reachable(routes: Routes, exchange: str) -> list[str]:
    """The exchange and all that a message may come to from it, whatever the message is."""
    if exchange not in routes.exchanges:
        raise NotFound(f"there is no exchange {exchange!r}")
    if routes.exchanges[exchange].internal:
        raise InvalidArgument(f"exchange {exchange!r} is internal: it is reached only through other exchanges")
    found = [exchange]
    for name in found:  # it grows while it is walked
        following = [one.target for one in routes.bindings[name] if one.target_kind == "exchange"]
        alternate = routes.exchanges[name].alternate
        following += [alternate] if alternate is not None and alternate in routes.exchanges else []
        found += [one for one in dict.fromkeys(following) if one not in found]
    return found
