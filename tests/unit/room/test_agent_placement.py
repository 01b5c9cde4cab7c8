"""Where the calls of an agent run, as its file and its tools say it."""

from __future__ import annotations

import pytest

from chordage import RoomError, tool
from chordage.orchestrator.core.agent import Placement
from chordage.orchestrator.gateways.tools.declare import declared_on


def test_placement_is_read_for_the_agent_and_for_single_tools(folder):
    folder.agent('model = "m"\nplacement = "together"\n[placements]\nresize = "spread"\nsearch = "here"\n')
    agent = folder.open().get(None)

    assert agent.placement is Placement.TOGETHER
    assert agent.placements == {"resize": Placement.SPREAD, "search": Placement.HERE}


def test_placement_is_auto_where_nothing_is_said(folder):
    folder.agent()
    agent = folder.open().get(None)

    assert (agent.placement, agent.placements) == (Placement.AUTO, {})


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('placement = "there"', "agent.toml:2: placement: must be one of auto, here, together, spread"),
        ('[placements]\nsearch = "there"', "agent.toml:3: placements.search: must be one of auto, here, together"),
        ('placements = "here"', "agent.toml:2: placements: must be a table"),
    ],
)
def test_wrong_placement_has_its_line(folder, line, fault):
    folder.agent(f'model = "m"\n{line}')
    (found,) = folder.open().faults

    assert fault in str(found)


def test_placement_of_a_tool_that_the_agent_does_not_have_is_a_fault(folder, tools_file):
    """It would run where it was not to run."""
    folder.agent('model = "m"\ntools = ["my_tools"]\n[placements]\nserch = "spread"\n')
    room = folder.open()

    with pytest.raises(RoomError, match="agent.toml:3: placements: the agent has no tool 'serch'; it has: search"):
        room.check_tools(room.get(None))


def test_placement_of_a_tool_of_a_server_is_taken_without_asking_the_server(folder, tools_file):
    folder.agent(
        'model = "m"\ntools = ["my_tools"]\n[placements]\ncount = "here"\nfiles_read = "here"\n'
        '[mcp.files]\ncommand = "files"\nrequired = false\n'
    )
    room = folder.open()

    assert {spec.name for spec in room.check_tools(room.get(None))} == {"search", "count"}


def test_tool_says_where_its_calls_run():
    @tool(placement="spread")
    def resize() -> None: ...

    assert declared_on(resize).spec.placement is Placement.SPREAD


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"placement": "near"}, "placement must be one of auto, here, together, spread; got 'near'"),
        ({"placement": "here"}, "placement here is for effect pure or idempotent"),
    ],
)
def test_wrong_placement_of_a_tool_is_refused_where_it_is_declared(options, why):
    with pytest.raises(RoomError, match=why):

        @tool(**options)
        def send() -> None: ...
