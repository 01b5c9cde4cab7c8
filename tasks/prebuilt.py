"""Messages of our Celery tasks, built once for each task and queue, then filled in and sent in one trip.

For each message `send_task` finds out again what is the same in all of them: options of the task, route, headers,
encoding, retries. That is three quarters of the CPU of sending one. Here Celery builds the first message of a task, and
those after it get their own ids, arguments and texts.

Not relied on: that Celery and kombu build messages as they do today. The first messages of a task are built both ways,
and where one field differs, `send_task` is used for that task. It is used for all where others take part in sending:
receivers of signals, events of sent tasks, code that has replaced `send_task` or kombu's `publish` (as tools for
tracing do), another transport than Redis, or priorities.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import structlog
from celery import Celery, signals
from celery.app import base
from celery.utils import uuid
from celery.utils.nodenames import anon_nodename
from kombu import Producer, messaging
from kombu.transport.redis import Channel
from kombu.utils.json import dumps, loads

log = structlog.get_logger()

# No result is wanted. The queue is declared by the process that reads from it: on Redis that costs nothing, while
# Celery would declare it for every message.
NO_RESULT: Mapping[str, Any] = {"ignore_result": True, "add_to_parent": False, "declare": ()}


@dataclass(frozen=True, kw_only=True, slots=True)
class WakeUp:
    """What differs between two messages of one task. `shown`: what monitors are shown of it."""

    task: str
    queue: str
    kwargs: Mapping[str, Any]
    shown: Mapping[str, str]
    headers: Mapping[str, str | int] = field(default_factory=dict)  # of ours, which an old worker need not know
    id: str = field(default_factory=uuid)
    group: str | None = None
    place: int | None = None  # in its group
    chord: Mapping[str, Any] | None = None
    time_limit: int | None = None  # None: as the task has it


class WakeUpSender:
    """Of one app. Safe to share between threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._templates: dict[tuple[str, str], MessageTemplate | None] = {}

    def send(self, messages: Sequence[WakeUp]) -> None:
        """Raises what kombu and redis-py raise, after the retries of `task_publish_retry_policy`."""
        with self._app.producer_or_acquire() as producer:
            if not self._send_prebuilt(producer, messages):
                with _batch(producer):
                    for message in messages:
                        self._send_task(message, producer)

    def _send_prebuilt(self, producer: Producer, messages: Sequence[WakeUp]) -> bool:
        if _others_take_part():
            return False

        def push() -> bool:
            if not isinstance(producer.channel, Channel):
                return False
            texts = [(message.queue, self._text(producer, message)) for message in messages]
            if any(text is None for _, text in texts):
                return False
            _push(producer.channel, texts)
            return True

        assert producer.connection is not None
        ensured = producer.connection.ensure(producer, push, **self._app.conf.task_publish_retry_policy)
        return bool(ensured())

    def _text(self, producer: Producer, message: WakeUp) -> str | None:
        key = message.task, message.queue
        if key not in self._templates:
            self._templates[key] = self._template(producer, message)
        template = self._templates[key]
        return None if template is None else dumps(self._filled(template, message))

    def _template(self, producer: Producer, message: WakeUp) -> MessageTemplate | None:
        """Made from a message that differs in all that may differ, and tried on this one."""
        other = WakeUp(
            task=message.task, queue=message.queue, kwargs={"other": 1}, shown={"argsrepr": "a", "kwargsrepr": "k"},
            group="g" if message.group is None else None, place=7, chord={"other": 1},
        )  # fmt: skip
        try:
            template = MessageTemplate.of(self._built_by_celery(producer, other))
            expected = self._built_by_celery(producer, message)
            ours = self._filled(template, message)
            ours["properties"]["delivery_tag"] = expected["properties"]["delivery_tag"]
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            log.warning("messages cannot be prebuilt; Celery builds each", task=message.task, error=repr(error))
            return None
        conf = self._app.conf
        differs = conf.task_send_sent_event or conf.task_inherit_parent_priority
        if ours == expected and template.is_plain and not differs:
            return template
        log.info("messages are not prebuilt; Celery builds each", task=message.task)
        return None

    def _built_by_celery(self, producer: Producer, message: WakeUp) -> dict[str, Any]:
        """What would be pushed to the queue. No other thread has this channel while we hold its producer."""
        built: list[dict[str, Any]] = []
        channel: Any = producer.channel
        vars(channel)["_put"] = lambda _queue, content, **_: built.append(content)  # which a transport implements
        try:
            self._send_task(message, producer)
        finally:
            del vars(channel)["_put"]  # the class has it
        return built[0]

    def _send_task(self, message: WakeUp, producer: Producer) -> None:
        options: dict[str, Any] = {
            "group_id": message.group, "group_index": message.place, "chord": message.chord,
            "headers": dict(message.headers), **message.shown, **NO_RESULT,
        }  # fmt: skip
        if message.time_limit is not None:
            options["time_limit"] = message.time_limit
        self._app.send_task(
            message.task, kwargs=dict(message.kwargs), queue=message.queue, task_id=message.id, producer=producer,
            **options,
        )  # fmt: skip

    def _filled(self, template: MessageTemplate, message: WakeUp) -> dict[str, Any]:
        parent = self._app.current_worker_task
        by = parent.request if parent else None
        limits = template.headers["timelimit"]
        headers = {
            **template.headers, **message.headers, **message.shown, "id": message.id, "group": message.group,
            "group_index": message.place, "root_id": (by.root_id or by.id) if by else message.id,
            "parent_id": by.id if by else None, "origin": anon_nodename(),
            "timelimit": limits if message.time_limit is None else [message.time_limit, limits[1]],
        }  # fmt: skip
        body = dumps([[], message.kwargs, {**template.embedded, "chord": message.chord}])
        properties = {
            **template.properties, **message.shown, "correlation_id": message.id, "reply_to": self._app.thread_oid,
            "delivery_tag": uuid(),
        }  # fmt: skip
        return {
            **template.envelope, "headers": headers, "properties": properties,
            "body": b64encode(body.encode()).decode(),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageTemplate:
    """A message of Celery's, taken apart."""

    envelope: Mapping[str, Any]
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    embedded: Mapping[str, Any]

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> MessageTemplate:
        _, _, embedded = loads(_decoded(message["body"]))
        return cls(
            envelope=message, headers=message["headers"], properties=message["properties"], embedded=embedded,
        )  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """It goes to the queue of that name, and not to one for its priority."""
        return self.properties["priority"] == 0 and not self.properties["delivery_info"]["exchange"]


def _decoded(body: str) -> str:
    return b64decode(body).decode()


def _push(channel: Any, texts: Sequence[tuple[str, str | None]]) -> None:
    """Those of one queue are one command."""
    queues: dict[str, list[str | None]] = {}
    for queue, text in texts:
        queues.setdefault(queue, []).append(text)
    with channel.conn_or_acquire() as client:
        if len(queues) == 1:
            ((queue, contents),) = queues.items()
            client.lpush(queue, *contents)
            return
        with client.pipeline(transaction=False) as pipe:
            for queue, contents in queues.items():
                pipe.lpush(queue, *contents)
            pipe.execute()


def _others_take_part() -> bool:
    publishing = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
    return any(signal.receivers for signal in publishing) or not (
        _is_of(base, Celery.send_task) and _is_of(messaging, Producer.publish)
    )


def _is_of(module: ModuleType, function: Any) -> bool:
    """Whether it is the module's own, and no other was put in its place or around it."""
    return isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__


def _batch(producer: Producer) -> AbstractContextManager[object]:
    """Publish in one trip. Kombu before 5.7 cannot: there each message is published at once."""
    return producer.batch() if hasattr(producer, "batch") else nullcontext()
