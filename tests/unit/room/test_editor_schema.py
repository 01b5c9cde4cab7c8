"""The JSON Schemas that `chordage schema` prints take what the readers of the room take, and mark what they refuse."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from chordage.orchestrator.gateways.channels import room_channels
from chordage.orchestrator.gateways.room.agent_table import AgentTable
from chordage.orchestrator.gateways.room.tables import TomlTable, keys_of
from chordage.orchestrator.gateways.webhooks.bindings import HookTable
from chordage.workers.cli import main
from chordage.workers.cli.schema import SCHEMAS
from support.repository import ROOT

DOCS = ROOT / "docs"
PAGES = {
    "agent": ["reference/agent-file.md", "how-to/models.md", "how-to/plans.md"],
    "hooks": ["how-to/webhooks.md"],
    "channels": ["how-to/channels.md"],
}


def problems(file, text):
    values = json.loads(json.dumps(tomllib.loads(text), default=str))
    return [error.message for error in Draft202012Validator(SCHEMAS[file]()).iter_errors(values)]


def blocks(page):
    return re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("file", SCHEMAS)
def test_a_schema_is_printed_and_is_one(file):
    printed = CliRunner().invoke(main, ["schema", file])

    assert printed.exit_code == 0
    Draft202012Validator.check_schema(json.loads(printed.stdout))
    assert '"null"' not in printed.stdout, "TOML has none"


@pytest.mark.parametrize(("file", "page"), [(file, page) for file, pages in PAGES.items() for page in pages])
def test_what_the_docs_show_is_taken(file, page):
    for block in blocks(page):
        head = 'model = "m"\n' if file == "agent" and not re.search(r"^model = ", block, re.MULTILINE) else ""
        assert problems(file, head + block) == [], block


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("agent", 'name = "x"', "'model' is a required property"),
        ("agent", 'modle = "m"\nmodel = "m"', "'modle' was unexpected"),
        ("agent", 'model = "m"\n[limits]\nmax_rounds = 0', "0 is less than the minimum of 1"),
        ("agent", 'model = "m"\ntool_mode = "one"', "'one' is not one of"),
        ("agent", 'model = "m"\n[permission]\nalow = []', "'alow' was unexpected"),
        ("agent", 'model = "m"\n[agents.a]\ntimeot = 1', "is not valid under any of the given schemas"),
        ("hooks", '[hooks.a]\npath = "/hooks/a"', "'signature' is a required property"),
        ("hooks", '[hooks.a]\npath = "/hooks/a"\nsignature = "md5"', "'md5' is not one of"),
        ("channels", '[channels.a]\nagent = "x"', "'plugin' is a required property"),
        ("channels", '[a]\nplugin = "telegram"\n[a.config]\ntokn_env = "A"\npool = 1', "'pool' does not match"),
    ],
)
def test_what_a_reader_refuses_is_marked(file, text, says):
    assert any(says in problem for problem in problems(file, text)), problems(file, text)


def test_defaults_equal_those_of_the_definitions():
    schema = SCHEMAS["agent"]()

    assert schema["$defs"]["LimitsTable"]["properties"]["max_rounds"]["default"] == 25
    assert schema["properties"]["model_timeout"]["default"] == 120.0
    assert schema["properties"]["stream"]["default"] is True


def tables(kind):
    """A model and those inside it."""
    yield kind
    for inner in (each for there in kind.model_fields.values() for each in _inside(there.annotation)):
        yield from tables(inner)


def _inside(annotation):
    if isinstance(annotation, type) and issubclass(annotation, TomlTable):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _inside(inner)


def test_every_required_key_has_an_example_that_is_valid():
    shipped = [
        __import__(f"{room_channels.__package__}.{name}", fromlist=["TABLE"]).TABLE for name in room_channels.SHIPPED
    ]
    for root in (AgentTable, HookTable, room_channels.BindingTable, *shipped):
        for table in tables(root):
            required = {key: there.examples[0] for key, there in keys_of(table).items() if there.is_required()}
            assert table.model_validate(required), table
