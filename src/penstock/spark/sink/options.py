"""The options of a write: from the strings that Spark hands over to checked values, or an error that names the way out.

Options are `df.write.format("penstock").option(name, value)`; case does not matter. Knows no server, no rows and no
Spark. Next stop: `columns.py`, which holds the rows' columns against them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, cast, get_args

import msgspec

from penstock.model import DEFAULT_NAMESPACE, NAME_CHARACTERS_MAX, check_name, check_text
from penstock.model.errors import InvalidArgument
from penstock.spark.option_texts import UNITS_MS, OptionTexts

OPTIONS: Final = (
    "url",
    "token",
    "namespace",
    "queue",
    "exchange",
    "routingKey",
    "identity",
    "sinkName",
    "sourceUrl",
    "sourceToken",
    "sourceNamespace",
    "transactionId",
    "changedBatch",
    "timeout",
)
STREAM_ONLY: Final = ("changedBatch",)
BATCH_ONLY: Final = ("transactionId",)
OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark itself is told by options of a stream, and hands on to the sink."""

TIMEOUT_S: Final = 600.0
TIMEOUT_S_MAX: Final = 86_400.0
SINK_NAME_CHARACTERS_MAX: Final = 1_024

IdentityChoice = Literal["auto", "source", "batch"]
ChangedBatch = Literal["fail", "skip", "write"]


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
    named = OptionTexts(given, OPTIONS, "a penstock write", others=OF_SPARK)
    _refuse_misplaced(named, streaming)
    url = named.required("url", 'such as "http://127.0.0.1:7333", or several nodes with commas')
    queue, exchange = _target(named)
    routing_key = named.text("routingKey")
    if routing_key is not None and queue is not None:
        raise InvalidArgument(
            f"option routingKey is {routing_key!r}, but the rows go to queue {queue!r}: only an exchange looks at it"
        )
    check_text(routing_key, "option routingKey", NAME_CHARACTERS_MAX)
    identity = cast("IdentityChoice", named.choice("identity", get_args(IdentityChoice)))
    sink_name = named.text("sinkName")
    check_text(sink_name, "option sinkName", SINK_NAME_CHARACTERS_MAX)
    _check_identity(named, streaming, identity, sink_name)
    token = named.text("token")
    namespace = check_name(named.text("namespace") or DEFAULT_NAMESPACE, "option namespace")
    source_url = named.text("sourceUrl") or url
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
        source_token=named.text("sourceToken") or (token if source_url == url else None),
        source_namespace=check_name(named.text("sourceNamespace") or namespace, "option sourceNamespace"),
        transaction_id=named.text("transactionId"),
        changed_batch=cast("ChangedBatch", named.choice("changedBatch", get_args(ChangedBatch))),
        timeout_s=_timeout(named),
        checkpoint=named.text("checkpointLocation"),
    )


def _refuse_misplaced(named: OptionTexts, streaming: bool) -> None:
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name not in named:
            continue
        if streaming:
            raise InvalidArgument(
                f"option {name} is for batch writes (df.write): a stream's batches have names already, "
                "from its checkpoint; sinkName names the whole sink"
            )
        raise InvalidArgument(f"option {name} is for streams (df.writeStream): a batch write is not planned again")


def _check_identity(named: OptionTexts, streaming: bool, identity: IdentityChoice, sink_name: str | None) -> None:
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
    asked = [name for name in ("sourceUrl", "sourceToken", "sourceNamespace") if name in named]
    if asked and (identity == "batch" or (identity == "auto" and not streaming)):
        raise InvalidArgument(f"option {asked[0]} is for identity=source: nothing else asks where the rows came from")
    if "transactionId" in named and identity == "source":
        raise InvalidArgument(
            "transactionId and identity=source are two ways to write nothing twice; give one: the first knows a whole "
            "write by its name, the second each row by its source offset"
        )
    if "changedBatch" in named and identity == "source":
        raise InvalidArgument("option changedBatch is for identity=batch: with identity=source rows are told apart")


def _target(named: OptionTexts) -> tuple[str | None, str | None]:
    queue, exchange = named.queue("save or start"), named.text("exchange")
    if queue is not None and exchange is not None:
        raise InvalidArgument(f"option queue is {queue!r} and option exchange is {exchange!r}: give one of them")
    return (
        None if queue is None else check_name(queue, "option queue"),
        None if exchange is None else check_name(exchange, "option exchange"),
    )


def _timeout(named: OptionTexts) -> float:
    text = named.text("timeout")
    if text is None:
        return TIMEOUT_S
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.lower())
    if found is None or (found[2] or "s") not in UNITS_MS:
        raise InvalidArgument(f"option timeout must be seconds or a span such as 500ms, 30s, 10m or 1h, not {text!r}")
    seconds = float(found[1]) * UNITS_MS[found[2] or "s"] / 1_000
    if not 0 < seconds <= TIMEOUT_S_MAX:
        raise InvalidArgument(f"option timeout is {text!r}; it must be more than 0 and at most 24h")
    return seconds
