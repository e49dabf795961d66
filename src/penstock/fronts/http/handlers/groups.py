"""Consumer groups: list, declare, change, delete, seek, pause, purge; consumers that come and go."""

from __future__ import annotations

from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.queues import Options, known
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model import GroupConfig
from penstock.model.errors import AlreadyExists, LimitReached, NotFound
from penstock.wire.http.answers import QueueBody
from penstock.wire.http.endpoints import GROUP

ROUTES = Routes(__name__)


@ROUTES.add(
    "PUT", GROUP, {200: QueueBody, 201: QueueBody}, body_schema=GroupConfig, errors=[AlreadyExists, LimitReached]
)
async def declare_group(call: Call, body: Options) -> Answer:
    """Create a group, or change the options named here of the one that exists."""
    queue, group = call.names["queue"], call.names["group"]
    call.broker.authorize("declare", "queue", queue)
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
