"""One agent file of the room, from text to definition. Whatever is wrong with it is one RoomError, line by line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.agent import AgentSpec, Limits, MixedRound, OnUnknown, ToolMode, WhenBusy, WhileWaiting
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.limits import with_stops
from chordage.orchestrator.gateways import (
    room_agents,
    room_compaction,
    room_lines,
    room_output,
    room_plan,
    room_plugins,
    room_text,
    room_tools,
)
from chordage.orchestrator.gateways.mcp import reading as mcp_reading
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.room_table import COUNT, FLAG, HEADERS, SECONDS, SOME, TEXT, TEXTS, Source, Table
from chordage.orchestrator.gateways.room_trace import Traces, trace_of
from chordage.orchestrator.system import user_code

E = TypeVar("E", bound=StrEnum)
D = TypeVar("D")
Providers = dict[str, dict[str, Any]]

# Keys of the agent itself. TOML puts one that is written below a [table] into that table.
_KEYS = frozenset(key.name for key in fields(AgentSpec) if key.name != "named_models")

_PROVIDER = {
    "wire": TEXT,
    "base_url": TEXT,
    "api_key_env": TEXT,
    "headers": HEADERS,
    "silence": SECONDS,
    "max_tokens_key": TEXT,
    "json_schema": FLAG,
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SYNTAX_PLACE = re.compile(r"\s*\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentFile:
    """A file that was read. `spec` is None where `fault` says why there is none."""

    source: Source
    name: str
    spec: AgentSpec | None = None
    fault: RoomError | None = None
    draft: AgentSpec | None = None  # as far as it could be read, for whoever looks for further faults
    providers: Providers
    servers: tuple[McpServer, ...] = ()
    reads: Traces = field(default_factory=dict)  # further files that the definition is made of


def read(path: Path, room: Path, strategies: Collection[str], *, copy: Path | None = None) -> AgentFile:
    """`copy`: an earlier version of the file, whose text is read instead."""
    name = path.relative_to(room).as_posix()
    try:
        source = Source(name=name, text=room_text.read(copy or path))
        values = bounds.loads_toml(source.text)
    except (OSError, UnicodeDecodeError) as error:
        return _unreadable(path, Source(name=name, text=""), f"{name}: cannot be read: {error}")
    except tomllib.TOMLDecodeError as error:
        return _unreadable(path, source, syntax_fault(source, error))
    return _Reading(path, room, Table(source, values, of_file=_KEYS), strategies).done()


class _Reading:
    def __init__(self, path: Path, room: Path, table: Table, strategies: Collection[str]) -> None:
        self._path = path
        self._room = room
        self._table = table
        self._strategies = strategies
        self._reads: Traces = {}

    def done(self) -> AgentFile:
        spec, providers, servers = self._spec(), self._providers(), mcp_reading.read(self._table)
        self._table.refuse_the_rest()
        problems = self._table.source.problems
        if not problems:
            spec = replace(spec, limits=with_stops(spec.limits, spec.plugins))
        return AgentFile(
            source=self._table.source,
            name=spec.name,
            spec=None if problems else spec,
            draft=spec if problems else None,
            fault=RoomError("\n".join(problems)) if problems else None,
            providers={} if problems else providers,
            servers=() if problems else servers,
            reads=self._reads,
        )

    def _spec(self) -> AgentSpec:
        table = self._table
        usual = AgentSpec(name="", model="")
        return AgentSpec(
            name=self._name(),
            model=table.take("model", TEXT, "", required=True),
            fallbacks=tuple(table.take("fallbacks", TEXTS, [])),
            selectable_models=tuple(table.take("selectable_models", TEXTS, [])),
            instructions=self._instructions(),
            tools=self._tools(),
            strategy=self._strategy(usual.strategy),
            limits=self._limits(),
            params=self._params(),
            concurrency=table.take("concurrency", SOME, None),
            model_timeout=float(table.take("model_timeout", SECONDS, usual.model_timeout)),
            model_retries=table.take("model_retries", COUNT, usual.model_retries),
            stream=table.take("stream", FLAG, usual.stream),
            prompt_cache=table.take("prompt_cache", FLAG, usual.prompt_cache),
            tenant=table.take("tenant", TEXT, None),
            tool_mode=table.choose("tool_mode", ToolMode, usual.tool_mode),
            mixed_round=table.choose("mixed_round", MixedRound, usual.mixed_round),
            on_unknown=table.choose("on_unknown", OnUnknown, usual.on_unknown),
            while_waiting=table.choose("while_waiting", WhileWaiting, None),
            agents=room_agents.read(table),
            when_busy=table.choose("when_busy", WhenBusy, usual.when_busy),
            plugins=room_plugins.read(table, self._room, self._reads),
            plan=room_plan.read(table, self._room),
            output=room_output.read(table, self._room, self._reads),
            compaction=room_compaction.read(table),
        )

    def _name(self) -> str:
        name = self._table.take("name", TEXT, self._path.stem)
        if not _NAME.fullmatch(name):
            self._table.complain("name", f"must be 1 to 64 letters, digits, _ . or -; got {name!r}")
        return name

    def _instructions(self) -> str:
        text = self._table.take("instructions", TEXT, "")
        file = self._table.take("instructions_file", TEXT, "")
        if text and file:
            self._table.complain("instructions_file", "there are instructions too; keep one of the two")
        return self._text_of(file) if file else text

    def _text_of(self, file: str) -> str:
        path = self._room / file
        self._reads[path] = trace_of(path)  # before it is read: what changes meanwhile is then seen
        try:
            return room_text.read(path)
        except (OSError, UnicodeDecodeError) as error:
            self._table.complain(
                "instructions_file", f"{path} cannot be read ({error}); a path is relative to the room"
            )
            return ""

    def _tools(self) -> tuple[str, ...]:
        tools: list[str] = self._table.take("tools", TEXTS, [])
        for twice in sorted({path for path in tools if tools.count(path) > 1}):
            line = room_lines.line_of_item(self._table.source.text, ("tools",), twice)
            self._table.complain("tools", f"{twice!r} stands here twice; keep one", line=line)
        return tuple(tools)

    def _strategy(self, usual: str) -> str:
        strategy = self._table.take("strategy", TEXT, usual)
        if ":" in strategy:
            self._check_strategy(strategy)
        elif strategy not in self._strategies:
            known = ", ".join(sorted(self._strategies))
            self._table.complain("strategy", f"must be one of {known}, or module:function; got {strategy!r}")
        return strategy

    def _check_strategy(self, path: str) -> None:
        room_tools.make_importable(self._room)
        try:
            user_code.load_function(path, what="strategy")
        except RoomError as error:
            self._table.complain("strategy", str(error))

    def _limits(self) -> Limits:
        table = self._table.inner("limits")
        timeout: float | None = table.take("timeout", SECONDS, None)
        counts = {
            name: table.take(name, SOME, getattr(Limits(), name))
            for name in ("max_rounds", "max_tool_calls", "max_depth", "max_children")
        }
        limits = Limits(**counts, timeout=timeout)
        table.refuse_the_rest()
        return limits

    def _params(self) -> dict[str, Any]:
        params = self._table.inner("params")
        for key, value in params.values.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                params.complain(key, f"must be something JSON has: no date, no inf, no nan; got {value!r}")
        return params.values

    def _providers(self) -> Providers:
        models = self._table.inner("models")
        return {name: self._provider(models.inner(name)) for name in models.values}

    def _provider(self, table: Table) -> dict[str, Any]:
        """In part or whole: what is left out, the model catalog knows or asks for."""
        given: dict[str, Any] = {key: table.take(key, kind, None) for key, kind in _PROVIDER.items()}
        if given["base_url"] and not given["base_url"].startswith(("http://", "https://")):
            table.complain("base_url", f"must start with http:// or https://; got {given['base_url']!r}")
        table.refuse_the_rest()
        return {key: value for key, value in given.items() if value is not None}


def _unreadable(path: Path, source: Source, why: str) -> AgentFile:
    return AgentFile(source=source, name=path.stem, fault=RoomError(why), providers={})


def syntax_fault(source: Source, error: tomllib.TOMLDecodeError) -> str:
    """The parser says the place in words; a file that ends too early is at fault in its last line."""
    place = _SYNTAX_PLACE.search(str(error))
    line = (place and place["line"]) or max(1, len(source.text.splitlines()))
    column = f", column {place['column']}" if place and place["column"] else ""
    return f"{source.name}:{line}: this is not TOML: {_SYNTAX_PLACE.sub('', str(error))}{column}"
