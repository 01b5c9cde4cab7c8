"""`chordage drill` on a small fleet: it holds; without one guard it is violated, and says which promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from support import sabotaged_worker
from support.rig import Rig

pytestmark = [pytest.mark.redis, pytest.mark.slow]

# A clock that is wrong by a third of the lease leaves time for the beats of a busy machine.
QUICK = {"lease": 9, "beat": 1, "sweep": 0.5, "presence": 0.5, "gone_after": 2, "drill": "on"}
CHORDAGE = (sys.executable, "-m", "chordage.workers.cli")


@pytest.fixture
def fleet(make_rig, migrated_database_url) -> Rig:
    return make_rig(migrated_database_url("postgres"), **QUICK)


def drill(rig: Rig, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*CHORDAGE, "drill", "--yes", "--cut", "2", *options]
    return subprocess.run(command, env=rig.env, cwd=rig.folder, capture_output=True, text=True, check=False)


def test_every_step_holds_on_a_fleet_and_nothing_is_left_of_it(fleet):
    one = fleet.worker("one", "--concurrency", "8")
    fleet.worker("two", "--concurrency", "8")
    fleet.ready()

    ended = drill(fleet, "--json", "--worker", str(one.pid))

    report = json.loads(ended.stdout)
    assert [(step["step"], step["result"]) for step in report["steps"]] == [
        ("canary", "held"), ("kill", "held"), ("redis", "held"), ("clock", "held"),
    ], report  # fmt: skip
    assert ended.returncode == 0
    assert not one.alive
    assert "no supervisor has started another in its place" in report["steps"][1]["notes"]
    assert report["erased"]["turns"] == 4 + 4 + 8 + 4
    assert [fleet.rows(table) for table in ("turns", "runs", "calls", "executions", "threads")] == [[]] * 5


def test_fleet_that_repeats_unsafe_calls_fails_the_drill(fleet):
    """The drill kills a worker of its own."""
    fleet.worker("one", "--concurrency", "8", program=(sabotaged_worker.__file__,))
    fleet.ready()

    ended = drill(fleet, "--only", "kill")

    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("kill\tviolated\t4\t")
    kinds = re.findall(r"^kill: (\w+): call", ended.stdout, re.MULTILINE)
    assert set(kinds) == {"unsafe_twice"}, ended.stdout
