"""Transactional enqueue on MySQL and MariaDB: the table that applications write, and the statements that read it.

An application puts rows into `enqueued` inside its own transaction; a node takes them out in the commit that publishes
them. What can be checked is checked by the table itself, so that a mistake is the application's error and not a row
that waits for somebody to look at it. Texts have no length of their own: a session that is not strict would cut them
without a word. Next stop: `enqueueing.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock.model import (
    HEADERS_BYTES_MAX,
    ID_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    PARTITION_CHARACTERS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    SPAN_MS_MAX,
    TIME_MS_MAX,
)
from penstock.model.rows import Commit, EnqueuedRow, EnqueuedTarget
from penstock.store.mysql.coordination import NOW_MS
from penstock.store.mysql.literals import filled, numbers

HEADERS_TEXT_MAX: Final = 4 * HEADERS_BYTES_MAX
"""JSON writes some values longer than they are."""

_TEXTS: Final = (
    ("`key`", NAME_CHARACTERS_MAX),
    ("`partition`", PARTITION_CHARACTERS_MAX),
    ("dedup_id", ID_CHARACTERS_MAX),
    ("content_type", ID_CHARACTERS_MAX),
    ("correlation_id", ID_CHARACTERS_MAX),
    ("trace_id", ID_CHARACTERS_MAX),
)
_NUMBERS: Final = (
    ("priority", PRIORITY_MAX),
    ("delay_ms", SPAN_MS_MAX),
    ("not_before_ms", TIME_MS_MAX),
    ("ttl_ms", SPAN_MS_MAX),
)


def table(text: str, table: str) -> str:
    """The statement that makes it. A constraint's name is what an application sees of it."""
    checks = [
        "CONSTRAINT one_of_queue_and_exchange CHECK ((queue IS NULL) <> (exchange IS NULL))",
        *(f"CONSTRAINT {name}_has_1_to_{NAME_CHARACTERS_MAX}_characters "
          f"CHECK (char_length({name}) BETWEEN 1 AND {NAME_CHARACTERS_MAX})"
          for name in ("namespace", "queue", "exchange")),
        *(f"CONSTRAINT {name.strip('`')}_has_at_most_{most}_characters CHECK (char_length({name}) <= {most})"
          for name, most in _TEXTS),
        *(f"CONSTRAINT {name}_is_0_to_{most} CHECK ({name} BETWEEN 0 AND {most})" for name, most in _NUMBERS),
        f"CONSTRAINT payload_has_at_most_16_mib CHECK (octet_length(payload) <= {PAYLOAD_BYTES_MAX})",
        "CONSTRAINT headers_are_a_json_object CHECK (json_valid(headers) AND json_type(headers) = 'OBJECT')",
        f"CONSTRAINT headers_have_at_most_{HEADERS_TEXT_MAX}_bytes CHECK (octet_length(headers) <= {HEADERS_TEXT_MAX})",
    ]  # fmt: skip
    return f"""CREATE TABLE IF NOT EXISTS enqueued (
        id bigint AUTO_INCREMENT PRIMARY KEY, namespace {text} NOT NULL DEFAULT ('default'), queue {text},
        exchange {text}, `key` {text}, payload longblob NOT NULL, `partition` {text}, headers {text},
        priority integer NOT NULL DEFAULT 0, delay_ms bigint NOT NULL DEFAULT 0,
        not_before_ms bigint NOT NULL DEFAULT 0, ttl_ms bigint, dedup_id {text}, content_type {text},
        correlation_id {text}, trace_id {text}, mandatory boolean NOT NULL DEFAULT true,
        enqueued_ms bigint NOT NULL DEFAULT ({NOW_MS}), error {text}, failed_ms bigint,
        KEY enqueued_by_failure (failed_ms, id), {", ".join(checks)}
    ) {table}"""


# Reading -------------------------------------------------------------------------------------------------


def enqueued(most: int, bytes_most: int, passing: Sequence[EnqueuedTarget]) -> bytes:
    """The statement that finds rows. The payloads' sizes are looked at before any payload is read."""
    # As bytes: to a collation, names with and without a space at their end are the same.
    passed = b"".join(
        filled(
            " AND NOT (CAST(namespace AS BINARY) = %s AND CAST(queue AS BINARY) <=> %s"
            " AND CAST(exchange AS BINARY) <=> %s)",
            *(None if name is None else name.encode() for name in target),
        )
        for target in passing
    )
    return (
        b"SELECT e.id, e.namespace, e.queue, e.exchange, e.payload, e.`key`, e.`partition`, e.headers, e.priority,"
        b" e.delay_ms, e.not_before_ms, e.ttl_ms, e.dedup_id, e.content_type, e.correlation_id, e.trace_id,"
        b" e.mandatory, e.enqueued_ms FROM (SELECT id, sum(size) OVER (ORDER BY id) AS total,"
        b" row_number() OVER (ORDER BY id) AS number FROM (SELECT id, octet_length(payload) AS size FROM enqueued"
        b" WHERE failed_ms IS NULL" + passed + filled(" ORDER BY id LIMIT %s) AS near) AS sized", most)
        + b" STRAIGHT_JOIN enqueued e ON e.id = sized.id"
        + filled(" WHERE e.failed_ms IS NULL AND (sized.number = 1 OR sized.total <= %s) ORDER BY e.id", bytes_most)
    )  # fmt: skip


def enqueued_row(row: Any) -> EnqueuedRow:
    *rest, mandatory, enqueued_ms = row
    values = (*rest, bool(mandatory), enqueued_ms)
    return EnqueuedRow(*values)


FAILED: Final = """
SELECT id, namespace, queue, exchange, `key`, octet_length(payload), enqueued_ms, coalesce(error, ''), failed_ms
FROM enqueued WHERE failed_ms IS NOT NULL AND CAST(namespace AS BINARY) = %s AND id > %s ORDER BY id LIMIT %s"""
COUNT_FAILED: Final = "SELECT count(*) FROM enqueued WHERE failed_ms IS NOT NULL"
NEWEST: Final = "SELECT coalesce(max(id), 0) FROM enqueued"


# Writing -------------------------------------------------------------------------------------------------


def settled(commit: Commit) -> Iterator[bytes]:
    """What a commit says of enqueued rows."""
    if commit.enqueued_deleted:
        yield b"DELETE e FROM " + _these(commit.enqueued_deleted)
    why: dict[tuple[str, int], list[int]] = {}
    for failure in {failure.id: failure for failure in commit.enqueued_failed}.values():
        why.setdefault((failure.error, failure.failed_ms), []).append(failure.id)
    for (error, failed_ms), ids in why.items():
        yield b"UPDATE " + _these(ids) + filled(" SET e.error = %s, e.failed_ms = %s", error, failed_ms)
    if commit.enqueued_retried:
        yield b"UPDATE " + _these(commit.enqueued_retried) + b" SET e.error = NULL, e.failed_ms = NULL"


def _these(ids: Sequence[int]) -> bytes:
    found = numbers([[id] for id in sorted(set(ids))], 1)
    return found + b" STRAIGHT_JOIN enqueued AS e FORCE INDEX (PRIMARY) ON e.id = k.a"
