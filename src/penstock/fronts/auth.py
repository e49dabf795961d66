"""Who a client is: the credentials that a server asks for, the same for every front."""

from __future__ import annotations

import hmac
from typing import Final, NamedTuple


class Credentials(NamedTuple):
    """What clients must bring. Set in `[http]`, in force for every front."""

    token: str = ""
    """HTTP's bearer token, and the password of the other protocols; empty: nothing is asked for."""
    insecure: bool = False
    """Listen where others can reach the server although it asks for nothing."""

    def accept(self, given: bytes) -> bool:
        """Whether a client that brings this may come in."""
        return not self.token or hmac.compare_digest(given, self.token.encode())


OPEN: Final = Credentials()
"""Nothing is asked for."""
