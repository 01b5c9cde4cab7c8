"""Worlds: the engine with a schedule of its own, on both databases.

The modules of BOTH_WAYS run on PostgreSQL without the pipeline too: at least one for each stage, and those that are
about races, crashes and locks. `pytest tests/flow --both-ways` does so for all of them.

With the fixture `calls_anywhere` the calls of a test run where a hash of its name says, so that crashes and schedules
meet every placement at no further cost. `pytest tests/flow --placement here` makes it the same for all of them.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator

import pytest
import structlog

from chordage.orchestrator.core.agent import Placement
from chordage.orchestrator.store.database import Store
from support.databases import BACKENDS, BACKENDS_BOTH_WAYS
from support.placements import place_calls
from support.world import World

BOTH_WAYS = frozenset({
    "test_turn", "test_crash", "test_start_answer_lost", "test_fairness", "test_suspension", "test_suspension_races",
    "test_crossed_decisions", "test_steering", "test_double_texting_races", "test_coalescing_races", "test_leases",
    "test_children", "test_bus", "test_delivery", "test_polling", "test_pulse", "test_slots_passed_on",
    "test_one_connection", "test_locked_database", "test_verbs",
})  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    has_own = any(mark.args[0] == "backend" for mark in metafunc.definition.iter_markers("parametrize"))
    if "backend" in metafunc.fixturenames and not has_own:
        module = metafunc.module.__name__.rpartition(".")[2]
        both_ways = module in BOTH_WAYS or metafunc.config.getoption("--both-ways")
        metafunc.parametrize("backend", BACKENDS_BOTH_WAYS if both_ways else BACKENDS, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of wake-ups are not worth a line each."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.reset_defaults()


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    made = World(Store(database_url))
    yield made
    made.close()


@pytest.fixture
def calls_anywhere(world: World, request: pytest.FixtureRequest) -> None:
    given: str | None = request.config.getoption("--placement")
    by_name = list(Placement)[zlib.crc32(request.node.name.encode()) % len(Placement)]
    place_calls(world, Placement(given) if given else by_name)
