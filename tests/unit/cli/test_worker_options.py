"""What worker a set of options means, and what is said about those that mean none."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from chordage.config.settings import Settings
from chordage.workers.cli import main
from chordage.workers.fleet import roles
from chordage.workers.worker_plan import PROCESSES, Pool, WorkerRole, plan_of
from support.plain_room import forget_settings, write_room

SETTINGS = Settings(intake_queues=("celery",))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command in an empty folder, without settings."""
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    return lambda *arguments: CliRunner().invoke(main, list(arguments))


def worker_command():
    return main.get_command(main.make_context("chordage", ["--help"], resilient_parsing=True), "worker")


def test_turns_worker_serves_the_groups_in_order_of_rank_in_threads():
    plan = plan_of(WorkerRole.TURNS, SETTINGS)

    assert plan.queues == ("system", "delivery", "celery", "chat", "task", "chore", "will")
    assert (plan.pool, plan.concurrency, plan.name) == (Pool.THREADS, 128, "turns")


def test_tools_worker_serves_the_twins_in_processes():
    plan = plan_of(WorkerRole.TOOLS, SETTINGS)

    assert plan.queues == ("chat.tools", "task.tools", "chore.tools", "will.tools")
    assert (plan.pool, plan.concurrency) == (Pool.PREFORK, PROCESSES)


def test_worker_for_all_serves_everything_the_tools_of_a_group_before_the_next_group():
    plan = plan_of(WorkerRole.ALL, SETTINGS)

    assert plan.queues[:6] == ("system", "delivery", "celery", "chat", "chat.tools", "task")
    assert set(plan.queues) == {
        *plan_of(WorkerRole.TURNS, SETTINGS).queues,
        *plan_of(WorkerRole.TOOLS, SETTINGS).queues,
    }
    assert plan.pool is Pool.THREADS


def test_every_part_of_a_role_can_be_overridden():
    plan = plan_of(
        WorkerRole.ALL, SETTINGS, queues="will, chore,will", pool="prefork", concurrency=3, name="slow", events=True
    )

    assert plan.queues == ("will", "chore"), "in the order given: the reverse one serves as a guard against starvation"
    assert (plan.pool, plan.concurrency, plan.name, plan.events) == (Pool.PREFORK, 3, "slow", True)


def test_a_worker_may_serve_some_groups_only_in_their_order():
    assert plan_of(WorkerRole.TURNS, SETTINGS, groups="task, chat").queues == ("chat", "task")
    assert plan_of(WorkerRole.TOOLS, SETTINGS, groups="chat").queues == ("chat.tools",)
    assert plan_of(WorkerRole.ALL, SETTINGS, groups="chat").queues == ("chat", "chat.tools")
    assert plan_of(WorkerRole.TURNS, SETTINGS, groups="will,system").queues == ("system", "delivery", "celery", "will")
    assert plan_of(WorkerRole.TURNS, SETTINGS, groups="chat").name == "turns-chat"


def test_the_reserve_is_slots_for_chat_alone():
    kept = Settings(reserve=3)
    turns, tools = (plan_of(role, kept, reserved=True) for role in (WorkerRole.TURNS, WorkerRole.TOOLS))

    assert (turns.queues, turns.pool, turns.concurrency) == (("chat",), Pool.THREADS, 3)
    assert (tools.queues, tools.pool, tools.concurrency) == (("chat.tools",), Pool.PREFORK, 3)


def test_the_embedded_fleet_keeps_a_reserve_where_one_is_set():
    assert [role.name for role in roles.workers(tools=1)] == ["turns", "tools-1"]
    kept = [role for role in roles.workers(tools=1, reserve=2) if role.name.endswith("-chat")]
    assert [role.name for role in kept] == ["turns-chat", "tools-chat"]
    for role in kept:
        options = role.arguments[role.arguments.index("worker") + 1 :]
        assert worker_command().make_context("worker", list(options))


def test_prefork_without_a_number_gets_a_number_of_processes_not_of_threads():
    assert plan_of(WorkerRole.ALL, SETTINGS, pool="prefork").concurrency == PROCESSES


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--queues", "chat,chot"], "there is no queue 'chot': choose from system, delivery, chat, chat.tools"),
        (["--queues", " ,"], "name at least one of system"),
        (["--groups", "chat,chot"], "there is no group 'chot': choose from chat, task, chore, will, system"),
        (["--groups", "system"], "name at least one of chat, task, chore, will"),
        (["--groups", "chat", "--queues", "chat"], "--groups says which queues it serves"),
        (["--reserved", "--groups", "chat"], "leave out --groups"),
        (["--reserved", "--concurrency", "2"], "leave out --concurrency"),
        (["--role", "models"], "'models' is not one of 'turns', 'tools', 'all'"),
        (["--pool", "gevent"], "'gevent' is not one of 'threads', 'prefork'"),
        (["--concurrency", "0"], "0 is not in the range x>=1"),
    ],
)
def test_wrong_option_is_a_usage_error(run, options, told):
    result = run("worker", *options)

    assert result.exit_code == 2
    assert told in result.stderr


def test_room_without_an_agent_is_reported_with_what_it_needs(run):
    result = run("worker")

    assert result.exit_code == 1
    assert result.stderr.startswith("chordage: ")
    assert "write an agent.toml" in result.stderr


def test_broken_agent_is_reported_with_file_and_line_and_stops_no_worker(run, tmp_path, monkeypatch):
    (tmp_path / "agent.toml").write_text('model = "scripted:s.yaml"\ntoools = []\n')
    monkeypatch.setenv("CHORDAGE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr("chordage.workers.cli.context.check_ready", lambda _settings: None)
    begun = []
    monkeypatch.setattr("chordage.workers.cli.processes.run_worker", lambda *_given: begun.append("worker"))

    result = run("worker")

    assert (result.exit_code, begun) == (0, ["worker"])
    assert "chordage: agent.toml:2: toools: there is no such key; did you mean tools?\n" in result.stderr


def test_missing_redis_is_reported_with_the_setting(run, tmp_path):
    write_room(tmp_path)

    result = run("worker")

    assert result.exit_code == 1
    assert "no Redis is set: give CHORDAGE_REDIS_URL" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["worker", "beat", "web"])
def test_missing_database_names_migrate_and_leaves_no_file(run, tmp_path, command):
    write_room(tmp_path)
    (tmp_path / "chordage.toml").write_text('redis_url = "redis://127.0.0.1:1/0"\n')

    result = run(command)

    assert result.exit_code == 1
    assert "chordage migrate" in result.stderr
    assert not (tmp_path / "execution.db").exists()


@pytest.mark.parametrize("command", ["worker", "beat", "web"])
def test_unreachable_redis_is_reported_with_its_address(run, tmp_path, command):
    write_room(tmp_path)
    (tmp_path / "chordage.toml").write_text('redis_url = "redis://127.0.0.1:1/0"\n')
    run("migrate")

    result = run(command)

    assert result.exit_code == 1
    assert result.stderr.startswith("chordage: Redis at redis://127.0.0.1:1/0 does not answer")


def test_wrong_setting_is_bad_input(run, tmp_path):
    (tmp_path / "chordage.toml").write_text('port = "high"\n')

    result = run("flower")

    assert result.exit_code == 2
    assert result.stderr.startswith("chordage: setting port (CHORDAGE_PORT or chordage.toml)")
