"""What `penstock serve` prints when it is ready: where it listens, what it declared, and lines to paste and try."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config import Loaded
from penstock.fronts.front import Front
from penstock.fronts.registry import FRONTS
from penstock.store.open import label_of
from penstock.version import VERSION


def announcement(
    loaded: Loaded,
    fronts: Mapping[str, Front],
    declared: dict[str, int],
) -> str:
    config = loaded.config
    url = fronts["http"].listening[0].url
    lines = [f"Penstock {VERSION} listens on {url} and keeps its data in {label_of(config.store.path)}"]
    if loaded.file is not None:
        counts = ", ".join(f"{count} {DONE[action]}" for action, count in declared.items())
        lines.append(f"Configured by {loaded.file}" + (f"; declared from it: {counts}" if counts else ""))
    for entry in FRONTS:
        if entry.name != "http" and entry.name in fronts:
            places = " and ".join(address.url for address in fronts[entry.name].listening)
            lines.append(f"{entry.title} is at {places}")
    token = ' -H "Authorization: Bearer $PENSTOCK_TOKEN"' if config.http.token else ""
    queue = f"{url}/v1/queues/hello"
    json = "-H 'Content-Type: application/json'"
    lines += [
        "",
        f"Try in another terminal{', with PENSTOCK_TOKEN set to the token' if token else ''}:",
        f"  curl{token} -X PUT {queue} {json} -d '{{}}'",
        f'  curl{token} {queue}/messages {json} -d \'{{"messages": [{{"payload": "hello, world"}}]}}\'',
        f'  curl{token} {queue}/claim {json} -d \'{{"max": 10, "wait": 5, "ack": true}}\'',
        "",
        f"The API is described at {url}/docs. Ctrl+C stops the server; the data stays.",
    ]
    return "\n".join(lines)


DONE = {"create": "created", "change": "changed", "unchanged": "unchanged", "delete": "deleted"}
