"""Who a client is: the credentials that a server asks for, the same for every front, and the principal they prove."""

from __future__ import annotations

import hmac
from typing import Final, NamedTuple

from penstock.api.principal import ANONYMOUS, Principal


class Credentials(NamedTuple):
    """What clients must bring. Set in `[http]`, in force for every front."""

    token: str = ""
    """HTTP's bearer token, and the password of the other protocols; empty: nothing is asked for."""
    insecure: bool = False
    """Listen where others can reach the server although it asks for nothing."""

    def authenticate(self, given: bytes) -> Principal | None:
        """The principal of a client that brings this; None where it is not the token."""
        if self.token and not hmac.compare_digest(given, self.token.encode()):
            return None
        return ANONYMOUS


OPEN: Final = Credentials()
"""Nothing is asked for."""
