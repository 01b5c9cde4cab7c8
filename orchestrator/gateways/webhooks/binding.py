"""One [hooks.NAME] table, from keys to a binding. What is wrong is noted in the table's source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from chordage.orchestrator.core import webhooks
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.message import NAME_MAX, Sender
from chordage.orchestrator.core.message import Origin as AnyOrigin
from chordage.orchestrator.core.webhooks import Binding, Shape
from chordage.orchestrator.gateways.room import imports
from chordage.orchestrator.gateways.room_table import SOME, TABLE, TEXT, TEXTS, Table
from chordage.orchestrator.gateways.webhooks import decoders, sealing

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # it becomes a file name, a channel, and part of a thread
_METHOD = re.compile(r"[A-Z]{1,20}")
_DOTTED = re.compile(r"[^.{}\s][^.{}]*(\.[^.{}]+)*")


class Origin(StrEnum):
    """Where a delivery may say it comes from; the others are the agent's own."""

    INVOKE = "invoke"
    CHAT = "chat"


class Speaker(StrEnum):
    OWNER = "owner"
    PEER = "peer"
    GUEST = "guest"
    SERVICE = "service"


def read_binding(table: Table, name: str, room: Path, environ: Mapping[str, str]) -> Binding:
    if not _NAME.fullmatch(name):
        table.source.complain(table.path, f"its name must be 1 to 64 letters, digits, _ . or -; got {name!r}")
    plugin = _plugin(table, room)
    config = table.inner("config")
    binding = Binding(
        name=name,
        path=_path(table),
        method=_method(table),
        seal=sealing.read(table, environ),
        agent=table.take("agent", TEXT, None),
        max_bytes=table.take("max_bytes", SOME, webhooks.MAX_BYTES),
        origin=AnyOrigin(config.choose("origin", Origin, "invoke")),
        sender=Sender(config.choose("sender", Speaker, "service")),
        thread=_thread(config),
        reply_target=config.take("reply_target", TABLE, None),
        plugin=plugin,
        shape=_shape(config) if plugin == webhooks.WEBHOOK else Shape(),
        options={} if plugin == webhooks.WEBHOOK else _options(config, environ),
    )
    config.refuse_the_rest()
    table.refuse_the_rest()
    return binding


def _plugin(table: Table, room: Path) -> str:
    name = table.take("plugin", TEXT, webhooks.WEBHOOK)
    if name != webhooks.WEBHOOK:
        imports.make_importable(room)
        try:
            decoders.find(name)
        except RoomError as error:
            table.complain("plugin", str(error))
    return name


def _path(table: Table) -> str:
    path = table.take("path", TEXT, "", required=True)
    if path and not path.startswith(webhooks.PREFIX):
        table.complain("path", f"must begin with {webhooks.PREFIX}, such as {webhooks.PREFIX}github; got {path!r}")
    elif path and not _is_plain(path):
        why = "must be visible characters without space, %, ? or #, and no . or .. or nothing between slashes"
        table.complain("path", f"{why}; got {path!r}")
    return path


def _is_plain(path: str) -> bool:
    parts = path.removeprefix(webhooks.PREFIX).removesuffix("/").split("/")
    plain = path.isprintable() and not set(path) & set(" %?#\\") and len(path) <= NAME_MAX
    return plain and not set(parts) & {"", ".", ".."}


def _method(table: Table) -> str:
    method = table.take("method", TEXT, "POST").strip().upper()
    if not _METHOD.fullmatch(method):
        table.complain("method", f"must be the name of an HTTP method, such as POST; got {method!r}")
    return method


def _thread(config: Table) -> str | None:
    thread: str | None = config.take("thread", TEXT, None)
    if thread is not None and not (thread.isprintable() and len(thread) <= NAME_MAX):
        config.complain("thread", f"must be 1 to {NAME_MAX} visible characters; got {thread!r:.80}")
    if thread is not None and "thread_field" in config.values:
        config.complain("thread_field", "there is a thread too; keep one of the two")
    return thread


def _shape(config: Table) -> Shape:
    usual = Shape()
    text = config.take("text", TEXT, None)
    if text is not None:
        _check_template(config, text)
    fields: list[str] = config.take("meta_fields", TEXTS, [])
    for path in fields:
        _check_dotted(config, "meta_fields", path)
    headers: list[str] = config.take("meta_headers", TEXTS, [])
    return Shape(
        text_field=_dotted(config, "text_field", usual.text_field) or usual.text_field,
        text=text,
        thread_field=_dotted(config, "thread_field", None),
        meta_fields=tuple(fields),
        meta_headers=tuple(header.lower() for header in headers),
    )


def _check_template(config: Table, text: str) -> None:
    if "text_field" in config.values:
        config.complain("text_field", "there is a text too; keep one of the two")
    try:
        paths = webhooks.fields_of(text)
    except ValueError as error:
        config.complain("text", str(error))
        return
    for path in paths:
        _check_dotted(config, "text", path)


def _dotted(config: Table, key: str, usual: str | None) -> str | None:
    path: str | None = config.take(key, TEXT, usual)
    if path is not None:
        _check_dotted(config, key, path)
    return path


def _check_dotted(config: Table, key: str, path: str) -> None:
    if not _DOTTED.fullmatch(path):
        config.complain(key, f"must be a dotted path into the payload, like pull_request.title; got {path!r}")


def _options(config: Table, environ: Mapping[str, str]) -> dict[str, Any]:
    """Of a decoder of one's own: whatever stands there. `x_env = "NAME"` gives it `x`."""
    options: dict[str, Any] = {}
    for key in [key for key in config.values if key not in config.known]:
        if not key.endswith("_env"):
            options[key] = config.take(key, sealing.ANYTHING, None)
        elif (variable := config.take(key, TEXT, "", required=True)) and (
            value := sealing.resolved(config, key, variable, environ)
        ):
            options[key.removesuffix("_env")] = value
    return options
