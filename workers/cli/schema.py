"""`chordage schema`: JSON Schemas of the files of a room, so that editors complete keys and mark faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import say

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.room.tables import TomlTable

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def agent_schema() -> dict[str, Any]:
    from chordage.orchestrator.gateways.room.agent_table import AgentTable

    return _schema(AgentTable)


def hooks_schema() -> dict[str, Any]:
    from pydantic import create_model

    from chordage.orchestrator.gateways.webhooks.bindings import DecoderTable, HooksTable, HookTable, JsonDeliveryTable

    hook = create_model("Hook", __base__=HookTable, config=(JsonDeliveryTable | DecoderTable, {}))
    return _schema(create_model("HooksFile", __base__=HooksTable, hooks=(dict[str, hook], {})))


def channels_schema() -> dict[str, Any]:
    """`[channels.NAME]` and bare `[NAME]`. The keys of `config` depend on the plugin; each may also end in `_env`."""
    from chordage.orchestrator.gateways.channels import room_channels

    binding = _schema(room_channels.BindingTable)
    binding["allOf"] = []
    for plugin in room_channels.SHIPPED:
        options = _schema(import_module(f"{room_channels.__package__}.{plugin}").TABLE)
        for table in (options, *options.get("$defs", {}).values()):
            if table.pop("required", None) is not None or "properties" in table:
                table["patternProperties"] = {"_env$": {"type": "string"}}
        definitions = {f"{plugin}.{name}": table for name, table in options.pop("$defs", {}).items()}
        binding["$defs"] = binding.get("$defs", {}) | definitions | {plugin: options}
        there = {"properties": {"plugin": {"const": plugin}}, "required": ["plugin"]}
        binding["allOf"].append({"if": there, "then": {"properties": {"config": {"$ref": f"#/$defs/{plugin}"}}}})
    definitions = binding.pop("$defs") | {"Binding": binding}
    every = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Binding"}}
    return {**every, "properties": {room_channels.TABLES: every}, "$defs": definitions}


def _schema(table: type[TomlTable]) -> dict[str, Any]:
    from chordage.orchestrator.gateways.room.tables import EditorSchema

    return table.model_json_schema(schema_generator=EditorSchema)


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "agent": agent_schema,
    "hooks": hooks_schema,
    "channels": channels_schema,
}


@click.command()
@click.argument("file", type=click.Choice(list(SCHEMAS)), default="agent")
def schema(file: str) -> None:
    """Print the JSON Schema of a file of the room: FILE is agent (the default), hooks or channels.

    Write it to a file, and name that in the first line of the TOML file: `#:schema PATH`. Editors that use taplo, such
    as VS Code with Even Better TOML, then complete keys and mark faults.
    """
    say(json.dumps({"$schema": DIALECT, **SCHEMAS[file]()}, indent=2, ensure_ascii=False))
