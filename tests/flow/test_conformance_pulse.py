"""What a pulse has to do, by the numbers of the study of the system before us."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.pulse import WorkKind
from chordage.orchestrator.loops import pulse
from chordage.orchestrator.run import task_file
from support.fakes import spoken
from support.pulse_room import PulseRoom, aged

MINUTELY = '---\ncron: "* * * * *"\n---\nlook\n'
TASK = "---\nid: abcd2345\n---\nPaint the fence.\n"


@pytest.fixture
def pulse_room(world, tmp_path):
    world.models.script = lambda prompt: spoken("done")
    return PulseRoom(world, tmp_path)


def test_21_a_task_a_chore_and_a_will_each_yield_one_turn(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.file("chores/garden/water.md", "---\ntitle: Water\nevery: 1h\n---\nAll of it.\n")
    pulse_room.file("will.md", "Keep the place nice.")

    pulse_room.tick_and_finish()

    found = {
        turn["origin"]: (turn["thread_id"], turn["text"], turn["sender"], turn["channel"])
        for turn in pulse_room.turns()
    }
    assert found == {
        "task": ("task:abcd2345", "Paint the fence.", "self", None),
        "chore": ("chore:garden/water", "# Water\n\nAll of it.", "self", None),
        "will": ("will:ada", "# will\n\nKeep the place nice.", "self", None),
    }


def test_22_rescanning_without_a_change_yields_nothing_and_the_same_state(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.file("chores/water.md", MINUTELY)
    pulse_room.tick_and_finish()
    pulse_room.tick()
    rows = pulse_room.world.rows("pulse")

    assert pulse_room.tick(1) == pulse_room.tick(1) == []
    assert pulse_room.world.rows("pulse") == rows


def test_24_after_a_run_the_state_has_its_time_result_and_turn(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.tick_and_finish()
    pulse_room.tick(1)

    (turn,) = pulse_room.turns()
    told = json.loads((pulse_room.room / "pulse.json").read_text())["items"][0]
    assert (told["turn_id"], told["run_id"], told["disposition"]) == (turn["id"], turn["run_id"], "answered")
    assert told["started_at"]
    assert told["ended_at"]
    assert not told["under_way"]


@pytest.mark.parametrize("line", ["status: done", "status: cancelled", "paused: true"])
def test_26_tasks_that_are_done_cancelled_or_paused_are_not_enqueued(pulse_room, line):
    pulse_room.file("tasks/fence.md", TASK.replace("id:", f"{line}\nid:"))

    assert pulse_room.tick() == pulse_room.tick(60) == []


def test_27_the_turn_of_a_task_can_read_write_and_comment_its_file(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.tick()
    (turn,) = pulse_room.turns()
    desk = task_file.of_thread(pulse_room.runtime, turn["thread_id"])

    assert turn["meta"] == {"path": "tasks/fence.md"}
    assert desk.read().text == "Paint the fence."
    assert desk.write(body="Paint it red.", status="doing", version=None).path == "tasks/fence.md"
    assert "halfway" in desk.comment("halfway", "mark").text


@pytest.mark.parametrize("key", ["../secret", "/etc/passwd", "a/../../b"])
def test_31_ids_that_lead_elsewhere_are_refused(pulse_room, key):
    pulse_room.file("tasks/fence.md", TASK.replace("abcd2345", key))

    assert pulse_room.tick() == []
    assert pulse_room.faults()[0].startswith("tasks/fence.md:2: id: ")
    with pytest.raises(NotFound):
        pulse.run_now(pulse_room.runtime, key)


def test_32_one_unreadable_document_is_reported_and_the_others_are_scheduled(pulse_room):
    pulse_room.file("chores/broken.md", "---\ncron: never\n---\n")
    pulse_room.file("chores/raw.md", "").write_bytes(b"\xff\xfe")
    pulse_room.file("chores/good.md", "well")
    pulse_room.file("tasks/fence.md", TASK)

    assert len(pulse_room.tick()) == 2
    assert [fault.split(": ")[0] for fault in pulse_room.faults()] == ["chores/broken.md:2", "chores/raw.md:1"]


def test_34_writing_a_task_keeps_its_id(pulse_room):
    file = pulse_room.file("tasks/fence.md", "Paint the fence.\n")
    pulse_room.tick()
    key = pulse_room.world.row("pulse")["key"]

    assert (
        task_file.of_thread(pulse_room.runtime, f"task:{key}").write(body="Red.", status=None, version=None).id == key
    )
    assert file.read_text() == f"---\nid: {key}\n---\nRed.\n"


def test_36_a_finished_task_is_not_repeated_until_it_is_opened_again(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.tick_and_finish()
    pulse_room.file("tasks/fence.md", TASK.replace("id:", "status: done\nid:"))
    assert pulse_room.tick(60) == pulse_room.tick(60) == []

    pulse_room.file("tasks/fence.md", TASK)

    assert len(pulse_room.tick_and_finish()) == 1
    assert pulse_room.tick(60) == []


def test_37_a_minutely_chore_late_by_three_minutes_and_a_half_runs_for_minute_three(pulse_room):
    pulse_room.file("chores/look.md", MINUTELY)
    pulse_room.world.clock.now = datetime(2026, 1, 1, 0, 0, tzinfo=UTC)
    assert pulse_room.tick_and_finish() == ["chore:look:2026-01-01T00:00:00+00:00"]
    pulse_room.tick(1)

    assert pulse_room.tick_and_finish(209) == ["chore:look:2026-01-01T00:03:00+00:00"]
    pulse_room.tick()
    assert pulse_room.row(WorkKind.CHORE, "look")["next_due"] == datetime(2026, 1, 1, 0, 4, tzinfo=UTC)


def test_39_a_finite_schedule_that_is_exhausted_is_done(pulse_room):
    pulse_room.file("chores/look.md", "---\nrrule: FREQ=MINUTELY;COUNT=2\n---\nlook\n")

    slots = [slot for _ in range(6) for slot in pulse_room.tick_and_finish(60)]

    assert len(slots) == 2
    assert pulse_room.row(WorkKind.CHORE, "look")["state"] == "done"


def test_41_a_body_edit_keeps_the_cursor_and_a_schedule_edit_resets_it(pulse_room):
    pulse_room.file("chores/look.md", "---\nevery: 1h\n---\nlook\n")
    pulse_room.tick_and_finish()
    pulse_room.tick(600)
    due = pulse_room.row(WorkKind.CHORE, "look")["next_due"]
    pulse_room.file("chores/look.md", "---\nevery: 1h\n---\nlook well\n")
    assert pulse_room.tick(600) == []
    assert pulse_room.row(WorkKind.CHORE, "look")["next_due"] == due

    pulse_room.file("chores/look.md", "---\nevery: 2h\n---\nlook well\n")
    assert len(pulse_room.tick_and_finish()) == 1

    row = pulse_room.row(WorkKind.CHORE, "look")
    assert (row["next_due"] - row["anchor"]).total_seconds() == 7200


def test_42_two_simultaneous_ticks_make_one_turn(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.file("chores/look.md", MINUTELY)
    other = pulse_room.also()

    assert len(pulse_room.tick()) == 2
    assert pulse_room.tick(by=other) == []
    assert len(pulse_room.turns()) == 2


def test_44_input_that_no_turn_may_have_is_a_fault_and_leaves_no_thread(pulse_room):
    pulse_room.file("tasks/fence.md", TASK.replace("id:", "agent: nobody\nid:"))
    pulse_room.file("tasks/long.md", "---\nid: long\n---\n" + "x" * 300_000)

    assert pulse_room.tick() == []
    assert [fault.split(": ")[0] for fault in pulse_room.faults()] == ["tasks/fence.md:1", "tasks/long.md:1"]
    assert pulse_room.world.rows("threads") == []


def test_46_a_row_whose_file_is_removed_while_its_turn_runs_is_kept_until_that_ends(pulse_room):
    file = aged_task(pulse_room)
    pulse_room.tick()
    file.unlink()
    pulse_room.tick(86_400 * 30)
    assert pulse_room.row(WorkKind.TASK, "abcd2345")["state"] == "gone"

    pulse_room.world.run_dry()
    pulse_room.tick(86_400 * 30)

    assert pulse_room.world.rows("pulse") == []


def test_47_different_items_run_side_by_side_and_one_never_does(pulse_room):
    pulse_room.file("chores/look.md", MINUTELY)
    pulse_room.file("chores/listen.md", MINUTELY)

    assert len(pulse_room.tick()) == 2
    assert pulse_room.tick(300) == []
    assert len(pulse_room.world.rows("turns", status="queued")) == 2


def test_49_last_look_is_reported_without_touching_the_disk(pulse_room):
    file = aged_task(pulse_room)
    pulse_room.tick()
    file.unlink()

    assert [item.key for item in pulse_room.runtime.work.snapshot.items.values()] == ["abcd2345"]


def aged_task(pulse_room):
    file = pulse_room.file("tasks/fence.md", TASK)
    aged(file)
    return file
