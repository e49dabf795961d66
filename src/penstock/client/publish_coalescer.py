"""Publishes that overlap go together: many callers, few requests.

A publish goes by itself as long as few to its queue are under way. Those that come meanwhile wait for one of them to be
answered, about as long as they would wait at the server for the commit under way there, and then go as one request,
under one publish id. Each caller gets its own places, or its own error. Knows nothing of connections. Next stop:
`client/operations/messages.py`, which sends what goes together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from penstock.api.results import Receipt
from penstock.client.transport.channel import is_repeat
from penstock.model import Message
from penstock.model.errors import Closed, InvalidArgument, QueueFull

UNDER_WAY_MAX: Final = 2
"""Requests to one queue, above which a publish waits for company: one at the server's disk, and the next."""
WAIT_S: Final = 0.01
"""The longest that a publish waits for company. Where answers do not come, it goes all the same."""
MESSAGES_MAX: Final = 1_000
BYTES_MAX: Final = 256 * 1024
LARGE_BYTES: Final = 16 * 1024
"""A publish of this size is worth a request of its own: to make one while the server works on another is worth more."""
WAYS_KEPT: Final = 256

_BLAMED: Final = (InvalidArgument, QueueFull)
"""What a request may be refused for because of some of its messages only."""

Publish = Callable[[bytes, Sequence[Message]], Awaitable[Receipt]]


class Waiting(NamedTuple):
    messages: Sequence[Message]
    size: int
    receipt: asyncio.Future[Receipt]


def size_of(messages: Sequence[Message]) -> int:
    """The bytes of a publish; where it cannot be told, or is none to go with others, as many as a large one has."""
    if type(messages) is not list or not 0 < len(messages) < MESSAGES_MAX:
        return LARGE_BYTES
    try:
        return sum([len(message.payload) for message in messages])
    except (AttributeError, TypeError):
        return LARGE_BYTES


class Sharing:
    """A client's publishes, by the path of the queue that they go to."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._ways: dict[bytes, Way] = {}

    def way(self, path: bytes) -> Way:
        """The way to a queue."""
        way = self._ways.get(path)
        if way is None:
            if len(self._ways) >= WAYS_KEPT:
                self._ways = {path: way for path, way in self._ways.items() if way.is_used}
            way = self._ways[path] = Way(path, self._publish)
        return way


class Way:
    """What is under way to one queue, and what waits to go there."""

    def __init__(self, path: bytes, publish: Publish) -> None:
        self._path = path
        self._publish = publish
        self._under_way = 0
        self._crowd = 0
        """How many callers went together the last time: once they have their answers, they come again together."""
        self._groups: dict[asyncio.Task[None], int] = {}
        """How many callers are in each group that is under way."""
        self._waiting: list[Waiting] = []
        self._bytes = self._count = 0
        """Of the messages that wait."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_leaving = False
        """Flush at the end of this turn of the loop."""

    @property
    def is_used(self) -> bool:
        return bool(self._under_way or self._waiting)

    @property
    def is_quiet(self) -> bool:
        """Whether a publish goes by itself, between `enter` and `leave`. If not, and it is not large, it may `join`."""
        return self._under_way < UNDER_WAY_MAX and self._crowd <= 1 and not self._waiting

    def enter(self) -> None:
        self._under_way += 1

    def leave(self) -> None:
        self._under_way -= 1
        if self._waiting:
            self._look()

    def join(self, messages: Sequence[Message], size: int) -> asyncio.Future[Receipt]:
        """Wait for company; done when the messages are stored."""
        loop = asyncio.get_running_loop()
        receipt: asyncio.Future[Receipt] = loop.create_future()
        self._waiting.append(Waiting(messages, size, receipt))
        self._bytes += size
        self._count += len(messages)
        if self._bytes >= BYTES_MAX or self._count >= MESSAGES_MAX:
            self._depart()
        elif len(self._waiting) == 1:
            self._timer = loop.call_later(WAIT_S, self._depart)
            self._look()
        return receipt

    def _look(self) -> None:
        """Flush now, unless a larger group is in flight and will be back soon."""
        is_time = self._under_way < UNDER_WAY_MAX and max(self._groups.values(), default=0) <= len(self._waiting)
        if is_time and not self._is_leaving:
            self._is_leaving = True
            # After all that is ready to run: a caller that was just answered publishes again in this very turn.
            asyncio.get_running_loop().call_soon(self._leave_now)

    def _leave_now(self) -> None:
        if self._is_leaving:
            self._depart()

    def _depart(self) -> None:
        """Send the waiting publishes, except those of callers that were cancelled."""
        self._is_leaving = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group = [waiting for waiting in self._waiting if not waiting.receipt.done()]
        self._waiting = []
        self._bytes = self._count = 0
        self._crowd = len(group)
        if group:
            self.enter()
            task = asyncio.get_running_loop().create_task(self._send(group))
            self._groups[task] = len(group)
            task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        del self._groups[task]
        self.leave()

    async def _send(self, group: list[Waiting]) -> None:
        """Publish a group as one, and tell each caller."""
        try:
            messages = list(chain.from_iterable(waiting.messages for waiting in group))
            _tell(group, await self._publish(self._path, messages))
        except asyncio.CancelledError:
            _fail(group, Closed("the client's work was cancelled: it is not known whether the messages were stored"))
            raise
        except _BLAMED as error:
            if len(group) == 1 or is_repeat(error):
                _fail(group, error)
            else:  # none of them is stored; by itself, each gets what it deserves
                await asyncio.gather(*(self._send([waiting]) for waiting in group))
        except Exception as error:  # a fault of ours too must reach the callers, not the loop's log
            _fail(group, error)


def _tell(group: Sequence[Waiting], receipt: Receipt) -> None:
    start = 0
    for waiting in group:
        end = start + len(waiting.messages)
        if not waiting.receipt.done():
            waiting.receipt.set_result(receipt.slice(start, end))
        start = end


def _fail(group: Sequence[Waiting], error: BaseException) -> None:
    for waiting in group:
        if not waiting.receipt.done():
            waiting.receipt.set_exception(error)
