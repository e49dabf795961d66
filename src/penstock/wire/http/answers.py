"""Results of operations as answers carry them: what the rows of `endpoints.py` give.

Results of `api/` that JSON can carry as they are have no shape here. No socket, no broker.
"""

from __future__ import annotations

from typing import Any, Self

from msgspec import Struct
from msgspec.structs import asdict

from penstock.api.dead_letters import DeadList, DeadMessage, DeadReason
from penstock.api.declare import Schedule
from penstock.api.inspect import HistoryEntry, Page, QueueStats
from penstock.api.results import DamagedRange
from penstock.model import Binding
from penstock.wire.http.arguments import BindingBody, ScheduleRequest, place_of
from penstock.wire.http.shapes import ReceivedBody, message_body, received_body


class Wrapped(Struct):
    """An answer with a result in it: its only field, unless the class says otherwise."""

    @classmethod
    def from_result(cls, result: Any, *_names: str) -> Self:
        """The answer to a request with these names in its path."""
        return cls(result)

    def result(self, *_names: str) -> Any:
        """The result as the broker gave it."""
        return getattr(self, self.__struct_fields__[0])


class ExtendAnswer(Wrapped):
    deadline_ms: int
    """When the lease ends now."""


class CountAnswer(Wrapped):
    count: int
    """Messages."""


# Declarations --------------------------------------------------------------------------------------------


class QueueBody(Wrapped, kw_only=True):
    """A queue and its options that differ from the defaults."""

    name: str
    options: dict[str, Any]
    """Options that differ from the [defaults](options.md)."""

    @classmethod
    def from_result(cls, result: dict[str, Any], *names: str) -> Self:
        return cls(name=names[-1], options=result)

    def result(self, *_names: str) -> dict[str, Any]:
        return self.options


class _Declared(Wrapped):
    """Things by name, each with its options."""

    @classmethod
    def from_result(cls, result: dict[str, dict[str, Any]], *_names: str) -> Self:
        return cls([QueueBody(name=name, options=options) for name, options in sorted(result.items())])

    def result(self, *_names: str) -> dict[str, dict[str, Any]]:
        return {one.name: one.options for one in super().result()}


class GroupsAnswer(_Declared):
    groups: list[QueueBody]


class ExchangesAnswer(_Declared):
    exchanges: list[QueueBody]


class QueuesAnswer(Struct, kw_only=True):
    queues: list[QueueBody]
    next: str | None
    """The `after` of the next page, null at the end."""


class StatsAnswer(Struct, kw_only=True):
    queues: list[QueueStats]
    next: str | None
    alarms: list[str] = []
    """What the server that answers is low on: it holds publishes back and then refuses them; consumers are served."""


class BindingsAnswer(Wrapped):
    bindings: list[BindingBody]

    @classmethod
    def from_result(cls, result: list[Binding], *_names: str) -> Self:
        options = [{name: getattr(one, name) for name in BindingBody.__struct_fields__} for one in result]
        return cls(list(map(BindingBody.from_arguments, options)))

    def result(self, *names: str) -> list[Binding]:
        return [Binding(exchange=names[0], **body.arguments()) for body in self.bindings]


class ScheduleBody(ScheduleRequest, Wrapped, forbid_unknown_fields=False, kw_only=True):
    name: str
    next_ms: int | None = None
    """The tick it waits for; none while paused."""
    last_ms: int | None = None
    """The last tick that published."""
    fired: int = 0
    """Ticks that published a message."""
    last_error: str = ""
    """Why the latest tick published nothing; empty when it did."""

    @classmethod
    def from_result(cls, result: Schedule, *_names: str) -> Self:
        return cls(**{**asdict(result), "message": message_body(result.message)})

    def result(self, *_names: str) -> Schedule:
        return Schedule(**self.arguments())


class SchedulesAnswer(Wrapped):
    schedules: list[ScheduleBody]

    @classmethod
    def from_result(cls, result: list[Schedule], *_names: str) -> Self:
        return cls(list(map(ScheduleBody.from_result, result)))

    def result(self, *_names: str) -> list[Schedule]:
        return [body.result() for body in self.schedules]


# Messages that are looked at -----------------------------------------------------------------------------


class PageAnswer(Wrapped, kw_only=True, omit_defaults=True):
    """What a browse found; `next` is the `after` of the next page, null at the end."""

    messages: list[ReceivedBody]
    next: str | None
    damaged: list[DamagedRange] = []
    """What was passed over because it is damaged in the store."""

    @classmethod
    def from_result(cls, result: Page, *_names: str) -> Self:
        following = None if result.next is None else f"{result.next[0]}:{result.next[1]}"
        return cls(messages=list(map(received_body, result.messages)), next=following, damaged=result.damaged)

    def result(self, *_names: str) -> Page:
        following = None if self.next is None else place_of(self.next)
        return Page([body.received() for body in self.messages], following, self.damaged)


class HistoryAnswer(Struct):
    history: list[HistoryEntry]


class DeadBody(Struct, kw_only=True):
    message: ReceivedBody
    reason: str
    """attempts, rejected, expired, …"""
    error: str
    """What was said with the last nack or reject."""
    attempts: int
    """Hand-outs that it had."""
    consumer: str
    """Who had it last."""
    dead_ms: int
    """When it died."""

    @classmethod
    def of(cls, dead: DeadMessage) -> Self:
        fields = asdict(dead)
        return cls(message=received_body(fields.pop("received")), **fields)

    def dead(self) -> DeadMessage:
        """The dead letter as a caller gets it."""
        fields = asdict(self)
        return DeadMessage(fields.pop("message").received(), **fields)


class DeadAnswer(Wrapped, omit_defaults=True):
    dead: list[DeadBody]
    damaged: list[DamagedRange] = []
    """Those that were passed over because they are damaged in the store."""

    @classmethod
    def from_result(cls, result: DeadList, *_names: str) -> Self:
        return cls(list(map(DeadBody.of, result)), result.damaged)

    def result(self, *_names: str) -> DeadList:
        return DeadList([body.dead() for body in self.dead], self.damaged)


class DamagedLine(Struct):
    """A line of an export: dead letters that are damaged in the store, and were passed over."""

    damaged: DamagedRange


class ReasonsAnswer(Wrapped):
    reasons: list[DeadReason]
