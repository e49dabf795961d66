"""The checks that reading and writing share: version, checksum, number of messages, bytes of payloads.

Each looks at a number or at a head and raises. What was read is refused with `InvalidBatch`, what is to be written with
`MessageTooLarge`. This module knows neither columns nor payloads.
"""

from __future__ import annotations

from penstock.batch.layout import CHECKSUM, VERSION
from penstock.model import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from penstock.model.checksum import crc32
from penstock.model.errors import InvalidBatch, MessageTooLarge


def check_version(version: int, what: str) -> None:
    if version > VERSION:
        raise InvalidBatch(f"{what} is of version {version}, newer than {VERSION}, the newest this program reads")
    if version < VERSION:
        raise InvalidBatch(f"{what} is of version {version}, which does not exist")


def check_sum(data: bytes, head_bytes: int, what: str) -> None:
    """Raise unless the checksum, which follows the head and covers all other bytes, matches."""
    computed = crc32(memoryview(data)[head_bytes + CHECKSUM.size :], crc32(data[:head_bytes]))
    if computed != CHECKSUM.unpack_from(data, head_bytes)[0]:
        raise InvalidBatch(f"{what} is corrupted: its checksum does not match")


def check_count(count: int) -> None:
    # The one number that sizes allocations by itself (constants, equal lengths), so it is looked at first.
    if type(count) is not int or not 0 <= count <= BATCH_MESSAGES_MAX:
        raise InvalidBatch(f"batch has {count!r} messages; the limit is {BATCH_MESSAGES_MAX}")


def limit_count(count: int) -> None:
    if count > BATCH_MESSAGES_MAX:
        raise MessageTooLarge(f"batch has {count} messages; the limit is {BATCH_MESSAGES_MAX}")


def limit_bytes(size: int) -> None:
    if size > BATCH_BYTES_MAX:
        raise MessageTooLarge(f"payloads have {size} bytes; a batch's limit is {BATCH_BYTES_MAX}")
