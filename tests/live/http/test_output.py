"""Structured output over HTTP."""

from __future__ import annotations

import pytest

from support.web_server import finish

pytestmark = pytest.mark.redis

AGENT = """
model = "scripted:number.yaml"
[output]
schema = {type = "object", required = ["n"], properties = {n = {type = "integer"}}}
"""


@pytest.fixture
def number(settings):
    """An agent that owes a number, there before the server is."""
    (settings.room_path / "agents" / "number.toml").write_text(AGENT)
    (settings.room_path / "number.yaml").write_text("- text: seven\n- text: '{\"n\": 7}'\n")


@pytest.mark.usefixtures("number")
def test_the_output_is_read_with_the_turn(client, rt):
    asked = client.post("/turns", json={"text": "a number, please", "agent": "number"}).json()
    finish(rt, asked["turn_id"])

    turn = client.get(f"/turns/{asked['turn_id']}").json()

    assert (turn["disposition"], turn["output"]) == ("answered", {"n": 7})


def test_a_turn_without_a_demand_has_none(client, rt):
    asked = client.post("/turns", json={"text": "hello"}).json()
    finish(rt, asked["turn_id"])
    assert client.get(f"/turns/{asked['turn_id']}").json()["output"] is None
