"""A room whose agent has the tools of `mcp_tool_server`, over either transport, and a handle on that server."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil

from chordage.orchestrator.gateways.mcp.link import LinkRules, ServerHealth
from chordage.orchestrator.gateways.mcp.tools import McpServers
from chordage.orchestrator.gateways.ports import CallOrder, ToolOutcome
from chordage.orchestrator.gateways.room.agents import Room
from chordage.workers.fleet.member import free_port
from support import processes
from support.waiting import until

SCRIPT = Path(__file__).with_name("mcp_tool_server.py")
OLD = SCRIPT.with_name("old_mcp_server.py")
TRANSPORTS = ("stdio", "http")  # "old": a quick one that knows less, over stdio


class Calm:
    """An abort that never comes."""

    def check(self) -> None: ...
    def wait(self, seconds: float) -> None: ...


class Kit:
    """`more` is what else is in the server's table."""

    def __init__(self, folder: Path, transport: str = "stdio", more: str = "") -> None:
        self.folder = folder
        self.transport = transport
        self.port = free_port()
        self.notes: list[str] = []
        self._process: Any = None
        self.agent(more)
        self.room = Room(folder, environ=os.environ, look_again=0)

    def agent(self, more: str = "", ahead: str = "", file: str = "agent.toml") -> None:
        script = OLD if self.transport == "old" else SCRIPT
        where = f'command = "{sys.executable}"\nargs = ["{script}", "{self.folder}"]'
        if self.transport == "http":
            where = f'url = "http://127.0.0.1:{self.port}/mcp"'
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'model = "m"\n{ahead}\n[mcp.kit]\n{where}\n{more}\n')

    def start(self) -> None:
        """The server, where its client does not start it."""
        if self.transport == "http":
            command = [sys.executable, SCRIPT, self.folder, str(self.port)]
            self._process = processes.spawn(command, self.folder / "server.log")
            until(self._listens, "the server listens", pause=0.02)

    def kill(self) -> None:
        """The process that serves."""
        if self.transport == "http":
            processes.kill_tree(self._process)
        else:
            os.kill(self.pids[-1], signal.SIGKILL)

    @property
    def pids(self) -> list[int]:
        """Of every process of the server that was started."""
        started = self.folder / "started"
        return [int(line) for line in started.read_text().split()] if started.exists() else []

    def alive(self) -> list[int]:
        return [pid for pid in self.pids if is_alive(pid)]

    def rules(self, **given: float) -> None:
        """`rules(patience=0)`: before anything is asked."""
        self.room.servers = McpServers(self.folder, environ=os.environ, rules=LinkRules(**given))

    def specs(self) -> dict[str, Any]:
        return self.room.toolbox.specs(self.room.get(None))

    def call(self, tool: str, /, *, agent: str | None = None, abort: Any = None, **arguments: Any) -> ToolOutcome:
        order = CallOrder(
            call_id="call-1", run_id="run-1", thread_id="thread-1", tool=tool, arguments=arguments,
            idempotency_key="key-1",
        )  # fmt: skip
        return self.room.toolbox.run(self.room.get(agent), order, abort=abort or Calm(), on_progress=self.notes.append)

    def health(self) -> ServerHealth:
        (server,) = self.room.servers_of(self.room.get(None))
        return self.room.servers.health(server)

    def close(self) -> None:
        (self.folder / "gate").touch()
        self.room.close()
        if self._process is not None:
            processes.kill_tree(self._process)

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
