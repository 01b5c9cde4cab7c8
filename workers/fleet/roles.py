"""Which processes a fleet consists of."""

from __future__ import annotations

import sys

from chordage.workers import connections
from chordage.workers.fleet.member import Role

# -P: the folder one happens to stand in is not searched for modules, so no file of it is taken for Python's or ours.
PYTHON = (sys.executable, "-P", "-m")
CHORDAGE = (*PYTHON, "chordage.workers.cli")
FIRST = 0  # to be stopped: who lets work in, before who does it
TURNS = "turns"


def workers(*, tools: int = 2, processes: int = 2, events: bool = False, reserve: int = 0) -> list[Role]:
    """One worker for the turns, and some for their tools; with a reserve, one of each for chat alone."""
    more = ("--events",) if events else ()
    options = ("--role", "turns", "--name", "turns", *more)
    turns = Role(
        name="turns", arguments=(*CHORDAGE, "worker", *options), says_ready=True, connections=connections.of_threads
    )
    kept = [_reserved(kind, more) for kind in (TURNS, "tools")] if reserve else []
    return [turns, *(_tools_worker(f"tools-{number}", processes, more) for number in range(1, tools + 1)), *kept]


def _tools_worker(name: str, processes: int, more: tuple[str, ...]) -> Role:
    options = ("--role", "tools", "--name", name, "--concurrency", str(processes), *more)
    return Role(
        name=name,
        arguments=(*CHORDAGE, "worker", *options),
        says_ready=True,
        connections=lambda _settings: connections.of_processes(processes),
    )


def _reserved(kind: str, more: tuple[str, ...]) -> Role:
    """How many slots it has is a setting, which it reads itself."""
    name = f"{kind}-chat"
    options = ("--role", kind, "--reserved", "--name", name, *more)
    taken = connections.of_threads if kind == TURNS else lambda settings: connections.of_processes(settings.reserve)
    return Role(name=name, arguments=(*CHORDAGE, "worker", *options), says_ready=True, connections=taken)


def beat() -> Role:
    return Role(name="beat", arguments=(*CHORDAGE, "beat"), rank=FIRST)


def web(host: str, port: int) -> Role:
    options = ("--host", host, "--port", str(port))
    near = local(host)
    url = f"http://{f'[{near}]' if ':' in near else near}:{port}"
    return Role(
        name="web",
        arguments=(*CHORDAGE, "web", *options),
        rank=FIRST,
        port=port,
        host=near,
        url=url,
        connections=connections.of_server,
    )


def poll() -> Role:
    return Role(name="poll", arguments=(*CHORDAGE, "poll"), rank=FIRST, connections=connections.of_server)


def local(host: str) -> str:
    """Where to reach, from this machine, what listens there."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound to
