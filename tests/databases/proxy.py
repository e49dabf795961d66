"""A proxy between a store and its database that holds back or cuts what goes through it: a network that fails.

One thread a direction and connection. What is held back is delivered when it is let go, also when the other side has
given up meanwhile: as packets that were under way are.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final

WAIT_S: Final = 60.0


class Proxy:
    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._requests = threading.Event()
        self._answers = threading.Event()
        self._requests.set()
        self._answers.set()
        self.held = threading.Event()
        """Something is being held back."""
        self._clients: list[socket.socket] = []
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def hold_requests(self) -> None:
        self.held.clear()
        self._requests.clear()

    def hold_answers(self) -> None:
        self.held.clear()
        self._answers.clear()

    def let_go(self) -> None:
        self._requests.set()
        self._answers.set()

    def cut(self) -> None:
        """End the connections on the side of the store; the database learns of it when it writes or reads."""
        while self._clients:
            with contextlib.suppress(OSError):
                self._clients.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.let_go()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._clients.append(client)
            self._sockets += [client, server]
            # A connection that is made while others are held back goes through: only what there is now is held.
            for source, sink, gate in ((client, server, self._requests), (server, client, self._answers)):
                thread = threading.Thread(target=self._pump, args=(source, sink, gate), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        is_older = gate.is_set()
        while True:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            if is_older and not gate.is_set():
                self.held.set()
                gate.wait(WAIT_S)
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return
