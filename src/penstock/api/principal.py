"""Who asks, for what, and whether they may: the one place where permission is refused.

Every request and connection acts as a `Principal`. Every operation of a broker names what it does (`Action`) to what
(`Kind` and name) before it does anything, and an `Authorizer` lets it pass or raises `Forbidden`. Today there is one
principal and everything is allowed. Knows no protocol and no node.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, Protocol

Action = Literal["publish", "consume", "browse", "declare", "manage", "admin"]
"""What an operation does.

`publish`: put messages in. `consume`: take them, settle them, read a stream. `browse`: look, and change nothing.
`declare`: create, change or delete queues, groups, exchanges, bindings and schedules. `manage`: pause, purge, seek,
redrive, write marks. `admin`: see or change the node and its cluster.
"""

Kind = Literal["queue", "exchange", "schedule", "mark", "transaction", "trace", "enqueued", "namespace", "node"]
"""The kind of resource. A group goes with its queue. `namespace` is all that a namespace has, `node` the server."""


class Principal(NamedTuple):
    """Someone who asks."""

    name: str


ANONYMOUS: Final = Principal("anonymous")
"""Anyone who could reach the server and, where it has one, knew its token."""


class Authorizer(Protocol):
    """Says who may do what."""

    def authorize(self, principal: Principal, action: Action, kind: Kind, namespace: str, name: str) -> None:
        """Return if the principal may do this; raise `Forbidden` if not. Called on every operation: be quick."""


class AllowAll:
    """Everyone may do everything."""

    def authorize(self, principal: Principal, action: Action, kind: Kind, namespace: str, name: str) -> None:
        """Return."""


class Caller(NamedTuple):
    """Who asks, and who decides."""

    principal: Principal
    authorizer: Authorizer


ANYONE: Final = Caller(ANONYMOUS, AllowAll())
"""The caller of a program that opened the broker itself."""
