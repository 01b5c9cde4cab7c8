"""A consumer chooses among the models that the agent's file names, and no other is ever asked for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.stepping import Control, Standing, StepTerms
from support.driving import consume, text
from support.invariants import check_all


def of_file(world, **named):
    world.agents.agents["ada"] = replace(world.agents.get("ada"), named_models=(), **named)


def called_models(world):
    """Which model each request was for."""
    asked, complete = [], world.models.complete

    def noting(agent, *rest, **how):
        asked.append(agent.model)
        return complete(agent, *rest, **how)

    world.models.complete = noting
    return asked


@pytest.mark.parametrize(
    "params",
    [
        {"model": "scripted:/tmp/evil.py"},
        {"model": "openai:dearest"},
        {"openai": {"model": "dearest"}},
        {"anthropic": {"models": ["dearest"]}},
        {"models": ["dearest"]},
    ],
)
def test_a_model_that_the_file_does_not_name_is_refused_with_the_turn_and_with_a_verb(world, params):
    with pytest.raises(InvalidMessage, match="model"):
        world.submit(control=Control.STEP, step=StepTerms(params=params))
    it = consume(world, text())

    with pytest.raises(InvalidMessage, match="model"):
        it.do("params", params=params)

    assert it.do("run").standing is Standing.DONE
    check_all(world.store)


@pytest.mark.parametrize("named", [{"fallbacks": ("other:model",)}, {"selectable_models": ("other:model",)}])
def test_a_model_that_the_file_names_may_be_chosen(world, named):
    of_file(world, **named)
    asked = called_models(world)
    it = consume(world, text(), params={"model": "other:model"})
    it.next()
    it.do("params", params={"model": "fake"})
    it.push({"role": "user", "text": "again"})
    it.next()

    assert asked == ["other:model", "fake"]


def test_model_removed_from_the_file_is_not_called_and_another_may_be_chosen(world):
    of_file(world, selectable_models=("other:model",))
    it = consume(world, text(), params={"model": "other:model"})
    of_file(world, selectable_models=())
    asked = called_models(world)

    failed = it.next()
    assert (failed.standing, asked) == (Standing.FAILED, [])
    assert "no longer names model 'other:model'" in failed.error["detail"]

    it.do("params", params={"model": None})
    assert it.do("run").standing is Standing.DONE
    assert asked == ["fake"]
    check_all(world.store)
