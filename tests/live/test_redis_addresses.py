"""A fleet on each form of a Redis address: its queues, chords, results, locks, bus and live news all go there."""

from __future__ import annotations

from contextlib import closing

import pytest
from celery import Celery

from chordage.orchestrator.gateways.redis_events import EVERY_RUN, done_channel, watch
from chordage.workers.bootstrap import redis_from
from chordage.workers.turn_waiter import waiter_for
from support import processes
from support.invariants import check_all
from support.redis_kinds import KINDS, with_sentinels
from support.rig import Plan, Rig
from support.waiting import PATIENCE, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def folder():
    return processes.scratch_folder("redis")  # the path of a socket may not be long


def sender(rig: Rig) -> Celery:
    """As any other service writes it: with kombu's own transport and the prefix."""
    address = rig.settings.redis_address
    options = {"global_keyprefix": rig.settings.broker_prefix, **address.sentinel_options}
    app = Celery("shop", broker=address.broker_url, backend=address.broker_url, set_as_current=False)
    app.conf.update(broker_transport_options=options, result_backend_transport_options=options)
    app.conf.update(broker_use_ssl=dict(address.tls) or None, redis_backend_use_ssl=dict(address.tls) or None)
    return app


def by_name(rig: Rig, plan: Plan) -> str:
    with closing(sender(rig)) as app:
        return str(app.send_task("turns.submit", kwargs={"text": plan.text}, queue="chat").get(timeout=PATIENCE))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fleet_answers_there(kind, folder, valkey_program, tmp_path, databases) -> None:
    url = databases.migrated("sqlite")
    with KINDS[kind](folder, valkey_program) as place, closing(Rig(tmp_path, url, **place.settings)) as rig:
        rig.worker("turns", "--role", "turns", "--concurrency", "4")
        rig.worker("tools", "--role", "tools", "--concurrency", "2")
        rig.ready()
        watch(rig.redis, EVERY_RUN, 60, prefix="chordage:")
        turn = by_name(rig, Plan(id=kind, rounds=2, tools=("pure", "idempotent")))
        rig.wait_until_done()

        assert rig.row("turns", id=turn)["disposition"] == "answered"
        check_all(rig.runtime.store)
        until(lambda: any(key.endswith(":live") for key in rig.redis.keys("chordage:*")), "live news is there")
        _a_word_reaches_who_waits(rig, turn)
        assert all(key.startswith("chordage:") for key in rig.redis.keys("*"))
        said = "".join(worker.said() for worker in rig.workers.values())
        assert "Traceback" not in said
    databases.drop(url)


def _a_word_reaches_who_waits(rig: Rig, turn: str) -> None:
    waiter = waiter_for(rig.settings)
    with closing(waiter), waiter.subscribed(turn) as word, redis_from(rig.settings) as redis:
        redis.publish(done_channel(rig.settings.prefix, turn), "1")
        assert word.wait(PATIENCE)


def test_fleet_continues_with_the_master_that_the_sentinels_elected(
    folder, valkey_program, tmp_path, databases
) -> None:
    url = databases.migrated("sqlite")
    with with_sentinels(folder, valkey_program) as place, closing(Rig(tmp_path, url, **place.settings)) as rig:
        rig.worker("turns", "--role", "turns", "--concurrency", "4")
        rig.worker("tools", "--role", "tools", "--concurrency", "2")
        rig.ready()
        before = rig.submit(Plan(id="before", tools=("pure",), seconds=3))
        until(lambda: rig.facts(name="pure", phase="begin"), "a call is in hand")
        place.kill_master()
        after = rig.submit_surely(Plan(id="after", tools=("pure",)))
        rig.wait_until_done()

        assert {rig.row("turns", id=turn)["disposition"] for turn in (before, after)} == {"answered"}
        assert rig.restart_the_dead() == []
        assert by_name(rig, Plan(id="by name", rounds=0))
        rig.wait_until_done()
        check_all(rig.runtime.store)
    databases.drop(url)
