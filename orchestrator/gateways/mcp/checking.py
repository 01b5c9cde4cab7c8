"""Whether an MCP server could be reached from here, as far as one can tell without trying."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.gateways.mcp.address import URL_BEGINS, Endpoint, Environ, Program
from chordage.orchestrator.gateways.mcp.server import McpServer

NEEDS_PACKAGE = "chordage.orchestrator.gateways.mcp.session"
Import = Callable[[str], object]


def check(server: McpServer, environ: Environ, room: Path, *, load: Import = importlib.import_module) -> None:
    """Raises ConfigError."""
    _check_package(server, load)
    for key, variable in server.address.lookups():
        if not environ.get(variable, "").strip():
            raise ConfigError(f"{server.place}.{key}: variable {variable} is not set; set it in the environment")
    match server.address:
        case Program():
            _check_program(server.place, server.address, environ, room)
        case Endpoint():
            _check_endpoint(server.place, server.address, environ)


def _check_package(server: McpServer, load: Import) -> None:
    """Loaded for real: before a worker forks, so that its children share what that costs."""
    try:
        load(NEEDS_PACKAGE)
    except ImportError as error:
        raise ConfigError(
            f"{server.place}: MCP servers need the package mcp, 2.3 or newer ({error}): "
            "install chordage with its extra, as in `pip install 'chordage[mcp]'`"
        ) from error


def _check_program(place: str, program: Program, environ: Environ, room: Path) -> None:
    cwd = room / program.cwd
    if not cwd.is_dir():
        raise ConfigError(f"{place}.cwd: there is no folder {cwd}; a path is relative to the room")
    is_path = os.sep in program.command
    where = str(cwd / program.command) if is_path else program.command
    path = program.variables(environ).get("PATH") or environ.get("PATH") or os.defpath
    if shutil.which(where, path=path) is None:
        found = f"at {where}" if is_path else "on the PATH"
        raise ConfigError(f"{place}.command: there is no program {program.command!r} {found}; install it")


def _check_endpoint(place: str, endpoint: Endpoint, environ: Environ) -> None:
    for key, variable in endpoint.lookups():
        if not (environ[variable].isascii() and environ[variable].isprintable()):
            raise ConfigError(f"{place}.{key}: {variable} holds characters that cannot be sent; set it anew")
    if not endpoint.target(environ).startswith(URL_BEGINS):
        raise ConfigError(f"{place}.url_env: {endpoint.url_from} must hold an address with http:// or https://")
