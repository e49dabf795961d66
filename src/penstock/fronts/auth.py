"""Who a client is: the credentials that a server asks for, the same for every front, and the principal they prove.

Where strangers could reach a server that asks for none, it does not start unless told to.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final, NamedTuple

from penstock.api.principal import ANONYMOUS, Principal
from penstock.model.errors import InvalidArgument


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


def check_exposure(section: str, host: str, credentials: Credentials) -> None:
    """Raise where anyone on the network could do everything, unless the configuration says that this is fine."""
    exposed = exposure(section, host, credentials)
    if exposed:
        raise InvalidArgument(exposed)


def exposure(section: str, host: str, credentials: Credentials) -> str:
    """How a front that listens there is open to everyone, and what to do; empty where it is not."""
    if credentials.token or credentials.insecure or is_loopback(host):
        return ""
    return (
        f"{section}.host is {host!r}, where others can reach the server, and there is no http.token: set one "
        "(PENSTOCK_HTTP_TOKEN), listen on 127.0.0.1, or say http.insecure = true if the network is trusted"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name that must be looked up could be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
