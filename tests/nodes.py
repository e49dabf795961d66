"""The node behind a broker, for tests that look inside."""

from __future__ import annotations

from typing import cast

from penstock.node.broker.names import Names
from penstock.node.node import Node


def node_of(broker: Names) -> Node:
    """The node whose services a broker calls."""
    return cast("Node", broker._services)
