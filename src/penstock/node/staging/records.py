"""Staged transactions as the catalog knows them: their rows, and what is in memory of each.

A transaction is a row of the kind `staged` with a lane of its own, in the registrar's slot; each chunk is one batch on
that lane, stored as it came, and a row of the kind `chunk` that says where it lies and where it goes. No queue has that
lane, so nobody ever sees it; it goes as a whole. What happens to a transaction is decided in `staging.py`, not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from penstock.model.rows import CatalogRow

Document = TypeVar("Document")
TransactionKey = tuple[str, str]
"""(namespace, transaction)"""


class ChunkDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A chunk: its batch's key on the transaction's lane, and where it is to be published."""

    base: int
    count: int
    size: int
    staged_ms: int
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None


class TransactionDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A transaction. Once it has an `order` its commit is decided, and only has to be finished."""

    created_ms: int
    order: tuple[str, ...] | None = None
    """The chunks to publish."""
    done: int = 0
    """How many of them are published,"""
    published: int = 0
    """with how many messages."""
    queues: dict[str, int] = {}
    """The ids of the queues that chunks name: one that is deleted later is not the one declared after it."""
    publish_id: str | None = None
    lane: int = 0
    """Where its chunks are; 0 in those of older builds: the lane of the row's own id."""
    marks: tuple[str, ...] = ()
    """The names of its marks: the next writer of one waits until all is published."""


class Stored(NamedTuple, Generic[Document]):
    """The document of a row, and the row's id."""

    id: int
    document: Document


class StoredTransaction:
    """A transaction in memory. Read again after a failed commit, it is another object: what is true is in the store."""

    __slots__ = ("bytes", "chunks", "coming", "document", "end", "id", "name", "namespace", "touched_ms")

    def __init__(self, row: CatalogRow, document: TransactionDocument) -> None:
        self.id = row.id
        self.namespace = row.namespace
        self.name = row.name
        self.document = document
        self.chunks: dict[str, Stored[ChunkDocument]] = {}
        self.coming: set[str] = set()
        """Chunks that are on their way into the store; `end` and `bytes` count them."""
        self.end = 0
        self.bytes = 0
        self.touched_ms = document.created_ms

    @property
    def lane(self) -> int:
        return self.document.lane or self.id

    @property
    def is_decided(self) -> bool:
        return self.document.order is not None

    def comes(self, name: str, document: ChunkDocument) -> None:
        """A chunk is on its way."""
        self.coming.add(name)
        self._grew(document)

    def _grew(self, document: ChunkDocument) -> None:
        self.end = max(self.end, document.base + document.count)
        self.bytes += document.size
        self.touched_ms = max(self.touched_ms, document.staged_ms)

    def put(self, name: str, chunk: Stored[ChunkDocument]) -> None:
        if name in self.coming:
            self.coming.remove(name)
        elif name not in self.chunks:
            self._grew(chunk.document)
        self.chunks[name] = chunk


_transaction_decoder: Final = msgspec.msgpack.Decoder(TransactionDocument)
_chunk_decoder: Final = msgspec.msgpack.Decoder(ChunkDocument)


def transaction_row(id: int, key: TransactionKey, document: TransactionDocument) -> CatalogRow:
    return CatalogRow("staged", id, 0, *key, msgspec.msgpack.encode(document))


def chunk_row(id: int, transaction: StoredTransaction, name: str, document: ChunkDocument) -> CatalogRow:
    return CatalogRow("chunk", id, transaction.id, transaction.namespace, name, msgspec.msgpack.encode(document))


class Stages:
    """Every transaction that is open, or decided and not all published."""

    def __init__(self) -> None:
        self.by_key: dict[TransactionKey, StoredTransaction] = {}
        self._by_id: dict[int, StoredTransaction] = {}

    def put(self, row: CatalogRow) -> None:
        """Take a row in, of a transaction before those of its chunks."""
        if row.kind == "chunk":
            self._by_id[row.parent].put(row.name, Stored(row.id, _chunk_decoder.decode(row.document)))
            return
        document = _transaction_decoder.decode(row.document)
        known = self._by_id.get(row.id)
        if known is None:
            self.add(StoredTransaction(row, document))
        else:
            known.document = document

    def add(self, transaction: StoredTransaction) -> None:
        self.by_key[transaction.namespace, transaction.name] = transaction
        self._by_id[transaction.id] = transaction

    def remove(self, transaction: StoredTransaction) -> None:
        self.by_key.pop((transaction.namespace, transaction.name), None)
        self._by_id.pop(transaction.id, None)

    def rows(self) -> Iterator[CatalogRow]:
        """What each transaction and chunk is called."""
        for transaction in self.by_key.values():
            yield CatalogRow("staged", transaction.id, 0, transaction.namespace, transaction.name, b"")
            for name, chunk in transaction.chunks.items():
                yield CatalogRow("chunk", chunk.id, transaction.id, transaction.namespace, name, b"")

    def remove_row(self, row: CatalogRow) -> None:
        transaction = self._by_id.get(row.id if row.kind == "staged" else row.parent)
        if transaction is None:
            return
        if row.kind == "staged":
            self.remove(transaction)
        elif row.name in transaction.chunks and transaction.chunks[row.name].id == row.id:
            del transaction.chunks[row.name]

    @property
    def bytes(self) -> int:
        """What all of them hold."""
        return sum(transaction.bytes for transaction in self.by_key.values())

    @property
    def chunks(self) -> int:
        return sum(len(transaction.chunks) + len(transaction.coming) for transaction in self.by_key.values())
