"""Tasks, chores and the will become turns: edits, own edits, pauses, deaths, and several who tick at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from structlog import BoundLogger, wrap_logger
from structlog.testing import LogCapture

from chordage.orchestrator import stages
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.errors import (
    Conflict,
    InvalidMessage,
    ModelFailed,
    NotFound,
    QueueFull,
    RoomError,
    UnknownAgent,
)
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.pulse import WorkKind
from chordage.orchestrator.loops import pulse
from chordage.orchestrator.run import arrivals, task_file
from support.fakes import spoken
from support.pulse_room import PulseRoom, aged
from support.world import Died

TASK = "---\nid: abcd2345\n---\nPaint the fence.\n"
HOURLY = "---\nevery: 1h\n---\nlook\n"


@pytest.fixture
def pulse_room(world, tmp_path):
    world.models.script = lambda prompt: spoken("done")
    return PulseRoom(world, tmp_path)


@pytest.fixture
def under_way(pulse_room):
    """The turn of the task is queued, and its file lies still."""
    aged(pulse_room.file("tasks/fence.md", TASK))
    pulse_room.tick()
    return pulse_room


def desk(pulse_room):
    return task_file.of_thread(pulse_room.runtime, "task:abcd2345")


# edits


def test_task_edited_while_its_turn_runs_has_one_more_turn_with_the_newest_text(under_way):
    for colour in ("red", "blue", "green"):
        under_way.file("tasks/fence.md", TASK.replace("fence", f"fence {colour}"))
        assert under_way.tick(1) == []

    under_way.world.run_dry()

    assert len(under_way.tick_and_finish(1)) == 1
    assert under_way.tick_and_finish(1) == under_way.tick_and_finish(60) == []
    assert [turn["text"] for turn in under_way.turns()] == ["Paint the fence.", "Paint the fence green."]


def test_edit_that_is_taken_back_while_the_turn_runs_leads_to_none(under_way):
    under_way.file("tasks/fence.md", TASK.replace("fence", "gate"))
    under_way.tick(1)
    under_way.file("tasks/fence.md", TASK)
    under_way.world.run_dry()

    assert under_way.tick(1) == under_way.tick(60) == []


def test_own_edits_lead_to_no_turn(under_way):
    desk(under_way).write(body="Half of it is red.", status="doing", version=None)
    under_way.tick(1)
    desk(under_way).comment("and dry", "m1")
    desk(under_way).write(body=None, status="done", version=None)
    under_way.world.run_dry()

    assert under_way.tick(1) == under_way.tick(60) == []
    assert under_way.row(WorkKind.TASK, "abcd2345")["state"] == "done"


def test_persons_edit_between_own_edits_is_not_swallowed(under_way):
    desk(under_way).comment("first", "m1")
    file = under_way.room / "tasks/fence.md"
    file.write_text(file.read_text() + "\nAnd the gate.\n")
    desk(under_way).comment("second", "m2")
    under_way.world.run_dry()

    assert len(under_way.tick_and_finish(1)) == 1
    text = under_way.turns()[-1]["text"]
    assert all(part in text for part in ("first", "And the gate.", "second"))
    assert under_way.tick(60) == []


def test_two_own_edits_between_a_look_and_its_row_lead_to_no_turn(under_way):
    """A look that is older than its row must not take what it saw for a person's edit."""
    work = under_way.runtime.work
    stale = work.read().items[WorkKind.TASK, "abcd2345"]
    under_way.world.run_dry()
    under_way.tick()
    for mark in ("m1", "m2"):
        desk(under_way).comment("noted", mark)
    with under_way.world.store.read() as tx:
        row = pulse.pulse.load(tx, WorkKind.TASK, "abcd2345")

    seen = pulse.move_on(under_way.runtime, work, stale, row)

    assert seen.intents == []
    assert len(under_way.turns()) == 1


def test_own_edit_behind_the_look_at_the_row_moves_it(under_way, monkeypatch):
    work = under_way.runtime.work
    under_way.world.run_dry()
    under_way.tick()
    under_way.file("tasks/fence.md", TASK.replace("fence", "gate"))
    with under_way.world.store.read() as tx:
        row = pulse.pulse.load(tx, WorkKind.TASK, "abcd2345")
    item = work.read().items[WorkKind.TASK, "abcd2345"]
    under_way.file("tasks/fence.md", TASK)
    desk(under_way).comment("noted", "m1")
    monkeypatch.setattr(type(work), "again", lambda _work, _item: item)  # it had been read just before

    assert pulse.move_on(under_way.runtime, work, item, row).intents == []


def test_task_that_failed_is_not_repeated_until_it_is_edited(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)

    def fails(prompt):
        raise ModelFailed("down", fault=Fault.SERVER, attempts=())

    pulse_room.world.models.script = fails
    pulse_room.tick_and_finish()
    assert pulse_room.tick(60) == []
    assert pulse_room.row(WorkKind.TASK, "abcd2345")["disposition"] == "failed"

    pulse_room.file("tasks/fence.md", TASK.replace("fence", "gate"))
    assert len(pulse_room.tick(1)) == 1


def test_pausing_holds_a_task_back_and_resuming_does_not_repeat_it(pulse_room):
    paused = TASK.replace("id:", "paused: true\nid:")
    pulse_room.file("tasks/fence.md", paused)
    assert pulse_room.tick() == []
    pulse_room.file("tasks/fence.md", TASK)
    assert len(pulse_room.tick_and_finish(1)) == 1
    pulse_room.file("tasks/fence.md", paused)
    pulse_room.tick(1)
    pulse_room.file("tasks/fence.md", TASK)

    assert pulse_room.tick(1) == []


def test_task_closed_by_its_own_turn_is_opened_again_by_the_very_text_it_had(under_way):
    desk(under_way).write(body=None, status="done", version=None)
    under_way.world.run_dry()
    under_way.tick(1)
    under_way.file("tasks/fence.md", TASK)

    assert len(under_way.tick(1)) == 1


# schedules


def test_chore_late_by_three_hours_catches_up_once_and_is_on_schedule_again(pulse_room):
    pulse_room.file("chores/look.md", "---\nevery: 15m\n---\nlook\n")
    pulse_room.tick_and_finish()
    pulse_room.tick(1)

    assert len(pulse_room.tick_and_finish(3 * 3600 + 100)) == 1
    row = pulse_room.row(WorkKind.CHORE, "look")
    assert (row["next_due"] - row["anchor"]) % timedelta(minutes=15) == timedelta(0)
    assert pulse_room.tick(1) == []
    assert len(pulse_room.tick(900)) == 1


def test_ticks_missed_while_its_turn_runs_are_one_turn(pulse_room):
    pulse_room.file("chores/look.md", HOURLY)
    pulse_room.tick()
    assert [slot for _ in range(5) for slot in pulse_room.tick(3600)] == []

    pulse_room.world.run_dry()

    assert len(pulse_room.tick_and_finish(60)) == 1
    assert pulse_room.tick(60) == []


def test_what_a_paused_chore_missed_is_not_caught_up(pulse_room):
    pulse_room.file("chores/look.md", HOURLY)
    pulse_room.tick_and_finish()
    pulse_room.file("chores/look.md", HOURLY.replace("every", "paused: true\nevery"))
    assert pulse_room.tick(10 * 3600) == []
    pulse_room.file("chores/look.md", HOURLY)

    assert pulse_room.tick(100) == []
    assert len(pulse_room.tick(3600)) == 1


@pytest.mark.parametrize(("zone", "day"), [("Europe/Berlin", (2026, 3, 29)), ("America/New_York", (2026, 11, 1))])
def test_each_day_has_one_turn_also_when_clocks_change(pulse_room, zone, day):
    hour = 2 if zone == "Europe/Berlin" else 1  # not there that day; there twice that day
    pulse_room.file("chores/look.md", f"---\ncron: 30 {hour} * * *\ntimezone: {zone}\n---\nlook\n")
    pulse_room.world.clock.now = datetime(*day, tzinfo=UTC) - timedelta(days=1)
    quarters = range(*((0, 12) if zone == "Europe/Berlin" else (20, 32)))  # of an hour of UTC, around the change

    slots, seconds = [], 0
    for quarter in range(4 * 24 * 4):
        seconds += 900
        if quarter % 96 in quarters:
            slots += pulse_room.tick_and_finish(seconds)
            seconds = 0

    assert len(slots) == 4


# what is not there, and what cannot be


def test_folder_that_was_away_for_a_while_repeats_nothing(pulse_room, tmp_path):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.tick_and_finish()
    (tmp_path / "tasks").rename(tmp_path / "away")
    pulse_room.tick(60)
    assert pulse_room.row(WorkKind.TASK, "abcd2345")["state"] == "gone"
    (tmp_path / "away").rename(tmp_path / "tasks")

    assert pulse_room.tick(60) == pulse_room.tick(60) == []
    assert pulse_room.row(WorkKind.TASK, "abcd2345")["state"] == "live"


def test_task_that_returns_after_its_row_was_deleted_runs_again(pulse_room):
    file = pulse_room.file("tasks/fence.md", TASK)
    pulse_room.tick_and_finish()
    file.unlink()
    pulse_room.tick(60)
    pulse_room.tick(8 * 86_400)
    assert pulse_room.world.rows("pulse") == []
    pulse_room.file("tasks/fence.md", TASK)

    assert len([*pulse_room.tick(1), *pulse_room.tick(1)]) == 1


def test_slot_that_had_its_turn_before_the_row_was_forgotten_has_no_other(pulse_room):
    pulse_room.file("chores/look.md", "---\ncron: 0 0 1 1 *\n---\nlook\n")
    assert len(pulse_room.tick_and_finish()) == 1
    with pulse_room.world.store.write() as tx:
        tx.execute(pulse.pulse.pulse.delete())

    assert [*pulse_room.tick(by=pulse_room.also()), *pulse_room.tick(by=pulse_room.also())] == []
    assert pulse_room.row(WorkKind.CHORE, "look")["turn_id"] == pulse_room.turns()[0]["id"]


def test_file_that_breaks_keeps_its_row_and_has_no_turn_until_it_is_mended(pulse_room):
    pulse_room.file("chores/look.md", HOURLY)
    pulse_room.tick_and_finish()
    pulse_room.file("chores/look.md", "---\nevery: never\n---\nlook\n")
    assert pulse_room.tick(7200) == []
    assert pulse_room.row(WorkKind.CHORE, "look")["state"] == "live"
    pulse_room.file("chores/look.md", HOURLY)

    assert len(pulse_room.tick(60)) == 1


def test_later_of_two_files_with_one_id_is_the_fault(pulse_room):
    pulse_room.file("tasks/a.md", TASK)
    pulse_room.file("tasks/b.md", TASK.replace("fence", "gate"))

    assert len(pulse_room.tick_and_finish()) == 1
    assert pulse_room.faults() == [
        "tasks/b.md:1: has the id of tasks/a.md, abcd2345: take its id line away, and it is a task of its own"
    ]


def test_full_group_defers_and_the_next_tick_tries_again(pulse_room, monkeypatch):
    pulse_room.file("will.md", "be nice")
    pulse_room.file("tasks/fence.md", TASK)
    admit = arrivals.admit

    def full(unit, agent, request, asked):
        if request.message.origin == "will":
            raise QueueFull("group will takes no more")
        return admit(unit, agent, request, asked)

    monkeypatch.setattr(arrivals, "admit", full)
    assert [slot.partition(":")[0] for slot in pulse_room.tick()] == ["task"]
    assert pulse_room.world.rows("pulse", kind="will") == []
    monkeypatch.undo()

    assert [slot.partition(":")[0] for slot in pulse_room.tick(1)] == ["will"]


def bound(pulse_room, most, overflow):
    bounds = {Group.CHORE: QueueBound(max_queued=most, overflow=overflow)}
    pulse_room.world.runtime = replace(pulse_room.runtime, queue_bounds=bounds)


def test_full_queue_that_refuses_one_takes_another_that_replaces_its_own(pulse_room):
    bound(pulse_room, 1, Overflow.REPLACE_PENDING)
    for name in "abc":
        pulse_room.file(f"chores/{name}.md", HOURLY)
    pulse_room.world.submit("by hand", thread="chore:b", group=Group.CHORE)

    slots = pulse_room.tick()

    assert [slot.partition(":20")[0] for slot in slots] == ["chore:b"]
    assert [turn["thread_id"] for turn in pulse_room.world.rows("turns", status="queued")] == ["chore:b"]


def test_full_queue_is_tried_a_few_times_each_tick_and_each_refusal_is_reported_once(pulse_room, monkeypatch):
    monkeypatch.setattr(pulse, "REFUSALS", 2)
    bound(pulse_room, 0, Overflow.REJECT)
    for name in "abcde":
        pulse_room.file(f"chores/{name}.md", HOURLY)

    told = [refused_in(pulse_room, monkeypatch) for _tick in range(5)]
    bound(pulse_room, 9, Overflow.REJECT)

    assert told == [["chore:a", "chore:b"], ["chore:c", "chore:d"], ["chore:e"], [], []]
    assert len(pulse_room.tick(1)) == 5


def refused_in(pulse_room, monkeypatch):
    lines = LogCapture()
    monkeypatch.setattr(pulse, "log", wrap_logger(None, processors=[lines], wrapper_class=BoundLogger))
    assert pulse_room.tick(1) == []
    return [line["item"] for line in lines.entries]


def test_what_needs_no_turn_moves_on_though_the_queue_of_its_kind_is_full(pulse_room, monkeypatch):
    monkeypatch.setattr(pulse, "REFUSALS", 1)
    bound(pulse_room, 0, Overflow.REJECT)
    pulse_room.file("chores/a.md", HOURLY)
    pulse_room.file("chores/b.md", HOURLY.replace("1h", "1h\npaused: true"))

    pulse_room.tick()

    assert pulse_room.row(WorkKind.CHORE, "b")["paused"]
    assert pulse_room.world.rows("pulse", key="a") == []


@pytest.mark.parametrize(("group", "more"), [(Group.CHAT, {}), (Group.TASK, {"group": Group.TASK})])
def test_a_will_waits_while_people_or_tasks_are_queued_beyond_their_budget_and_comes_then(pulse_room, group, more):
    world = pulse_room.world
    world.runtime.budgets[group] = 1
    pulse_room.file("will.md", "be nice")
    for text in ("one", "two"):
        world.submit(text, thread=text, **more)
    world.pending += stages.dispatch(world.runtime, group)  # one is open, the other waits for it

    assert pulse_room.tick(1) == pulse_room.tick(60) == []
    assert (pulse_room.turns(), world.rows("pulse", kind="will")) == ([], []), "not even stored"
    assert pulse_room.faults() == [], "that it is put off is no fault of its file"

    world.run_dry()
    assert [slot.partition(":")[0] for slot in pulse_room.tick_and_finish(1)] == ["will"]
    assert [turn["disposition"] for turn in pulse_room.turns()] == ["answered"]


def test_scheduled_work_does_not_wait_for_slots_of_busy_people(pulse_room):
    pulse_room.world.runtime.budgets[Group.CHAT] = 1
    pulse_room.file("will.md", "be nice")
    pulse_room.world.submit("one")
    pulse_room.world.pending += stages.dispatch(pulse_room.world.runtime, Group.CHAT)

    assert [slot.partition(":")[0] for slot in pulse_room.tick(1)] == ["will"]
    pulse_room.world.run_dry()


def test_agent_that_comes_later_mends_the_fault(pulse_room, monkeypatch):
    pulse_room.file("tasks/fence.md", TASK)

    def no_agent(_name):
        raise UnknownAgent("there is no agent")

    with monkeypatch.context() as away:
        away.setattr(pulse_room.world.agents, "get", no_agent)
        assert pulse_room.tick() == []
    assert len(pulse_room.tick(1)) == 1
    assert pulse_room.faults() == []


# deaths, and several at once


def test_death_at_any_commit_of_a_tick_loses_and_doubles_nothing(pulse_room):
    pulse_room.file("tasks/fence.md", TASK)
    pulse_room.file("chores/look.md", HOURLY)
    pulse_room.file("will.md", "be nice")
    world = pulse_room.world
    for number in count(1):
        for before in (True, False):
            world.die_at, world.die_before = world.commits + number, before
            with suppress(Died):
                pulse_room.tick(by=pulse_room.also())
            world.die_at = None
        if number > 6:
            break

    pulse_room.tick(by=pulse_room.also())

    assert sorted(turn["origin"] for turn in pulse_room.turns()) == ["chore", "task", "will"]
    world.recover()


def test_any_number_of_beats_make_one_turn_of_a_slot(pulse_room):
    pulse_room.file("chores/look.md", "---\ncron: '* * * * *'\n---\nlook\n")
    beats = [pulse_room.also() for _ in range(4)]

    slots = [slot for _ in range(20) for beat in beats for slot in pulse_room.tick(5, by=beat)]

    assert len(slots) == len(set(slots))


def test_beats_that_have_seen_the_same_row_make_one_turn(pulse_room):
    pulse_room.file("chores/look.md", HOURLY)
    others = [pulse_room.also(), pulse_room.also()]
    items = [rt.work.read().items[WorkKind.CHORE, "look"] for rt in others]

    seen = [pulse.move_on(rt, rt.work, item, None) for rt, item in zip(others, items, strict=True)]

    assert [one.moved for one in seen] == [True, False]
    assert len(pulse_room.turns()) == 1


def test_tick_that_is_under_way_in_this_process_is_left_alone(pulse_room):
    pulse_room.file("chores/look.md", HOURLY)
    with pulse_room.runtime.work.busy:
        assert pulse_room.tick() == []

    assert len(pulse_room.tick()) == 1


def test_room_without_work_costs_no_statement(pulse_room):
    pulse_room.tick()
    before = pulse_room.world.statements

    pulse.tick(pulse_room.runtime)

    assert pulse_room.world.statements == before


def test_tick_with_nothing_due_costs_three_statements_however_much_there_is(pulse_room):
    for number in range(30):
        aged(pulse_room.file(f"chores/c{number}.md", HOURLY))
    pulse_room.tick_and_finish()
    pulse_room.tick(1)
    before = pulse_room.world.statements

    pulse.tick(pulse_room.runtime)

    assert pulse_room.world.statements - before <= 3


# by hand


def test_manual_turn_leaves_the_schedule_alone(pulse_room):
    pulse_room.file("chores/look.md", HOURLY)
    pulse_room.tick_and_finish()
    pulse_room.tick(1)
    due = pulse_room.row(WorkKind.CHORE, "look")["next_due"]

    admitted, intents = pulse.run_now(pulse_room.runtime, "look")
    pulse_room.world.pending += intents
    pulse_room.world.run_dry()

    assert pulse_room.world.row("turns", id=admitted.turn_id)["disposition"] == "answered"
    assert pulse_room.tick(60) == []
    assert pulse_room.row(WorkKind.CHORE, "look")["next_due"] == due


def test_manual_turn_is_refused_while_its_turn_runs_and_for_closed_tasks(under_way):
    with pytest.raises(Conflict, match="wait for its end"):
        pulse.run_now(under_way.runtime, "task:abcd2345")
    under_way.file("tasks/gate.md", "---\nid: gate\nstatus: done\n---\n")

    with pytest.raises(Conflict, match="set its status to todo"):
        pulse.run_now(under_way.runtime, "gate")


def test_manual_run_lists_the_choices_when_a_name_is_wrong_or_ambiguous(under_way):
    under_way.file("chores/abcd2345.md", HOURLY)
    under_way.file("chores/broken.md", "---\nevery: never\n---\n")

    with pytest.raises(NotFound, match="chore:abcd2345"):
        pulse.run_now(under_way.runtime, "nothing")
    with pytest.raises(NotFound, match="say which"):
        pulse.run_now(under_way.runtime, "abcd2345")
    with pytest.raises(RoomError, match="chores/broken.md:2"):
        pulse.run_now(under_way.runtime, "chores/broken.md")


# the desk


def test_body_is_not_written_over_a_text_the_agent_has_not_seen(under_way):
    under_way.file("tasks/fence.md", TASK.replace("fence", "gate"))
    with pytest.raises(Conflict, match="task_read"):
        desk(under_way).write(body="red", status=None, version=None)

    told = desk(under_way).read()
    desk(under_way).write(body=f"{told.text} Red.", status=None, version=told.version)
    under_way.world.run_dry()

    assert len(under_way.tick(1)) == 1, "the person's edit still has its turn"
    assert under_way.turns()[-1]["text"] == "Paint the gate. Red."


def test_write_that_died_before_the_file_changed_is_made_again(under_way, monkeypatch):
    def dies(*_):
        raise Died

    monkeypatch.setattr(task_file.files, "replace", dies)
    with pytest.raises(Died):
        desk(under_way).write(body="red", status=None, version=None)
    monkeypatch.undo()
    under_way.tick(1)

    desk(under_way).write(body="red", status=None, version=None)
    under_way.world.run_dry()

    assert under_way.tick(1) == under_way.tick(60) == []


def test_repeated_comment_is_stored_once(under_way):
    desk(under_way).comment("half", "m1")

    assert desk(under_way).comment("half", "m1").text.count("half") == 1


def test_unknown_status_and_missing_task_are_refused(under_way):
    with pytest.raises(InvalidMessage, match="todo, doing, done, cancelled"):
        desk(under_way).write(body=None, status="later", version=None)
    (under_way.room / "tasks/fence.md").unlink()
    with pytest.raises(NotFound, match="abcd2345"):
        desk(under_way).read()


def test_editor_that_saves_all_the_time_wins(under_way, monkeypatch):
    number = count()
    replace = task_file.files.replace

    def saved_meanwhile(file, before, after):
        under_way.file("tasks/fence.md", TASK.replace("fence", f"fence {next(number)}"))
        replace(file, before, after)

    monkeypatch.setattr(task_file.files, "replace", saved_meanwhile)

    with pytest.raises(Conflict, match="again and again"):
        desk(under_way).comment("half", "m1")
    assert "half" not in (under_way.room / "tasks/fence.md").read_text()


def test_threads_without_a_task_have_no_task_file(pulse_room):
    assert task_file.of_thread(pulse_room.runtime, "chore:look") is None
