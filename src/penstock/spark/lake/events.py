"""How delivery events land: messages of events queues become rows of the table `events`, one for each event and range.

The same rows as `penstock.spark.events.event_rows` makes with Spark's functions, made here where the files are written,
because only a message's own offset tells whether the lake has it.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

from penstock.model.events import decode_delivery
from penstock.spark.lake.errors import LakeError
from penstock.spark.lake.layout import EVENTS_SCHEMA, data_schema
from penstock.spark.times import EPOCH


def flatten(batch: pa.RecordBatch) -> Iterable[tuple[str, str, pa.RecordBatch]]:
    """(queue, date, rows) for each queue that something happened to, and each day."""
    partitions: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    columns = ("queue", "queue_id", "lane", "offset", "payload")
    places = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    for event_queue, event_queue_id, event_lane, event_offset, payload in places:
        try:
            delivery = decode_delivery(payload)
        except (msgspec.MsgspecError, TypeError) as error:
            raise LakeError(
                f"the message at offset {event_offset} of lane {event_lane} of {event_queue} is no delivery event: "
                f"{error}"
            ) from error
        for event_index, event in enumerate(delivery.events):
            at = EPOCH + dt.timedelta(milliseconds=event.at_ms)
            rows = partitions[delivery.queue, at.date().isoformat()]
            for range_index, (start, end) in enumerate(event.ranges):
                rows.append(
                    {
                        "event_queue_id": event_queue_id,
                        "event_lane": event_lane,
                        "event_offset": event_offset,
                        "event_index": event_index,
                        "range_index": range_index,
                        "namespace": delivery.namespace,
                        "queue_id": delivery.queue_id,
                        "lane": delivery.lane,
                        "group": delivery.group,
                        "kind": event.kind,
                        "start_offset": start,
                        "end_offset": end,
                        "messages": end - start,
                        "at": at,
                        "consumer": event.consumer or None,
                        "attempt": event.attempt or None,
                        "detail": event.detail or None,
                    }
                )
    schema = data_schema(EVENTS_SCHEMA)
    for (queue, date), rows in partitions.items():
        yield queue, date, pa.RecordBatch.from_pylist(rows, schema=schema)
