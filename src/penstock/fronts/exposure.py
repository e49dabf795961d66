"""Whether strangers could reach a server that asks for no credentials: then it does not start unless told to."""

from __future__ import annotations

import ipaddress

from penstock.fronts.auth import Credentials
from penstock.model.errors import InvalidArgument


def check_exposure(section: str, host: str, credentials: Credentials) -> None:
    """Raise where anyone on the network could do everything, unless the configuration says that this is fine."""
    if is_exposed(host, credentials):
        raise InvalidArgument(
            f"{section}.host is {host!r}, which others can reach, and there is no http.token; "
            "set one, or http.insecure = true if the network is trusted"
        )


def is_exposed(host: str, credentials: Credentials) -> bool:
    """Whether a front that listens there is open to others."""
    return not (credentials.token or credentials.insecure or is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name that must be looked up could be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
