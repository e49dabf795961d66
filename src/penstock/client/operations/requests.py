"""What every group of a client's operations stands on: making a request in a namespace, and decoding its answer."""

from __future__ import annotations

import itertools
import secrets
from typing import Any, Final, TypeVar

import msgspec

from penstock.client.operations.codec import target, with_query
from penstock.client.transport.channel import Request, Retry, Sender, is_repeat
from penstock.model.errors import NotFound, PenstockError
from penstock.wire.http.shapes import BATCH_TYPE, BATCHES_TYPE, JSON_TYPE, CountAnswer, encode_json

Kind = TypeVar("Kind")

TAKES_JSON: Final = f"content-type: {JSON_TYPE}\r\naccept: {JSON_TYPE}\r\n".encode()
TAKES_BATCHES: Final = f"content-type: {JSON_TYPE}\r\naccept: {BATCHES_TYPE}\r\n".encode()
SENDS_BATCH: Final = f"content-type: {BATCH_TYPE}\r\naccept: {JSON_TYPE}\r\n".encode()
_NOTHING: Final = f"accept: {JSON_TYPE}\r\n".encode()

_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


class PublishIds:
    """Names for publishes, so that one that is sent twice is stored once. Unique to this client."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


class Requests:
    """One namespace's requests over a channel that others share."""

    def __init__(
        self, channel: Sender, namespace: str, consumer: str, retry: Retry, idempotent: bool, ids: PublishIds
    ) -> None:
        self._channel = channel
        self.namespace = namespace
        self.consumer_name = consumer
        self._retry = retry
        self._idempotent = idempotent
        self._ids = ids
        self._session: str | None = None
        """The id of the session that all requests are in."""

    def _target(self, *parts: str) -> bytes:
        path = target(self.namespace, *parts)
        return path if self._session is None else with_query(path, session=self._session)

    async def _get(self, kind: type[Kind], path: bytes) -> Kind:
        reply = await self._channel.send(Request(b"GET", path, b"", _NOTHING), self._retry)
        return decoded(kind, reply.body)

    async def _send(self, method: bytes, path: bytes, body: object = None) -> bytes:
        """A request with a JSON body, or none, that may be repeated."""
        if body is None:
            request = Request(method, path, b"", _NOTHING)
        else:
            request = Request(method, path, encode_json(body), TAKES_JSON)
        return (await self._channel.send(request, self._retry)).body

    async def _delete(self, *parts: str) -> None:
        try:
            await self._send(b"DELETE", self._target(*parts))
        except NotFound as error:
            if not is_repeat(error):  # else it was this call that deleted it
                raise

    async def _count(self, path: bytes, body: object = None) -> int:
        return decoded(CountAnswer, await self._send(b"POST", path, body)).count


def decoded(kind: type[Kind], body: bytes) -> Kind:
    """An answer's JSON."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        value: Kind = decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise PenstockError(f"the server's answer cannot be read: {error}; is it a newer version?") from error
    return value
