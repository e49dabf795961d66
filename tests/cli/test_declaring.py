"""`penstock queue`, `group` and `exchange`: what is declared, as tables and as JSON, and what is refused."""

from __future__ import annotations

import pytest

from tests.cli.commands import Cli

# Queues ---------------------------------------------------------------------------------------------------


def test_a_queue_is_created_with_flags_and_options_of_their_types(cli: Cli) -> None:
    text = cli(
        "queue",
        "create",
        "orders",
        "--ordered",
        "--lanes",
        "2",
        "--lease-ms",
        "60000",
        "--rate",
        "2.5",
        "--option",
        "expired=dead",
        "-o",
        "keep-done-ms=5",
        "-o",
        "debounce_ms=7",
        "--description",
        "all of them",
    )
    assert text.startswith("Queue orders created; its options: ")
    assert cli.request("GET", "/v1/queues/orders")["options"] == {
        "lanes": 2,
        "ordered": True,
        "lease_ms": 60000,
        "rate": 2.5,
        "expired": "dead",
        "keep_done_ms": 5,
        "debounce_ms": 7,
        "description": "all of them",
    }


def test_creating_again_changes_what_is_named_and_says_that_it_was_there(cli: Cli) -> None:
    assert cli.json("queue", "create", "a", "--ttl-ms", "9") == {"name": "a", "created": True, "options": {"ttl_ms": 9}}
    assert cli.json("queue", "create", "a", "--max-attempts", "2") == {
        "name": "a",
        "created": False,
        "options": {"max_attempts": 2, "ttl_ms": 9},
    }
    assert cli("queue", "create", "a").startswith("Queue a was there; its options: max_attempts=2 ttl_ms=9")


def test_options_of_a_queue_are_changed_and_taken_away(cli: Cli) -> None:
    cli("queue", "create", "a", "--ttl-ms", "9", "--rate", "3", "--dead-letter-to", "queue:b")
    cli("queue", "set", "a", "-o", "ttl_ms=null", "-o", "dead_letter_to=null", "-o", "rate=null", "--lease-ms", "70")
    assert cli.json("queue", "show", "a")["options"] == {"lease_ms": 70}
    assert "no queue 'b'" in cli.fails("queue", "set", "b", "--lease-ms", "70")
    assert "nothing to change" in cli.fails("queue", "set", "a", code=2)


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("lease_ms", "must be KEY=VALUE"),
        ("lease_ms=soon", "lease_ms is 'soon'"),
        ("leese_ms=5", "did you mean lease_ms?"),
        ("zzz=5", "there are lanes, ordered"),
        ("overflow=explode", "overflow is 'explode'"),
        ("ordered=perhaps", "ordered is 'perhaps'"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_says_what_is_wrong(cli: Cli, option: str, complaint: str) -> None:
    assert complaint in cli.fails("queue", "create", "a", "--option", option, code=2)


def test_an_option_given_twice_is_refused(cli: Cli) -> None:
    assert "given twice" in cli.fails("queue", "create", "a", "-o", "rate=1", "--rate", "2", code=2)
    assert "given twice" in cli.fails("queue", "create", "a", "-o", "rate=1", "-o", "rate=2", code=2)


def test_what_the_server_refuses_is_one_line(cli: Cli) -> None:
    said = cli.fails("queue", "create", "a", "--lanes", "5000")
    assert said == "Error: lanes is 5000; it must be 1 to 1024\n"


def test_queues_are_listed_without_those_of_the_system(cli: Cli) -> None:
    assert "There are no queues. Make one with: penstock queue create" in cli("queue", "list")
    for name in ("b.one", "a.two", "a.one"):
        cli("queue", "create", name)
    cli("queue", "set", "a.two", "--rate", "1")
    assert cli("queue", "list").splitlines() == ["queue  options", "a.one", "a.two  rate=1.0", "b.one"]
    assert cli.json("queue", "list", "--prefix", "a.") == [
        {"name": "a.one", "options": {}},
        {"name": "a.two", "options": {"rate": 1.0}},
    ]
    assert "$events" not in cli.invoke("queue", "list", "--namespace", "default").stdout
    assert "$events" in cli.invoke("queue", "list", "--namespace", "default", "--all").stdout


def test_a_queue_is_shown_with_all_options_and_its_groups(cli: Cli) -> None:
    cli("queue", "create", "a", "--lease-ms", "70")
    assert "It has no groups yet" in cli("queue", "show", "a")
    cli("publish", "a", "hello")
    cli("group", "create", "a", "audit", "--stream")
    lines = cli("queue", "show", "a").splitlines()
    assert [line.split() for line in lines if line.startswith(("lease_ms", "ttl_ms", "audit"))] == [
        ["lease_ms", "70", "set"],
        ["ttl_ms", "null", "default"],
        ["audit", "stream", "1", "0", "0", "0", "1", "no"],
    ]
    assert any(line.startswith("1 message kept; 1 ever published, ") for line in lines)
    shown = cli.json("queue", "show", "a")
    assert shown["options"] == {"lease_ms": 70}
    assert shown["stats"]["groups"][0]["group"] == "audit"


def test_a_queue_is_deleted_only_when_somebody_says_yes(cli: Cli) -> None:
    cli("queue", "create", "a")
    cli("publish", "a", "hello")
    assert "Delete queue 'a' with its 1 message? There is no terminal to ask on: pass --yes." in cli.fails(
        "queue", "delete", "a"
    )
    with cli.on_terminal("queue", "delete", "a") as terminal:
        terminal.until("[y/N]")
        terminal.type("n\n")
        assert terminal.end() == 1
    assert [one["name"] for one in cli.json("queue", "list")] == ["a"]
    with cli.on_terminal("queue", "delete", "a") as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0
    assert cli.json("queue", "list") == []
    assert "no queue 'a'" in cli.fails("queue", "delete", "a", "--yes")
    cli("queue", "create", "b")
    assert cli.json("queue", "delete", "b", "--yes") == {"deleted": "b"}


def test_a_queue_is_purged_for_every_work_group(cli: Cli) -> None:
    cli("queue", "create", "a")
    cli("publish", "a", "1")
    assert cli.json("queue", "purge", "a", "--yes") == {"queue": "a", "purged": {"default": 1}}
    cli("group", "create", "a", "other")
    cli("group", "create", "a", "stream", "--stream")
    cli("publish", "a", "2")
    assert cli("queue", "purge", "a", "--yes") == ("Purged 1 message of group default, 1 message of group other.\n")
    assert cli.stats("a", "stream")["lag"] == 1
    assert "pass --yes" in cli.fails("queue", "purge", "a")


def test_a_queue_is_paused_and_resumed(cli: Cli) -> None:
    cli("queue", "create", "a")
    cli("publish", "a", "1")
    assert cli("queue", "pause", "a") == "Queue a is paused.\n"
    assert cli("consume", "a") == ""
    assert cli.json("queue", "resume", "a") == {"queue": "a", "paused": False}
    assert cli("consume", "a", "--raw") == "1\n"
    assert cli.json("queue", "pause", "a")["paused"] is True
    assert "is not paused any more" in cli("queue", "resume", "a")
    assert "no queue 'b'" in cli.fails("queue", "pause", "b")


# Groups ---------------------------------------------------------------------------------------------------


def test_groups_are_created_listed_shown_and_deleted(cli: Cli) -> None:
    cli("queue", "create", "a")
    assert "has no groups yet" in cli("group", "list", "a")
    cli("publish", "a", "small", "--header", "amount:=1")
    cli("publish", "a", "large", "--header", "amount:=500")
    made = cli.json("group", "create", "a", "large", "--filter", "amount > 100", "--lease-ms", "70", "-o", "rate=5")
    assert made["options"] == {"filter": "amount > 100", "lease_ms": 70, "rate": 5.0}
    assert made["created"]
    assert "Group a/late created" in cli("group", "create", "a", "late", "--stream", "--from", "now")
    assert cli("consume", "a", "--group", "large", "--raw") == "large\n"
    assert cli("consume", "a", "--group", "late") == ""
    listed = cli.json("group", "list", "a")
    assert [(one["name"], one["stats"]["kind"]) for one in listed] == [("large", "work"), ("late", "stream")]
    assert "late   stream" in cli("group", "list", "a")
    assert "lease_ms" in cli("group", "show", "a", "large")
    assert cli.json("group", "show", "a", "late")["options"] == {"kind": "stream", "start": "now"}
    assert "has no group 'nobody'; there are: large, late" in cli.fails("group", "show", "a", "nobody")
    assert "pass --yes" in cli.fails("group", "delete", "a", "late")
    assert cli("group", "delete", "a", "late", "--yes") == "Group a/late deleted.\n"
    assert cli.json("group", "delete", "a", "large", "--yes") == {"queue": "a", "deleted": "large"}


def test_a_group_begins_at_a_time(cli: Cli) -> None:
    cli("queue", "create", "a")
    cli("publish", "a", "1")
    cli("group", "create", "a", "old", "--from", "1h")
    cli("group", "create", "a", "new", "--from", "2999-01-01T00:00:00Z")
    assert (cli.stats("a", "old")["lag"], cli.stats("a", "new")["lag"]) == (1, 0)
    assert "no time" in cli.fails("group", "create", "a", "x", "--from", "yesterday", code=2)


def test_a_group_is_moved(cli: Cli) -> None:
    cli("queue", "create", "a", "--option", "retain_messages=100")
    for number in range(4):
        cli("publish", "a", str(number))
    cli("consume", "a")
    assert cli.stats("a")["lag"] == 0
    assert cli("group", "seek", "a", "default", "--to", "first") == "Group a/default is moved.\n"
    assert cli.stats("a")["lag"] == 4
    assert cli.json("group", "seek", "a", "default", "--offset", "3", "--lane", "0")["offset"] == 3
    assert cli.stats("a")["lag"] == 1
    cli("group", "seek", "a", "default", "--time", "1h")
    assert cli.stats("a")["lag"] == 4
    cli("group", "seek", "a", "default", "--to", "last")
    assert cli.stats("a")["lag"] == 0
    assert "one of --to first" in cli.fails("group", "seek", "a", "default", code=2)
    assert "one of --to first" in cli.fails("group", "seek", "a", "default", "--to", "last", "--offset", "1", code=2)
    assert "offset is 9" in cli.fails("group", "seek", "a", "default", "--offset", "9")


def test_a_group_is_paused_resumed_and_purged(cli: Cli) -> None:
    cli("queue", "create", "a")
    cli("group", "create", "a", "g")
    cli("publish", "a", "1")
    assert cli("group", "pause", "a", "g") == "Group a/g is paused.\n"
    assert cli.stats("a", "g")["paused"] is True
    assert cli.json("group", "resume", "a", "g") == {"queue": "a", "group": "g", "paused": False}
    assert cli.stats("a", "g")["paused"] is False
    assert cli.json("group", "pause", "a", "g")["paused"] is True
    assert "not paused any more" in cli("group", "resume", "a", "g")
    assert cli.json("group", "purge", "a", "g", "--yes") == {"queue": "a", "group": "g", "purged": 1}
    assert cli("group", "purge", "a", "g", "--yes") == "Purged 0 messages.\n"


# Exchanges ------------------------------------------------------------------------------------------------


def test_exchanges_are_created_bound_shown_and_deleted(cli: Cli) -> None:
    assert "There are no exchanges" in cli("exchange", "list")
    cli("queue", "create", "eu")
    made = cli.json("exchange", "create", "orders", "--kind", "topic", "-o", "description=all")
    assert made == {"name": "orders", "created": True, "options": {"kind": "topic", "description": "all"}}
    assert "orders was there" in cli("exchange", "create", "orders", "--kind", "topic", "-o", "description=all")
    assert cli("exchange", "bind", "orders", "eu", "order.eu.*") == "orders leads to queue eu now.\n"
    cli("exchange", "create", "all", "--kind", "fanout")
    assert cli.json("exchange", "bind", "all", "orders", "--to-exchange")["target_kind"] == "exchange"
    assert ("orders", "topic") in [tuple(line.split()[:2]) for line in cli("exchange", "list").splitlines()]
    assert {"name": "all", "options": {"kind": "fanout"}} in cli.json("exchange", "list")
    assert "order.eu.*" in cli("exchange", "show", "orders")
    assert cli.json("exchange", "show", "orders")["bindings"] == [{"target": "eu", "pattern": "order.eu.*"}]

    assert "offset 0 of lane 0" in cli("publish", "--exchange", "orders", "--key", "order.eu.1", "hello")
    assert "reached no queue" in cli("publish", "--exchange", "orders", "--key", "order.us.1", "hello")
    assert cli.json("publish", "--exchange", "all", "--key", "order.eu.2", "hello") == [
        {"queue": "eu", "lane": 0, "offset": 1, "duplicate": False, "buffered": False}
    ]
    cli.fails("publish", "--exchange", "orders", "--key", "order.us.1", "hello", "--mandatory")

    assert "does not lead" in cli("exchange", "unbind", "orders", "eu", "order.eu.*")
    assert cli.json("exchange", "unbind", "all", "orders", "--to-exchange")["bound"] is False
    assert cli.json("exchange", "show", "orders")["bindings"] == []
    assert "pass --yes" in cli.fails("exchange", "delete", "orders")
    assert cli("exchange", "delete", "orders", "--yes") == "Exchange orders deleted.\n"
    assert cli.json("exchange", "delete", "all", "--yes") == {"deleted": "all"}
    cli.fails("exchange", "show", "orders")


def test_a_binding_by_typed_headers(cli: Cli) -> None:
    cli("queue", "create", "a")
    cli("exchange", "create", "files", "--kind", "headers")
    cli("exchange", "bind", "files", "a", "--header", "type=image", "--header", "size:=3", "--match", "any")
    assert cli.json("exchange", "show", "files")["bindings"] == [
        {"target": "a", "headers": {"type": "image", "size": 3}, "match": "any"}
    ]
    assert 'any of {"type":"image","size":3}' in cli("exchange", "show", "files")
    assert cli.json("publish", "--exchange", "files", "x", "--header", "size:=3")
    assert cli.json("publish", "--exchange", "files", "x", "--header", "size=3") == []
