"""Routing: from an exchange and a routing key to the queues of a message, in memory, for one namespace.

`router.py` walks from exchange to exchange; `exchanges.py` has one index for each kind of exchange; `tries.py` matches
topic and MQTT patterns. Others import `Router` and `Routed` from here; `identity_of`, `same_header`, `Trie` and the
pattern checks from their modules, for tools that must agree with routing (declarations, Spark, MQTT filters).
"""

from penstock.core.routing.router import Routed, Router

__all__ = ["Routed", "Router"]
