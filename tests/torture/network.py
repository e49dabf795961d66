"""Networks of their own for the nodes of a torture run, whose packets can be swallowed: by pair and by direction.

Each node is in a network namespace, and so is everything else, which is in this process and its children: the database,
proxies, clients. A router in a namespace of its own is between all of them, so that a rule there takes packets away
that nobody is told of. The namespaces have no names: they are gone with the last process in them, whatever ends it. No
address or route of the machine is touched.

That needs the rights of root, iproute2 and util-linux: `Network.open` raises `NotPossible` where they are missing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final

CLONE_NEWNET: Final = 0x40000000
HOME: Final = "10.203.0.2"
"""Clients and proxies."""
STORE: Final = "10.203.0.3"
"""The database, as nodes see it."""
PATIENCE_S: Final = 30.0

Pair = tuple[str, str]
"""The addresses from and to which packets go."""


class NotPossible(Exception):
    """This machine allows no namespaces; says why."""


class Network:
    """A router, and the ways from it to each node. Made by `Network.open`."""

    def __init__(self, router: int) -> None:
        self._router = router
        self._nodes: list[int] = []
        self._cuts: Counter[Pair] = Counter()

    @classmethod
    def open(cls, nodes: int) -> Network:
        """Move this thread, and all that it starts from now on, into a network of its own, with so many nodes."""
        for program in ("ip", "nsenter"):
            if shutil.which(program) is None:
                raise NotPossible(f"there is no program {program!r}")
        router = _new_namespace()
        _check(ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET))
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        network = cls(router)
        _run(router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        network._lead_to(0, home, HOME, STORE)
        os.close(home)
        for number in range(1, nodes + 1):
            network._nodes.append(_new_namespace())
            network._lead_to(number, network._nodes[-1], network.address(number - 1))
        return network

    def _lead_to(self, number: int, namespace: int, *addresses: str) -> None:
        """Lay a cable from the router to a namespace, in a network of its number."""
        gate = f"10.203.{number}.1"
        peer = f"/proc/self/fd/{namespace}"
        _run(self._router, "ip", "link", "add", f"to{number}", "type", "veth", "peer", "eth0", "netns", peer, namespace)
        _run(self._router, "ip", "address", "add", f"{gate}/24", "dev", f"to{number}")
        _run(self._router, "ip", "link", "set", f"to{number}", "up")
        for address in addresses:
            _run(namespace, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run(namespace, "ip", "link", "set", device, "up")
        _run(namespace, "ip", "route", "add", "default", "via", gate)

    def address(self, node: int) -> str:
        return f"10.203.{node + 1}.2"

    def command(self, node: int) -> tuple[list[str], list[int]]:
        """What a command begins with that is to run in a node's network, and the descriptors that it must be given."""
        namespace = self._nodes[node]
        return ["nsenter", f"--net=/proc/self/fd/{namespace}"], [namespace]

    # Trouble -----------------------------------------------------------------------------------------------

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Swallow every packet that goes from one address to another, and tell nobody."""
        chosen = list(pairs)
        self._cuts.update(chosen)
        self._rules("add", [pair for pair in chosen if self._cuts[pair] == 1])

    def mend(self, pairs: Iterable[Pair]) -> None:
        """Take a cut back; a pair that others have cut too stays so until they mend it."""
        chosen = list(pairs)
        self._cuts.subtract(chosen)
        self._rules("delete", [pair for pair in chosen if self._cuts[pair] == 0])

    def _rules(self, what: str, pairs: list[Pair]) -> None:
        lines = [f"rule {what} from {one} to {other} blackhole\n" for one, other in pairs]
        _run(self._router, "ip", "-batch", "-", given="".join(lines))


def both(one: str, other: str) -> list[Pair]:
    """Both ways between two addresses."""
    return [(one, other), (other, one)]


def _new_namespace() -> int:
    """A descriptor of a network namespace that exists as long as it is open, or a process is in it."""
    made: list[int | OSError] = []

    def make() -> None:
        try:
            _check(ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET))
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        except (NotPossible, OSError) as error:
            made.append(OSError(str(error)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise NotPossible(str(made[0]))
    return made[0]


def _check(result: int) -> None:
    if result != 0:
        raise NotPossible(f"no network namespace can be made: {os.strerror(ctypes.get_errno())}")


def _run(namespace: int, *command: str | int, given: str = "") -> None:
    """Run a command in a namespace; numbers among its words are descriptors that it needs."""
    needed = [part for part in command if isinstance(part, int)]
    words = [part for part in command if isinstance(part, str)]
    done = subprocess.run(
        ["nsenter", f"--net=/proc/self/fd/{namespace}", *words],
        pass_fds=[namespace, *needed],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode != 0:
        raise NotPossible(f"{' '.join(words)}: {done.stderr.strip()}")
