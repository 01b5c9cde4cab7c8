"""A person pauses and resumes a task, a chore or the will, beside what its file says and while the pulse ticks."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.core.pulse import WorkKind
from chordage.orchestrator.loops import pulse
from chordage.orchestrator.store import audit
from support.fakes import spoken
from support.pulse_room import PulseRoom
from support.world import Died

HOURLY = "---\nevery: 1h\n---\nlook\n"
TASK = "---\nid: abcd2345\n---\nPaint the fence.\n"
ANN = Actor(id="ann")


@pytest.fixture
def pulse_room(world, tmp_path):
    world.models.script = lambda prompt: spoken("done")
    return PulseRoom(world, tmp_path)


@pytest.fixture
def chore(pulse_room):
    pulse_room.file("chores/look.md", HOURLY)
    pulse_room.tick_and_finish()  # a span begins with its first time
    return pulse_room


def row(room):
    return room.row(WorkKind.CHORE, "look")


def pause(room, name="chore:look"):
    with room.world.as_another_process():
        pulse.pause(room.also(), name, ANN)


def resume(room, name="chore:look"):
    with room.world.as_another_process():
        room.world.pending += pulse.resume(room.also(), name, ANN)


def on_record(room):
    with room.world.store.read() as tx:
        return [(entry.action, entry.about, entry.actor) for entry in audit.newest(tx, limit=9)]


def test_paused_work_has_no_turn_until_it_is_resumed_and_its_times_are_missed(chore):
    slots = len(chore.turns())
    pause(chore)
    for _ in range(3):
        assert chore.tick_and_finish(3600) == []
    chore.tick(60)
    assert (row(chore)["paused"], row(chore)["paused_by"]) == (1, "ann")

    resume(chore)

    assert (row(chore)["paused"], row(chore)["paused_by"]) == (0, None)
    assert chore.tick_and_finish(60) == []
    assert len(chore.turns()) == slots
    assert len(chore.tick_and_finish(3600)) == 1
    assert row(chore)["missed"] == 3
    assert on_record(chore) == [("work_resumed", "chore:look", "ann"), ("work_paused", "chore:look", "ann")]


def test_missed_and_merged_times_are_counted(chore):
    assert (row(chore)["missed"], row(chore)["merged"]) == (0, 0)
    pause(chore)
    chore.tick(3 * 3600 + 60)
    resume(chore)
    assert row(chore)["missed"] == 3

    chore.tick_and_finish(4 * 3600)

    assert (row(chore)["missed"], row(chore)["merged"]) == (3, 3)


def test_pausing_or_resuming_twice_changes_nothing(chore):
    pause(chore)
    once = row(chore)
    pause(chore)
    assert row(chore) == once
    resume(chore)
    free = row(chore)
    resume(chore)

    assert row(chore) == free
    assert len(on_record(chore)) == 2


def test_the_line_in_a_file_stays_what_it_is(chore):
    chore.file("chores/look.md", HOURLY.replace("every: 1h", "every: 1h\npaused: true"))
    chore.tick()
    with pytest.raises(Conflict, match="paused in chores/look.md: remove that line"):
        resume(chore)
    pause(chore)
    chore.file("chores/look.md", HOURLY)

    assert chore.tick_and_finish(7200) == []
    assert row(chore)["paused_by"] == "ann"


def test_an_edit_of_a_paused_task_gets_its_turn_when_it_is_resumed(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.tick_and_finish()
    pause(pulse_room, "task:abcd2345")
    pulse_room.file("tasks/fence.md", TASK.replace("fence", "gate"))
    assert pulse_room.tick_and_finish() == []

    resume(pulse_room, "task:abcd2345")
    pulse_room.world.run_dry()

    assert [turn["text"] for turn in pulse_room.turns()] == ["Paint the fence.", "Paint the gate."]
    assert {turn["disposition"] for turn in pulse_room.turns()} == {"answered"}


def test_paused_work_can_be_run_by_hand_and_stays_paused(chore):
    pause(chore)

    with chore.world.as_another_process():
        chore.world.pending += pulse.run_now(chore.also(), "chore:look")[1]
    chore.world.run_dry()

    assert (row(chore)["paused"], row(chore)["paused_by"]) == (1, "ann")
    assert chore.tick_and_finish(7200) == []


def test_a_tick_that_has_read_the_row_before_the_pause_starts_nothing(chore, monkeypatch):
    chore.world.clock.pass_by(3600)
    put, paused = pulse.pulse.put, []

    def pause_first(tx, *args, **more):
        if not paused:
            paused.append(True)
            return False  # the row has moved: as the database says it once the pause is committed
        return put(tx, *args, **more)

    turns = len(chore.turns())
    monkeypatch.setattr(pulse.pulse, "put", pause_first)
    chore.tick()
    assert paused
    assert len(chore.turns()) == turns
    pause(chore)

    assert chore.tick_and_finish(3600) == []


def test_new_work_is_paused_before_the_pulse_has_read_it(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)

    pause(pulse_room, "task:abcd2345")

    assert pulse_room.tick_and_finish() == []
    resume(pulse_room, "task:abcd2345")
    pulse_room.world.run_dry()
    assert len(pulse_room.turns()) == 1


def test_an_unknown_name_is_an_error(pulse_room):
    with pytest.raises(NotFound, match="there is no task, chore or will"):
        pause(pulse_room, "chore:nothing")


@pytest.mark.parametrize("at", [1, 2])
def test_a_process_that_dies_while_it_resumes_leaves_no_work_behind(pulse_room, at):
    """Behind the first commit the row is free; the comparison of all rows does the rest."""
    pulse_room.file("tasks/fence.md", TASK)
    pause(pulse_room, "task:abcd2345")
    world = pulse_room.world
    world.die_at = world.commits + at
    with pytest.raises(Died):
        world.pending += pulse.resume(pulse_room.also(), "task:abcd2345", ANN)
    world.revive()

    pulse_room.tick_and_finish(400)
    world.recover()

    assert [turn["disposition"] for turn in pulse_room.turns()] == ["answered"]
