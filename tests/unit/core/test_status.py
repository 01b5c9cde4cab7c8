"""The tables of the state machines: what moves, what never does, and what the guarded UPDATE asks for."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core import status
from chordage.orchestrator.core.errors import IllegalTransition
from chordage.orchestrator.core.status import CALL, RUN, TURN, CallStatus, RunStatus, TurnStatus, sources

TABLES = {"turn": TURN, "run": RUN, "call": CALL}
STATES = {"turn": TurnStatus, "run": RunStatus, "call": CallStatus}

# Written out a second time, as the specification has them: a table that is changed by accident disagrees with this one.
LEGAL = {
    "turn": "queued>active queued>done active>done",
    "run": "running>waiting running>done waiting>running waiting>done",
    "call": (
        "new>running new>suspended new>succeeded new>failed new>cancelled "
        "running>suspended running>succeeded running>failed running>cancelled "
        "suspended>resuming suspended>cancelled "
        "resuming>running resuming>suspended resuming>succeeded resuming>failed resuming>cancelled"
    ),
}
FINAL = {"turn": {"done"}, "run": {"done"}, "call": {"succeeded", "failed", "cancelled"}}

EVERY_MOVE = [(machine, a, b) for machine, states in STATES.items() for a, b in product(states, states)]


@pytest.mark.parametrize(("machine", "here", "there"), EVERY_MOVE, ids=str)
def test_exactly_the_moves_of_the_specification_are_in_the_table(machine, here, there):
    legal = f"{here.value}>{there.value}" in LEGAL[machine].split()

    assert (there in TABLES[machine][here]) is legal


@pytest.mark.parametrize(("machine", "here", "there"), EVERY_MOVE, ids=str)
def test_sources_are_the_table_read_backwards(machine, here, there):
    if not any(there in onward for onward in TABLES[machine].values()):
        pytest.raises(IllegalTransition, sources, TABLES[machine], there)
        return

    assert (here in sources(TABLES[machine], there)) is (there in TABLES[machine][here])


@pytest.mark.parametrize("machine", TABLES)
def test_every_state_has_its_line_in_the_table(machine):
    assert set(TABLES[machine]) == set(STATES[machine])


@pytest.mark.parametrize("machine", TABLES)
def test_final_states_have_no_successors(machine):
    leads_nowhere = {state.value for state, onward in TABLES[machine].items() if not onward}

    assert leads_nowhere == FINAL[machine]


@given(data=st.data())
@pytest.mark.parametrize("machine", TABLES)
def test_a_path_through_the_table_stays_where_it_has_ended(machine, data):
    """Whatever is asked for, in any order, a row moves by the table or stays: no path leaves a final state."""
    table, states = TABLES[machine], st.sampled_from(list(STATES[machine]))
    here = data.draw(states)
    ended = None

    for there in data.draw(st.lists(states, max_size=12)):
        here = there if there in table[here] else here
        ended = ended or (here if here.value in FINAL[machine] else None)
        assert ended in {None, here}


@pytest.mark.parametrize("machine", TABLES)
def test_from_every_state_there_is_a_way_to_an_end(machine):
    table = TABLES[machine]

    def reaches_an_end(here, seen):
        return not table[here] or any(reaches_an_end(there, {*seen, here}) for there in table[here] - seen)

    assert all(reaches_an_end(here, set()) for here in table)


def test_nothing_returns_to_the_state_it_began_in():
    for machine, beginning in (("turn", TurnStatus.QUEUED), ("call", CallStatus.NEW)):
        with pytest.raises(IllegalTransition, match=f"nothing moves to '{beginning.value}'"):
            sources(TABLES[machine], beginning)


def test_open_and_in_flight_are_derived_from_the_tables():
    assert {state.value for state in status.OPEN_RUN} == {"running", "waiting"}
    assert {state.value for state in status.OPEN_CALL} == {"new", "running", "suspended", "resuming"}
    assert status.OPEN_CALL - {CallStatus.SUSPENDED} == status.IN_FLIGHT_CALL


def test_a_message_can_end_in_exactly_eight_ways():
    ways = "answered merged steered rejected expired superseded cancelled failed"

    assert [way.value for way in status.Disposition] == ways.split()
