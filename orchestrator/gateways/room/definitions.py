"""The definition of an agent, of which its digest is made: its file as it was read, and what that file names.

In it are what the file says, the schemas and effects of its tools in Python, the schema of its output, the addresses of
its MCP servers and how its models are reached. Not in it: the code of tools, plugins and strategies, what an MCP server
offers at the moment, prices, and the values of variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.agent_versions import (
    FORMAT,
    FROM_ENVIRONMENT,
    AgentVersion,
    fingerprint,
    plain,
    version_of,
)
from chordage.orchestrator.gateways.mcp.servers import McpServer, Pairs, Program
from chordage.orchestrator.gateways.ports import OutputForm


def version(
    agent: AgentSpec,
    *,
    tools: Iterable[ToolSpec],
    output: OutputForm | None,
    servers: Iterable[McpServer],
    providers: Mapping[str, Mapping[str, Any]],
) -> AgentVersion:
    """`providers`: those of the room; only those of its models belong to it."""
    of_models = {name.partition(":")[0] for name in agent.named_models}
    parts = {
        "tools": {tool.name: plain(tool) for tool in tools},
        "output": plain(output.schema, is_schema=True) if output is not None else None,
        "mcp": {server.name: _server(server) for server in servers},
        "models": {name: _provider(table) for name, table in providers.items() if name in of_models},
    }
    given = {name: part for name, part in parts.items() if part}
    return version_of(agent.name, {"format": FORMAT, "agent": plain(agent), **given})


def _server(server: McpServer) -> dict[str, Any]:
    terms = {name: value for name, value in plain(server).items() if name not in {"name", "address", "place"}}
    return {**terms, "address": _address(server)}


def _address(server: McpServer) -> dict[str, Any]:
    """People put secrets into arguments and addresses: those are in it as a fingerprint."""
    address = server.address
    if isinstance(address, Program):
        env = {**_literal(address.env), **_variables(address.env_from)}
        hidden = {"args": fingerprint(address.args)} if address.args else {}
        return {"command": address.command, "cwd": address.cwd, "env": env, **hidden}
    headers = {**_literal(address.headers), **_variables(address.headers_from)}
    token = {"token_env": address.token_from} if address.token_from else {}
    return {**_url(address.url, address.url_from), "headers": headers, **token}


def _literal(pairs: Pairs) -> dict[str, Any]:
    return {name: fingerprint(value) for name, value in pairs}


def _variables(pairs: Pairs) -> dict[str, Any]:
    return {f"{name}{FROM_ENVIRONMENT}": variable for name, variable in pairs}


def _url(url: str, variable: str | None = None) -> dict[str, Any]:
    if variable:
        return {"url_env": variable}
    parts = urlsplit(url)
    return {"url": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", "whole": fingerprint(url)}


def _provider(table: Mapping[str, Any]) -> dict[str, Any]:
    """As its table says; of the headers the names alone are shown."""
    given = {name: value for name, value in table.items() if name not in {"base_url", "headers"}}
    headers = {
        name: value if name.endswith(FROM_ENVIRONMENT) else fingerprint(value)
        for name, value in table.get("headers", {}).items()
    }
    return {
        **given,
        **(_url(table["base_url"]) if "base_url" in table else {}),
        **({"headers": headers} if headers else {}),
    }
