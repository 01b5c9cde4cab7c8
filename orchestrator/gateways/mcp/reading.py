"""The [mcp.<name>] tables of an agent file, with every mistake in them told with its line."""

from __future__ import annotations

import re
from itertools import permutations

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.gateways import room_lines
from chordage.orchestrator.gateways.mcp import naming
from chordage.orchestrator.gateways.mcp.address import URL_BEGINS, Address, Endpoint, Pairs, Program
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.room_table import FLAG, HEADERS, SECONDS, SOME, TEXT, TEXTS, Table

EFFECTS = (Effect.PURE, Effect.IDEMPOTENT, Effect.UNSAFE)  # a reconcilable one needs a function that can be asked
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_FROM_ENVIRONMENT = "_env"
_OF_PROGRAM = ("args", "env", "cwd")
_OF_ENDPOINT = ("headers", "token_env")


def read(table: Table) -> tuple[McpServer, ...]:
    """What is wrong is noted in the table's source."""
    servers = table.inner("mcp")
    found = [_server(servers.inner(name), name) for name in servers.values]
    _check_prefixes(servers)
    return tuple(server for server in found if server is not None)


def _server(table: Table, name: str) -> McpServer | None:
    if not _NAME.fullmatch(name):
        table.source.complain(table.path, "the name of a server is 1 to 32 letters, digits, _ or -; rename it")
    usual = McpServer(name=name, address=Program(command=""), place="")
    address = _address(table)
    server = McpServer(
        name=name,
        address=address or usual.address,
        place=_place(table),
        timeout=float(table.take("timeout", SECONDS, usual.timeout)),
        connect_timeout=float(table.take("connect_timeout", SECONDS, usual.connect_timeout)),
        only=_patterns(table, "tools"),
        without=_patterns(table, "except") or (),
        effect=_effect(table, "effect"),
        effects=_effects(table),
        required=table.take("required", FLAG, usual.required),
        result_limit=table.take("result_limit", SOME, usual.result_limit),
    )
    _check_both_ways(table, server)
    table.refuse_the_rest()
    return server if address is not None else None


def _place(table: Table) -> str:
    line = room_lines.line_of(table.source.text, table.path)
    return f"{table.source.name}:{line}: {'.'.join(table.path)}"


def _address(table: Table) -> Address | None:
    """None where the table does not say which of the two it is, or says both."""
    given = [key for key in ("command", "url", "url_env") if key in table.values]
    program, endpoint = _program(table), _endpoint(table)
    if len(given) != 1:
        why = "says neither" if not given else f"says {' and '.join(given)}"
        table.source.complain(
            table.path, f"{why}; give `command` for a server to start here, or `url` (or `url_env`) for one that runs"
        )
        return None
    is_program = given == ["command"]
    for key in _OF_ENDPOINT if is_program else _OF_PROGRAM:
        if key in table.values:
            table.complain(key, f"does not go with {given[0]}; take it out")
    return program if is_program else endpoint


def _program(table: Table) -> Program:
    written, named = _values(table, "env")
    return Program(
        command=table.take("command", TEXT, ""),
        args=tuple(table.take("args", TEXTS, [])),
        env=written,
        env_from=named,
        cwd=table.take("cwd", TEXT, "."),
    )


def _endpoint(table: Table) -> Endpoint:
    url = table.take("url", TEXT, "")
    if url and not url.startswith(URL_BEGINS):
        table.complain("url", f"must start with http:// or https://; got {url!r}")
    written, named = _values(table, "headers")
    return Endpoint(
        url=url,
        url_from=table.take("url_env", TEXT, None),
        headers=written,
        headers_from=named,
        token_from=table.take("token_env", TEXT, None),
    )


def _values(table: Table, key: str) -> tuple[Pairs, Pairs]:
    """Those that are written down, and of those whose name ends in _env the variable that holds them."""
    given: dict[str, str] = table.take(key, HEADERS, {})
    named = {name: value for name, value in given.items() if name.endswith(_FROM_ENVIRONMENT)}
    short = {name.removesuffix(_FROM_ENVIRONMENT): variable for name, variable in named.items()}
    for name in short.keys() & given.keys():
        table.source.complain((*table.path, key, f"{name}_env"), f"{name} stands here too; keep one of the two")
    written = {name: value for name, value in given.items() if name not in named}
    return tuple(sorted(written.items())), tuple(sorted(short.items()))


def _patterns(table: Table, key: str) -> tuple[str, ...] | None:
    given: list[str] | None = table.take(key, TEXTS, None)
    if given == []:
        table.complain(key, "is empty; name some tools, or leave it out")
    return None if given is None else tuple(given)


def _check_both_ways(table: Table, server: McpServer) -> None:
    for name in sorted(set(server.only or ()) & set(server.without)):
        line = room_lines.line_of_item(table.source.text, (*table.path, "except"), name)
        table.complain("except", f"{name!r} stands in tools too; keep one of the two", line=line)


def _effect(table: Table, key: str) -> Effect | None:
    given: str | None = table.take(key, TEXT, None)
    if given is None or given in EFFECTS:
        return None if given is None else Effect(given)
    hint = "; what became of a call cannot be asked of an MCP server" if given == Effect.RECONCILABLE else ""
    table.complain(key, f"must be one of {', '.join(EFFECTS)}{hint}; got {given!r}")
    return None


def _effects(table: Table) -> tuple[tuple[str, Effect], ...]:
    inner = table.inner("effects")
    return tuple((tool, effect) for tool in inner.values if (effect := _effect(inner, tool)) is not None)


def _check_prefixes(servers: Table) -> None:
    """A tool's name begins with its server's: what begins with two of them could be either's."""
    for one, other in permutations(servers.values, 2):
        if other.startswith(naming.prefix(one)):
            servers.complain(other, f"a tool of it could not be told from one of mcp.{one}; rename one of the two")
