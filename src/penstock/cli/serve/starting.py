"""Why a server does not start, in words that say what to do about it."""

from __future__ import annotations

import errno
import socket
from typing import Any


class CannotStart(Exception):
    """Why the server does not start, and what to do."""


def cannot_listen(error: OSError, section: str, host: str, port: int, port_flag: str, host_flag: str) -> CannotStart:
    """Why a port of a section cannot be listened on."""
    if isinstance(error, socket.gaierror):
        return CannotStart(f"{section}.host is {host!r}, which is no address here: {error.strerror}")
    advice: dict[Any, str] = {
        errno.EADDRINUSE: f"it is in use, perhaps by another penstock: choose another {port_flag}; 0 takes a free one",
        errno.EACCES: f"it may not be used: choose a {port_flag} from 1024 on",
        errno.EADDRNOTAVAIL: f"this machine has no such address: choose another {host_flag}",
    }
    return CannotStart(f"cannot listen on {host}:{port}: {advice.get(error.errno, error.strerror or error)}")
