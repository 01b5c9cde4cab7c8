"""What is found wrong with a room before a worker starts."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.room.agents import Room
from chordage.workers.bootstrap import check_agent, models_of

AGENT = 'name = "a"\nmodel = "scripted:s.yaml"\ntools = ["slow_tools_of_this_test"]\n'
TOOL = """
from chordage import tool

@tool(effect="pure", timeout=400, retries=2, retry_on=(OSError,))
def slow(n: int) -> int:
    \"\"\"Takes its time.\"\"\"
    return n
"""


@pytest.fixture
def room(tmp_path):
    (tmp_path / "agent.toml").write_text(AGENT)
    (tmp_path / "s.yaml").write_text("- text: hi\n")
    (tmp_path / "slow_tools_of_this_test.py").write_text(TOOL)
    return Room(tmp_path)


def check(room, time_limit):
    check_agent(room, models_of(room), room.get(None), time_limit=time_limit)


def test_agent_with_a_tool_limit_above_that_of_the_worker_cannot_be_used(room) -> None:
    with pytest.raises(RoomError, match=r"tool 'slow' may take 1200 s .* ends a call after 900 s: lower its timeout"):
        check(room, 900)

    check(room, 1201)
