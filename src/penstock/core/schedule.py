"""A schedule as it is kept, the message of one tick, and the check of what a user asks for.

May not know who fires it, or when: times come in. When it is due is in `cron.py`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from penstock.core.cron import check_timing
from penstock.model import ID_CHARACTERS_MAX, INTEGER_MAX, Message, check_message, check_name, check_text
from penstock.model.errors import InvalidArgument
from penstock.model.limits import DESCRIPTION_CHARACTERS_MAX

PAYLOAD_BYTES_MAX: Final = 64 * 1024
"""The message is stored again with every tick: what is larger belongs elsewhere, and its name into the message."""
NAME_HEADER: Final = "schedule"
TICK_HEADER: Final = "scheduled_ms"


class ScheduleDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A schedule: what was declared, and how far it has come."""

    message: Message
    queue: str | None = None
    exchange: str | None = None
    cron: str | None = None
    interval_ms: int | None = None
    timezone: str = "UTC"
    paused: bool = False
    description: str = ""
    after_ms: int = 0
    """Ticks up to this time are over, fired or not."""
    last_ms: int | None = None
    fired: int = 0
    last_error: str = ""


def message_at(message: Message, namespace: str, name: str, tick_ms: int) -> Message:
    """The message of one tick: the schedule's, with its name and the tick in headers, and a dedup id of its own."""
    headers = {**(message.headers or {}), NAME_HEADER: name, TICK_HEADER: tick_ms}
    id = f"schedule/{namespace}/{name}/{tick_ms}"
    if len(id) > ID_CHARACTERS_MAX:
        digest = blake2b(f"{len(namespace)}/{namespace}/{name}".encode(), digest_size=16).hexdigest()
        id = f"schedule/{digest}/{tick_ms}"
    return msgspec.structs.replace(message, headers=headers, dedup_id=id)


def check_schedule(
    namespace: str,
    name: str,
    message: Message,
    *,
    queue: str | None,
    exchange: str | None,
    cron: object,
    interval_ms: object,
    timezone: object,
    paused: object,
    description: object,
    now_ms: int,
) -> ScheduleDocument:
    """A schedule's document from a user's arguments, or an error that names what is wrong with them."""
    check_name(name, "a schedule's name")
    if (queue is None) == (exchange is None):
        given = "neither" if queue is None else "both"
        raise InvalidArgument(f"a schedule needs one of queue and exchange to publish to, not {given}")
    if not isinstance(paused, bool):
        raise InvalidArgument(f"paused must be True or False, not {paused!r} of type {type(paused).__name__}", "paused")
    check_text(0 if description is None else description, "description", DESCRIPTION_CHARACTERS_MAX)
    check_message(message, PAYLOAD_BYTES_MAX)
    if message.dedup_id is not None:
        raise InvalidArgument(
            f"the message has dedup_id {message.dedup_id!r}; a schedule gives each message its own, leave it out",
            "message",
        )
    for header in (NAME_HEADER, TICK_HEADER):
        if header in (message.headers or {}):
            raise InvalidArgument(
                f"the message has a header {header!r}, which the schedule sets itself; leave it out", "message"
            )
    check_message(message_at(message, namespace, name, INTEGER_MAX))  # with what is added, it must be within limits
    timing = check_timing(cron, interval_ms, timezone, now_ms)
    return ScheduleDocument(
        message=message,
        queue=queue,
        exchange=exchange,
        cron=timing.cron,
        interval_ms=timing.interval_ms,
        timezone=timing.timezone,
        paused=paused,
        description=str(description),
    )
