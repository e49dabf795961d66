"""Schedules: messages that are published again and again."""

from __future__ import annotations

import msgspec

from penstock.api.broker import Broker
from penstock.api.schedules import Schedule
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import LimitReached
from penstock.wire.http.shapes import ScheduleBody, ScheduleRequest, SchedulesAnswer, message_body

ROUTES = Routes(__name__)
SCHEDULE = "/v1/schedules/{schedule}"


def _body(schedule: Schedule) -> ScheduleBody:
    return ScheduleBody(**{**msgspec.structs.asdict(schedule), "message": message_body(schedule.message)})


@ROUTES.add("GET", "/v1/schedules", {200: SchedulesAnswer})
async def list_schedules(call: Call) -> Answer:
    """The schedules of a namespace by name."""
    return json_answer(SchedulesAnswer([_body(schedule) for schedule in await call.broker.schedules()]))


@ROUTES.add("PUT", SCHEDULE, {200: ScheduleBody, 201: ScheduleBody}, errors=[LimitReached])
async def declare_schedule(call: Call, body: ScheduleRequest) -> Answer:
    """Create or replace a schedule: a message for a queue or exchange, by cron expression or interval."""
    name = call.names["schedule"]
    status = 200 if any(schedule.name == name for schedule in await call.broker.schedules()) else 201
    options = msgspec.structs.asdict(body) | {"message": body.message.message()}
    schedule = await call.broker.declare_schedule(name, **options)
    return json_answer(_body(schedule), status)


@ROUTES.add("GET", SCHEDULE, {200: ScheduleBody})
async def show_schedule(call: Call) -> Answer:
    """A schedule, when it fired last and when it fires next."""
    return json_answer(_body(await call.broker.schedule(call.names["schedule"])))


ROUTES.forward("DELETE", SCHEDULE, Broker.delete_schedule)
