"""One client for each server and process: readers are pickled and come and go, connections stay.

A worker of Spark runs many tasks; all of them share what is opened here, and it is closed when the process ends.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Final

import msgspec

from penstock.client.sync import Client
from penstock.client.transport.channel import Retry


class Access(msgspec.Struct, frozen=True):
    """Which server, as whom, in which namespace."""

    url: str
    token: str | None
    namespace: str

    def __repr__(self) -> str:
        """Without the token."""
        return f"<Access to {self.url!r}>"


_clients: Final[dict[tuple[int, Access, Retry | None], Client]] = {}
_lock: Final = threading.Lock()


def client_of(access: Access, retry: Retry | None = None) -> Client:
    """This process's client; it tries again by itself for a minute when a server is away, or as `retry` says."""
    key = (os.getpid(), access, retry)  # a forked process must not use its parent's connections
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = Client(access.url, token=access.token, namespace=access.namespace, retry=retry)
        return client


@atexit.register
def close_clients() -> None:
    """End this process's connections."""
    with _lock:
        for key in list(_clients):
            client = _clients.pop(key)
            if key[0] == os.getpid():
                client.close()
