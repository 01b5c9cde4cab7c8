"""Worlds: the engine with a schedule of its own, on both databases.

The modules of BOTH_WAYS run on PostgreSQL without the pipeline too: at least one for each stage, and those that are
about races, crashes and locks. `pytest tests/flow --both-ways` does so for all of them.

With the fixture `calls_anywhere` the calls of a test run where a hash of its name says, so that crashes and schedules
meet every placement at no further cost. `pytest tests/flow --placement here` makes it the same for all of them.

With the fixture `with_cipher` contents are encrypted. `pytest tests/flow --cipher` does so for all of them; tests that
write contents into tables themselves then fail, because the values have no owner.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator

import pytest
import structlog

from chordage.orchestrator.core.agent import Placement
from chordage.orchestrator.store.database import Store
from support.ciphers import encrypt_all
from support.databases import BACKENDS, BACKENDS_BOTH_WAYS
from support.placements import place_calls
from support.world import World

BOTH_WAYS = frozenset({
    "test_turn", "test_crash", "test_start_answer_lost", "test_fairness", "test_suspension", "test_suspension_races",
    "test_crossed_decisions", "test_steering", "test_double_texting_races", "test_coalescing_races", "test_leases",
    "test_children", "test_bus", "test_delivery", "test_polling", "test_pulse", "test_slots_passed_on",
    "test_one_connection", "test_locked_database", "test_verbs",
})  # fmt: skip

# These run with encrypted contents too: a way through each feature.
WITH_CIPHER = frozenset({
    "test_turn_is_answered_with_the_results_in_the_models_order", "test_message_during_a_round_comes_after_the_results",
    "test_a_call_of_a_sub_agent_is_a_turn_of_its_own_and_its_answer_the_result", "test_a_decision_may_be_the_result",
    "test_a_decision_may_be_handed_to_the_tool", "test_a_summary_takes_in_the_one_before",
    "test_two_rounds_are_planned_carried_out_and_answered_from", "test_what_a_person_decides_keeps_its_order_too",
    "test_a_second_answer_that_does_not_fit_ends_the_run_with_what_is_wrong_and_where",
    "test_replies_of_a_thread_leave_in_their_order_although_the_first_fails",
    "test_a_call_that_a_person_approved_with_other_arguments_is_answered_as_it_was",
    "test_a_cut_result_is_read_by_the_call_of_the_fork", "test_trees_are_sent_whole_and_once",
    "test_B26_B27_repeated_and_concurrent_calls_carry_out_once",
})  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ in WITH_CIPHER:
        metafunc.fixturenames.append("encrypted")
        metafunc.parametrize("encrypted", [False, True], ids=["", "cipher"])
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
def world(database_url: str, request: pytest.FixtureRequest) -> Iterator[World]:
    callspec = getattr(request.node, "callspec", None)
    if request.config.getoption("--cipher") or (callspec is not None and callspec.params.get("encrypted")):
        request.getfixturevalue("with_cipher")
    made = World(Store(database_url))
    yield made
    made.close()


@pytest.fixture
def with_cipher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store of the test encrypts contents."""
    encrypt_all(monkeypatch)


@pytest.fixture
def calls_anywhere(world: World, request: pytest.FixtureRequest) -> None:
    given: str | None = request.config.getoption("--placement")
    by_name = list(Placement)[zlib.crc32(request.node.name.encode()) % len(Placement)]
    place_calls(world, Placement(given) if given else by_name)
