"""Fixtures of the conformance suite: each test runs once per engine that it applies to."""

from __future__ import annotations

import pytest

from tests.conformance.engines import ENGINES, Engine

DURABLE = [engine for engine in ENGINES if engine.durable]


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    return prepared(request.param)


@pytest.fixture(params=DURABLE, ids=lambda engine: engine.name)
def durable_engine(request: pytest.FixtureRequest) -> Engine:
    return prepared(request.param)


def prepared(engine: Engine) -> Engine:
    if missing := engine.missing():
        pytest.skip(missing)
    engine.prepare()
    return engine
