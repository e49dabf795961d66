"""How a replay's plan is cut into units: always the same way, every offset once, none larger than allowed."""

from __future__ import annotations

import random

from penstock.spark.jobs.replay.history import Plan, units
from penstock.spark.source.planning import LaneSlice


def test_units_have_every_offset_once() -> None:
    chance = random.Random(7)
    for _ in range(100):
        slices = []
        for lane in range(chance.randint(0, 5)):
            start = chance.randint(0, 50)
            slices.append(LaneSlice("orders", 7, lane, start, start + chance.randint(0, 40)))
        plan = Plan(slices, chance.randint(1, 30))
        found = units(plan)
        assert found == units(plan)
        assert all(0 < sum(piece.rows for piece in unit) <= plan.unit_rows for unit in found)
        assert all(sum(piece.rows for piece in unit) == plan.unit_rows for unit in found[:-1])
        assert all(len({piece.lane for piece in unit}) == len(unit) for unit in found)
        places = [(piece.lane, offset) for unit in found for piece in unit for offset in range(piece.start, piece.end)]
        assert places == [(one.lane, offset) for one in slices for offset in range(one.start, one.end)]
