"""Figures, rooms and process trees of the bench, without a fleet."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chordage.benchmarks import measuring, workload
from chordage.benchmarks.measuring import Figure
from chordage.benchmarks.workload import SLOW, RoomOptions, TurnShape, knows_placement
from chordage.orchestrator.core.model import Prompt, UserSays
from chordage.orchestrator.gateways.models.script_files import load
from chordage.orchestrator.gateways.room.agents import Room


@pytest.fixture(autouse=True)
def rooms_of_their_own(monkeypatch):
    """Modules of a room are imported once in a process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("bench_tools", "bench_plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)


needs_proc = pytest.mark.skipif(not measuring.cpu_is_known(), reason="platform: there is no /proc here")


def test_figure_is_the_median_and_the_range():
    assert Figure.of([3.0, 1.0, 2.0]) == Figure(median=2.0, low=1.0, high=3.0)


def test_ideal_turn_waits_for_every_model_call_and_for_one_tool_a_round():
    assert SLOW.ideal == pytest.approx(0.5)
    assert TurnShape(rounds=3, model_delay=1, tool_delay=2).ideal == 10


def test_room_has_as_many_tools_and_rounds_as_the_shape_sets(tmp_path):
    workload.write_room(tmp_path, TurnShape(rounds=2, calls=3))
    room = Room(tmp_path)
    prompt = Prompt(system="", said=(UserSays(text="Look it up."),), offers=(), params={})

    reply = load(tmp_path / "work.yaml")(prompt, 1)

    assert room.faults == []
    assert [call.name for call in reply.calls] == ["look_up"] * 3
    assert list(room.toolbox.specs(room.get(workload.WORKER))) == ["look_up"]
    assert room.toolbox.specs(room.get(workload.TALKER)) == {}


def test_room_has_what_a_scenario_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("CHORDAGE_REDIS_URL", "redis://127.0.0.1:1/3")
    workload.write_room(tmp_path, TurnShape(), RoomOptions(effect="unsafe", plugin=True))
    room = Room(tmp_path)
    agent = room.get(workload.WORKER)

    assert room.faults == []
    assert room.toolbox.specs(agent)["look_up"].effect == "unsafe"
    assert [plugin.use for plugin in agent.plugins] == ["bench_plugin:Ends"]


@pytest.mark.parametrize("placement", ["here", "together", "spread"])
def test_room_names_the_placement_of_a_scenario_where_the_version_knows_it(tmp_path, placement):
    workload.write_room(tmp_path, TurnShape(), RoomOptions(placement=placement))

    assert [fault for fault in Room(tmp_path).faults if "placement" in str(fault)] == [] or not knows_placement()


@needs_proc
def test_cpu_of_a_process_tree_includes_children_that_have_ended():
    burn = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {'sum(range(20_000_000))'!r}])"
    before = measuring.cpu_seconds([os.getpid()])

    subprocess.run([sys.executable, "-c", burn], check=True)

    assert measuring.cpu_seconds([os.getpid()]) - before > 0.1


@needs_proc
def test_family_of_a_process_is_all_that_it_started():
    sleeper = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    parent = subprocess.Popen([sys.executable, "-c", sleeper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())

    found = measuring.family([parent.pid])

    for pid in (child, parent.pid):
        os.kill(pid, 9)
    parent.communicate()
    assert found == [parent.pid, child]
