"""An exported run is a test: it passes while the agent does the same, and the first difference is named."""

from __future__ import annotations

import copy
import json

import pytest

from chordage import Context, tool
from chordage.testing import ReplayDiffers, ReplayRefused, World, exported, replay
from support.repository import ROOT


@tool(effect="unsafe")
def refund(cents: int) -> str:
    """Pay money back."""
    return f"refunded {cents}"


@tool(name="refund", effect="unsafe")
def refund_in_words(cents: int, words: str) -> str:
    """Pay money back, and say so."""
    return words


@tool(name="refund", effect="unsafe")
def refund_once_asked(cents: int, ctx: Context) -> str:
    """Pay money back, if a person lets it."""
    if ctx.decision is None:
        ctx.suspend("May I?")
    return f"refunded {cents}: {ctx.decision}"


def define(*tools, **agent):
    """An agent whose own model is never asked: the record speaks."""

    def by(world: World) -> None:
        world.agent("cashier", tools=tools, model=["never said"], **agent)

    return by


def record(tool=refund, answer=None):
    with World() as world:
        ask = {"tool_calls": [{"name": "refund", "arguments": {"cents": cents}} for cents in (5, 7)]}
        world.agent("cashier", tools=[tool], model=[ask, ask, "Done. {results}"])
        turn = world.submit("Please refund {user}.")
        world.run()
        while questions := world.inbox():
            for question in questions:
                world.decide(question, answer)
            world.run()
        world.assert_answered(turn, "Done.")
        return exported(world, turn)


@pytest.fixture(scope="module")
def recorded():
    return record()


def test_an_agent_that_does_the_same_replays(recorded, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(recorded))

    replayed = replay(tmp_path / "run.json", define(refund))

    assert (replayed.steps, replayed.calls) == (5, 4)
    assert replay(recorded, define(refund), run_tools=True) == replayed


def test_a_recorded_tool_is_not_carried_out(recorded):
    @tool(name="refund", effect="unsafe")
    def refund_in_truth(cents: int) -> str:
        raise ZeroDivisionError

    replay(recorded, define(refund_in_truth))
    with pytest.raises(
        ReplayDiffers, match=r"(?s)step 2, call of refund, its status.*recorded  \[\"succeeded\", null\]"
    ):
        replay(recorded, define(refund_in_truth), run_tools=True)


def test_decisions_are_those_of_the_record():
    asked = record(refund_once_asked, {"by": "me"})

    assert replay(asked, define(refund_once_asked)).calls == 4
    assert replay(asked, define(refund_once_asked), run_tools=True).calls == 4


@pytest.mark.parametrize(
    ("agent", "run_tools", "difference"),
    [
        (define(), False, "step 2, call of refund, its status"),
        (define(refund_in_words), False, "step 2, call of refund, its status"),
        (define(refund_once_asked), True, "no decision was asked for"),
    ],
)
def test_the_first_difference_is_named(recorded, agent, run_tools, difference):
    with pytest.raises(ReplayDiffers) as differs:
        replay(recorded, agent, run_tools=run_tools)

    assert difference in str(differs.value)


def test_the_page_shows_a_difference_as_it_is_said(recorded):
    with pytest.raises(ReplayDiffers) as differs:
        replay(recorded, define())

    assert str(differs.value) in (ROOT / "docs" / "how-to" / "testing.md").read_text()


def test_another_result_is_a_difference_in_the_model_s_words(recorded):
    document = copy.deepcopy(recorded)
    document["root"]["turn"]["answer"] = "Something else"

    with pytest.raises(
        ReplayDiffers, match=r'(?s)the answer at the end.*recorded  "Something else".*now       "Done\.'
    ):
        replay(document, define(refund))


def changed(recorded, path, value):
    document = copy.deepcopy(recorded)
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("format",), "other/1", "its format is not 'chordage.run/1'"),
        (("root", "turn", "text"), None, "a key with the scope payloads"),
        (("root", "run", "status"), "waiting", "export it when it is done"),
        (("root", "run", "fork_of"), "id1", "replay the run that it is a fork of, id1"),
        (("root", "run", "steps", 0, "kind"), "steered", r"messages joined the run while it worked \(step 1\)"),
        (("root", "run", "steps", 0, "plan"), {"decision": {}}, "it planned"),
        (("left_out",), ["id9"], r"leaves out \['id9'\]"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(recorded, path, value, problem):
    with pytest.raises(ReplayRefused, match=problem):
        replay(changed(recorded, path, value), define(refund))


def test_a_file_that_is_no_export_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ReplayRefused, match=r"run\.json: cannot be read as the export of a run"):
        replay(tmp_path / "run.json", define(refund))
