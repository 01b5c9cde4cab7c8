"""What an agent file may say of its strategy and of how it plans, and how each mistake in it is reported."""

from __future__ import annotations

import pytest

from chordage import RoomError
from chordage.orchestrator.core.agent import OnPlannerError, OutOfScope, PlanSpec

PLANS = """
model = "m"
strategy = "plan_execute"

[plan]
model = "small"
max_rounds = 3
timeout = 20
out_of_scope = "refuse_batch"
on_error = "fail"
planner = "my_plans:plan"
executor = "carry_out"
history = false
"""

FUNCTIONS = """
def plan(asked):
    return {"next_action": "response"}

def own(view):
    return None

text = "no function"
"""


@pytest.fixture
def functions(folder):
    return folder.write("my_plans.py", FUNCTIONS)


def fault(folder, text):
    folder.agent(text)
    with pytest.raises(RoomError) as refusal:
        folder.open().get(None)
    return str(refusal.value)


def test_every_key_reaches_the_definition(folder, functions):
    folder.agent(PLANS)
    spec = folder.open().get(None)

    assert spec.strategy == "plan_execute"
    assert spec.plan == PlanSpec(
        model="small", max_rounds=3, timeout=20, out_of_scope=OutOfScope.REFUSE_BATCH, on_error=OnPlannerError.FAIL,
        planner="my_plans:plan", executor="carry_out", history=False,
    )  # fmt: skip


def test_without_a_table_an_agent_plans_as_usual(folder):
    folder.agent('model = "m"\nstrategy = "plan_execute"\n')
    assert folder.open().get(None).plan == PlanSpec()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("max_rounds = 0", "agent.toml:5: plan.max_rounds: must be a whole number, 1 or more, or leave it out; got 0"),
        ("timeout = -1", "agent.toml:5: plan.timeout: must be a number of seconds"),
        ('out_of_scope = "skip"', "agent.toml:5: plan.out_of_scope: must be one of fail_command, refuse_batch"),
        ("max_round = 3", "agent.toml:5: plan.max_round: there is no such key; did you mean max_rounds?"),
        (
            'planner = "my_plans:nothing"',
            "agent.toml:5: plan.planner: module my_plans has no 'nothing'; there are: own, plan",
        ),
        ('planner = "my_plans:text"', "agent.toml:5: plan.planner: planner 'my_plans:text' is no function"),
        ('planner = "best"', "agent.toml:5: plan.planner: there is no planner 'best'; give an import path"),
    ],
)
def test_mistake_in_the_table_is_reported_with_its_line(folder, functions, line, told):
    assert told in fault(folder, f'model = "m"\nstrategy = "plan_execute"\n\n[plan]\n{line}\n')


def test_a_strategy_of_the_rooms_own_is_named_by_its_path(folder, functions):
    folder.agent('model = "m"\nstrategy = "my_plans:own"\n')
    assert folder.open().get(None).strategy == "my_plans:own"


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (
            "reakt",
            "agent.toml:2: strategy: must be one of direct, plan_execute, react, or module:function; got 'reakt'",
        ),
        ("my_plans:no", "agent.toml:2: strategy: module my_plans has no 'no'; there are: own, plan"),
        ("nowhere:own", "agent.toml:2: strategy: there is no module nowhere; put nowhere.py into the room"),
    ],
)
def test_unknown_strategy_is_reported_with_its_line(folder, functions, strategy, told):
    assert told in fault(folder, f'model = "m"\nstrategy = "{strategy}"\n')
