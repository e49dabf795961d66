"""The polite clients, in a process of their own: messages at a fixed pace, each published, claimed and acknowledged.

Each has a connection and a queue. A round is late when the one before it is: its time counts from the moment at which
it should have begun, so that a stall of a second is as many slow rounds as should have been in it. With it goes what
the server's event loop worked meanwhile, for whomever: that does not depend on what else the machine does. Knows no
attacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final, NamedTuple

from bench.polite_lib.http import Connection, request

CLIENTS: Final = 5
ROUND_S: Final = 60.0


class Client(NamedTuple):
    connection: Connection
    queue: str


class Round(NamedTuple):
    """In milliseconds."""

    took: float
    loop: float


def serve(port: int, server: int, rate: float, pipe: Pipe) -> None:
    """A process: for each number of seconds that comes through the pipe, the rounds in milliseconds go back."""
    with contextlib.suppress(EOFError, ConnectionResetError):
        asyncio.run(_serve(port, server, rate, pipe))


async def _serve(port: int, server: int, rate: float, pipe: Pipe) -> None:
    worked = Path(f"/proc/{server}/task/{server}/schedstat")
    clients = [Client(Connection(port), f"polite-{number}") for number in range(CLIENTS)]
    for each in clients:
        await each.connection.ask(request("PUT", f"/v1/queues/{each.queue}", {}))
    pipe.send([])
    while seconds := await asyncio.to_thread(pipe.recv):
        found = await asyncio.gather(
            *(measure(each, worked, rate / CLIENTS, seconds, place / rate) for place, each in enumerate(clients))
        )
        pipe.send([one for rounds in found for one in rounds])


async def measure(client: Client, worked: Path, rate: float, seconds: float, delay: float) -> list[Round]:
    rounds: list[Round] = []
    began = time.perf_counter() + delay
    for number in range(max(1, round(rate * seconds))):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        before = loop_ms(worked)
        await asyncio.wait_for(one_round(client, number), ROUND_S)
        rounds.append(Round((time.perf_counter() - due) * 1000, loop_ms(worked) - before))
        if time.perf_counter() - began > seconds + ROUND_S:
            break
    return rounds


def loop_ms(worked: Path) -> float:
    """What the server's first thread, which is its event loop's, has worked so far."""
    return int(worked.read_text().split()[0]) / 1e6


async def one_round(client: Client, number: int) -> None:
    """Publish, claim, acknowledge; what is claimed must be what was published."""
    connection, path = client.connection, f"/v1/queues/{client.queue}"
    body = {"messages": [{"payload": f"polite {number}"}]}
    published = await connection.ask(request("POST", path + "/messages", body))
    claimed = await connection.ask(request("POST", path + "/claim", {"max": 1, "wait": 5}), keep=4_000)
    if published.status != 200 or claimed.status != 200:
        raise RuntimeError(f"the polite client was refused: {published}, {claimed}")
    claim = json.loads(claimed.start)
    if [message["payload"] for message in claim["messages"]] != [f"polite {number}"]:
        raise RuntimeError(f"the polite client got {claim} instead of message {number}")
    await connection.ask(request("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": [{"action": "ack"}]}))
