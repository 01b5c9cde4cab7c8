"""Workers of two versions side by side on one database, with questions that wait and runs at work: an upgrade.

The newer version is made of a copy of this one (support/other_version.py). `TEST_OLDER_VERSION=<folder>` takes the tree
in that folder, such as an earlier commit, for the older one, instead of this one; then the messages of both are alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from chordage.orchestrator.core.errors import WrongSchema
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import schema_version
from chordage.tasks import names
from chordage.tasks.prebuilt import WakeUp, WakeUpSender
from support.other_version import REPOSITORY, Version, WorkerOfVersion, next_version
from support.rig import Plan, Rig
from support.rig_checks import check_rig
from support.rig_inbox import answer, inbox
from support.rig_worker import Worker
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

OLDER = os.environ.get("TEST_OLDER_VERSION")
TURNS, WAITING = 6, 3
LEFT = "a message of a newer version is left to its workers"


def start(rig: Rig, name: str, version: Version) -> Worker:
    made = Worker if version.folder == REPOSITORY else WorkerOfVersion
    worker = made(name=name, arguments=("--concurrency", "4"), env=version.env(rig.env), folder=rig.folder)
    rig.workers[name] = worker
    worker.start()
    return worker


def command(rig: Rig, version: Version, *arguments: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "chordage.workers.cli", *arguments]
    env = version.env(rig.env)
    return subprocess.run(run, env=env, cwd=rig.folder, capture_output=True, text=True, check=False, timeout=150)


def give(rig: Rig, name: str, number: int, *tools: str) -> None:
    for n in range(number):
        rig.submit(Plan(id=f"{name}{n}", rounds=2, tools=tools, seconds=0.2), f"{name}{n}")


def kill_at_work(rig: Rig, worker: Worker) -> None:
    """While it carries out calls."""
    pids = {worker.pid}
    until(lambda: any(f["phase"] == "begin" and f["pid"] in pids for f in rig.facts(what="tool")), "it is at work")
    worker.kill()


def send_too_early(rig: Rig, runs: list[str]) -> None:
    """Messages for the newer version, while there is none: of a task that the older does not know, and of another."""
    shown = {"argsrepr": "", "kwargsrepr": ""}
    WakeUpSender(rig.app).send([
        WakeUp(task=task, queue=Group.CHAT.queue, kwargs={"run": run}, headers={names.NEEDS: 2}, shown=shown)
        for task in ("runs.mood", names.ADVANCE) for run in runs
    ])  # fmt: skip


def moods(rig: Rig) -> dict[str, str | None]:
    """By run."""
    with rig.runtime.store.read() as tx:
        return {row.run_id: row.mood for row in tx.execute(text("SELECT run_id, mood FROM turns"))}


@pytest.mark.postgres
def test_two_versions_share_a_database_until_it_is_contracted(make_rig, migrated_database_url, tmp_path):
    rig = make_rig(migrated_database_url("postgres"))
    file = rig.room / "agent.toml"
    file.write_text(file.read_text().replace('["rig_tools"]', '["rig_tools", "rig_questions"]'))
    older = Version(folder=Path(OLDER) if OLDER else REPOSITORY)
    newer = next_version(tmp_path / "newer", messages=not OLDER)

    old = start(rig, "old", older)
    rig.ready()
    give(rig, "waiting", WAITING, "asks_at_first", "unsafe")
    until(lambda: len(inbox(rig)) == WAITING, "all questions wait")
    early = [question["run_id"] for question in inbox(rig)]
    if not OLDER:
        send_too_early(rig, early)
        until(lambda: old.said().count(LEFT) >= 2 * WAITING, "the older leaves what it does not understand")
    migrated = command(rig, newer, "migrate")
    assert "from schema 0001 to 0002" in migrated.stdout, migrated.stderr
    new = start(rig, "new", newer)
    rig.ready()
    give(rig, "beside", TURNS, "idempotent", "pure")
    kill_at_work(rig, old)
    rig.restart_the_dead()
    rig.ready()
    refused = command(rig, newer, "migrate", "--contract")
    assert "older code may still be at work: 0.1.0 in" in refused.stderr
    give(rig, "after", TURNS, "idempotent", "pure")
    kill_at_work(rig, new)
    rig.restart_the_dead()
    for question in inbox(rig):
        answer(rig, question, payload=True)
    rig.ready()
    rig.wait_until_done()

    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_rig(rig)
    written = [row["body"].get("mood") for row in rig.rows("journal")]
    assert {"good", None} == set(written), "both have written history"
    if not OLDER:
        sent = {*early, *(rig.folder / "sent").read_text().split()}
        until(lambda: {moods(rig)[run] for run in sent} == {"good"}, "what only the newer understands is carried out")
        assert not any(fault in old.said() for fault in ("unexpected keyword", "unregistered task"))
    print(f"{len(written)} rows, {written.count('good')} by the newer; left to it: {old.said().count(LEFT)}")

    old.kill()
    with rig.runtime.store.write() as tx:
        tx.execute(text("UPDATE processes SET gone_at = seen_at WHERE version = '0.1.0'"))
    rig.runtime.store.close()  # its connections are of the older version too
    contracted = command(rig, newer, "migrate", "--contract")
    assert "takes that of 0002 and newer now" in contracted.stdout, contracted.stderr
    assert set(moods(rig).values()) <= {"good", "none"}
    with pytest.raises(WrongSchema, match="takes code of schema 0002 and newer; this code is at 0001: update chordage"):
        schema_version.check(rig.runtime.store)
