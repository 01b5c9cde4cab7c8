"""Which processes a fleet consists of: workers, and the processes of the runtime loops beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime

from chordage.config.settings import LOOPS, Loop, Settings
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.hosts import is_loopback
from chordage.orchestrator.store.database import Store
from chordage.workers import connections
from chordage.workers.fleet.member import MemberRole

# -P: the current folder is not searched for modules, so no file of it is taken for Python's or ours.
PYTHON = (sys.executable, "-P", "-m")
CHORDAGE = (*PYTHON, "chordage.workers.cli")
FIRST = 0  # the rank of processes that let work in: they are stopped before those that do it
TURNS = "turns"


def workers(*, tools: int = 2, processes: int = 2, events: bool = False, reserve: int = 0) -> list[MemberRole]:
    """One worker for the turns, and some for their tools; with a reserve, one of each for chat alone."""
    more = ("--events",) if events else ()
    reserved = [_reserved(kind, more) for kind in (TURNS, "tools")] if reserve else []
    return [
        _worker(TURNS, ("--role", "turns", *more), connections.of_threads),
        *(_tools_worker(f"tools-{number}", processes, more) for number in range(1, tools + 1)),
        *reserved,
    ]


def _worker(name: str, options: Sequence[str], most_connections: Callable[[Settings], int]) -> MemberRole:
    arguments = (*CHORDAGE, "worker", *options, "--name", name)
    return MemberRole(name=name, arguments=arguments, says_ready=True, connections=most_connections)


def _tools_worker(name: str, processes: int, more: tuple[str, ...]) -> MemberRole:
    options = ("--role", "tools", "--concurrency", str(processes), *more)
    return _worker(name, options, lambda _settings: connections.of_processes(processes))


def _reserved(kind: str, more: tuple[str, ...]) -> MemberRole:
    """How many slots it has is a setting, which it reads itself."""
    most = connections.of_threads if kind == TURNS else lambda settings: connections.of_processes(settings.reserve)
    return _worker(f"{kind}-chat", ("--role", kind, "--reserved", *more), most)


def beat() -> MemberRole:
    return MemberRole(name="beat", arguments=(*CHORDAGE, "beat"), rank=FIRST)


def web(host: str, port: int) -> MemberRole:
    near = local(host)
    return MemberRole(
        name="web",
        arguments=(*CHORDAGE, "web", "--host", host, "--port", str(port)),
        rank=FIRST,
        port=port,
        host=near,
        url=f"http://{f'[{near}]' if ':' in near else near}:{port}",
        connections=connections.of_server,
    )


def poll() -> MemberRole:
    return MemberRole(name="poll", arguments=(*CHORDAGE, "poll"), rank=FIRST, connections=connections.of_server)


def local(host: str) -> str:
    """The address by which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound to


def check_keys(settings: Settings) -> None:
    """Raises ConfigError for a server that wants a key with every request while there is no valid one."""
    if not wants_keys(settings):
        return
    from chordage.orchestrator.stages.keys import has_valid_key

    with closing(Store(settings.database, pool_size=1)) as store:
        if has_valid_key(store, datetime.now(UTC)):
            return
    raise no_valid_key(settings)


def wants_keys(settings: Settings) -> bool:
    return settings.keyless == "none" or not is_loopback(settings.host)


def no_valid_key(settings: Settings, *, first: str = "") -> ConfigError:
    is_local = is_loopback(settings.host)
    why = "CHORDAGE_KEYLESS is none" if is_local else f"it is to listen on {settings.host}, where others reach it"
    other = "set CHORDAGE_KEYLESS to local" if is_local else "listen on 127.0.0.1"
    return ConfigError(
        f"the HTTP server wants a key with every request ({why}), and there is no valid key: {first}make one with "
        f"`chordage keys create NAME --scope submit --scope read --scope payloads`, or {other}"
    )


# A loop accepts turns and executes none: workers do. Two loops may be one process, which reads the setting `loops`.
PROCESSES: Mapping[Loop, Callable[[Settings], MemberRole]] = {
    "server": lambda settings: web(settings.host, settings.port),
    "hook": lambda settings: web(settings.host, settings.port),
    "poll": lambda _settings: poll(),
    "pulse": lambda _settings: beat(),
}
NEEDS: Mapping[Loop, str] = {"poll": "channels.toml"}  # the file of the room without which the loop has no work


def choose_loops(settings: Settings, requested: Sequence[Loop]) -> tuple[Loop, ...]:
    """The requested loops, or all that have something to do here. Raises ConfigError for one that cannot run."""
    for loop in requested:
        if (reason := _why_not(settings, loop)) is not None:
            raise ConfigError(f"there is nothing for the loop {loop!r} to do: {reason}")
    wanted = requested or settings.loops
    return tuple(loop for loop in LOOPS if loop in wanted and (requested or _why_not(settings, loop) is None))


def _why_not(settings: Settings, loop: Loop) -> str | None:
    file = settings.room_path / NEEDS[loop] if loop in NEEDS else None
    return f"there is no {file}; write one, or leave the loop out" if file is not None and not file.exists() else None


def of_fleet(settings: Settings, *, tools: int, with_workers: bool) -> list[MemberRole]:
    """For `settings.loops`, with workers to execute the turns. Workers come with a beat, which sweeps."""
    roles = [*(workers(tools=tools, reserve=settings.reserve) if with_workers else ())]
    roles += [PROCESSES[loop](settings) for loop in settings.loops]
    if with_workers:
        roles.append(beat())
    return list({role.name: role for role in roles}.values())
