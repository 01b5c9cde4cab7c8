"""One [mcp.<name>] table of an agent file: the server's address, what the agent wants of it, and whether it can work.

A server is a program to start or a URL. Of secrets only the names of environment variables are kept here.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import ConfigError

Pairs = tuple[tuple[str, str], ...]
Environ = Mapping[str, str]

NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
URL_BEGINS = ("http://", "https://")
NEEDS_PACKAGE = "chordage.orchestrator.gateways.mcp.session"


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Reached over its standard input and output."""

    kind: ClassVar[str] = "stdio"
    command: str
    args: tuple[str, ...] = ()
    env: Pairs = ()
    env_from: Pairs = ()  # name in the server's environment, variable in ours
    cwd: str = "."  # relative to the room

    @property
    def shown(self) -> str:
        """Without the arguments: people put secrets there."""
        return self.command

    def lookups(self) -> Iterator[tuple[str, str]]:
        """Each key that names a variable, with the variable."""
        yield from ((f"env.{name}_env", variable) for name, variable in self.env_from)

    def variables(self, environ: Environ) -> dict[str, str]:
        """The server's environment besides HOME, PATH, USER and the like."""
        return {**dict(self.env), **{name: environ[variable] for name, variable in self.env_from}}

    def check(self, place: str, environ: Environ, room: Path) -> None:
        """Raises ConfigError where the folder or the program does not exist."""
        cwd = room / self.cwd
        if not cwd.is_dir():
            raise ConfigError(f"{place}.cwd: there is no folder {cwd}; a path is relative to the room")
        is_path = os.sep in self.command
        where = str(cwd / self.command) if is_path else self.command
        path = self.variables(environ).get("PATH") or environ.get("PATH") or os.defpath
        if shutil.which(where, path=path) is None:
            searched = f"at {where}" if is_path else "on the PATH"
            raise ConfigError(f"{place}.command: there is no program {self.command!r} {searched}; install it")


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Reached over streamable HTTP."""

    kind: ClassVar[str] = "http"
    url: str = ""
    url_from: str | None = None
    headers: Pairs = ()
    headers_from: Pairs = ()
    token_from: str | None = None

    @property
    def shown(self) -> str:
        """Without path and query: some services put their key there."""
        if self.url_from:
            return f"${self.url_from}"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def lookups(self) -> Iterator[tuple[str, str]]:
        if self.url_from:
            yield "url_env", self.url_from
        if self.token_from:
            yield "token_env", self.token_from
        yield from ((f"headers.{name}_env", variable) for name, variable in self.headers_from)

    def target(self, environ: Environ) -> str:
        return environ[self.url_from] if self.url_from else self.url

    def sent_headers(self, environ: Environ) -> dict[str, str]:
        token = {"Authorization": f"Bearer {environ[self.token_from]}"} if self.token_from else {}
        return {**token, **dict(self.headers), **{name: environ[variable] for name, variable in self.headers_from}}

    def check(self, place: str, environ: Environ, _room: Path) -> None:
        """Raises ConfigError for variables that cannot be sent, or hold no URL."""
        for key, variable in self.lookups():
            if not (environ[variable].isascii() and environ[variable].isprintable()):
                raise ConfigError(f"{place}.{key}: {variable} holds characters that cannot be sent; set it anew")
        if not self.target(environ).startswith(URL_BEGINS):
            raise ConfigError(f"{place}.url_env: {self.url_from} must hold an address with http:// or https://")


Address = Program | Endpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class McpServer:
    """A server as one agent uses it. Agents with the same address share the connection."""

    name: str
    address: Address
    place: str = field(compare=False)  # for messages: file, line and table
    timeout: float = 60.0  # seconds for one call
    connect_timeout: float = 30.0  # seconds until a server that was started has listed its tools
    only: tuple[str, ...] | None = None  # patterns of names; None: all
    without: tuple[str, ...] = ()
    effect: Effect | None = None  # None: as the server annotates its tools
    effects: tuple[tuple[str, Effect], ...] = ()
    required: bool = True
    result_limit: int = 65_536

    @property
    def longest(self) -> float:
        """Seconds that a call may take, connecting included."""
        return self.connect_timeout + self.timeout

    def wants(self, tool: str) -> bool:
        if any(fnmatchcase(tool, pattern) for pattern in self.without):
            return False
        return self.only is None or any(fnmatchcase(tool, pattern) for pattern in self.only)


def prefix(server: str) -> str:
    """What the names of a server's tools begin with."""
    return f"{server}_"


def check(
    server: McpServer, environ: Environ, room: Path, *, load: Callable[[str], object] = importlib.import_module
) -> None:
    """Whether the server can work, as far as that shows without starting anything. Raises ConfigError."""
    try:
        load(NEEDS_PACKAGE)  # for real, before a worker forks: its children share what the import costs
    except ImportError as error:
        raise ConfigError(
            f"{server.place}: MCP servers need the package mcp, 2.3 or newer ({error}): "
            "install chordage with its extra, as in `pip install 'chordage[mcp]'`"
        ) from error
    for key, variable in server.address.lookups():
        if not environ.get(variable, "").strip():
            raise ConfigError(f"{server.place}.{key}: variable {variable} is not set; set it in the environment")
    server.address.check(server.place, environ, room)
