"""Schedules: messages that are published again and again."""

from __future__ import annotations

from penstock.api.broker import Broker
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.wire.http.answers import ScheduleBody
from penstock.wire.http.arguments import ScheduleRequest

ROUTES = Routes(__name__)


@ROUTES.answer(Broker.declare_schedule, {200: ScheduleBody, 201: ScheduleBody})
async def declare_schedule(call: Call, body: ScheduleRequest) -> Answer:
    """Create or replace a schedule: a message for a queue or exchange, by cron expression or interval."""
    name = call.names["schedule"]
    call.broker.authorize("declare", "schedule", name)
    status = 200 if any(schedule.name == name for schedule in await call.broker.schedules()) else 201
    schedule = await call.broker.declare_schedule(name, **body.arguments())
    return json_answer(ScheduleBody.from_result(schedule), status)
