"""Broken agents under real workers: nothing else stops, and no message of theirs is lost."""

from __future__ import annotations

import pytest

from chordage.tasks import names
from support.rig import Plan
from support.waiting import until

pytestmark = pytest.mark.redis

GOOD = 'model = "scripted:hi.yaml"\nname = "shop"\n'


@pytest.fixture
def rig(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"))
    rig.agent("spare", "scripted:hi.yaml", "- text: hi\n")
    (rig.room / "late_tools.py").write_text("raise RuntimeError('half saved')\n")
    (rig.room / "agents" / "late.toml").write_text('model = "scripted:hi.yaml"\ntools = ["late_tools"]\n')
    (rig.room / "agents" / "shop-file.toml").write_text(GOOD[:-4])
    return rig


def send(rig, text, **fields):
    """By name, as any service does it."""
    app = rig.app
    app.conf.result_backend = rig.settings.redis
    return app.send_task(names.SUBMIT, kwargs={"text": text, **fields}, queue="chat")


def test_workers_start_with_broken_agents_and_keep_their_messages_until_they_are_repaired(rig):
    rig.worker("all", "--role", "all")
    rig.ready()
    early = rig.submit(Plan(id="early"), agent="late")
    by_name = send(rig, "kept", agent="shop")
    whole = rig.submit(Plan(id="whole", rounds=0), agent="spare")

    until(lambda: rig.row("turns", id=whole)["status"] == "done", "the others are served")
    until(lambda: "a message waits for a broken agent" in rig.workers["all"].said(), "the message was seen")
    assert "agents/late.toml:2: tools: " in rig.workers["all"].said()
    assert (rig.row("turns", id=early)["status"], by_name.ready()) == ("queued", False)

    (rig.room / "agents" / "shop-file.toml").write_text(GOOD)
    (rig.room / "late_tools.py").write_text("from rig_tools import pure\n")

    kept = by_name.get(timeout=120, disable_sync_subtasks=False)
    until(lambda: rig.row("turns", id=kept)["disposition"] == "answered", "the message by name is answered")
    until(lambda: rig.row("turns", id=early)["disposition"] == "answered", "the turn that waited is answered")


def test_a_worker_that_dies_while_a_file_is_broken_comes_back_and_serves_its_last_good_version(rig):
    worker = rig.worker("all", "--role", "all")
    rig.ready()
    until(lambda: rig.rows("agent_versions", agent="spare"), "its version is on record")
    (rig.room / "agents" / "spare.toml").write_text("half a fi")
    worker.kill()
    worker.start()
    rig.ready()

    turn = send(rig, "hi", agent="spare").get(timeout=120, disable_sync_subtasks=False)

    until(lambda: rig.row("turns", id=turn)["disposition"] == "answered", "it is answered")
    assert "its last good version serves" in worker.said()
