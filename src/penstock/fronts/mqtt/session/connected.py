"""A session while its client is connected, and what a client id may be. Plain data."""

from __future__ import annotations

import secrets
from typing import Final

from penstock.fronts.mqtt.errors import Refusal
from penstock.fronts.mqtt.subscription.subscriptions import Subscriptions, session_queue
from penstock.wire.mqtt.packets import Will
from penstock.wire.mqtt.reasons import Reason

CLIENT_ID_CHARACTERS_MAX: Final = 200


class Session:
    """A session while its client is connected."""

    def __init__(self, client_id: str, expiry: int, will: Will | None) -> None:
        self.client_id = client_id
        self.token = f"{client_id}#{secrets.token_hex(4)}"
        """Names this connection: the consumer of what it claims."""
        self.expiry = expiry
        self.will = will
        self.is_stored = expiry > 0
        """Whether its state must outlive a restart."""
        self.has_document = False
        self.has_queue = False
        self.subscriptions = Subscriptions()
        self.inbound: set[int] = set()
        """Packet ids of QoS 2 publishes that were taken and not released."""
        self.released: set[int] = set()
        """Packet ids of QoS 2 deliveries whose PUBREL was not answered."""

    @property
    def queue(self) -> str:
        return session_queue(self.client_id)


def check_client_id(client_id: str) -> str:
    """A client id that can be part of a queue's name."""
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise Refusal(
            Reason.CLIENT_ID_NOT_VALID,
            f"the client id has {len(client_id)} characters; the limit is {CLIENT_ID_CHARACTERS_MAX}",
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in client_id):
        raise Refusal(Reason.CLIENT_ID_NOT_VALID, f"the client id {client_id!r} contains a control character")
    return client_id
