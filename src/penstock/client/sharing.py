"""Publishes of single messages that overlap go together: many callers, few requests.

A publish goes by itself as long as few to its queue are under way. Those that come meanwhile wait for one of them to be
answered, about as long as they would wait at the server for the commit under way there, and then go as one request,
under one publish id. Each caller gets its own place, or its own error. Knows nothing of connections. Next stop:
`messages.py`, which sends what goes together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from penstock.client.channel import is_repeat
from penstock.delivery import Published, Receipt
from penstock.errors import Closed, InvalidArgument, QueueFull
from penstock.model import Message

UNDER_WAY_MAX: Final = 2
"""Requests to one queue, above which a message waits for company: one at the server's disk, and the next."""
WAIT_S: Final = 0.01
"""The longest that a message waits for company. Where answers do not come, it goes all the same."""
MESSAGES_MAX: Final = 1_000
BYTES_MAX: Final = 256 * 1024
LARGE_BYTES: Final = 16 * 1024
"""A message of this size is worth a request of its own."""
WAYS_KEPT: Final = 256

_BLAMED: Final = (InvalidArgument, QueueFull)
"""What a request may be refused for because of some of its messages only."""

Publish = Callable[[bytes, Sequence[Message]], Awaitable[Receipt]]


class Waiting(NamedTuple):
    message: Message
    place: asyncio.Future[Published]


class Sharing:
    """A client's publishes of single messages, by the path of the queue that they go to."""

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

    __slots__ = ("_bytes", "_crowd", "_groups", "_is_leaving", "_path", "_publish", "_timer", "_under_way", "_waiting")

    def __init__(self, path: bytes, publish: Publish) -> None:
        self._path = path
        self._publish = publish
        self._under_way = 0
        self._crowd = 0
        """How many went together the last time: once they have their answers, they come again together."""
        self._groups: dict[asyncio.Task[None], int] = {}
        """How many are in each group that is under way."""
        self._waiting: list[Waiting] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_leaving = False
        """Those who wait go at the end of this turn of the loop."""

    @property
    def is_used(self) -> bool:
        return bool(self._under_way or self._waiting)

    def is_free_for(self, message: Message) -> bool:
        """Whether a message goes by itself, between `enter` and `leave`. If not, it has to `join`."""
        is_quiet = self._under_way < UNDER_WAY_MAX and self._crowd <= 1
        return is_quiet or len(message.payload) >= LARGE_BYTES

    def enter(self) -> None:
        self._under_way += 1

    def leave(self) -> None:
        self._under_way -= 1
        if self._waiting:
            self._look()

    def join(self, message: Message) -> asyncio.Future[Published]:
        """Wait for company; done when the message is stored, with its place."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[Published] = loop.create_future()
        self._waiting.append(Waiting(message, place))
        self._bytes += len(message.payload)
        if len(self._waiting) >= MESSAGES_MAX or self._bytes >= BYTES_MAX:
            self._depart()
        elif len(self._waiting) == 1:
            self._timer = loop.call_later(WAIT_S, self._depart)
            self._look()
        return place

    def _look(self) -> None:
        """Those who wait go now, unless more are under way, who will soon come again and could go with them."""
        is_time = self._under_way < UNDER_WAY_MAX and max(self._groups.values(), default=0) <= len(self._waiting)
        if is_time and not self._is_leaving:
            self._is_leaving = True
            # After all that is ready to run: whoever was just answered comes again in this very turn.
            asyncio.get_running_loop().call_soon(self._leave_now)

    def _leave_now(self) -> None:
        if self._is_leaving:
            self._depart()

    def _depart(self) -> None:
        """Send those who wait, but for those who have gone away."""
        self._is_leaving = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group = [waiting for waiting in self._waiting if not waiting.place.done()]
        self._waiting = []
        self._bytes = 0
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
            receipt = await self._publish(self._path, [waiting.message for waiting in group])
            for waiting, place in zip(group, receipt.results(), strict=True):
                if not waiting.place.done():
                    waiting.place.set_result(place)
        except asyncio.CancelledError:
            _fail(group, Closed("the client's work was cancelled: it is not known whether the message was stored"))
            raise
        except _BLAMED as error:
            if len(group) == 1 or is_repeat(error):
                _fail(group, error)
            else:  # none of them is stored; by itself, each gets what it deserves
                await asyncio.gather(*(self._send([waiting]) for waiting in group))
        except Exception as error:  # a fault of ours too must reach the callers, not the loop's log
            _fail(group, error)


def _fail(group: Sequence[Waiting], error: BaseException) -> None:
    for waiting in group:
        if not waiting.place.done():
            waiting.place.set_exception(error)
