"""Each guard of the engine is taken out once, and has to be missed: `just sabotage` prints by which check, and when.

`--without GUARD` takes a single one; the tests have one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from support.chaos_checks import seen_at_work, violations
from support.chaos_fleet import chaos_fleet
from support.chaos_trial import Trial
from support.chaos_worker import WITHOUT, take_out
from support.draws import DRAW
from support.repository import ROOT
from support.sabotage import GUARDS, NOTHING, Guard

pytestmark = [pytest.mark.redis, pytest.mark.postgres, pytest.mark.slow]

SECONDS = 60  # within which a guard is missed on a machine that does nothing else
BUSY = 4  # times as long it is looked for: it ends with the first thing that is seen
TURNS = 20
QUICK = {"lease": 3, "beat": 1, "sweep": 1, "soft_shutdown": 4}
OF_THE_TESTS = "an outcome is recorded once"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = metafunc.config.getoption("--without") or OF_THE_TESTS
    metafunc.parametrize("name", list(GUARDS) if wanted == "all" else [wanted])


@dataclass(frozen=True, kw_only=True, slots=True)
class Caught:
    by: str
    turns: int
    seconds: float


def test_guard_that_is_taken_out_is_missed(name, tmp_path, start_valkey, request, capsys):
    assert name in GUARDS, f"--without {name!r}: use `all`, or one of: {'; '.join(GUARDS)}"
    guard = GUARDS[name]
    caught = _by_test(name, guard) if guard.test else _by_chaos(name, guard, tmp_path, start_valkey, request)
    with capsys.disabled():
        print(f"\n| {name} | {caught.by.partition(chr(10))[0][:150]} | {caught.turns or ''} | {caught.seconds:.1f} |")

    assert bool(caught.by) == (name != NOTHING), caught.by or f"nothing was seen in {BUSY * SECONDS} s"


def _by_test(name: str, guard: Guard) -> Caught:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", guard.test]
    env = {**os.environ, WITHOUT: name, DRAW: "all"}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    assert run.returncode in {0, 1}, run.stdout[-3000:]
    return Caught(by=failed[0] if failed else "", turns=0, seconds=time.monotonic() - began)


def _by_chaos(name, guard, tmp_path, start_valkey, request) -> Caught:
    seed, valkey = request.config.getoption("--seed"), start_valkey("broker", appendonly=False)
    settings = {**QUICK, **guard.settings}
    with chaos_fleet(tmp_path, valkey, guard=name, drops=guard.drops, **settings) as fleet, take_out(name):
        trial, began = Trial(fleet, seed, guard=guard), time.monotonic()
        found = next(_found(trial, SECONDS if name == NOTHING else BUSY * SECONDS), "")
        return Caught(by=found, turns=len(trial.accepted) + len(trial.sent), seconds=time.monotonic() - began)


def _found(trial: Trial, seconds: float) -> Iterator[str]:
    try:
        yield from trial.hunt(seconds / 2, TURNS, lambda: seen_at_work(trial))
        yield from violations(trial)
    except AssertionError as error:
        yield str(error)
