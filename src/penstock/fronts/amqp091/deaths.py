"""Dead letters as RabbitMQ tells of them: the header `x-death`, its first and last entries, and the exchange they took.

The broker's own history has one entry for each death, the newest first, in the message's header `x-death`; here it
becomes one entry for each queue and reason, with a count. Knows nothing of sockets or of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.model import Headers, dead_letter_target
from penstock.model.errors import InvalidArgument
from penstock.wire.amqp091.properties import Properties
from penstock.wire.amqp091.tables import Timestamp

if TYPE_CHECKING:
    from penstock.fronts.amqp091.mapping import Outgoing

REASONS: Final = {
    "rejected": "rejected",
    "expired": "expired",
    "overflow": "maxlen",
    "attempts": "delivery_limit",
}


def told(found: Outgoing, headers: Headers) -> Outgoing:
    """What a delivery says of a message that died before: where it died, why, how often, and the way it took."""
    history = headers["x-death"]
    own = [death for death in history if _is_ours(death)] if isinstance(history, list) else []
    if not own:
        return found  # the publisher set that header: pass it on unchanged
    properties = Properties(found.properties)
    table: dict[str, Any] = properties.headers or {}
    before = table.get("x-death")
    entries = _entries(own, found.exchange.decode(), properties.expiration)
    for entry in before if isinstance(before, list) else []:
        _count(entries, entry)
    first, last = entries[-1], entries[0]
    added: dict[str, Any] = {"x-death": entries}
    for name, entry in (("first", first), ("last", last)):
        for part in ("reason", "queue", "exchange"):
            added[f"x-{name}-death-{part}"] = entry.get(part, "")
    if "x-first-death-reason" in table:  # republished with its history
        added = {name: value for name, value in added.items() if not name.startswith("x-first") or name not in table}
    return found._replace(
        exchange=_exchange_of(own[0]).encode()[:255],
        properties=properties.replaced(headers=table | added, expiration=None),
    )


def _is_ours(death: Any) -> bool:
    return isinstance(death, dict) and "group" in death and "target" in death and death.get("reason") in REASONS


def _exchange_of(death: dict[str, Any]) -> str:
    """The exchange that a dead letter was published to; the default one where it went to a queue by name."""
    try:
        kind, name, _ = dead_letter_target(str(death["target"]))
    except InvalidArgument:
        return ""
    return name if kind == "exchange" else ""


def _entries(own: list[dict[str, Any]], exchange: str, expiration: str | None) -> list[dict[str, Any]]:
    """The newest first; deaths of one queue for one reason are one entry, with the time of the first."""
    entries: list[dict[str, Any]] = []
    for index in range(len(own) - 1, -1, -1):  # the oldest first, so that the newest comes to stand in front
        death = own[index]
        came_by = exchange if index == len(own) - 1 else _exchange_of(own[index + 1])
        entry: dict[str, Any] = {
            "count": 1,
            "reason": REASONS[death["reason"]],
            "queue": str(death["queue"]),
            "time": Timestamp(int(death.get("time") or 0) // 1000),
            "exchange": came_by,
            "routing-keys": [str(death.get("key") or "")],
        }
        if expiration is not None and index == len(own) - 1:
            entry["original-expiration"] = expiration
        same = _same(entries, entry)
        if same is not None:
            entries.remove(same)
            entry = same | {"count": same["count"] + 1}
        entries.insert(0, entry)
    return entries


def _count(entries: list[dict[str, Any]], entry: Any) -> None:
    """Add an entry of an older history, which a client has published again."""
    if not isinstance(entry, dict):
        return
    same, count = _same(entries, entry), entry.get("count")
    if same is None:
        entries.append(entry)
    elif isinstance(count, int):
        same["count"] += count


def _same(entries: list[dict[str, Any]], entry: dict[str, Any]) -> dict[str, Any] | None:
    wanted = (entry.get("queue"), entry.get("reason"))
    return next((known for known in entries if (known.get("queue"), known.get("reason")) == wanted), None)
