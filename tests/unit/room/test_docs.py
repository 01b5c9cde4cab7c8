"""What the pages about agents show is what a room takes, and agent-file.md names every key there is."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields

import pytest

from chordage.orchestrator.core import phases
from chordage.orchestrator.core.verdicts import ALLOWED
from chordage.orchestrator.gateways.models import script_files
from chordage.orchestrator.gateways.room import agent_file
from chordage.orchestrator.gateways.room.agent_table import AgentTable
from chordage.orchestrator.gateways.room.tables import EditorSchema
from chordage.tasks.request import decisions_from
from support.repository import ROOT

STRATEGIES = ("react", "direct", "plan_execute")
DOCS = ROOT / "docs"


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def read(folder, text):
    folder.write("agent.toml", text)
    return agent_file.read(folder.path / "agent.toml", folder.path, STRATEGIES)


def complete(block):
    """With the keys that every agent needs, where a block shows other ones only."""
    head = "" if re.search(r"^model = ", block, re.MULTILINE) else 'model = "scripted:s.yaml"\n'
    return head + block


def test_the_planner_of_the_docs_plans(folder):
    toml, planner = blocks("how-to/plans.md", "toml")[0], blocks("how-to/plans.md", "python")[0]
    folder.write("my_plans.py", planner)

    found = read(folder, toml)

    assert found.fault is None
    namespace = {}
    exec(planner, namespace)
    asked = {"info": {"round_index": 0}}
    assert [one["tool_name"] for one in namespace["plan"](asked)["execution_commands"]] == ["price", "price"]
    assert json.loads(blocks("how-to/plans.md", "json")[0])["next_action"] == "execute"


@pytest.mark.parametrize("page", ["how-to/models.md", "how-to/approvals.md", "reference/agent-file.md"])
def test_every_block_of_an_agents_file_is_taken(folder, page):
    for block in blocks(page, "toml"):
        found = read(folder, complete(block))
        assert found.fault is None, block


def test_the_script_of_the_docs_is_one(folder):
    (block,) = blocks("how-to/models.md", "yaml")
    folder.write("script.yaml", block)

    assert script_files.load(folder.path / "script.yaml")


def test_the_batch_of_the_docs_is_read():
    (block,) = blocks("how-to/approvals.md", "json")

    assert [one.action.value for one in decisions_from(json.loads(block))] == ["resume", "cancel"]


def test_every_key_of_an_agents_file_has_its_line():
    schema = AgentTable.model_json_schema(schema_generator=EditorSchema)
    tables = [schema, *schema["$defs"].values(), *(schema["properties"][name] for name in ("permission", "stops"))]
    keys = {key for table in tables for key in table.get("properties", {})}
    text = (DOCS / "reference/agent-file.md").read_text()

    assert {"model", "max_rounds", "token_env", "cost_budget", "on_expiry", "planner"} <= keys
    assert {key for key in keys if f"`{key}`" not in text and f"[{key}" not in text} == set()


def test_every_hook_has_its_context_and_its_verdicts():
    usual = {field.name for field in fields(phases.Moment)}
    text = (DOCS / "reference/agent-file.md").read_text()
    for hook, verdicts in ALLOWED.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| `{hook.value}` |"))
        _, _, shown, answers, _ = line.split("|")
        context = getattr(phases, hook.value.title().replace("_", ""))
        own = {field.name for field in fields(context)} - usual
        assert {name for name in own if f"`{name}`" not in shown} == set(), hook
        assert re.findall(r"`(\w+)`", answers) == [verdict.__name__ for verdict in verdicts]


def test_the_example_of_every_key_is_toml():
    for page in ("how-to/models.md", "how-to/approvals.md", "reference/agent-file.md", "how-to/plans.md"):
        for block in blocks(page, "toml"):
            assert tomllib.loads(block)
