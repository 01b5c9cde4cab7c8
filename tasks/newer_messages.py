"""Messages that a newer version has sent, as a worker of this one meets them during a deploy.

A version that adds a task, or an argument that must not be overlooked, raises `WIRE` in names.py and puts it into the
header `NEEDS` of these messages. An older worker puts such a message back into its queue after a pause, until a worker
that understands it takes it. The message stays on record with Redis meanwhile, as any message that a worker holds: when
the worker dies, it is put back like the others.

Without that header, an argument that is not known is ignored by tasks that are wake-ups and refused by those of
callers, and a task that is not known is an error of its sender: Celery logs it, and stores the failure as its result.

Not promised: an order among messages that were put back, or an end of that. A fleet of older workers alone takes each
of them once a second; they wait for the newer version, and hold up nothing else.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import Celery
from celery.utils.log import get_logger
from celery.worker import consumer as stock
from celery.worker import strategy as stock_strategy
from kombu import Message

from chordage.tasks.names import NEEDS, WIRE

log = structlog.get_logger()

PAUSE = 1.0  # seconds for which a message of a newer version is held before it is put back
Stock: Any = stock.Consumer  # its stubs know little of it
default_strategy: Any = stock_strategy.default


def is_newer(message: Message) -> bool:
    needs = message.headers.get(NEEDS) if isinstance(message.headers, dict) else None
    return isinstance(needs, int) and needs > WIRE


def put_back_later(consumer: Any, message: Message) -> None:
    """As with a message that is not due yet, the worker may take another one meanwhile."""
    log.info("a message of a newer version is left to its workers", task=message.headers.get("task"))
    consumer.qos.increment_eventually()
    consumer.timer.call_after(PAUSE, _put_back, (consumer, message))


def _put_back(consumer: Any, message: Message) -> None:
    """Where the connection was lost meanwhile, Redis has its record, and it is put back like all that were held."""
    message.reject_log_error(get_logger(__name__), consumer.connection_errors, requeue=True)
    consumer.qos.decrement_eventually()


def of_this_version(task: Any, app: Celery, consumer: Any, **options: Any) -> Any:
    """Celery's way to receive a message of a known task, for those of versions that this one understands."""
    handle = default_strategy(task, app, consumer, **options)

    def receive(message: Message, body: Any, *args: Any, **more: Any) -> Any:
        if is_newer(message):
            put_back_later(consumer, message)
            return None
        return handle(message, body, *args, **more)

    return receive


class TolerantConsumer(Stock):  # type: ignore[misc]
    def on_unknown_task(self, body: Any, message: Message, exc: Exception) -> None:
        if is_newer(message):
            put_back_later(self, message)
            return
        super().on_unknown_task(body, message, exc)
