"""`agents` of an agent's file: whom it may ask."""

from __future__ import annotations

import pytest

from chordage import RoomError
from chordage.orchestrator.core.agent import Limits, SubAgent
from chordage.orchestrator.core.subagents import specs
from support.plain_room import agent_faults


def test_a_list_of_names_is_enough(folder):
    folder.agent('model = "m"\nagents = ["alpha", "be.ta"]')
    spec = folder.open().get(None)

    assert spec.agents == (SubAgent(agent="alpha"), SubAgent(agent="be.ta"))
    assert sorted(specs(spec)) == ["ask_alpha", "ask_be_ta"]


def test_table_for_each_gives_the_model_more_and_sets_a_time_limit(folder):
    folder.agent('model = "m"\n[agents.alpha]\ndescription = "Knows birds."\ntimeout = 60\n[agents.beta]')
    spec = folder.open().get(None)

    assert spec.agents == (SubAgent(agent="alpha", description="Knows birds.", timeout=60), SubAgent(agent="beta"))
    assert specs(spec)["ask_alpha"].description == "Knows birds."


def test_the_limits_of_a_tree_are_limits_of_the_agent(folder):
    folder.agent('model = "m"\n[limits]\nmax_depth = 2\nmax_children = 7')
    assert folder.open().get(None).limits == Limits(max_depth=2, max_children=7)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agents = [1]", "agent.toml:2: agents: must be a list of texts"),
        ('agents = ["a.b", "a_b"]', "agent.toml:2: agents: two of them would be the tool 'ask_a_b'"),
        ("[agents.a]\ntimeout = 0", "agent.toml:3: agents.a.timeout: must be a number of seconds"),
        ("[agents.a]\ntimeot = 1", "agent.toml:3: agents.a.timeot: there is no such key; did you mean timeout?"),
        ("[limits]\nmax_depth = 0", "agent.toml:3: limits.max_depth: must be a whole number, 1 or more"),
    ],
)
def test_mistake_is_reported_with_its_place(folder, text, said):
    folder.agent(f'model = "m"\n{text}')
    with pytest.raises(RoomError) as refusal:
        folder.open().get(None)
    assert said in str(refusal.value)


def test_check_finds_missing_agents_and_tools_that_cannot_be_called(folder):
    folder.write("askers.py", "from chordage import tool\n\n@tool\ndef ask_alpha(x: str) -> str:\n    return x\n")
    folder.agent('model = "m"\nname = "lead"\ntools = ["askers"]\nagents = ["alpha", "nobody"]')
    folder.agent('model = "m"', "agents/alpha.toml")

    assert agent_faults(folder.path) == [
        "agent.toml:4: agents: there is no agent 'nobody'; there are: lead, alpha",
        "agent.toml:4: agents: its tool ask_alpha would never be called; rename it with @tool(name=...)",
    ]
