"""A room accepts the files that the documentation shows, and agent-file.md names every key."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields

import pytest

from chordage.orchestrator.core import phases, webhooks
from chordage.orchestrator.core.verdicts import ALLOWED
from chordage.orchestrator.gateways.models import script_files
from chordage.orchestrator.gateways.room import agent_file
from chordage.orchestrator.gateways.room.agent_table import AgentTable
from chordage.orchestrator.gateways.room.tables import EditorSchema
from chordage.orchestrator.gateways.webhooks import bindings as hooks_file
from chordage.tasks.schema import decisions_from
from support.repository import ROOT

STRATEGIES = ("react", "direct", "plan_execute")
PAGES_WITH_AGENTS = (
    "README.md",
    "docs/tutorial/first-agent.md",
    "docs/reference/agent-file.md",
    "docs/explanation/scheduling.md",
    *(f"docs/how-to/{name}.md" for name in (
        "approvals", "long-conversations", "mcp", "models", "plans", "structured-output", "sub-agents",
    )),
)  # fmt: skip
ENV = {"GITHUB_HOOK_SECRET": "s", "BILLING_SECRET": "whsec_c2Vj", "BILLING_SECRET_OLD": "whsec_b2xk",
       "TICKETS_SECRET": "s", "TICKETS_TOKEN": "t"}  # fmt: skip


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def read(folder, text):
    folder.write("agent.toml", text)
    return agent_file.read(folder.path / "agent.toml", folder.path, STRATEGIES)


def complete(block):
    """With the keys that every agent needs, where a block shows other keys only."""
    return block if "model" in tomllib.loads(block) else f'model = "scripted:s.yaml"\n{block}'


def test_planner_of_the_docs_plans(folder):
    page = "docs/how-to/plans.md"
    toml, planner = blocks(page, "toml")[0], blocks(page, "python")[0]
    folder.write("my_plans.py", planner)

    definition = read(folder, toml)

    assert definition.fault is None
    namespace = {}
    exec(planner, namespace)
    plan = namespace["plan"]({"info": {"round_index": 0}})
    assert [command["tool_name"] for command in plan["execution_commands"]] == ["price", "price"]
    assert json.loads(blocks(page, "json")[0])["next_action"] == "execute"


@pytest.mark.parametrize("page", PAGES_WITH_AGENTS)
def test_agent_files_of_the_docs_have_no_fault(folder, page):
    folder.write("my_plans.py", blocks("docs/how-to/plans.md", "python")[0])
    for block in blocks(page, "toml"):
        assert read(folder, complete(block)).fault is None, block


def test_script_of_the_docs_loads(folder):
    (block,) = blocks("docs/how-to/models.md", "yaml")
    folder.write("script.yaml", block)

    assert script_files.load(folder.path / "script.yaml")


def test_batch_of_decisions_of_the_docs_is_read():
    (block,) = blocks("docs/how-to/approvals.md", "json")

    assert [decision.action.value for decision in decisions_from(json.loads(block))] == ["resume", "cancel"]


def test_every_key_of_an_agents_file_has_its_line():
    schema = AgentTable.model_json_schema(schema_generator=EditorSchema)
    tables = [schema, *schema["$defs"].values(), *(schema["properties"][name] for name in ("permission", "stops"))]
    keys = {key for table in tables for key in table.get("properties", {})}
    text = (ROOT / "docs/reference/agent-file.md").read_text()

    assert {"model", "max_rounds", "token_env", "cost_budget", "on_expiry", "planner"} <= keys
    assert {key for key in keys if f"`{key}`" not in text and f"[{key}" not in text} == set()


def test_every_hook_has_its_context_and_its_verdicts():
    usual = {field.name for field in fields(phases.Moment)}
    text = (ROOT / "docs/reference/agent-file.md").read_text()
    for hook, verdicts in ALLOWED.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| `{hook.value}` |"))
        _, _, shown, answers, _ = line.split("|")
        context = getattr(phases, hook.value.title().replace("_", ""))
        own = {field.name for field in fields(context)} - usual
        assert {name for name in own if f"`{name}`" not in shown} == set(), hook
        assert re.findall(r"`(\w+)`", answers) == [verdict.__name__ for verdict in verdicts]


def test_webhooks_of_the_docs_have_no_fault_and_read_the_bodies_of_the_docs(folder):
    page = "docs/how-to/webhooks.md"
    folder.write("hooks.toml", "\n".join(blocks(page, "toml")))
    folder.write("tickets.py", blocks(page, "python")[0])

    hooks = hooks_file.read(folder.path, ENV)

    assert hooks.faults == []
    shapes = {binding.name: binding.shape for binding in hooks.bindings}
    bodies = re.findall(r"^body='(.*)'$", (ROOT / page).read_text(), re.MULTILINE)
    billing, github = (webhooks.read(body.encode()) for body in bodies)
    assert webhooks.text_of(shapes["billing"], billing) == "hello"
    assert webhooks.text_of(shapes["github"], github).startswith("ada pushed to ada/engine, refs/heads/main.")
    assert "tickets" in shapes
