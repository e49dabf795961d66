"""Requests that must be refused with 400: values of the wrong type or past their limits, by operation. Plain data."""

from __future__ import annotations

from typing import Any, Final

# fmt: off
WRONG_FIELDS: Final[dict[tuple[str, str], list[Any]]] = {
    ("POST", "/v1/queues/mail/claim"): [
        {"max": 0}, {"max": 100_001}, {"max": "1"}, {"max": 1.5}, {"max": None}, {"max": 2**70}, {"min": 0},
        {"min": 2, "max": 1}, {"wait": -1}, {"wait": 3_601}, {"wait": 1e+300}, {"wait": "1"}, {"lease_seconds": 0},
        {"lease_seconds": 1000000000000.0}, {"lease_seconds": "x"}, {"partition": ""}, {"partition": 1},
        {"consumer": "a\nb"}, {"consumer": "x" * 256}, {"consumer": 1}, {"group": 1}, {"ack": "yes"}, {"ack": 1},
        {"unknown": 1}, [], "x", 1,
    ],
    ("POST", "/v1/queues/mail/groups/watch/read"): [
        {"max": 0}, {"max": "x"}, {"wait": -1}, {"consumer": "", "max": -1}, {"group": "x"}, [],
    ],
    ("POST", "/v1/queues/mail/groups/watch/commit"): [
        {}, {"offset": -1}, {"offset": "1"}, {"offset": 2**64}, {"offset": 0, "lane": 1}, {"offset": 1.5},
    ],
    ("POST", "/v1/queues/mail/groups/default/seek"): [
        {}, {"to": "middle"}, {"to": "first", "offset": 1}, {"offset": -1}, {"offset": 5}, {"time_ms": -1},
        {"to": "first", "lane": 7}, {"offset": "x"},
    ],
    ("POST", "/v1/queues/mail/groups/default/dead/redrive"): [
        {"offsets": [1]}, {"offsets": [1, 2, 3]}, {"offsets": ["a", "b"]}, {"reason": 1}, {"filter": "=="},
        {"error": []}, {"offsets": [-1, 5]}, {"all": True},
    ],
    ("POST", "/v1/queues/mail/groups/default/dead/purge"): [
        {"offsets": [1]}, {"offsets": [1, 2, 3]}, {"offsets": ["a", "b"]}, {"reason": 1}, {"filter": "=="},
        {"error": []}, {"offsets": [-1, 5]}, {"all": True},
    ],
    ("POST", "/v1/leases/1-1-1/settle"): [
        {}, {"verdicts": []}, {"verdicts": [{}]}, {"verdicts": [{"action": "burn"}]},
        {"verdicts": [{"action": "ack", "delay": 1}]}, {"verdicts": [{"action": "ack", "error": "x"}]},
        {"verdicts": [{"action": "postpone"}]}, {"verdicts": [{"action": "nack", "delay": -1}]},
        {"verdicts": [{"action": "ack", "offsets": []}]}, {"verdicts": [{"action": "ack", "start": 1}]},
        {"verdicts": [{"action": "ack", "end": 1}]}, {"verdicts": [{"action": "ack", "offsets": [-1]}]},
        {"verdicts": [{"action": "ack", "offsets": [0], "start": 0, "end": 1}]},
        {"verdicts": [{"action": "ack", "start": -1, "end": 2}]}, {"verdicts": [{"action": "nack", "error": 5}]},
        {"verdicts": "ack"}, {"verdicts": [{"action": "ack", "offsets": [2**64]}]},
    ],
    ("POST", "/v1/leases/1-1-1/extend"): [
        {"seconds": 0}, {"seconds": -1}, {"seconds": "1"}, {"seconds": 1e+300}, {"seconds": True},
    ],
    ("POST", "/v1/leases/nonsense/extend"): [
        {"seconds": 1},
    ],
    ("POST", "/v1/leases/1-1-99999999999999999999/extend"): [
        {"seconds": 1},
    ],
    ("POST", "/v1/leases/nonsense/settle"): [
        {"verdicts": [{"action": "ack"}]},
    ],
    ("POST", "/v1/transactions"): [
        {}, {"publish": [{"messages": [{}]}]}, {"publish": [{"queue": "mail", "exchange": "x", "messages": [{}]}]},
        {"publish": [{"queue": "mail", "messages": []}]}, {"settle": [{"lease": "1-1-1"}]},
        {"settle": [{"lease": 5, "verdicts": [{"action": "ack"}]}]},
    ],
    ("PUT", "/v1/queues/new"): [
        {"lanes": 0}, {"lanes": "two"}, {"lans": 2}, {"lanes": 1_025}, [], {"overflow": "explode"},
        {"name": "x", "self": 1},
    ],
    ("PATCH", "/v1/queues/mail"): [
        {"lease_ms": 0},
    ],
    ("PUT", "/v1/queues/mail/groups/new"): [
        {"kind": "heap"}, {"filter": "a ==="}, {"queue": "x"},
    ],
    ("PUT", "/v1/exchanges/new"): [
        {"kind": "odd"}, {"internal": "x"},
    ],
    ("POST", "/v1/exchanges/topics/bind"): [
        {}, {"target": "mail", "match": "some"}, {"target": "mail", "target_kind": "door"},
        {"target": "mail", "headers": {"a": {"$time": 5}}},
    ],
    ("POST", "/v1/queues/mail/groups/default/attach"): [
        {},
    ],
    ("POST", "/v1/queues/mail/groups/default/detach"): [
        {"consumer": ""},
    ],
    ("POST", "/v1/traces/abc/events"): [
        {}, {"name": ""}, {"name": "x", "offset": 3}, {"name": "x", "detail": 3},
    ],
    ("PUT", "/v1/schedules/nightly"): [
        {}, {"message": {}, "queue": "mail"}, {"message": {}, "queue": "mail", "cron": "a b c d e"},
        {"message": {}, "queue": "mail", "cron": "* * * * *", "interval_ms": 1_000},
        {"message": {}, "queue": "mail", "interval_ms": 1},
        {"message": {}, "queue": "mail", "cron": "* * * * *", "timezone": "Mars/Olympus"},
        {"message": {"payload": 1}, "queue": "mail", "cron": "* * * * *"},
    ],
}

WRONG_QUERIES: Final[dict[str, list[str]]] = {
    "/v1/queues": [
        "limit=0", "limit=10001", "limit=x", "limit=", "limit=1.5", "other=1", "limit=" + "9" * 5000,
        "limit=1&limit=2", "prefix=%ff", "prefix=%ED%A0%80", "namespace=", "namespace=a%00b",
        "namespace=" + "x" * 256, "&".join(f"a{one}=1" for one in range(101)),
    ],
    "/v1/queues/mail/messages": [
        "max=0", "max=100001", "state=lost", "filter=%3D%3D", "after=5", "after=a:b", "after=7:0", "after=0:-1",
        "after=0:" + "9" * 20, "lane=3", "lane=-1", "offset=-1", "time_ms=-1", "offset=" + "9" * 25,
        "partition=" + "x" * 1025, "group=none&x=1",
    ],
    "/v1/queues/mail/log": [
        "max=0", "lane=9", "offset=-5", "offset=abc", "time_ms=x", "time_ms=" + "9" * 30,
    ],
    "/v1/queues/mail/groups/default/dead": [
        "max=0", "start=1", "end=1", "start=-1&end=3", "filter=(", "reason=" + "x" * 256,
    ],
    "/v1/queues/mail": [
        "x=1",
    ],
    "/v1/stats": [
        "limit=1001",
    ],
    "/v1/traces/abc": [
        "max=0", "max=1.5",
    ],
    "/v1/events": [
        "after=x", "after=-1", "after=" + "9" * 20,
    ],
    "/healthz": [
        "a=1",
    ],
    "/v1/queues/mail/messages/a/0": [
        "",
    ],
    "/v1/queues/mail/messages/0/-1": [
        "",
    ],
    "/v1/queues/mail/messages/0/9999999999999999999": [
        "",
    ],
    "/v1/queues/mail/messages/0/99999999999999999999": [
        "",
    ],
    "/v1/queues/mail/messages/5/0": [
        "",
    ],
    "/v1/queues/mail/messages/%D9%A3/0": [
        "",
    ],
    "/v1/queues/mail/messages/0/x/history": [
        "",
    ],
    "/v1/queues/mail/messages/0/9999999999999999999/history": [
        "",
    ],
}
# fmt: on
