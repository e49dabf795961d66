"""The options of a write: from the strings that Spark hands over to checked values, or an error that names the way out.

Options are `df.write.format("penstock").option(name, value)`; case does not matter. Knows no server, no rows and no
Spark. Next stop: `columns.py`, which holds the rows' columns against them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, Literal, cast, get_args

import msgspec

from penstock.model import DEFAULT_NAMESPACE, NAME_CHARACTERS_MAX, check_name, check_text
from penstock.model.errors import InvalidArgument, UnknownOption

OPTIONS: Final = (
    "url", "token", "namespace", "queue", "exchange", "routingKey", "identity", "sinkName", "sourceUrl", "sourceToken",
    "sourceNamespace", "transactionId", "changedBatch", "timeout",
)  # fmt: skip
STREAM_ONLY: Final = ("changedBatch",)
BATCH_ONLY: Final = ("transactionId",)
OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark itself is told by options of a stream, and hands on to the sink."""
PATH: Final = "path"
"""What `save("orders")` and `start("orders")` become: another way to say `queue`."""

TIMEOUT_S: Final = 600.0
TIMEOUT_S_MAX: Final = 86_400.0
SINK_NAME_CHARACTERS_MAX: Final = 1_024

IdentityChoice = Literal["auto", "source", "batch"]
ChangedBatch = Literal["fail", "skip", "write"]

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All options of a write, checked. Travels to the tasks."""

    streaming: bool
    url: str
    token: str | None
    namespace: str
    queue: str | None
    exchange: str | None
    routing_key: str | None
    identity: IdentityChoice
    sink_name: str | None
    source_url: str
    """The server that the rows' source columns are of, with what it takes to ask it for a queue's number."""
    source_token: str | None
    source_namespace: str
    transaction_id: str | None
    changed_batch: ChangedBatch
    timeout_s: float
    """How long one request goes on trying while the server is away, overloaded or its queue is full."""
    checkpoint: str | None

    @property
    def target(self) -> str | None:
        """Where all rows go, in words; None where a column says it for each row."""
        if self.queue is not None:
            return f"queue {self.queue}"
        return None if self.exchange is None else f"exchange {self.exchange}"

    def __repr__(self) -> str:
        """Without the token."""
        return f"<WriteOptions to {self.target or 'what columns say'} at {self.url!r}>"


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The checked options of a batch write or of a stream."""
    values = {name.lower(): str(value).strip() for name, value in given.items()}
    _refuse_unknown(values)
    _refuse_misplaced(values, streaming)
    url = _text(values, "url")
    if url is None:
        raise InvalidArgument('option url is missing: such as "http://127.0.0.1:7333", or several nodes with commas')
    queue, exchange = _target(values)
    routing_key = _text(values, "routingKey")
    if routing_key is not None and queue is not None:
        raise InvalidArgument(
            f"option routingKey is {routing_key!r}, but the rows go to queue {queue!r}: only an exchange looks at it"
        )
    check_text(routing_key, "option routingKey", NAME_CHARACTERS_MAX)
    identity = cast("IdentityChoice", _choice(values, "identity", get_args(IdentityChoice)))
    sink_name = _text(values, "sinkName")
    check_text(sink_name, "option sinkName", SINK_NAME_CHARACTERS_MAX)
    _check_identity(values, streaming, identity, sink_name)
    token = _text(values, "token")
    namespace = check_name(_text(values, "namespace") or DEFAULT_NAMESPACE, "option namespace")
    source_url = _text(values, "sourceUrl") or url
    return WriteOptions(
        streaming=streaming,
        url=url,
        token=token,
        namespace=namespace,
        queue=queue,
        exchange=exchange,
        routing_key=routing_key,
        identity=identity,
        sink_name=sink_name,
        source_url=source_url,
        # The token is for the server that it was given for.
        source_token=_text(values, "sourceToken") or (token if source_url == url else None),
        source_namespace=check_name(_text(values, "sourceNamespace") or namespace, "option sourceNamespace"),
        transaction_id=_text(values, "transactionId"),
        changed_batch=cast("ChangedBatch", _choice(values, "changedBatch", get_args(ChangedBatch))),
        timeout_s=_timeout(values),
        checkpoint=_text(values, "checkpointLocation"),
    )


def _refuse_unknown(values: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTIONS}
    for name in values:
        if name in known or name in OF_SPARK or name == PATH:
            continue
        near = get_close_matches(name, known, 1, 0.5)
        hint = f"did you mean {known[near[0]]}?" if near else "there are " + ", ".join(OPTIONS)
        raise UnknownOption(f"a penstock write has no option {name!r}: {hint}")


def _refuse_misplaced(values: Mapping[str, str], streaming: bool) -> None:
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name.lower() not in values:
            continue
        if streaming:
            raise InvalidArgument(
                f"option {name} is for batch writes (df.write): a stream's batches have names already, "
                "from its checkpoint; sinkName names the whole sink"
            )
        raise InvalidArgument(f"option {name} is for streams (df.writeStream): a batch write is not planned again")


def _check_identity(
    values: Mapping[str, str], streaming: bool, identity: IdentityChoice, sink_name: str | None
) -> None:
    """No option may be given that would then be ignored."""
    if not streaming and identity == "source" and sink_name is None:
        raise InvalidArgument(
            "identity=source leaves out rows that the same sink has written before; a batch write has no checkpoint to "
            "know itself by, so it needs option sinkName"
        )
    if not streaming and identity != "source" and sink_name is not None:
        raise InvalidArgument(
            f"option sinkName is {sink_name!r}, but a batch write only keeps a ledger with identity=source; "
            "transactionId names one write"
        )
    asked = [name for name in ("sourceUrl", "sourceToken", "sourceNamespace") if name.lower() in values]
    if asked and (identity == "batch" or (identity == "auto" and not streaming)):
        raise InvalidArgument(f"option {asked[0]} is for identity=source: nothing else asks where the rows came from")
    if "transactionid" in values and identity == "source":
        raise InvalidArgument(
            "transactionId and identity=source are two ways to write nothing twice; give one: the first knows a whole "
            "write by its name, the second each row by its source offset"
        )
    if "changedbatch" in values and identity == "source":
        raise InvalidArgument("option changedBatch is for identity=batch: with identity=source rows are told apart")


def _target(values: Mapping[str, str]) -> tuple[str | None, str | None]:
    queue, path, exchange = (_text(values, name) for name in ("queue", PATH, "exchange"))
    if queue is not None and path is not None:
        raise InvalidArgument(f"queue is given twice: as option queue={queue!r} and as save or start({path!r})")
    queue = path if queue is None else queue
    if queue is not None and exchange is not None:
        raise InvalidArgument(f"option queue is {queue!r} and option exchange is {exchange!r}: give one of them")
    return (
        None if queue is None else check_name(queue, "option queue"),
        None if exchange is None else check_name(exchange, "option exchange"),
    )


def _text(values: Mapping[str, str], name: str) -> str | None:
    value = values.get(name.lower())
    if value == "":
        raise InvalidArgument(f"option {name} is empty: give it a value, or leave it out")
    return value


def _choice(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of a few words; the first is the default."""
    text = (_text(values, name) or choices[0]).lower()
    if text not in choices:
        raise InvalidArgument(f"option {name} is {text!r}; it must be one of {', '.join(choices)}")
    return text


def _timeout(values: Mapping[str, str]) -> float:
    text = _text(values, "timeout")
    if text is None:
        return TIMEOUT_S
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.lower())
    if found is None or (found[2] or "s") not in _UNITS_S:
        raise InvalidArgument(f"option timeout must be seconds or a span such as 500ms, 30s, 10m or 1h, not {text!r}")
    seconds = float(found[1]) * _UNITS_S[found[2] or "s"]
    if not 0 < seconds <= TIMEOUT_S_MAX:
        raise InvalidArgument(f"option timeout is {text!r}; it must be more than 0 and at most 24h")
    return seconds
