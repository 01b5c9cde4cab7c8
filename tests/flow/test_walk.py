"""How much of the engine a plain turn walks through, and that it enters no feature it does not use.

One turn with one round of two tools is carried out in process and traced with `sys.setprofile`. `pytest -s` prints the
calls, functions, files and file switches of each stage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest

from chordage.orchestrator.core.agent import AgentSpec, Effect
from support.fakes import rounds_of
from support.repository import ROOT
from support.world import World

ENGINE = ROOT / "orchestrator"
# What a turn enters only if it uses it: the module, relative to orchestrator/, or a folder.
FEATURES = (
    "run/agent_versions.py",
    "run/approvals.py",
    "run/client_tools.py",
    "run/compaction.py",
    "run/forking.py",
    "run/limits.py",
    "run/output.py",
    "run/planning.py",
    "run/plugins.py",
    "run/steering.py",
    "run/stepping.py",
    "run/subagents.py",
    "core/agent_versions.py",
    "core/approvals.py",
    "core/compaction.py",
    "core/client_messages.py",
    "core/client_tools.py",
    "core/forking.py",
    "core/output.py",
    "core/planning",
    "core/prices.py",
    "core/settling.py",
    "core/subagents.py",
    "store/agent_versions.py",
    "store/approvals.py",
    "store/audit.py",
    "store/children.py",
    "store/fork_record.py",
    "store/forks.py",
    "store/outbox.py",
    "store/plugin_state.py",
    "store/replays.py",
    "store/steering.py",
    "store/stepped.py",
    "stages/step",
    "stages/rescue.py",
    "plugins",
)


@dataclass
class Walk:
    calls: int = 0
    switches: int = 0
    functions: set[tuple[str, str]] = field(default_factory=set)
    files: dict[str, int] = field(default_factory=dict)  # how often each was called into
    _last: str = ""

    def enter(self, file: str, function: str) -> None:
        self.calls += 1
        self.functions.add((file, function))
        self.files[file] = self.files.get(file, 0) + 1
        self.switches += file != self._last
        self._last = file

    def entered(self, feature: str) -> list[str]:
        return [file for file in self.files if file == feature or file.startswith(f"{feature}/")]

    def __str__(self) -> str:
        functions, files = len(self.functions), len(self.files)
        return f"{self.calls:5} calls {functions:4} functions {files:3} files {self.switches:4} switches"


@contextmanager
def walking(walks: list[Walk]) -> Iterator[None]:
    known: dict[str, str | None] = {}

    def file_of(frame: FrameType) -> str | None:
        name = frame.f_code.co_filename
        if name not in known:
            path = Path(name).resolve()
            inside = path.is_relative_to(ENGINE) and "gateways" not in path.relative_to(ENGINE).parts
            known[name] = path.relative_to(ENGINE).as_posix() if inside else None
        return known[name]

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (file := file_of(frame)) is not None:
            for walk in walks:
                walk.enter(file, frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def walk_of(world: World) -> tuple[Walk, dict[str, Walk]]:
    """A turn is carried out before it, so that what is made once for a process is there."""
    world.carries, world.before_carrying = True, lambda *_: None
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", digest="d" * 32)
    world.models.script = rounds_of(2)
    world.submit("before", thread=f"before{len(world.rows('turns'))}")
    world.run_dry()
    world.models.script = rounds_of(2)
    whole, stages, before = Walk(), {}, len(world.rows("turns"))
    with walking([whole, stages.setdefault("admission", Walk())]):
        world.submit("hello", thread=f"walked{before}", here=True)
    while world.pending:
        intent = world.pending.pop(0)
        with walking([whole, stages.setdefault(type(intent).__name__, Walk())]):
            world.deliver(intent)
    return whole, stages


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_plain_turn_enters_no_feature_that_it_does_not_use(world: World) -> None:
    whole, stages = walk_of(world)

    for name, walk in stages.items():
        print(f"{name:14} {walk}")
    print(f"{'a plain turn':14} {whole}")
    print(" ".join(sorted(whole.files)))
    assert {feature: files for feature in FEATURES if (files := whole.entered(feature))} == {}
    assert len(whole.files) <= 41
    assert whole.switches <= 379


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_turn_whose_calls_stay_is_a_shorter_walk(world: World) -> None:
    spread, _ = walk_of(world)
    for effect in Effect:
        world.runtime.durations.note("ada", effect.value, 0.001)
    whole, _ = walk_of(world)

    print(f"{'calls that stay':14} {whole}")
    assert len(whole.files) <= len(spread.files)
    assert whole.switches <= 310 < spread.switches


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_turn_that_uses_a_feature_is_seen_in_it(world: World) -> None:
    world.models.script = rounds_of(2)

    with walking([walk := Walk()]):
        world.submit("hello", reply_target={"url": "https://example.org/"})
        world.run_dry()

    assert walk.entered("store/outbox.py") == ["store/outbox.py"]
