"""The keys of an agent file, table by table. A key that is left out has the default of the definition it becomes."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
    create_model,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from chordage.orchestrator.core.agent import (
    AgentSpec,
    CompactionSpec,
    Effect,
    Limits,
    MixedRound,
    OnPlannerError,
    OnUnknown,
    OutOfScope,
    Placement,
    PlanSpec,
    ToolMode,
    WhenBusy,
    WhenChanged,
    WhileWaiting,
)
from chordage.orchestrator.gateways.mcp.servers import McpServer, Program
from chordage.orchestrator.gateways.room.tables import (
    PLAIN,
    TABLE,
    AnyTable,
    Count,
    Day,
    EditorSchema,
    Flag,
    Money,
    Name,
    OneOf,
    PairsTable,
    PositiveCount,
    Seconds,
    Text,
    Texts,
    TomlTable,
    Url,
    Words,
)
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.permission import Permission
from chordage.orchestrator.plugins.stops import Stops

OUTPUT = 'a pydantic model as "module:Model", a JSON Schema as "file.json", or a table with a schema'


class LimitsTable(TomlTable):
    usual = Limits()

    max_rounds: PositiveCount | None = Field(None, description="Rounds of one run")
    timeout: Seconds | None = Field(None, description="Seconds of work of one run")
    max_tool_calls: PositiveCount | None = Field(None, description="Tool calls of one run")
    max_depth: PositiveCount | None = Field(None, description="How deep sub-agents may ask further ones")
    max_children: PositiveCount | None = Field(None, description="Sub-agents that one run may ask")


class PlanTable(TomlTable):
    usual = PlanSpec()

    model: Text | None = Field(None, description="The model that plans; default the agent's")
    max_rounds: PositiveCount | None = Field(None, description="Rounds of planning")
    timeout: Seconds | None = Field(None, description="Seconds of work after which no further round is planned")
    out_of_scope: Annotated[OutOfScope, OneOf()] | None = Field(None, description="For a tool that is not offered")
    on_error: Annotated[OnPlannerError, OneOf()] | None = Field(None, description="When the planner fails")
    planner: Text | None = Field(None, description="A function that plans: an entry point, or module:function")
    executor: Text | None = Field(None, description="The tool that carries out a whole round")
    history: Flag | None = Field(None, description="Show the planner the thread so far")


class CompactionTable(TomlTable):
    usual = CompactionSpec()

    threshold: PositiveCount | None = Field(None, description="Tokens of a reply and its prompt that start a summary")
    model: Text | None = Field(None, description="The model that writes the summary; default the agent's")
    instructions: Text | None = Field(None, description="For the model that writes the summary")
    keep: Count | None = Field(None, description="Replies that stay word for word")


class SubAgentTable(TomlTable):
    description: Text | None = Field(None, description="What the model reads about this agent")
    timeout: Seconds | None = Field(None, description="Seconds to wait for its answer")


class ProviderTable(TomlTable):
    """In part or whole: what is left out, the model catalog knows or asks for."""

    wire: Text | None = Field(None, description="The format of requests: openai or anthropic")
    base_url: Url | None = Field(None, description="Where requests go")
    api_key_env: Text | None = Field(None, description="The environment variable with the key")
    headers: PairsTable | None = Field(None, description="Further HTTP headers")
    silence: Seconds | None = Field(None, description="Seconds without a byte after which a call fails")
    max_tokens_key: Text | None = Field(None, description="How the provider calls max_tokens")
    json_schema: Flag | None = Field(None, description="Whether it takes a JSON Schema for its reply")


class PriceTable(TomlTable):
    input: Money = Field(examples=[0.0], description="Dollars for a million tokens of the prompt")
    output: Money = Field(examples=[0.0], description="Dollars for a million tokens of the reply")
    cached: Money | None = Field(None, description="Of the prompt, read from the provider's cache; default input")
    cache_write: Money | None = Field(None, description="Of the prompt, written to that cache; default input")
    since: Day | None = Field(None, description="The first day, in UTC, on which it counts; default always")

    def costs(self) -> dict[str, float]:
        """What is given, by kind of token."""
        return {kind: dollars for kind, dollars in self.given().items() if kind != "since"}


class OutputTable(TomlTable):
    schema_: AnyTable = Field(alias="schema", examples=[{}], description="The JSON Schema of the final answer")


MCP_EFFECTS = (Effect.PURE, Effect.IDEMPOTENT, Effect.UNSAFE)  # a reconcilable tool needs a function to ask


def _mcp_effect(value: Any) -> Effect:
    if value in MCP_EFFECTS:
        return Effect(value)
    note = "; what became of a call cannot be asked of an MCP server" if value == Effect.RECONCILABLE else ""
    raise ValueError(f"must be one of {', '.join(MCP_EFFECTS)}{note}; got {value!r}")


McpEffect = Annotated[Effect, BeforeValidator(_mcp_effect), WithJsonSchema({"enum": list(MCP_EFFECTS)})]


def _named(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if not patterns:
        raise ValueError("is empty; name some tools, or leave it out")
    return patterns


Patterns = Annotated[Texts, AfterValidator(_named)]


class McpTable(TomlTable):
    usual = McpServer(name="", address=Program(command=""), place="")

    command: Text | None = Field(None, description="The program that serves over its standard input and output")
    args: Texts = Field((), description="Arguments of the program")
    env: PairsTable = Field({}, description="Its environment; a name that ends in _env names a variable to copy")
    cwd: Text = Field(".", description="Where it starts, seen from the room")
    url: Url | None = Field(None, description="The address of a server that runs already")
    url_env: Text | None = Field(None, description="The environment variable with the address")
    headers: PairsTable = Field({}, description="HTTP headers; a name that ends in _env names a variable to copy")
    token_env: Text | None = Field(None, description="The environment variable with a bearer token")
    timeout: Seconds | None = Field(None, description="Seconds for one call")
    connect_timeout: Seconds | None = Field(None, description="Seconds until a server lists its tools")
    tools: Patterns | None = Field(None, description="Patterns of the tools to offer")
    except_: Patterns | None = Field(None, alias="except", description="Patterns of tools not to offer")
    effect: McpEffect | None = Field(None, description="The effect of every tool; default what the server says")
    effects: dict[str, McpEffect] = Field({}, description="The effect of single tools")
    required: Flag | None = Field(None, description="Whether the agent needs the server")
    result_limit: PositiveCount | None = Field(None, description="Characters of a result that the model sees")


class PluginTable(TomlTable):
    """Its reader checks `use`, so that a plugin without a name is one fault."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"required": ["use"]})

    use: Any = Field(None, description="The name of a plugin, or module:Class; the other keys are its options")


class OptionsOf:
    """For editors: the options of a plugin, which checks them itself."""

    def __init__(self, plugin: type[Plugin]) -> None:
        self._plugin = plugin

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        hints = get_type_hints(self._plugin.__init__)
        options: dict[str, Any] = {
            name: (hints[name], each.default) for name, each in inspect.signature(self._plugin).parameters.items()
        }
        model = create_model(self._plugin.__name__, __config__=ConfigDict(extra="forbid"), **options)
        return model.model_json_schema(schema_generator=EditorSchema)


def _json_value(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(f"must be something JSON has: no date, no inf, no nan; got {value!r}") from None
    return value


def _tables(value: Any) -> Any:
    if not (isinstance(value, list) and value and all(isinstance(one, dict) for one in value)):
        raise ValueError(f"must be a table with input and output, or a list of such tables with since; got {value!r}")
    return value


def _list_or_table(value: Any) -> str:
    return PLAIN if isinstance(value, list | tuple) else TABLE


def _text_or_table(value: Any) -> str | None:
    return PLAIN if isinstance(value, str) else TABLE if isinstance(value, dict) else None


Agents = Annotated[
    Annotated[Texts, Tag(PLAIN)] | Annotated[dict[str, SubAgentTable], Tag(TABLE)], Discriminator(_list_or_table)
]
ModelPrices = Annotated[
    Annotated[list[PriceTable], BeforeValidator(_tables), Tag(PLAIN)] | Annotated[PriceTable, Tag(TABLE)],
    Discriminator(_list_or_table),
]
OutputPath = Annotated[str, Field(pattern=r"^(.*\.json|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*)$"), Words(OUTPUT)]
Output = Annotated[
    Annotated[OutputPath, Tag(PLAIN)] | Annotated[OutputTable, Tag(TABLE)],
    Discriminator(_text_or_table, custom_error_type="wrong", custom_error_message=f"must be {OUTPUT}"),
]


class AgentTable(TomlTable):
    model_config = ConfigDict(title="agent file of a Chordage room")
    usual = AgentSpec(name="", model="")

    name: Name | None = Field(None, description="1 to 64 letters, digits, _ . or -; default the name of the file")
    model: Text = Field(examples=["openai:gpt-4o-mini"], description="provider:model")
    fallbacks: Texts | None = Field(None, description="Models to try when it fails, in this order")
    selectable_models: Texts | None = Field(None, description="Further models that a caller may choose for a turn")
    instructions: Text | None = Field(None, description="The system prompt")
    instructions_file: Text | None = Field(None, description="A file of the room with the system prompt")
    tools: Texts | None = Field(None, description="A list of module, module:function or builtin:NAME")
    strategy: Text | None = Field(None, description="react, direct, plan_execute, or module:function")
    params: dict[str, Annotated[Any, AfterValidator(_json_value)]] | None = Field(
        None, description="Sent to the model as they are"
    )
    concurrency: PositiveCount | None = Field(None, description="Calls of one round at the same time")
    model_timeout: Seconds | None = Field(None, description="Seconds for one attempt at the model")
    model_retries: Count | None = Field(None, description="Further attempts at each model")
    stream: Flag | None = Field(None, description="Ask for the reply as a stream")
    prompt_cache: Flag | None = Field(None, description="Mark what of a prompt will come again")
    tenant: Text | None = Field(None, description="Whom its turns count for in the fairness of a group")
    tool_mode: Annotated[ToolMode, OneOf()] | None = Field(None, description="How the calls of a round run")
    placement: Annotated[Placement, OneOf()] | None = Field(None, description="Where the calls of a round run")
    placements: dict[str, Annotated[Placement, OneOf()]] | None = Field(None, description="The same of single tools")
    mixed_round: Annotated[MixedRound, OneOf()] | None = Field(None, description="When only some calls have results")
    on_unknown: Annotated[OnUnknown, OneOf()] | None = Field(None, description="When a worker died in an unsafe call")
    while_waiting: Annotated[WhileWaiting, OneOf()] | None = Field(None, description="A message to a run that waits")
    when_busy: Annotated[WhenBusy, OneOf()] | None = Field(None, description="A message to a run at work")
    when_changed: Annotated[WhenChanged, OneOf()] | None = Field(None, description="Open runs, when the agent changes")
    agents: Agents = Field((), description="Agents of the room that it may ask: a list of names, or tables")
    output: Output | None = Field(None, description="The form of the final answer: module:Model, file.json, or a table")
    limits: LimitsTable = LimitsTable()
    plan: PlanTable = PlanTable()
    compaction: CompactionTable = CompactionTable()
    models: dict[str, ProviderTable] = Field({}, description="Further providers of models, by name")
    prices: dict[str, ModelPrices] = Field({}, description="What models cost, by provider:model; the whole room's")
    mcp: dict[str, McpTable] = Field({}, description="MCP servers, by name")
    permission: Annotated[AnyTable, OptionsOf(Permission)] | None = Field(None, description="Which calls may run")
    stops: Annotated[AnyTable, OptionsOf(Stops)] | None = Field(None, description="When a run ends after a reply")
    plugins: Annotated[
        list[Annotated[PluginTable, Words("a table")]], Words("a list of tables, each under [[plugins]]")
    ] = Field([], description="Plugins, each under [[plugins]]")
