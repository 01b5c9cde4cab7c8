"""What `chordage check` finds that starts, and then does something else than was meant."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner

from chordage.workers.cli import main
from support.plain_room import forget_settings

NUMBERS = itertools.count()  # a module is imported once by its name
TOOLS = '''
from chordage import tool

@tool(effect="pure")
def refund(order: str) -> str:
    """Pay back."""
    return order
'''


@pytest.fixture
def room(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    name = f"checked_rules_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(TOOLS)
    (tmp_path / "s.yaml").write_text("- text: hi\n")
    (tmp_path / "agent.toml").write_text(f'name = "a"\nmodel = "scripted:s.yaml"\ntools = ["{name}"]\n')
    return tmp_path


def check(*arguments):
    return CliRunner().invoke(main, ["check", *arguments])


def add(room, text, name="agent.toml"):
    (room / name).write_text((room / name).read_text() + text)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ('deny = ["refnd"]', "permission.deny: rule 'refnd': the agent has no such tool; did you mean refund?"),
        ('ask = ["re*nd(oder=1)"]', "permission.ask: rule 're*nd(oder=1)': refund takes no argument 'oder'; did you"),
        ('allow = ["shop_*"]', "permission.allow: rule 'shop_*': the agent has no such tool; there are: refund"),
    ],
)
def test_a_rule_for_a_tool_that_is_not_there_is_a_fault_with_its_line(room, rules, told):
    add(room, f'[permission]\ndefault = "allow"\n{rules}\n')
    done = check()
    assert f"agents: agent.toml:6: {told}" in done.stdout
    assert done.exit_code == 1


@pytest.mark.mcp
def test_rules_that_speak_of_tools_that_are_there_are_none(room):
    (room / "agents").mkdir()
    (room / "agents" / "b.toml").write_text('name = "b"\nmodel = "scripted:s.yaml"\n')
    add(room, 'agents = ["b"]\n[permission]\nallow = ["refund(order=1*)", "*", "ask_b"]\ndeny = ["github_delete"]\n')
    add(room, '[mcp.github]\nurl = "http://127.0.0.1:1/mcp"\n')
    done = check()
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.mcp
def test_unreachable_required_server_is_a_fault_of_a_check_with_servers(room):
    add(room, '[mcp.github]\nurl = "http://127.0.0.1:1/mcp"\nconnect_timeout = 5\n')
    add(room, '[mcp.search]\nurl = "http://127.0.0.1:1/mcp"\nrequired = false\n')
    assert check().exit_code == 0
    done = check("--live", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert [(one["kind"], one["line"]) for one in found["faults"]] == [("MCP", 4)]
    assert [(one["kind"], one["line"]) for one in found["remarks"]] == [("MCP", 7)]


@pytest.mark.mcp
def test_rule_for_a_tool_that_no_server_offers_is_found_in_a_check_with_servers(room, monkeypatch):
    from chordage.orchestrator.gateways.mcp.link import ServerHealth, ServerState
    from chordage.orchestrator.gateways.mcp.offers import Offer
    from chordage.orchestrator.gateways.mcp.tools import McpServers, Probe

    def offers_one(_self, servers):
        offer = Offer(name="github_list", tool="list", description="", schema={}, effect="pure")
        return [
            Probe(server=one, health=ServerHealth(state=ServerState.CONNECTED), seconds=0.1, offers=(offer,))
            for one in servers
        ]

    monkeypatch.setattr(McpServers, "probe", offers_one)
    add(room, '[permission]\nallow = ["github_list"]\ndeny = ["github_delete"]\n[mcp.github]\nurl = "http://x/mcp"\n')
    assert check().exit_code == 0
    assert "agent.toml:6: permission.deny: rule 'github_delete': the agent has no such tool" in check("--live").stdout


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("CHORDAGE_REDISURL", "did you mean CHORDAGE_REDIS_URL?"),
        ("CHORDAGE_BUDGET__CHAT", "did you mean CHORDAGE_BUDGETS?"),
        ("CHORDAGE_QQQ", "docs/reference/settings.md lists all there are"),
    ],
)
def test_unknown_variable_is_reported_by_check_and_where_a_fleet_starts(room, monkeypatch, name, told):
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr("chordage.workers.cli.fleet.hold", lambda *_given, **_named: None)
    expected = f"variable {name}: there is no such setting; {told}"
    assert f"settings: {expected}" in check().stdout
    assert expected in " ".join(CliRunner().invoke(main, ["run", "--no-workers", "--port", "0"]).output.split())


@pytest.mark.parametrize("name", ["CHORDAGE_LEASE", "chordage_lease", "CHORDAGE_BUDGETS__CHAT"])
def test_a_setting_is_no_fault_however_it_is_written(room, monkeypatch, name):
    monkeypatch.setenv(name, "40")
    assert check().exit_code == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CHORDAGE_DATABASE_URL", "mysql://db/x"),
        ("CHORDAGE_DATABASE_URL", "postgresql+psycopg2://u:secret@db/x"),
        ("CHORDAGE_DATABASE_URL", "no address"),
        ("CHORDAGE_REDIS_URL", "localhost:6379"),
        ("CHORDAGE_REDIS_URL", "http://u:secret@redis"),
    ],
)
def test_an_address_of_the_wrong_form_is_a_fault_that_names_the_setting(room, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    done = check()
    assert done.exit_code == 1
    assert variable in done.stdout
    assert "secret" not in done.output


def test_a_chore_with_a_misspelt_schedule_is_a_fault_and_is_not_run_every_hour(room):
    (room / "chores").mkdir()
    (room / "chores" / "a.md").write_text("---\nevry: 5m\n---\nDo it.\n")
    (room / "chores" / "b.md").write_text("---\ntitle: B\nschedule: daily\n---\nDo it.\n")
    (room / "will.md").write_text("---\ntimezon: UTC\n---\nThink.\n")
    done = check()
    assert "pulse: chores/a.md:2: evry: there is no such key; did you mean every?" in done.stdout
    assert "pulse: chores/b.md:3: schedule: there is no such key; one of every, " in done.stdout
    assert "pulse: will.md:2: timezon: there is no such key; did you mean timezone?" in done.stdout


def test_custom_key_in_a_chore_is_no_fault(room):
    (room / "chores").mkdir()
    (room / "chores" / "a.md").write_text("---\nevery: 5m\nowner: Eve\nnotes: x\n---\nDo it.\n")
    assert check().exit_code == 0


def test_fault_of_two_agents_is_reported_once(room):
    (room / "s.yaml").write_text("replies: 3\n")
    (room / "agents").mkdir()
    (room / "agents" / "b.toml").write_text('name = "b"\nmodel = "scripted:s.yaml"\nfallbacks = ["scripted:s.yaml"]\n')
    lines = check().stdout.splitlines()
    assert len([line for line in lines if "s.yaml:1" in line]) == 1


def test_channels_ends_as_hooks_does(room):
    CliRunner().invoke(main, ["migrate"])
    assert CliRunner().invoke(main, ["channels"]).exit_code == 0
    (room / "channels.toml").write_text("[channels.a]\n")
    for arguments in (["channels"], ["channels", "--json"]):
        assert CliRunner().invoke(main, arguments).exit_code == 1
