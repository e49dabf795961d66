"""Scans from a client: a queue's log by offset, as it is stored, for bulk readers.

No group and no lease: a scan changes nothing. Next stop of its batches: `penstock.arrow`, which makes columns of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.api.broker import Broker
from penstock.api.results import Scan
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests, requested
from penstock.client.transport.channel import Request
from penstock.model.errors import InvalidArgument, PenstockError
from penstock.wire.http.shapes import BATCHES_TYPE

_TAKES_BATCHES: Final = f"accept: {BATCHES_TYPE}\r\n".encode()
_decode_scan: Final = msgspec.msgpack.Decoder(Scan).decode


class ClientScans(Requests):
    """Reads whole lanes."""

    lanes = requested(Broker.lanes)
    extent = requested(Broker.extent)

    async def scan(
        self,
        queue: str,
        lane: int,
        start: int,
        end: int,
        *,
        payload: bool = True,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        group: str | None = None,
        max_bytes: int | None = None,
    ) -> Scan:
        if isinstance(columns, str):
            raise InvalidArgument(f"columns is {columns!r}; it must be a list of names")
        path = with_query(
            self._target("queues", queue, "lanes", str(lane), "scan"),
            start=start,
            end=end,
            payload=None if payload else 0,
            columns=None if columns is None else ",".join(columns),
            where=where,
            group=group,
            max_bytes=max_bytes,
        )
        reply = await self._channel.send(Request(b"GET", path, b"", _TAKES_BATCHES), self._retry)
        try:
            return _decode_scan(reply.body)
        except msgspec.MsgspecError as error:
            raise PenstockError(f"the server's answer cannot be read: {error}; is it a newer version?") from error
