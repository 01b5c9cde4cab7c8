"""What a scenario's file may say, and what is said of one that is wrong."""

from __future__ import annotations

import itertools

import pytest

from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.groups import DEFAULT_BUDGETS, Group
from chordage.workers.simulate import scenario
from chordage.workers.simulate.fleet import Slots
from chordage.workers.simulate.scenario import MessageSource
from support.repository import ROOT

ONE = '[[sources]]\nname = "a"\ngroup = "chat"\n'


def read(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return scenario.read(path)


def test_what_is_left_out_is_as_usual(tmp_path):
    plan = read(tmp_path, ONE + "[budgets]\ntask = 3\n")

    assert plan.all_budgets == {**DEFAULT_BUDGETS, Group.TASK: 3}
    assert plan.expected == pytest.approx(600)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seconds = 1", "plan.toml: sources: is missing"),
        ("sources = []", "sources: Tuple should have at least 1 item"),
        (ONE + "speed = 3", "sources.0.speed: there is no such field"),
        (ONE.replace("chat", "cat"), "sources.0.group: Input should be 'chat', 'task', 'chore' or 'will'"),
        (ONE + ONE, "the whole: two sources are called 'a': give one of them another name"),
        (ONE + "[fleet]\nturn_slots = 4\nreserve = 4", "fleet: reserve (4) leaves nothing for the other groups"),
        ("what is this", "plan.toml: is no TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, text, told):
    with pytest.raises(ConfigError, match="plan.toml") as caught:
        read(tmp_path, text)

    assert told in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none.toml: cannot be read"):
        scenario.read(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "simulate").glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_can_be_read(path):
    assert scenario.read(path).expected > 0


def source(**given):
    return MessageSource(**{"name": "a", "group": Group.CHAT, **given})


@pytest.mark.parametrize("pattern", ["poisson", "steady", "burst", "daily"])
def test_every_pattern_keeps_its_rate_and_order(pattern):
    of = source(pattern=pattern, per_second=2.0, burst=50)
    found = list(scenario.arrival_times(of, 86_400, seed=1))

    assert found == sorted(found)
    assert len(found) == pytest.approx(2 * 86_400, rel=0.05)
    assert found == list(scenario.arrival_times(of, 86_400, seed=1)), "the same seed, the same times"


def test_the_busiest_hour_of_a_day_has_more_than_its_share():
    found = list(scenario.arrival_times(source(pattern="daily", per_second=1.0, peak=2.0), 86_400, seed=1))
    hours = [sum(1 for at in found if hour * 3600 <= at < (hour + 1) * 3600) for hour in range(24)]

    assert max(hours) == pytest.approx(2 * 3600, rel=0.1)
    assert hours.index(max(hours)) in {11, 12}


def test_rounds_have_their_mean_and_threads_come_round():
    messages = scenario.MessageGenerator(source(rounds=1.5, threads=3, tenants=2, spread="fixed"), seed=1)
    made = [messages.next() for _ in range(400)]

    assert sum(len(work.rounds) for _, work in made) / 400 == pytest.approx(1.5, abs=0.1)
    assert {request.message.thread_id for request, _ in made} == {"chat:a-0", "chat:a-1", "chat:a-2"}
    assert {work.tenant for _, work in made} == {"a-0", "a-1"}
    assert all(seconds == 2.0 for _, work in made for seconds in work.models)


def test_slots_are_assigned_in_the_order_of_the_groups_and_the_reserve_to_chat_alone():
    slots = Slots(3, reserve=1)
    for group, number in itertools.product((Group.WILL, Group.TASK), range(2)):
        slots.put(group, f"{group.value}{number}")

    assert list(slots.take()) == ["task0", "task1"]
    slots.put(Group.CHAT, "chat")
    assert list(slots.take()) == ["chat"]
    slots.free_one()
    assert list(slots.take()) == []
    slots.free_one()
    assert list(slots.take()) == ["will0"]
    assert slots.longest == {Group.CHAT: 1, Group.TASK: 2, Group.CHORE: 0, Group.WILL: 2}
