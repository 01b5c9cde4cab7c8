"""A planner over HTTP whose stream is broken off as soon as it has said `response`."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from chordage.orchestrator.core.planning.plan import PlanEnd
from chordage.orchestrator.core.planning.prompts import PlannerRequest
from chordage.orchestrator.run import planning
from support.fake_providers import WIRES, Calm, an_agent, catalog_at, serving

REQUEST = PlannerRequest(user_input="hi", tools=(), round_index=0, max_rounds=5)
TAIL = 40.0  # seconds for which the stream would continue after the word


def script(action: str, tail: float = TAIL) -> str:
    text = json.dumps({"next_action": action, "execution_commands": [], "why": "x" * 8000})
    return json.dumps([{"text": text, "chunk": 10, "pace": tail / (len(text) / 10)}])


def plan_and_answer(server_url, wire):
    """The plan, and how long after the closing quote of its action it was there."""
    seen = []

    class Watched:
        def __init__(self, catalog):
            self._catalog = catalog

        def complete(self, agent, prompt, *, abort, on_delta, on_reset):
            def noting(text):
                seen.append((time.monotonic(), text))
                on_delta(text)

            return self._catalog.complete(agent, prompt, abort=abort, on_delta=noting, on_reset=on_reset)

    with catalog_at(server_url) as catalog:
        runtime = SimpleNamespace(models=Watched(catalog))
        reply, plan = planning.ask_planner(runtime, an_agent(f"{wire}:m", stream=True), REQUEST, Calm())
    return reply, plan, time.monotonic() - seen[-1][0], len(seen)


@pytest.mark.parametrize("wire", WIRES)
def test_stream_with_response_is_cut_at_the_closing_quote(tmp_path, wire):
    with serving(tmp_path, script("response")) as server:
        reply, plan, after, pieces = plan_and_answer(server.url, wire)

    assert plan.ends is PlanEnd.RESPONSE
    assert '"response"' in reply.text
    assert pieces <= 4
    print(f"{wire}: broken off {after * 1000:.1f} ms after the word")
    assert after < TAIL / 2, "the rest was not read"


@pytest.mark.parametrize("wire", WIRES)
def test_any_other_stream_is_read_to_its_end(tmp_path, wire):
    with serving(tmp_path, script("execute", tail=0.1)) as server:
        reply, plan, _, _ = plan_and_answer(server.url, wire)

    assert plan.ends is PlanEnd.NO_COMMANDS
    assert json.loads(reply.text)["next_action"] == "execute"


def test_without_a_stream_the_whole_plan_is_read(tmp_path):
    with serving(tmp_path, script("response")) as server, catalog_at(server.url) as catalog:
        agent = replace(an_agent("openai:m"), stream=False)
        _, plan = planning.ask_planner(SimpleNamespace(models=catalog), agent, REQUEST, Calm())
    assert plan.ends is PlanEnd.RESPONSE


def test_an_attempt_that_broke_off_is_no_beginning_of_the_next():
    """Read as one text, the two would hold no plan; the words of the first are not those of the reply."""

    def complete(agent, prompt, *, abort, on_delta, on_reset):
        on_delta('{"execution_commands": [{"purpose": "lo')
        on_reset()
        on_delta('{"next_action": "response"')
        raise AssertionError("the stream was read on")

    models = SimpleNamespace(complete=complete)
    reply, plan = planning.ask_planner(SimpleNamespace(models=models), an_agent("openai:m"), REQUEST, Calm())

    assert (reply.text, plan.ends) == ('{"next_action": "response"', PlanEnd.RESPONSE)
