"""One agent file, from text to definition. What is wrong with it is one RoomError with a line for each fault."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import permutations
from pathlib import Path
from typing import Any

from chordage.orchestrator.core.agent import (
    AgentSpec,
    CompactionSpec,
    Limits,
    OutputUse,
    PlanSpec,
    PluginUse,
    SubAgent,
)
from chordage.orchestrator.core.drill import AGENT_NAME
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.limits import with_stops
from chordage.orchestrator.core.prices import Price, exact
from chordage.orchestrator.core.subagents import tool_of
from chordage.orchestrator.core.text import loads_json
from chordage.orchestrator.gateways import schemas, text_files
from chordage.orchestrator.gateways.mcp.servers import NAME, Address, Endpoint, McpServer, Pairs, Program, prefix
from chordage.orchestrator.gateways.room.agent_table import AgentTable, McpTable, OutputTable, PriceTable
from chordage.orchestrator.gateways.room.files import KeyPath, Source, Stamps, load_toml, stamp_of
from chordage.orchestrator.gateways.room.imports import file_of, make_importable
from chordage.orchestrator.gateways.room.tables import above_tables, keys_of, read_table
from chordage.orchestrator.plugins import loading
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.planners import planner_of
from chordage.orchestrator.plugins.plugin_set import ordered
from chordage.orchestrator.system import user_code

BUDGET = "cost_budget"  # an option of the plugin stops
Providers = dict[str, dict[str, Any]]
COPIED = (
    "model", "fallbacks", "selectable_models", "tools", "strategy", "params", "concurrency", "model_timeout",
    "model_retries", "stream", "prompt_cache", "tenant", "tool_mode", "placement", "placements", "mixed_round",
    "on_unknown", "while_waiting", "when_busy", "when_changed",
)  # fmt: skip
FROM_ENVIRONMENT = "_env"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentFile:
    """A file that was read. `spec` is None where `fault` says why there is none."""

    source: Source
    name: str
    spec: AgentSpec | None = None
    fault: RoomError | None = None
    draft: AgentSpec | None = None  # what could be read of a broken file, to look for further faults
    providers: Providers = field(default_factory=dict)
    servers: tuple[McpServer, ...] = ()
    prices: dict[str, tuple[Price, ...]] = field(default_factory=dict)  # by model, the oldest first
    budgets: tuple[KeyPath, ...] = ()  # of cost, by the prices of the room
    reads: Stamps = field(default_factory=dict)  # further files that the definition is made of


def read(path: Path, room: Path, strategies: Collection[str], *, copy: Path | None = None) -> AgentFile:
    """`copy`: an earlier version of the file, whose text is read instead."""
    name = path.relative_to(room).as_posix()
    try:
        source, values = load_toml(name, copy or path)
    except RoomError as error:
        return AgentFile(source=Source(name=name, text=""), name=path.stem, fault=error)
    values.setdefault("name", path.stem)
    table = read_table(AgentTable, source, values)
    reader = _Reader(table, source, room, strategies)
    spec, servers, prices = reader.spec(), tuple(reader.servers()), reader.prices()
    name = values["name"] if isinstance(values["name"], str) else path.stem
    if name == AGENT_NAME:
        source.complain(("name",), f"{AGENT_NAME!r} is the agent of `chordage drill`: give another name")
    if (fault := source.error) is not None:
        return AgentFile(source=source, name=name, fault=fault, draft=replace(spec, name=name), reads=reader.reads)
    return AgentFile(
        source=source,
        name=name,
        spec=spec,
        providers={name: provider.given() for name, provider in table.models.items()},
        servers=servers,
        prices=prices,
        budgets=tuple(reader.budgets),
        reads=reader.reads,
    )


class _Reader:
    """What the keys mean. What is wrong is added to the faults of the source."""

    def __init__(self, table: AgentTable, source: Source, room: Path, strategies: Collection[str]) -> None:
        self._table = table
        self._source = source
        self._room = room
        self._strategies = strategies
        self.reads: Stamps = {}
        self.budgets: list[KeyPath] = []

    def spec(self) -> AgentSpec:
        table, given = self._table, self._table.given()
        self._check_tools()
        self._check_strategy()
        plugins = self._plugins()
        limits = Limits(**table.limits.given())
        if self._source.error is None:
            limits = with_stops(limits, plugins)
        return AgentSpec(
            **{key: given[key] for key in COPIED if key in given},
            name=table.name or "",
            instructions=self._instructions(),
            agents=self._agents(),
            limits=limits,
            plan=self._plan(),
            compaction=CompactionSpec(**table.compaction.given()),
            output=self._output(),
            plugins=plugins,
        )

    def _instructions(self) -> str:
        text, file = self._table.instructions or "", self._table.instructions_file
        if file is None:
            return text
        if text:
            self._source.complain(("instructions_file",), "there are instructions too; keep one of the two")
        path = self._room / file
        self.reads[path] = stamp_of(path)  # before it is read, so that a change meanwhile is noticed
        try:
            return text_files.read(path)
        except (OSError, ValueError) as error:
            why = f"{path} cannot be read ({error}); a path is relative to the room"
            self._source.complain(("instructions_file",), why)
            return text

    def _check_tools(self) -> None:
        tools = self._table.tools or ()
        for path in sorted({path for path in tools if tools.count(path) > 1}):
            self._source.complain(("tools",), f"{path!r} is listed twice; keep one", item=path)

    def _check_strategy(self) -> None:
        strategy = self._table.strategy
        if strategy is None or strategy in self._strategies:
            return
        if ":" not in strategy:
            known = ", ".join(sorted(self._strategies))
            why = f"must be one of {known}, or module:function; got {strategy!r}"
            self._source.complain(("strategy",), why)
            return
        make_importable(self._room)
        try:
            user_code.load_function(strategy, what="strategy")
        except RoomError as error:
            self._source.complain(("strategy",), str(error))

    def _agents(self) -> tuple[SubAgent, ...]:
        agents = self._table.agents
        if isinstance(agents, dict):
            subs = tuple(SubAgent(agent=name, **table.given()) for name, table in agents.items())
        else:
            subs = tuple(SubAgent(agent=name) for name in agents)
        tools = [tool_of(sub.agent) for sub in subs]
        for tool in sorted({tool for tool in tools if tools.count(tool) > 1}):
            self._source.complain(("agents",), f"two of them would be the tool {tool!r}; keep one")
        return subs

    def _plan(self) -> PlanSpec:
        plan = self._table.plan
        if plan.planner is not None:
            make_importable(self._room)
            try:
                planner_of(plan.planner)
            except RoomError as error:
                self._source.complain(("plan", "planner"), str(error))
        return PlanSpec(**plan.given())

    def _output(self) -> OutputUse | None:
        match self._table.output:
            case None:
                return None
            case OutputTable(schema_=schema):
                return self._schema(schema, ("output", "schema"), "")
            case str() as file if file.endswith(".json"):
                return self._schema_file(self._room / file)
            case model:
                return OutputUse(model=model)

    def _schema_file(self, path: Path) -> OutputUse | None:
        self.reads[path] = stamp_of(path)  # before it is read, so that a change meanwhile is noticed
        try:
            text = text_files.read(path)
        except (OSError, UnicodeDecodeError) as error:
            self._source.complain(("output",), f"{path} cannot be read ({error}); a path is relative to the room")
            return None
        try:
            schema = loads_json(text)
        except (ValueError, RecursionError) as error:
            self._source.complain(("output",), f"{path} is not JSON: {error}")
            return None
        if not isinstance(schema, dict):
            why = f"{path} must hold a JSON Schema, an object; got {json.dumps(schema)[:80]}"
            self._source.complain(("output",), why)
            return None
        return self._schema(schema, ("output",), f"{path}: ")

    def _schema(self, schema: dict[str, Any], place: KeyPath, file: str) -> OutputUse | None:
        try:
            json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError):
            self._source.complain(place, "must hold only what JSON has: no date, no inf, no nan")
            return None
        if (why := schemas.fault_of(schema)) is not None:
            self._source.complain(place, f"{file}this is no JSON Schema (draft 2020-12): {why}")
            return None
        return OutputUse(schema=schema)

    def _plugins(self) -> tuple[PluginUse, ...]:
        """Each is made once, so that what is wrong with its options has its line; each run makes its own again."""
        uses = list(self._uses())
        self.budgets = [(*place, BUDGET) for place, use in uses if _is_by_prices_of_room(use)]
        plugins = [plugin for place, use in uses if (plugin := self._plugin(place, use)) is not None]
        if uses and len(plugins) == len(uses):
            try:
                ordered(plugins)
            except RoomError as error:
                self._source.complain(uses[-1][0], str(error))
        return tuple(use for _place, use in uses)

    def _uses(self) -> Iterator[tuple[KeyPath, PluginUse]]:
        """With the place of each table."""
        for name in ("permission", "stops"):
            if (options := getattr(self._table, name)) is not None:
                yield (name,), PluginUse(use=name, options=options)
        for number, table in enumerate(self._table.plugins):
            place: KeyPath = ("plugins", number)
            if isinstance(table.use, str) and table.use.strip():
                yield place, PluginUse(use=table.use, options=table.model_extra or {})
            else:
                got = f"; got {table.use!r}" if "use" in table.model_fields_set else ""
                self._source.complain(place, f'each needs `use = "..."`, the name of a plugin or module:Class{got}')

    def _plugin(self, place: KeyPath, use: PluginUse) -> Plugin | None:
        module, colon, _ = use.use.partition(":")
        if colon:
            make_importable(self._room)
            path = file_of(module, self._room)
            self.reads[path] = stamp_of(path)
        try:
            return loading.plugin_of(use)
        except loading.PluginRefused as error:
            why, option = str(error), error.option
            if place[0] == "plugins":
                why = f"{use.use!r}: {why}"
            elif option in keys_of(AgentTable):
                why = f"there is no such option; {above_tables(option)}"
            self._source.complain((*place, option) if option else place, why)
            return None

    def prices(self) -> dict[str, tuple[Price, ...]]:
        return {model: self._prices_of(model, said) for model, said in self._table.prices.items()}

    def _prices_of(self, model: str, said: PriceTable | list[PriceTable]) -> tuple[Price, ...]:
        place = ("prices", model)
        provider, _, name = model.partition(":")
        if not provider or not name:
            self._source.complain(place, "a model is written provider:model, as in openai:gpt-4o-mini; rename it")
        tables = [said] if isinstance(said, PriceTable) else said
        days = [table.since for table in tables]
        for day in sorted({day for day in days if days.count(day) > 1}, key=str):
            since = f"since {day}" if day else "without since"
            self._source.complain(place, f"there are two prices {since}; keep one of the two")
        ordered = sorted(tables, key=lambda table: table.since or date.min)
        return tuple(
            Price(**{kind: exact(dollars) for kind, dollars in table.costs().items()}, since=table.since)
            for table in ordered
        )

    def servers(self) -> Iterator[McpServer]:
        tables = self._table.mcp
        for name, table in tables.items():
            place = ("mcp", name)
            if not NAME.fullmatch(name):
                self._source.complain(place, "the name of a server is 1 to 32 letters, digits, _ or -; rename it")
            address = self._address(table, place)
            for tool in sorted(set(table.tools or ()) & set(table.except_ or ())):
                why = f"{tool!r} is in tools too; keep one of the two"
                self._source.complain((*place, "except"), why, item=tool)
            given = table.given()
            same = ("timeout", "connect_timeout", "effect", "required", "result_limit")
            if address is not None:
                yield McpServer(
                    **{key: given[key] for key in same if key in given},
                    name=name,
                    address=address,
                    place=self._source.place(place),
                    only=table.tools,
                    without=table.except_ or (),
                    effects=tuple(table.effects.items()),
                )
        for one, other in permutations(tables, 2):
            if other.startswith(prefix(one)):
                why = f"its tools could have the names of those of mcp.{one}; rename one of the two"
                self._source.complain(("mcp", other), why)

    def _address(self, table: McpTable, place: KeyPath) -> Address | None:
        """None where the table does not say which of the two it is, or says both."""
        env, env_from = self._pairs(table.env, (*place, "env"))
        headers, headers_from = self._pairs(table.headers, (*place, "headers"))
        addresses = [
            key for key in ("command", "url", "url_env")
            if key in table.model_fields_set or self._source.is_wrong((*place, key))
        ]  # fmt: skip
        if len(addresses) != 1:
            says = f"says {' and '.join(addresses)}" if addresses else "says neither"
            remedy = "give `command` for a server to start here, or `url` (or `url_env`) for one that runs"
            self._source.complain(place, f"{says}; {remedy}")
            return None
        is_program = addresses == ["command"]
        for key in ("headers", "token_env") if is_program else ("args", "env", "cwd"):
            if key in table.model_fields_set:
                self._source.complain((*place, key), f"does not go with {addresses[0]}; take it out")
        if is_program:
            return Program(command=table.command or "", args=table.args, env=env, env_from=env_from, cwd=table.cwd)
        return Endpoint(
            url=table.url or "",
            url_from=table.url_env,
            headers=headers,
            headers_from=headers_from,
            token_from=table.token_env,
        )

    def _pairs(self, values: dict[str, str], place: KeyPath) -> tuple[Pairs, Pairs]:
        """The values themselves; and of the names that end in _env, the variables that hold the values."""
        plain: dict[str, str] = {}
        variables: dict[str, str] = {}
        for name, value in values.items():
            if not name.endswith(FROM_ENVIRONMENT):
                plain[name] = value
                continue
            short = name.removesuffix(FROM_ENVIRONMENT)
            variables[short] = value
            if short in values:
                self._source.complain((*place, name), f"{short} is there too; keep one of the two")
        return tuple(sorted(plain.items())), tuple(sorted(variables.items()))


def _is_by_prices_of_room(use: PluginUse) -> bool:
    return use.use == "stops" and use.options.get(BUDGET) is not None and not use.options.get("price_per_million")
