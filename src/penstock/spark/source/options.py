"""The options of a read: from the strings that Spark hands over to checked values, or an error that names the way out.

Options are `spark.read.format("penstock").option(name, value)`; case does not matter; `docs/pipeline.md` says what each
is for. Knows no server and no Spark. Next stop: `planning.py`, which turns them into ranges of offsets.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

import msgspec

from penstock.core.filters import parse as parse_filter
from penstock.model import DEFAULT_NAMESPACE, EVENTS_PATTERN, EVENTS_QUEUE, INTEGER_MAX, TIME_MS_MAX, check_name
from penstock.model.errors import InvalidArgument
from penstock.model.limits import LANES_MAX
from penstock.spark.option_texts import OptionTexts
from penstock.spark.times import now_ms

Value = TypeVar("Value")

OPTIONS: Final = (
    "url",
    "token",
    "namespace",
    "queue",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "failOnDataLoss",
    "columns",
    "includePayload",
    "packed",
    "where",
    "cursor",
    "group",
)
STREAM_ONLY: Final = ("maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "cursor")
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "group")

ROWS_PER_TRIGGER: Final = 500_000
TRIGGER_DELAY_MS: Final = 15 * 60 * 1000

FUTURE_MS: Final = 60_000
"""How far ahead of this machine's clock a starting time may be: clocks differ."""

EARLIEST: Final = -2
LATEST: Final = -1

_PATTERN_CHARACTERS: Final = frozenset("*?[")
_COMMA: Final = re.compile(r"(?<!\[),|,(?!\])")
"""What stands between names; `[,]` is a comma in a pattern."""


class Bound(msgspec.Struct, frozen=True):
    """Where a read starts or ends: `earliest` or `latest`, a time for all, or a time or an offset for each lane."""

    everywhere: int | None = None
    """EARLIEST or LATEST."""
    time_ms: int | None = None
    times: dict[str, dict[int, int]] | None = None
    """By queue and lane, in milliseconds."""
    offsets: dict[str, dict[int, int]] | None = None
    """By queue and lane; EARLIEST and LATEST are allowed."""
    text: str = ""
    """As it was written, for errors."""
    option: str = ""
    """The option that it was written as, for errors."""
    needs_match: bool = False
    """Whether a lane without a message at its time or later is an error; its end is taken otherwise."""

    @property
    def has_times(self) -> bool:
        return self.time_ms is not None or self.times is not None

    def time_of(self, queue: str, lane: int) -> int | None:
        """The time of a lane, where there are times."""
        return self.time_ms if self.times is None else self.times[queue][lane]


class QueueChoice(msgspec.Struct, frozen=True):
    """The queues of a read: names, and patterns (`*`, `?`, `[abc]`) that are looked up again and again."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    text: str
    expression: str | None = None
    """A regular expression for whole names, looked up as patterns are."""
    lanes: dict[str, tuple[int, ...]] = {}
    """Of these queues, only these lanes."""
    option: str = "queue"
    """The option that said it, for errors."""


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All options of a read, checked."""

    url: str
    token: str | None
    namespace: str
    queues: QueueChoice
    starting: Bound
    ending: Bound
    rows_max: int
    bytes_max: int | None
    rows_min: int | None
    delay_ms: int
    partitions_min: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...] | None
    payload: bool
    where: str | None
    cursor: str | None
    group: str | None
    packed: bool

    def __repr__(self) -> str:
        """Without the token."""
        return f"<ReadOptions of {self.queues.text!r} at {self.url!r}>"


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """The checked options of a batch read or of a stream; None is for when it is not known yet which of them."""
    named = OptionTexts(given, OPTIONS, "a penstock read")
    if streaming is not None:
        _refuse_misplaced(named, streaming)
    rows_min = named.integer("minRowsPerTrigger", 1, INTEGER_MAX)
    rows_max = named.integer("maxRowsPerTrigger", 1, INTEGER_MAX)
    rows_max = max(ROWS_PER_TRIGGER, rows_min or 0) if rows_max is None else rows_max
    if rows_min is not None and rows_min > rows_max:
        raise InvalidArgument(
            f"minRowsPerTrigger is {rows_min}, more than maxRowsPerTrigger, which is {rows_max}: no batch can have both"
        )
    delay_ms = named.span_ms("maxTriggerDelay")
    if delay_ms is not None and rows_min is None:
        raise InvalidArgument(
            "maxTriggerDelay is how long a batch may wait for minRowsPerTrigger: give that option too, or neither"
        )
    where = named.text("where")
    if where is not None:
        parse_filter(where)  # now, with a pointer at the column, and not in the middle of a job
    cursor, group = named.text("cursor"), named.text("group")
    return ReadOptions(
        url=named.required("url", 'such as "http://127.0.0.1:7333", or several nodes with commas in between'),
        token=named.text("token"),
        namespace=check_name(named.text("namespace") or DEFAULT_NAMESPACE, "option namespace"),
        queues=_queues(named),
        starting=_starting(named, streaming),
        ending=_ending(named),
        rows_max=rows_max,
        bytes_max=named.integer("maxBytesPerTrigger", 1, INTEGER_MAX),
        rows_min=rows_min,
        delay_ms=TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        partitions_min=named.integer("minPartitions", 1, 1_000_000),
        fail_on_data_loss=named.boolean("failOnDataLoss", True),
        columns=_columns(named),
        payload=named.boolean("includePayload", True),
        where=where,
        cursor=None if cursor is None else check_name(cursor, "option cursor"),
        group=None if group is None else check_name(group, "option group"),
        packed=named.boolean("packed", False),
    )


def _refuse_misplaced(named: OptionTexts, streaming: bool) -> None:
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name not in named:
            continue
        if not streaming:
            raise InvalidArgument(f"option {name} is for streams (spark.readStream): a batch read has no triggers")
        if name == "group":
            raise InvalidArgument(
                "option group adds the delivery state as it is now, which no replay of a stream could give again: "
                "it is for batch reads (spark.read)"
            )
        raise InvalidArgument(
            f"option {name} is for batch reads: a stream goes on; "
            "trigger(availableNow=True) ends at what is there when the query starts"
        )


# Queues and columns --------------------------------------------------------------------------------------


def _queues(named: OptionTexts) -> QueueChoice:
    chosen, expression, assigned = named.queue("load"), named.text("subscribePattern"), named.text("assign")
    given = {"queue": chosen, "subscribePattern": expression, "assign": assigned}
    both = [name for name, text in given.items() if text is not None]
    if len(both) > 1:
        raise InvalidArgument(f"options {' and '.join(both)} both say which queues are read: give one of them")
    if chosen is not None:
        return queue_choice(chosen)
    if expression is not None:
        return _expression_choice(expression)
    if assigned is not None:
        return _assigned_choice(assigned)
    raise InvalidArgument(
        'option queue is missing: a name, several with commas in between, or a pattern "orders-*"; '
        "or give subscribePattern (a regular expression), or assign (lanes)"
    )


def _expression_choice(expression: str) -> QueueChoice:
    try:
        re.compile(expression)
    except re.error as error:
        raise InvalidArgument(
            f"option subscribePattern is {expression!r}, which is no regular expression: {error}"
        ) from error
    return QueueChoice((), (), expression, expression=expression, option="subscribePattern")


def _assigned_choice(text: str) -> QueueChoice:
    example = '{"orders": [0, 1]}'
    by_queue = _decoded(text, dict[str, list[int]], "assign", example)
    lanes: dict[str, tuple[int, ...]] = {}
    for queue, asked in by_queue.items():
        name = check_name(queue, "option assign")
        wrong = [lane for lane in asked if not 0 <= lane < LANES_MAX]
        if not asked or wrong or len(set(asked)) < len(asked):
            raise InvalidArgument(f"option assign has lanes {asked} of queue {queue!r}; lanes are 0, 1, 2 …, each once")
        lanes[name] = tuple(sorted(asked))
    if not lanes:
        raise InvalidArgument(f"option assign names no queue: give JSON such as {example}")
    return QueueChoice(tuple(lanes), (), text, lanes=lanes, option="assign")


def queue_choice(chosen: str) -> QueueChoice:
    """From what option queue says: names and patterns with commas in between, or names as a list in JSON.

    `$events` is every events queue there is, whichever server writes it; in a list in JSON it is that queue alone.
    """
    if chosen.startswith("["):
        items = _decoded(chosen, list[str], "queue", '["orders", "a,b*c"]')
        names = [check_name(item, "option queue") for item in items]
        patterns: list[str] = []
    else:
        items = [check_name(item.strip(), "option queue") for item in _COMMA.split(chosen)]
        names = [item for item in items if not _PATTERN_CHARACTERS & set(item)]
        patterns = [item for item in items if _PATTERN_CHARACTERS & set(item)]
        if EVENTS_QUEUE in names:
            patterns.append(EVENTS_PATTERN)
    if not items:
        raise InvalidArgument("option queue is an empty list: name at least one queue")
    return QueueChoice(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(patterns)), chosen)


def as_pattern(name: str) -> str:
    """A pattern that matches this name alone, whatever it is called."""
    return re.sub(r"[*?[,\s]", lambda found: f"[{found[0]}]", name)


def _columns(named: OptionTexts) -> tuple[str, ...] | None:
    text = named.text("columns")
    if text is None:
        return None
    columns = [name.strip() for name in text.split(",")]
    if len(set(columns)) < len(columns):
        raise InvalidArgument(f"option columns names a column twice: {text!r}")
    return tuple(columns)


# Places --------------------------------------------------------------------------------------------------


def _starting(named: OptionTexts, streaming: bool | None) -> Bound:
    place = _place(named, "starting", "latest" if streaming else "earliest")
    _refuse_future(place)
    strategy = named.choice("startingOffsetsByTimestampStrategy", ("latest", "error"))
    if "startingOffsetsByTimestampStrategy" in named and not place.has_times:
        raise InvalidArgument(
            "startingOffsetsByTimestampStrategy says what to do where no message is as new as the starting time: give "
            "startingTimestamp or startingOffsetsByTimestamp too"
        )
    place = msgspec.structs.replace(place, needs_match=strategy == "error")
    if streaming is False and _mentions(place, LATEST):
        raise InvalidArgument(
            f"startingOffsets is {place.text!r}, but a batch read that starts at the latest offset has no rows: "
            "give earliest (-2), offsets or a startingTimestamp"
        )
    return place


def _refuse_future(place: Bound) -> None:
    """A read from a time that has not come has no rows, and a stream would begin with messages that are older."""
    times = [time for lanes in (place.times or {}).values() for time in lanes.values()]
    latest_ms = max([*times, place.time_ms or 0])
    if latest_ms > now_ms() + FUTURE_MS:
        moment = dt.datetime.fromtimestamp(latest_ms / 1_000, dt.UTC)
        raise InvalidArgument(
            f"option {place.option} is {place.text!r}: {moment:%Y-%m-%d %H:%M:%S} UTC has not come yet. "
            "For what comes from now on, read a stream with startingOffsets=latest"
        )


def _ending(named: OptionTexts) -> Bound:
    place = _place(named, "ending", "latest")
    if _mentions(place, EARLIEST):
        raise InvalidArgument(
            f"endingOffsets is {place.text!r}, but a read that ends at the earliest offset has no rows: "
            "give latest (-1), offsets or an endingTimestamp"
        )
    return place


def _mentions(place: Bound, special: int) -> bool:
    lanes = (place.offsets or {}).values()
    return place.everywhere == special or any(special in offsets.values() for offsets in lanes)


def _place(named: OptionTexts, which: str, default: str) -> Bound:
    """A time wins over times for each lane, and they over offsets, as in Spark's Kafka connector."""
    name = f"{which}Timestamp"
    time = named.text(name)
    if time is not None:
        return Bound(time_ms=moment_ms(time, name), text=time, option=name)
    name = f"{which}OffsetsByTimestamp"
    times = named.text(name)
    if times is not None:
        return Bound(times=_times(name, times), text=times, option=name)
    name = f"{which}Offsets"
    text = named.text(name) or default
    if text.lower() in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if text.lower() == "earliest" else LATEST, text=text, option=name)
    example = '{"orders": {"0": 23, "1": -2}}'
    if not text.startswith("{"):
        raise InvalidArgument(f"option {name} must be earliest, latest or JSON such as {example}, not {text!r}")
    by_queue = _decoded(text, dict[str, dict[str, int]], name, example)
    offsets = {queue: _offsets(name, queue, lanes) for queue, lanes in by_queue.items()}
    return Bound(offsets=offsets, text=text, option=name)


def _times(name: str, text: str) -> dict[str, dict[int, int]]:
    example = '{"orders": {"0": 1767225600000, "1": "2026-01-01T00:00:00Z"}}'
    by_queue = _decoded(text, dict[str, dict[str, int | str]], name, example)
    return {
        queue: {lane: moment_ms(str(time), name) for lane, time in _lanes(name, queue, lanes).items()}
        for queue, lanes in by_queue.items()
    }


def _offsets(name: str, queue: str, lanes: Mapping[str, int]) -> dict[int, int]:
    found = _lanes(name, queue, lanes)
    for lane, offset in found.items():
        if not EARLIEST <= offset <= INTEGER_MAX:
            raise InvalidArgument(
                f"option {name} has offset {offset} for lane {lane} of queue {queue!r}; "
                "it must be 0 or more, -2 for the earliest or -1 for the latest"
            )
    return found


def _lanes(name: str, queue: str, lanes: Mapping[str, Value]) -> dict[int, Value]:
    found: dict[int, Value] = {}
    for lane, value in lanes.items():
        if not re.fullmatch(r"[0-9]{1,4}", lane) or int(lane) >= LANES_MAX or int(lane) in found:
            raise InvalidArgument(
                f"option {name} has a lane {lane!r} of queue {queue!r}; lanes are 0, 1, 2 …, each once"
            )
        found[int(lane)] = value
    return found


def _decoded(text: str, kind: Any, name: str, example: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"option {name} must be JSON such as {example}, not {text!r}: {error}") from error


def moment_ms(text: str, name: str) -> int:
    """Milliseconds since the epoch as such, or a time in ISO 8601 (in UTC where it names no zone)."""
    if re.fullmatch(r"[0-9]+", text):
        time_ms = int(text)
    else:
        try:
            moment = dt.datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(
                f"option {name} must be a time such as 2026-01-31T12:00:00Z, or milliseconds since 1970, not {text!r}"
            ) from None
        moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
        time_ms = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise InvalidArgument(f"option {name} is {text!r}; it must be in the years 1970 to 9999")
    return time_ms


def prefixes(choice: QueueChoice) -> list[str]:
    """How the names begin that patterns can match: none of them begins with another."""
    found: list[str] = []
    if choice.expression is not None:
        return [""]
    for prefix in sorted(re.split(r"[*?[]", pattern, maxsplit=1)[0] for pattern in choice.patterns):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found


def chosen_queues(choice: QueueChoice, existing: Sequence[str]) -> list[str]:
    """The names, and the existing queues that a pattern matches, sorted. `$…` only by patterns that begin with it."""
    found = set(choice.names)
    if choice.expression is not None:
        whole, own = re.compile(choice.expression), choice.expression.startswith(r"\$")
        found.update(name for name in existing if whole.fullmatch(name) and name.startswith("$") == own)
    for pattern in choice.patterns:
        found.update(
            name for name in existing if fnmatchcase(name, pattern) and name.startswith("$") == pattern.startswith("$")
        )
    return sorted(found)
