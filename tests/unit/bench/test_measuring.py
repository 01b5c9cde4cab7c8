"""Loops, medians and rooms of the bench, without a fleet."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from chordage.benchmarks import measuring, workload
from chordage.benchmarks.workload import SLOW, TurnShape
from chordage.orchestrator.core.model import Prompt, UserSays
from chordage.orchestrator.gateways.models.script_files import load
from chordage.orchestrator.gateways.room.agents import Room


class Counter:
    """A contender that notes how many of its turns run at once."""

    name = "counter"

    def __init__(self, wait_for: int) -> None:
        self.turns = self.inside = self.most = 0
        self.together = threading.Barrier(wait_for)
        self.lock = threading.Lock()

    def turn(self, _thread: str) -> None:
        with self.lock:
            self.turns += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.together.wait(10)
        with self.lock:
            self.inside -= 1


def test_closed_loop_keeps_so_many_turns_in_flight_and_does_exactly_as_many_as_requested():
    counter = Counter(wait_for=4)

    lap = measuring.closed_loop(counter, turns=12, in_flight=4)

    assert (counter.turns, counter.most, len(lap.turns)) == (12, 4, 12)
    assert lap.rate == pytest.approx(12 / lap.seconds)


def test_lone_turns_never_overlap():
    counter = Counter(wait_for=1)

    measuring.one_by_one(counter, turns=3)

    assert (counter.turns, counter.most) == (3, 1)


def test_percentiles_of_few_values_are_values():
    assert measuring.percentile((3.0, 1.0, 2.0), 0.5) == 2.0
    assert measuring.percentile((3.0, 1.0, 2.0), 0.95) == 3.0


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


@pytest.mark.skipif(not measuring.cpu_is_known(), reason="platform: there is no /proc here")
def test_cpu_of_a_process_tree_includes_children_that_have_ended():
    burn = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {'sum(range(20_000_000))'!r}])"
    before = measuring.cpu_seconds([os.getpid()])

    subprocess.run([sys.executable, "-c", burn], check=True)

    assert measuring.cpu_seconds([os.getpid()]) - before > 0.1
