"""Whether a wake-up waits, asked of the queues that Celery really writes to."""

from __future__ import annotations

import pytest
from celery import Celery
from redis import Redis

from chordage.config.celery_settings import celery_settings
from chordage.config.settings import Settings
from chordage.orchestrator.core.groups import ALL_QUEUES
from chordage.orchestrator.gateways.redis_locks import RedisQueues

pytestmark = pytest.mark.redis


@pytest.mark.parametrize("prefix", ["", "ours:"])
def test_a_queue_is_empty_until_a_message_waits_in_it_and_again_when_it_was_taken(redis_url, prefix):
    settings = Settings(redis_url=redis_url, broker_prefix=prefix)
    with Celery("queues", set_as_current=False) as app, Redis.from_url(redis_url) as redis:
        app.conf.update(celery_settings(settings, ALL_QUEUES))
        queues = RedisQueues(redis, prefix=prefix)
        before = queues.is_empty("chat")

        app.send_task("turns.dispatch", queue="chat")
        waits = not queues.is_empty("chat")
        others = queues.is_empty("chat.tools")
        with app.connection_for_read() as connection:
            connection.SimpleQueue(app.amqp.queues["chat"]).get(timeout=60)
            taken = queues.is_empty("chat")

    assert (before, waits, others, taken) == (True, True, True, True)


def test_queue_is_not_reported_empty_while_redis_is_away():
    with Redis(port=1, socket_connect_timeout=1) as away:
        assert not RedisQueues(away, prefix="").is_empty("chat")
