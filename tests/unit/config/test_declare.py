"""Declarations in files: mistakes with their lines, the difference to what there is, and doing it on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import Message
from penstock.declare.file import Declarations, read_declarations
from penstock.declare.plan import Change, Present, Step, StepFailed, plan, plan_all, take
from penstock.node.broker import LocalBroker
from penstock.toml_file import FileProblems, TomlFile
from tests.local import open_local

FILE = """
[queues.mail]
max_attempts = 6
rate = 10

[queues.mail.groups.sending]
max_in_flight = 2

[queues.log]

[exchanges.orders]
kind = "topic"
bindings = [
  { target = "mail", pattern = "order.*" },
  { target = "all", target_kind = "exchange", pattern = "#" },
]

[exchanges.all]
kind = "fanout"

[[exchanges.all.bindings]]
target = "log"

[schedules.nightly]
queue = "mail"
cron = "0  3 * * *"
message = { payload_json = { digest = true }, key = "k" }

[namespaces.staging.queues.mail]
lanes = 2
"""


def declarations(text: str = FILE, namespace: str = "default") -> Declarations:
    return read_declarations(TomlFile("q.toml", text), others=("http",), namespace=namespace)


def problems(text: str) -> list[str]:
    with pytest.raises(FileProblems) as raised:
        declarations(text)
    return raised.value.problems


def on_broker(work: Callable[[LocalBroker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with await open_local(None) as broker:
            await work(broker)

    asyncio.run(run())


def summary(steps: list[Step]) -> list[str]:
    return [f"{step.action} {step.title}" for step in steps]


# Reading ----------------------------------------------------------------------------------------------------


def test_what_a_file_declares() -> None:
    found = declarations()
    assert list(found) == ["default", "staging"]
    world = found["default"]
    assert world.queues["mail"].options == {"max_attempts": 6, "rate": 10}
    assert world.queues["mail"].where == "q.toml:2"
    assert world.queues["mail"].groups["sending"].options == {"max_in_flight": 2}
    assert [one.where for one in world.exchanges["orders"].bindings] == ["q.toml:14", "q.toml:15"]
    assert world.exchanges["all"].bindings[0].where == "q.toml:21"
    message = world.schedules["nightly"].options["message"]
    assert message == Message(b'{"digest":true}', key="k", content_type="application/json")


def test_the_servers_own_sections_are_let_be() -> None:
    assert declarations("[http]\nport = 'whatever'\n[queues.a]\n")["default"].queues["a"].options == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[queus.a]\n", "q.toml:1: unknown table 'queus'; did you mean queues?"),
        ("[queues.a]\n\nmax_atempts = 1\n", "q.toml:3: unknown option 'max_atempts'; did you mean max_attempts?"),
        ("[queues.a]\nlanes = 0\n", "q.toml:2: lanes is 0; it must be 1 to"),
        ("[queues.a]\nlanes = 'x'\n", "q.toml:2: lanes: expected int, got str"),
        ("[queues]\na = 1\n", "q.toml:2: queues.a is a table; write [queues.a]"),
        ("[queues.'$x']\n", "q.toml:1: queue '$x': names that begin with $ are the system's"),
        ("[queues.a]\nexclusive = true\n", "q.toml:2: exclusive queues belong to a session"),
        ("[queues.a]\ndebounce_ms = 5\n", "q.toml:2: debounce_ms is 5, but only an ordered queue can debounce"),
        ("[queues.a.groups.g]\nkind = 'x'\n", "q.toml:2: kind: invalid enum value 'x'"),
        ("[queues.a.groups.g]\n\nfilter = 'a ='\n", "q.toml:3: filter: "),
        ("[queues.a]\ngroups = { 'a\\u0001' = {} }\n".replace("'", '"'), "q.toml:2: a group's name"),
        ("[exchanges.x]\nbindings = {}\n", "q.toml:2: bindings is an array"),
        ("[exchanges.x]\nbindings = [1]\n", "q.toml:2: a binding is a table"),
        ("[exchanges.x]\nbindings = [{ target = 'q', patern = '' }]\n",
         "q.toml:2: unknown option 'patern' of a binding; did you mean pattern?"),
        ("[exchanges.x]\nbindings = [\n{ pattern = '' }]\n",
         "q.toml:3: a binding: object missing required field target"),
        ("[exchanges.x]\nkind = 'filter'\nbindings = [\n\n{ target = 'q', pattern = 'a =' }]\n", "q.toml:5: "),
        ("[schedules.s]\nqueue = 'q'\nmessage = {}\n", "q.toml:1: "),
        ("[schedules.s]\nqueue = 'q'\ncron = 'x'\nmessage = {}\n", "q.toml:3: cron"),
        ("[schedules.s]\nqueue = 'q'\ninterval_ms = 1000\ntimezone = 'Mars/Base'\nmessage = {}\n",
         "q.toml:4: timezone"),
        ("[schedules.s]\nqueue = 'q'\ninterval_ms = 1000\nmessage = { playload = 1 }\n",
         "q.toml:4: a schedule: object contains unknown field playload"),
        ("[schedules.s]\nqueue = 'q'\ninterval_ms = 1000\nmessage = { dedup_id = 'x' }\n",
         "q.toml:4: the message has dedup_id"),
        ("[schedules.s]\nqeue = 'q'\n", "q.toml:2: unknown option 'qeue'; did you mean queue?"),
        ("[namespaces.x.users.a]\n", "q.toml:1: unknown table 'users'"),
        ("[queues.a]\n[namespaces.default.queues.b]\n", "q.toml:2: namespace 'default' is where"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(text: str, problem: str) -> None:
    [found] = problems(text)
    assert found.startswith(problem)


def test_an_option_may_stand_before_the_one_it_needs() -> None:
    assert declarations("[queues.a]\ndebounce_ms = 5\nordered = true\n")["default"].queues["a"].options["ordered"]


def test_all_mistakes_are_told() -> None:
    text = "[queues.a]\nlanes = 0\nrate = -1\nx = 1\n[queues.b]\nlanes = 0\n"
    assert [problem.partition(": ")[0] for problem in problems(text)] == [
        "q.toml:4",
        "q.toml:2",
        "q.toml:3",
        "q.toml:6",
    ]


# The difference ---------------------------------------------------------------------------------------------


def test_only_named_options_count() -> None:
    present = Present(queues={"mail": {"max_attempts": 3, "ordered": True}, "log": {}}, groups={"mail": {}, "log": {}})
    steps = plan("default", declarations("[queues.mail]\nmax_attempts = 5\n[queues.log]\n")["default"], present)
    assert summary(steps) == ["change queue mail", "unchanged queue log"]
    assert steps[0].changes == [Change("max_attempts", 3, 5)]


def test_a_number_is_the_same_in_either_form() -> None:
    present = Present(queues={"mail": {"rate": 10.0}})
    assert [
        step.action for step in plan("default", declarations("[queues.mail]\nrate = 10\n")["default"], present)
    ] == ["unchanged"]


@pytest.mark.parametrize(
    ("text", "present", "change"),
    [
        ("[queues.a]\nlanes = 2\n", Present(queues={"a": {}}), Change("lanes", 1, 2)),
        ("[exchanges.a]\nkind = 'topic'\n", Present(exchanges={"a": {}}), Change("kind", "direct", "topic")),
    ],
)
def test_what_cannot_change_is_a_conflict(text: str, present: Present, change: Change) -> None:
    [step] = plan("default", declarations(text)["default"], present)
    assert (step.action, step.changes) == ("conflict", [change])


def test_a_fixed_option_of_a_group_is_a_conflict() -> None:
    present = Present(queues={"a": {}}, groups={"a": {"g": {}}})
    steps = plan("default", declarations("[queues.a.groups.g]\nkind = 'stream'\n")["default"], present)
    assert summary(steps) == ["unchanged queue a", "conflict group a/g"]


def test_a_pause_that_the_file_does_not_speak_of_stays() -> None:
    schedule = {
        "queue": "q",
        "exchange": None,
        "cron": None,
        "interval_ms": 1000,
        "timezone": "UTC",
        "description": "",
        "message": Message(b""),
        "paused": True,
    }
    text = "[schedules.s]\nqueue = 'q'\ninterval_ms = 1000\nmessage = {}\n"
    [step] = plan("default", declarations(text)["default"], Present(schedules={"s": schedule}))
    assert step.action == "unchanged"
    [step] = plan("default", declarations(text + "paused = false\n")["default"], Present(schedules={"s": schedule}))
    assert step.changes == [Change("paused", True, False)]
    [step] = plan("default", declarations(text.replace("1000", "2000"))["default"], Present(schedules={"s": schedule}))
    assert (step.changes, step.options["paused"]) == ([Change("interval_ms", 1000, 2000)], True)


# Doing it ---------------------------------------------------------------------------------------------------


def test_declared_once_it_is_there_and_the_second_time_changes_nothing() -> None:
    async def work(broker: LocalBroker) -> None:
        steps = await plan_all(broker, declarations())
        assert {step.action for step in steps} == {"create"}
        await take(broker, steps)
        assert (await broker.queues())["mail"] == {"max_attempts": 6, "rate": 10.0}
        assert await broker.groups("mail") == {"sending": {"max_in_flight": 2}}
        assert (await broker.exchanges())["orders"] == {"kind": "topic"}
        assert [binding.target for binding in await broker.bindings("orders")] == ["mail", "all"]
        assert (await broker.schedules())[0].message.payload == b'{"digest":true}'
        assert await broker.in_namespace("staging").queues() == {"mail": {"lanes": 2}}
        receipt = await broker.publish_to("orders", Message(b"x", key="order.paid"))
        assert {published.queue for published in receipt} == {"mail", "log"}
        again = await plan_all(broker, declarations())
        assert {step.action for step in again} == {"unchanged"}
        assert len(again) == len(steps)

    on_broker(work)


def test_changes_are_made_and_the_rest_stays() -> None:
    async def work(broker: LocalBroker) -> None:
        await broker.declare_queue("a", max_attempts=3, ttl_ms=5)
        await take(broker, await plan_all(broker, declarations("[queues.a]\nmax_attempts = 4\n")))
        assert (await broker.queues())["a"] == {"max_attempts": 4, "ttl_ms": 5}

    on_broker(work)


def test_nothing_is_deleted_unless_asked_for_and_then_only_what_people_made() -> None:
    async def work(broker: LocalBroker) -> None:
        await take(broker, await plan_all(broker, declarations()))
        await broker.claim("log")  # makes the default group
        smaller = declarations('[queues.log]\n[exchanges.all]\nkind = "fanout"\n')
        assert {step.action for step in await plan_all(broker, smaller)} == {"unchanged"}
        async with broker.session() as session:
            await session.declare_queue("private", exclusive=True)
            steps = await plan_all(broker, smaller, prune=True)
            assert [line for line in summary(steps) if line.startswith("delete")] == [
                "delete schedule nightly",
                "delete binding all → log",
                "delete exchange orders",
                "delete queue mail",
            ]
            await take(broker, steps)
            assert set(await broker.queues()) == {"$events", "log", "private"}
        assert set(await broker.groups("log")) == {"default"}
        assert set(await broker.exchanges()) - {""} == {"all"}
        assert await broker.bindings("all") == []
        assert await broker.schedules() == []
        assert set(await broker.in_namespace("staging").queues()) == {"mail"}

    on_broker(work)


def test_a_group_that_the_file_does_not_name_goes_when_asked_for() -> None:
    async def work(broker: LocalBroker) -> None:
        await take(broker, await plan_all(broker, declarations("[queues.a.groups.g]\n[queues.a.groups.h]\n")))
        await take(broker, await plan_all(broker, declarations("[queues.a.groups.h]\n"), prune=True))
        assert set(await broker.groups("a")) == {"h"}

    on_broker(work)


def test_a_step_that_fails_names_its_line() -> None:
    async def work(broker: LocalBroker) -> None:
        text = '[exchanges.x]\nbindings = [\n  { target = "nowhere" }]\n'
        with pytest.raises(StepFailed, match=r"^q\.toml:3: binding x → nowhere: there is no queue 'nowhere'"):
            await take(broker, await plan_all(broker, declarations(text)))

    on_broker(work)


def test_a_clients_answers_are_awaited() -> None:
    class Client:
        """The broker behind coroutines, as a client is."""

        def __init__(self, broker: Any) -> None:
            self._broker = broker

        def in_namespace(self, namespace: str) -> Client:
            return Client(self._broker.in_namespace(namespace))

        def __getattr__(self, name: str) -> Any:
            async def call(*arguments: Any, **options: Any) -> Any:
                answer = getattr(self._broker, name)(*arguments, **options)
                return await answer if asyncio.iscoroutine(answer) else answer

            return call

    async def work(broker: LocalBroker) -> None:
        client = Client(broker)
        await take(client, await plan_all(client, declarations()))
        assert {step.action for step in await plan_all(client, declarations())} == {"unchanged"}

    on_broker(work)
