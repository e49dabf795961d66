"""What is under way to one client: packet ids, and how many more deliveries may be. No sockets, no broker.

A message of the session's own queue always has the packet id that its offset says, so that it comes again under the
same one after a restart; others take any id that is free.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from penstock.api.results import Lease
    from penstock.fronts.mqtt.delivering import Source

PACKET_IDS: Final = 65_535


class Flight(NamedTuple):
    """One delivery of QoS 1 or 2 that the client has not answered."""

    qos: int
    lease: Lease | None
    offset: int
    lane: int
    source: Source
    """Where it came from, and who is told of the answer."""


class Window:
    """The deliveries under way."""

    def __init__(self, most: int, released: set[int]) -> None:
        self.most = most
        self.flights: dict[int, Flight] = {}
        self.released = released
        """Ids of QoS 2 whose message the client has, and whose PUBREL it has not answered."""
        self._last = PACKET_IDS
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def room(self) -> int:
        """How many more deliveries may be under way."""
        return self.most - len(self.flights) - len(self.released)

    def is_free(self, packet_id: int) -> bool:
        return packet_id not in self.flights and packet_id not in self.released

    def any_free(self) -> int:
        """An id that nothing has; there are fewer flights than ids. From the far end: offsets begin at the near one."""
        while not self.is_free(self._last):
            self._last = self._last - 1 or PACKET_IDS
        return self._last

    def begin(self, packet_id: int, flight: Flight) -> None:
        self.flights[packet_id] = flight

    def end(self, packet_id: int) -> Flight | None:
        """The client has answered a PUBLISH."""
        flight = self.flights.pop(packet_id, None)
        if flight is not None:
            self.wake()
        return flight

    def release(self, packet_id: int) -> None:
        """The client has a message of QoS 2."""
        self.released.add(packet_id)

    def complete(self, packet_id: int) -> bool:
        """The client has answered a PUBREL; whether one was under way."""
        if packet_id not in self.released:
            return False
        self.released.discard(packet_id)
        self.wake()
        return True

    # Waiting ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake everything that waits for a change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Until the next change."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


def packet_id_of(offset: int) -> int:
    """The id of a message of a session's own queue."""
    return 1 + offset % PACKET_IDS
