"""What is read from and written to a provider's cache: requested, recorded, and counted into the parent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.verdicts import AddContextMessage
from chordage.workers.cli.show import lines_of
from support.fakes import rounds_of
from support.family import Lines, ask, by_agent, settle_in
from support.hooks import install, plugin_for
from support.one_turn import change_agent

USED = Usage(input_tokens=100, output_tokens=5, cached_tokens=60, cache_write_tokens=30)
UNPRICED = replace(USED, cost_nanos=None, unpriced=1)  # as it is recorded: the model has no price


def using(script):
    return lambda prompt: replace(script(prompt), usage=USED)


def test_tokens_of_the_cache_are_recorded_and_shown(world):
    world.models.script = using(rounds_of(1))
    turn = world.submit()
    world.run_dry()

    found = views.turn(world.store, turn)
    assert found.usage == UNPRICED + UNPRICED
    run = views.run(world.store, found.run_id)
    assert run.usage == UNPRICED + UNPRICED
    assert run.steps[0].usage == UNPRICED
    told = "\n".join(lines_of({"kind": "turn", "turn": found, "run": run, "driven": None, "delivery": None}))
    assert "100 (60 cached, 30 written to the cache) tokens in, 5 out" in told
    assert "200 (120 cached, 60 written to the cache) tokens in, 10 out" in told


def test_cache_writes_of_a_sub_agent_count_into_its_parent(world):
    settle_in(world)
    world.models.script = using(Lines({"ada": [[ask("bob")]]}))
    world.submit()
    world.run_dry()
    written = {name: run["cache_write_tokens"] for name, run in by_agent(world, "runs").items()}
    assert written == {"bob": 30, "ada": 90}


@pytest.mark.parametrize("cache", [True, False])
def test_the_switch_of_the_agent_reaches_the_prompt(world, cache):
    change_agent(world, prompt_cache=cache, instructions="Be kind.")
    world.submit()
    world.run_dry()
    assert {prompt.cache for prompt in world.models.prompts} == {cache}


def test_what_plugins_add_is_no_part_of_what_stays(world):
    change_agent(world, instructions="Be kind.")
    install(world, plugin_for(Hook.BEFORE_INFERENCE, AddContextMessage(key="k", text="It is noon.")))
    world.submit()
    world.run_dry()
    prompt = world.models.prompts[0]
    assert prompt.system[: prompt.stable] == "Be kind."
    assert prompt.system == "Be kind.\n\nIt is noon."
