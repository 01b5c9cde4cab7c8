"""Three beats over one room with real processes: each slot one turn, edits while a turn runs, and a broken file."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack, closing

import pytest

from support import processes
from support.databases import BACKENDS
from support.invariants import check_all
from support.pulse_room import aged
from support.rig import Rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

SCRIPT = """
replies:
  - when: Paint
    text: ""
    latency: 0.6
    tool_calls:
      - {name: task_comment, arguments: {text: begun}}
      - {name: task_write, arguments: {status: doing}}
  - when: Paint
    text: "painted: {user}"
    latency: 0.6
  - text: "done"
repeat: true
"""
TASK = "---\nid: abcd2345\nagent: keeper\n---\nPaint the fence.\n"
TOOLS = '["builtin:task_read", "builtin:task_write", "builtin:task_comment"]'


@pytest.fixture(params=BACKENDS[-1:])
def backend(request):
    return request.param


@pytest.fixture
def rig(tmp_path, database_url, redis_url):
    with closing(Rig(tmp_path, database_url, redis_url, pulse=0.3)) as rig:
        (rig.room / "agents/keeper.toml").write_text(f'model = "scripted:keeper.yaml"\ntools = {TOOLS}\n')
        (rig.room / "keeper.yaml").write_text(SCRIPT)
        yield rig


def beats(rig, number):
    """As an operator starts them, once too often and once more."""
    program = (sys.executable, "-m", "chordage.workers.cli", "beat")
    for place in range(number):
        yield processes.spawn(program, rig.folder / f"beat-{place}.log", env=rig.env, cwd=rig.folder)


def test_three_beats_make_one_turn_of_each_slot_and_of_each_edit(rig):
    for folder in ("tasks", "chores"):
        (rig.room / folder).mkdir()
    (rig.room / "chores/look.md").write_text("---\nevery: 1s\nagent: keeper\n---\nLook.\n")
    (rig.room / "chores/broken.md").write_text("---\nevery: never\n---\n")
    task = rig.room / "tasks/fence.md"
    task.write_text(TASK)
    aged(task)
    rig.worker("both", "--role", "all", "--concurrency", "8")
    rig.ready()
    with ExitStack() as ends:
        for beat in beats(rig, 3):
            ends.callback(processes.kill_tree, beat)
        until(
            lambda: all(word in task.read_text() for word in ("begun", "doing")), "its turn has written all it writes"
        )
        task.write_text(task.read_text().replace("fence", "fence red"))
        until(lambda: _texts(rig)[1:], "the edit has its turn")
        until(lambda: len(_slots(rig, "chore")) >= 3, "three slots have had their turns")
        until(lambda: rig.row("pulse", kind="task")["open"] == 0, "the end of the second turn was seen")
        seen = len(_slots(rig, "chore"))
        until(lambda: len(_slots(rig, "chore")) > seen, "all of it was looked at once more")
    rig.wait_until_done()

    first, second = _texts(rig)
    assert (first, "fence red" in second) == ("Paint the fence.", True)
    assert set(_slots(rig, "chore").values()) == {1}
    assert _apart(rig) == {0.0}
    assert "chores/broken.md:2" in (rig.room / "pulse.json").read_text()
    check_all(rig.runtime.store)


def _texts(rig):
    return [row["text"] for row in sorted(rig.rows("turns", origin="task"), key=lambda row: row["arrival"])]


def _slots(rig, origin):
    return Counter(row["dedupe_key"] for row in rig.rows("turns", origin=origin))


def _apart(rig):
    """How far the slots are from whole seconds after the first: a schedule does not drift."""
    from datetime import datetime

    times = sorted(datetime.fromisoformat(key.partition("look:")[2]) for key in _slots(rig, "chore"))
    return {(time - times[0]).total_seconds() % 1 for time in times}
