"""The workers of these tests: processes of this machine, on the room beside this file."""

from pathlib import Path

import pytest

from chordage.testing.nodes import NodePlan

pytest_plugins = ["chordage.testing.nodes"]


@pytest.fixture
def chordage_nodes() -> NodePlan:
    return NodePlan(room=Path(__file__).parent / "room", concurrency=1)
