"""Consumer groups: list, declare, change, delete, seek, pause, purge; consumers that come and go."""

from __future__ import annotations

from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.queues import Options, known
from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model import GroupConfig
from penstock.model.errors import AlreadyExists, NotFound, WrongKind
from penstock.wire.http.shapes import (
    AttachRequest,
    ConsumerRequest,
    CountAnswer,
    DetachRequest,
    GroupsAnswer,
    QueueBody,
    SeekRequest,
)

ROUTES = Routes()
GROUP = "/v1/queues/{queue}/groups/{group}"


@ROUTES.add("GET", "/v1/queues/{queue}/groups", {200: GroupsAnswer})
async def list_groups(call: Call) -> Answer:
    """The groups of a queue, each with its options that differ from the defaults."""
    groups = sorted((await call.broker.groups(call.names["queue"])).items())
    return json_answer(GroupsAnswer([QueueBody(name=name, options=options) for name, options in groups]))


@ROUTES.add("PUT", GROUP, {200: QueueBody, 201: QueueBody}, body_schema=GroupConfig, errors=[AlreadyExists])
async def declare_group(call: Call, body: Options) -> Answer:
    """Create a group, or change the options named here of the one that exists."""
    queue, group = call.names["queue"], call.names["group"]
    status = 200 if group in await call.broker.groups(queue) else 201
    await call.broker.declare_group(queue, group, **known(body, GroupConfig))
    return json_answer(await _group(call), status)


@ROUTES.add("PATCH", GROUP, {200: QueueBody}, body_schema=GroupConfig, errors=[AlreadyExists])
async def change_group(call: Call, body: Options) -> Answer:
    """Change the options named here of a group that exists."""
    await _group(call)
    await call.broker.declare_group(call.names["queue"], call.names["group"], **known(body, GroupConfig))
    return json_answer(await _group(call))


@ROUTES.add("GET", GROUP, {200: QueueBody})
async def show_group(call: Call) -> Answer:
    """A group and its options that differ from the defaults."""
    return json_answer(await _group(call))


async def _group(call: Call) -> QueueBody:
    queue, group = call.names["queue"], call.names["group"]
    options = (await call.broker.groups(queue)).get(group)
    if options is None:
        raise NotFound(f"queue {queue!r} has no group {group!r}; declare it first")
    return QueueBody(name=group, options=options)


@ROUTES.add("DELETE", GROUP, {204: None})
async def delete_group(call: Call) -> Answer:
    """Delete a group with its leases, waiting and dead messages."""
    await call.broker.delete_group(call.names["queue"], call.names["group"])
    return NOTHING


@ROUTES.add("POST", GROUP + "/seek", {204: None})
async def seek(call: Call, body: SeekRequest) -> Answer:
    """Move a group: everything before the place is done, everything from it on is new again."""
    await call.broker.seek(
        call.names["queue"], call.names["group"], to=body.to, offset=body.offset, time_ms=body.time_ms, lane=body.lane
    )
    return NOTHING


@ROUTES.add("POST", GROUP + "/pause", {204: None})
async def pause_group(call: Call) -> Answer:
    """Hand out nothing more to a group."""
    await call.broker.pause(call.names["queue"], call.names["group"])
    return NOTHING


@ROUTES.add("POST", GROUP + "/resume", {204: None})
async def resume_group(call: Call) -> Answer:
    """Undo a pause."""
    await call.broker.resume(call.names["queue"], call.names["group"])
    return NOTHING


@ROUTES.add("POST", GROUP + "/purge", {200: CountAnswer}, errors=[WrongKind])
async def purge(call: Call) -> Answer:
    """Everything that is neither leased nor dead is done for a group; how many messages."""
    return json_answer(CountAnswer(await call.broker.purge(call.names["queue"], call.names["group"])))


@ROUTES.add("POST", GROUP + "/attach", {204: None})
async def attach(call: Call, body: AttachRequest) -> Answer:
    """Say that a consumer is there: queues with `auto_delete` live as long as one is."""
    await call.broker.attach(call.names["queue"], call.names["group"], consumer=body.consumer, exclusive=body.exclusive)
    return NOTHING


@ROUTES.add("POST", GROUP + "/detach", {204: None})
async def detach(call: Call, body: DetachRequest) -> Answer:
    """Say that a consumer has gone: what it holds returns at once, counted as an attempt."""
    await call.broker.detach(call.names["queue"], call.names["group"], consumer=body.consumer, keep=body.keep)
    return NOTHING


@ROUTES.add("POST", GROUP + "/stop-waiting", {204: None})
async def stop_waiting(call: Call, body: ConsumerRequest) -> Answer:
    """Answer the claims that wait for this consumer now: with nothing, unless messages were on their way to it."""
    await call.broker.stop_waiting(call.names["queue"], call.names["group"], consumer=body.consumer)
    return NOTHING
