"""Results of tool calls over HTTP: whole, in bounded parts."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from support.web_server import PROBLEM, finish

pytestmark = pytest.mark.redis


def a_call(client, rt) -> str:
    turn_id = client.post("/turns", json={"text": "please add"}).json()["turn_id"]
    finish(rt, turn_id)
    run = views.run(rt.store, views.turn(rt.store, turn_id).run_id)
    return next(step.calls[1].id for step in run.steps if hasattr(step, "calls"))


def test_a_result_is_read_in_parts(client, rt):
    call = a_call(client, rt)
    first = client.get(f"/calls/{call}/result", params={"limit": 1}).json()
    assert (first["text"], first["total"], first["next_offset"], first["tool"]) == ("3", 2, 1, "add")
    second = client.get(f"/calls/{call}/result", params={"offset": first["next_offset"]}).json()
    assert (second["text"], second["offset"], second["next_offset"]) == ("4", 1, None)


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"limit": 0}, {"limit": 262_145}, {"offset": "x"}])
def test_a_part_that_cannot_be_is_refused(client, rt, wrong):
    answer = client.get(f"/calls/{a_call(client, rt)}/result", params=wrong)
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM)


def test_a_call_that_is_not_there_is_a_404(client):
    answer = client.get("/calls/nothing/result")
    assert (answer.status_code, answer.headers["content-type"]) == (404, PROBLEM)
    assert "call 'nothing' is not there" in answer.json()["detail"]
