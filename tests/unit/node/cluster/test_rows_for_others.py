"""A part for another node is a row of the store: one that is longer than the engine takes is refused before."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.model import Message, QueueConfig
from penstock.model.errors import MessageTooLarge
from penstock.node.catalog import Queue
from penstock.node.cluster.remote_publish import RemotePublish
from penstock.node.publish.parts import Part


class Owned:
    """Slots of which this node has the first."""

    spans_slots = True

    def has_taken(self, slot: int) -> bool:
        return slot == 0


def part(lane: int, size: int) -> Part:
    queue = Queue(1, "default", "q", QueueConfig(), (lane,))
    return Part(queue, lane, [Message(bytes(size))], None, None, None)


def test_what_is_too_long_for_a_row_is_refused() -> None:
    nothing = cast("Any", Owned())
    remote = RemotePublish(nothing, nothing, nothing, nothing)
    own, other = part(64, 11), part(1, 10)
    remote.check_rows([own, part(1, 11)])
    remote.row_bytes_max = 10
    remote.check_rows([own, other])
    remote.check_rows([part(1, 11)])  # it is sent on as it is, and the owner stores a batch
    with pytest.raises(MessageTooLarge, match=r"11 bytes for queue 'q'.*takes 10 bytes.*max_allowed_packet"):
        remote.check_rows([own, part(1, 11)])
