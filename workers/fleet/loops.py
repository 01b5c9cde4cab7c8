"""Which processes runtime loops need. A loop takes turns in and executes none: that is for the workers beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec

from chordage.config.settings import LOOPS, Loop, Settings
from chordage.orchestrator.core.errors import ConfigError
from chordage.workers.fleet import roles
from chordage.workers.fleet.member import Role


def _web(settings: Settings) -> Role:
    return roles.web(settings.host, settings.port)


def _poll(_: Settings) -> Role:
    return roles.poll()


def _beat(_: Settings) -> Role:
    return roles.beat()


# Two loops may be one process. A member learns from the setting `loops` which are on.
PROCESSES: Mapping[Loop, Callable[[Settings], Role]] = {
    "server": _web,
    "hook": _web,
    "poll": _poll,
    "pulse": _beat,
}
# Without this file of the room there is nothing for the loop to do.
NEEDS: Mapping[Loop, str] = {"poll": "channels.toml"}


def chosen(settings: Settings, asked: Sequence[Loop]) -> tuple[Loop, ...]:
    """Those that were asked for, or all that have something to do here. Raises ConfigError for one that cannot run."""
    for loop in asked:
        if (why := _why_not(settings, loop)) is not None:
            raise ConfigError(f"there is nothing for the loop {loop!r} to do: {why}")
    wanted = asked or settings.loops
    return tuple(loop for loop in LOOPS if loop in wanted and (asked or _why_not(settings, loop) is None))


def _why_not(settings: Settings, loop: Loop) -> str | None:
    command = PROCESSES[loop](settings).arguments[len(roles.CHORDAGE)]
    if find_spec(f"chordage.workers.cli.{command}") is None:
        return f"this version has no `chordage {command}`"
    file = settings.room_path / NEEDS[loop] if loop in NEEDS else None
    return f"there is no {file}; write one, or leave the loop out" if file is not None and not file.exists() else None


def members(settings: Settings, *, tools: int, with_workers: bool) -> list[Role]:
    """For `settings.loops`, with workers to carry the turns out. Where there are workers there is a beat: it sweeps."""
    found = [*(roles.workers(tools=tools, reserve=settings.reserve) if with_workers else ()), *_of_loops(settings)]
    if with_workers:
        found.append(roles.beat())
    return list({role.name: role for role in found}.values())


def _of_loops(settings: Settings) -> Iterator[Role]:
    return (PROCESSES[loop](settings) for loop in settings.loops)
