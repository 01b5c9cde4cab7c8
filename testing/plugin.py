"""The pytest plugin: the fixture `chordage_world`, and the marker `chordage_explore` for tests that use it.

Only what a test asks for is imported: this module is loaded in every pytest session of an environment with chordage.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from chordage.testing.world import World

MARKER = "chordage_explore"
FIXTURE = "chordage_world"
SCHEDULES = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chordage", "chordage")
    group.addoption(
        "--chordage-schedules", type=int, metavar="N", help="schedules with several faults for each explored test"
    )
    group.addoption("--chordage-seed", type=int, default=0, metavar="SEED", help="by which these are drawn (default 0)")
    group.addoption("--chordage-replay", metavar="SCHEDULE", help="run explored tests under this schedule alone")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(schedules={SCHEDULES}): run the test with {FIXTURE} under schedules in which messages are lost, "
        "doubled and late, and processes are killed",
    )


@pytest.fixture
def chordage_room() -> Path | None:
    """Override it to test the agents of a room: return its folder."""
    return None


@pytest.fixture
def chordage_world(request: pytest.FixtureRequest, chordage_room: Path | None) -> Iterator[World | None]:
    """A world of `chordage.testing`. An explored test gets a new one for each schedule instead of this."""
    if request.node.get_closest_marker(MARKER) is not None:
        yield None
        return
    from chordage.testing.world import World

    with closing(World(room=chordage_room)) as world:
        yield world


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}  # noqa: SLF001 - as pytest's own
    if FIXTURE not in arguments:
        raise pytest.UsageError(f"{pyfuncitem.nodeid}: a test with @pytest.mark.{MARKER} takes the fixture {FIXTURE}")
    from chordage.testing.exploring import ScheduleFailed, explore
    from chordage.testing.schedules import ScheduleRefused

    def scenario(world: World) -> None:
        pyfuncitem.obj(**{**arguments, FIXTURE: world})

    config, report = pyfuncitem.config, None
    try:
        explore(
            scenario, schedules=_schedules(config, marker), seed=config.getoption("--chordage-seed"),
            replay=config.getoption("--chordage-replay"), name=pyfuncitem.name,
            again=f"pytest {shlex.quote(pyfuncitem.nodeid)} --chordage-replay {{token}}",
            room=pyfuncitem.funcargs.get("chordage_room"),
        )  # fmt: skip
    except ScheduleFailed as failure:
        report = str(failure)
    except ScheduleRefused as refused:
        report = f"--chordage-replay: {refused}"
    if report is not None:  # outside of the handler: the report says all, and a chain of tracebacks would bury it
        pytest.fail(report, pytrace=False)
    return True


def _schedules(config: pytest.Config, marker: pytest.Mark) -> int:
    given: Any = config.getoption("--chordage-schedules")
    unknown = marker.kwargs.keys() - {"schedules"}
    if marker.args or unknown:
        raise pytest.UsageError(f"@pytest.mark.{MARKER} takes schedules=NUMBER, and no {unknown or marker.args}")
    number = marker.kwargs.get("schedules", SCHEDULES) if given is None else given
    if not isinstance(number, int) or number < 0:
        raise pytest.UsageError(f"@pytest.mark.{MARKER}: schedules must be a number from 0, not {number!r}")
    return number
