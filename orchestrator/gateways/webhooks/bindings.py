"""The webhooks of a room: hooks.toml, from its text to bindings, read again when it changes.

A broken binding is a fault of its own; the others work. A binding is closed unless its table says explicitly that every
sender may deliver.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from chordage.orchestrator.core import signatures, webhooks
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.message import Origin as AnyOrigin
from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.core.signatures import Encoding, Form, Seal
from chordage.orchestrator.core.text import NAME_MAX
from chordage.orchestrator.core.webhooks import Shape, WebhookBinding
from chordage.orchestrator.gateways.room import imports
from chordage.orchestrator.gateways.room.files import Source, Stamps, load_toml, stamp_of
from chordage.orchestrator.gateways.room.reading import known_agents, no_such_agent
from chordage.orchestrator.gateways.room.tables import (
    NAME,
    AnyTable,
    OneOf,
    PositiveCount,
    Seconds,
    Text,
    Texts,
    TomlTable,
    Words,
    read_table,
)
from chordage.orchestrator.gateways.webhooks import decoders

log = structlog.get_logger()

FILE = "hooks.toml"
REFRESH_SECONDS = 1.0  # between two looks at the file
ONLY_HMAC = ("signature_header", "signature_prefix", "signature_encoding", "timestamp_header", "signed")
STANDARD_PREFIX = "whsec_"
FROM_ENVIRONMENT = "_env"
_METHOD = re.compile(r"[A-Z]{1,20}")
_DOTTED = re.compile(r"[^.{}\s][^.{}]*(\.[^.{}]+)*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VARIABLES = 'the name of an environment variable, or a list of them, like ["NEW_SECRET", "OLD_SECRET"]'
_SIGNATURES = ", ".join(f'"{form}"' for form in Form if form is not Form.NONE)


# the tables of the file


class HookOrigin(StrEnum):
    """Where a delivery may say it comes from; the others are the agent's own."""

    INVOKE = "invoke"
    CHAT = "chat"


class Speaker(StrEnum):
    OWNER = "owner"
    PEER = "peer"
    GUEST = "guest"
    SERVICE = "service"


def _path(path: str) -> str:
    if not path.startswith(webhooks.PREFIX):
        raise ValueError(f"must begin with {webhooks.PREFIX}, such as {webhooks.PREFIX}github; got {path!r}")
    parts = path.removeprefix(webhooks.PREFIX).removesuffix("/").split("/")
    is_plain = path.isprintable() and not set(path) & set(" %?#\\") and len(path) <= NAME_MAX
    if not is_plain or set(parts) & {"", ".", ".."}:
        why = "must be visible characters without space, %, ? or #, and no . or .. or nothing between slashes"
        raise ValueError(f"{why}; got {path!r}")
    return path


def _method(method: str) -> str:
    if not _METHOD.fullmatch(method.strip().upper()):
        raise ValueError(f"must be the name of an HTTP method, such as POST; got {method!r}")
    return method.strip().upper()


def _header(name: str) -> str:
    if not _HEADER.fullmatch(name):
        raise ValueError(f"must be the name of an HTTP header; got {name!r}")
    return name.lower()


def _dotted(path: str) -> str:
    if not _DOTTED.fullmatch(path):
        raise ValueError(f"must be a dotted path into the payload, like pull_request.title; got {path!r}")
    return path


def _thread(thread: str) -> str:
    if not thread.isprintable() or len(thread) > NAME_MAX:
        raise ValueError(f"must be 1 to {NAME_MAX} visible characters; got {thread!r:.80}")
    return thread


Header = Annotated[Text, AfterValidator(_header)]
DottedPath = Annotated[Text, AfterValidator(_dotted)]
SecretNames = Annotated[
    tuple[Text, ...],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Words(_VARIABLES),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class HookTable(TomlTable):
    """Its reader checks `signature`, to say how to open a binding to everybody."""

    model_config = ConfigDict(json_schema_extra={"required": ["path", "signature"]})

    path: Annotated[Text, AfterValidator(_path)] = Field(
        examples=["/hooks/github"], description="The path of its URL, beginning with /hooks/"
    )
    method: Annotated[Text, AfterValidator(_method)] = Field("POST", description="The HTTP method")
    agent: Text | None = Field(None, description="Who answers; default the room's default agent")
    max_bytes: PositiveCount = Field(webhooks.MAX_BYTES, description="Bytes of one delivery")
    plugin: Text = Field(
        webhooks.WEBHOOK, description="webhook for JSON, or a decoder: an entry point or module:function"
    )
    config: AnyTable = Field({}, description="What a delivery becomes; for a decoder, its options")
    signature: Annotated[Form, Words(f"one of {', '.join(Form)}", remedy=False)] | None = Field(
        None, description="How deliveries are signed"
    )
    secret_env: SecretNames | None = Field(None, description="The variables with the secrets: any of them may sign")
    tolerance: Seconds | None = Field(None, description="Seconds that a signed time may differ; default 300")
    idempotency_header: Header | None = Field(None, description="The HTTP header with the id of a delivery")
    replay_window: Seconds | None = Field(None, description="Seconds in which a copy under another id is refused")
    signature_header: Header | None = Field(None, description="hmac: the HTTP header with the signature")
    signature_prefix: Text | None = Field(None, description="hmac: what is in front of the signature")
    signature_encoding: Annotated[Encoding, OneOf()] | None = Field(None, description="hmac: hex or base64")
    timestamp_header: Header | None = Field(None, description="hmac: the HTTP header with the time")
    signed: Text | None = Field(None, description='hmac: what is signed, such as "{timestamp}.{body}"')


class DeliveryTable(TomlTable):
    origin: Annotated[HookOrigin, OneOf()] = Field(HookOrigin.INVOKE, description="What kind of message it is")
    sender: Annotated[Speaker, OneOf()] = Field(Speaker.SERVICE, description="Who speaks")
    thread: Annotated[Text, AfterValidator(_thread)] | None = Field(None, description="The thread of every delivery")
    reply_target: AnyTable | None = Field(None, description="Where the answer goes")


class JsonDeliveryTable(DeliveryTable):
    text_field: DottedPath = Field("text", description="Where the payload has its text")
    text: Text | None = Field(None, description='A template instead, such as "{sender.login} pushed to {ref}"')
    thread_field: DottedPath | None = Field(None, description="Where the payload names its thread")
    meta_fields: Texts = Field((), description="Paths of the payload to keep with the message")
    meta_headers: Texts = Field((), description="HTTP headers to keep with the message")


class DecoderTable(DeliveryTable):
    """The further keys are options of the decoder."""

    model_config = ConfigDict(extra="allow")


# the file, and what it comes to


class HooksTable(TomlTable):
    hooks: AnyTable = Field({}, description="Bindings by name, each under [hooks.NAME]")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenBinding:
    """A binding that cannot be used; `path` as far as it could be read."""

    name: str
    path: str | None
    fault: RoomError


@dataclass(frozen=True, kw_only=True, slots=True)
class HooksFile:
    bindings: tuple[WebhookBinding, ...] = ()
    broken: tuple[BrokenBinding, ...] = ()
    fault: RoomError | None = None  # of the file itself
    unreadable: bool = False  # it may have any binding
    stamps: Stamps = field(default_factory=dict)

    @property
    def faults(self) -> list[RoomError]:
        return [*([self.fault] if self.fault else []), *(binding.fault for binding in self.broken)]


def read(room: Path, environ: Mapping[str, str]) -> HooksFile:
    path = room / FILE
    stamps: Stamps = {path: stamp_of(path)}  # before it is read, to notice later changes
    if stamps[path] is None:
        return HooksFile(stamps=stamps)
    try:
        source, values = load_toml(FILE, path)
    except RoomError as error:
        return HooksFile(fault=error, unreadable=True, stamps=stamps)
    tables = read_table(HooksTable, source, values).hooks
    bindings: dict[tuple[str, str], WebhookBinding] = {}
    broken: list[BrokenBinding] = []
    for name, table in tables.items():
        place, own = ("hooks", name), source.beside()
        if not isinstance(table, dict):
            own.complain(place, f"must be a table: [hooks.{name}]")
            broken.append(BrokenBinding(name=name, path=None, fault=RoomError("\n".join(own.faults))))
            continue
        stamps |= _code_of(table.get("plugin"), room)
        binding = _Reader(own, place, room, environ).binding(read_table(HookTable, own, table, place))
        key = (binding.path, binding.method)
        if key in bindings and not own.is_wrong((*place, "path")):
            taken = f"{binding.method} {binding.path} is taken by [hooks.{bindings[key].name}]"
            own.complain((*place, "path"), f"{taken}; change one")
        if own.error is None:
            bindings[key] = binding
        else:
            path_there = table.get("path")
            url_path = path_there if isinstance(path_there, str) else None
            broken.append(BrokenBinding(name=name, path=url_path, fault=own.error))
    return HooksFile(bindings=tuple(bindings.values()), broken=tuple(broken), fault=source.error, stamps=stamps)


def _code_of(plugin: Any, room: Path) -> Stamps:
    """A decoder of the room that could not be imported is tried again when its file has changed."""
    module, colon, _ = plugin.partition(":") if isinstance(plugin, str) else ("", "", "")
    path = imports.file_of(module, room)
    return {path: stamp_of(path)} if colon else {}


def faults(room: Path, environ: Mapping[str, str]) -> list[RoomError]:
    """Everything that is wrong with the webhooks of a room, each with its file and line: for `chordage check`."""
    content = read(room, environ)
    if not content.bindings:
        return content.faults
    source, _values = load_toml(FILE, room / FILE)
    known = known_agents(room)
    for binding in content.bindings:
        if (why := no_such_agent(binding.agent, known)) is not None:
            source.complain(("hooks", binding.name, "agent"), why)
    return [*content.faults, *map(RoomError, source.faults)]


@dataclass(frozen=True, slots=True)
class WrongMethod:
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The path may have a binding, and it cannot be used."""


class WebhookBindings:
    """Safe to share between threads."""

    def __init__(self, room: Path, environ: Mapping[str, str], *, refresh_seconds: float = REFRESH_SECONDS) -> None:
        self._room = room
        self._environ = environ
        self._refresh_seconds = refresh_seconds
        self._lock = threading.Lock()
        self._refreshed_at = time.monotonic()
        self.current = self._read()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._refreshed_at >= self._refresh_seconds

    def refresh(self) -> None:
        """Read the file again if it has changed; this imports the code that it names."""
        with self._lock:
            if not self.is_due:
                return
            if self.current.stamps != {path: stamp_of(path) for path in self.current.stamps}:
                self.current = self._read()
            self._refreshed_at = time.monotonic()

    def find(self, path: str, method: str) -> WebhookBinding | WrongMethod | Closed | None:
        current = self.current
        by_method = {binding.method: binding for binding in current.bindings if binding.path == path}
        if method in by_method:
            return by_method[method]
        if current.unreadable or any(broken.path == path for broken in current.broken):
            return Closed()
        return WrongMethod(tuple(by_method)) if by_method else None

    def _read(self) -> HooksFile:
        content = read(self._room, self._environ)
        for fault in content.faults:
            event = f"{fault}\nit answers 503 until that is repaired"
            log.error(event)
        return content


# one table, from keys to a binding


class _Reader:
    def __init__(self, source: Source, path: tuple[str, ...], room: Path, environ: Mapping[str, str]) -> None:
        self._source = source
        self._path = path
        self._room = room
        self._environ = environ

    def _complain(self, key: str, why: str) -> None:
        self._source.complain((*self._path, *key.split(".")), why)

    def binding(self, table: HookTable) -> WebhookBinding:
        name = self._path[-1]
        if not NAME.fullmatch(name):
            self._source.complain(self._path, f"its name must be 1 to 64 letters, digits, _ . or -; got {name!r}")
        is_json = table.plugin == webhooks.WEBHOOK
        if not is_json:
            imports.make_importable(self._room)
            try:
                decoders.find(table.plugin)
            except RoomError as error:
                self._complain("plugin", str(error))
        kind = JsonDeliveryTable if is_json else DecoderTable
        config = read_table(kind, self._source, table.config, (*self._path, "config"))
        if config.thread is not None and "thread_field" in config.model_fields_set:
            self._complain("config.thread_field", "there is a thread too; keep one of the two")
        return WebhookBinding(
            name=name,
            path=table.path,
            method=table.method,
            seal=self._seal(table),
            agent=table.agent,
            max_bytes=table.max_bytes,
            origin=AnyOrigin(config.origin),
            sender=Sender(config.sender),
            thread=config.thread,
            reply_target=config.reply_target,
            plugin=table.plugin,
            shape=self._shape(config) if isinstance(config, JsonDeliveryTable) else Shape(),
            options=dict(self._options(config.model_extra or {})),
        )

    def _shape(self, config: JsonDeliveryTable) -> Shape:
        if config.text is not None:
            self._check_template(config.text)
            if "text_field" in config.model_fields_set:
                self._complain("config.text_field", "there is a text too; keep one of the two")
        self._check_paths("config.meta_fields", config.meta_fields)
        return Shape(
            text_field=config.text_field,
            text=config.text,
            thread_field=config.thread_field,
            meta_fields=config.meta_fields,
            meta_headers=tuple(header.lower() for header in config.meta_headers),
        )

    def _check_template(self, text: str) -> None:
        try:
            self._check_paths("config.text", webhooks.fields_of(text))
        except ValueError as error:
            self._complain("config.text", str(error))

    def _check_paths(self, key: str, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                _dotted(path)
            except ValueError as error:
                self._complain(key, str(error))

    def _options(self, extra: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """`x_env = "NAME"` gives the decoder `x`."""
        for key, value in extra.items():
            if not key.endswith(FROM_ENVIRONMENT):
                yield key, value
            elif not isinstance(value, str) or not value.strip():
                self._complain(f"config.{key}", f"must be the name of an environment variable; got {value!r}")
            elif (looked_up := self._variable(f"config.{key}", value)) is not None:
                yield key.removesuffix(FROM_ENVIRONMENT), looked_up

    def _variable(self, key: str, variable: str) -> str | None:
        """Its value. Faults are named without it."""
        value = self._environ.get(variable)
        if not value:
            self._complain(key, f"the environment variable {variable} is not set; set it where the HTTP server starts")
        elif value != value.strip():
            self._complain(key, f"the environment variable {variable} begins or ends with white space; take it away")
        else:
            return value
        return None

    def _seal(self, table: HookTable) -> Seal:
        form, usual = table.signature, Seal(form=Form.NONE)
        if form is None and not self._source.is_wrong((*self._path, "signature")):
            self._complain("signature", f'is missing; write one of {_SIGNATURES}, or "none" to accept every sender')
        for key in ONLY_HMAC if form not in {None, Form.HMAC} else ():
            if key in table.model_fields_set:
                self._complain(key, f'is for signature = "hmac"; leave it out with "{form}"')
        seal = Seal(
            form=form or Form.NONE,
            secrets=tuple(self._secrets(table, form)),
            tolerance=table.tolerance or usual.tolerance,
            id_header=self._id_header(table.idempotency_header, form),
            replay_window=table.replay_window or usual.replay_window,
            header=table.signature_header or usual.header,
            prefix=table.signature_prefix or usual.prefix,
            encoding=table.signature_encoding or usual.encoding,
            timestamp_header=table.timestamp_header,
            signed=table.signed or ("{timestamp}.{body}" if table.timestamp_header else usual.signed),
        )
        if form is Form.HMAC:
            self._check_signed(seal)
        is_timeless = signatures.leaves_id_unsigned(seal) and seal.timestamp_header is None
        if table.replay_window is not None and not is_timeless:
            why = "is for deliveries whose signature covers neither their id nor a time; leave it out"
            self._complain("replay_window", why)
        return seal

    def _secrets(self, table: HookTable, form: Form | None) -> Iterator[bytes]:
        names = table.secret_env or ()
        if form is Form.NONE and names:
            self._complain("secret_env", 'nothing is signed with signature = "none"; say how, or leave it out')
            return
        if form not in {None, Form.NONE} and not names and not self._source.is_wrong((*self._path, "secret_env")):
            self._complain("secret_env", f"is missing; write `secret_env = ...`, {_VARIABLES}")
        for variable in names:
            value = self._variable("secret_env", variable)
            secret = self._standard(variable, value) if value and form is Form.STANDARD else (value or "").encode()
            if secret:
                yield secret

    def _standard(self, variable: str, value: str) -> bytes:
        try:
            return base64.b64decode(value.removeprefix(STANDARD_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            secret = f"no Standard Webhooks secret: {STANDARD_PREFIX} and base64"
            self._complain("secret_env", f"the environment variable {variable} holds {secret}")
            return b""

    def _id_header(self, header: str | None, form: Form | None) -> str | None:
        if form is Form.STANDARD:
            if header not in {None, signatures.STANDARD_ID}:
                self._complain("idempotency_header", f"it is {signatures.STANDARD_ID} in this form; leave it out")
            return None
        return header or (signatures.GITHUB_ID if form is Form.GITHUB else None)

    def _check_signed(self, seal: Seal) -> None:
        """What is not signed can be changed on the way."""
        signed = seal.signed
        if signed.count("{body}") != 1 or "}{" in signed:
            why = 'must hold {body} once, with something between it and others, like "{timestamp}.{body}"'
            self._complain("signed", f"{why}; got {signed!r}")
        if (seal.timestamp_header is not None) != ("{timestamp}" in signed):
            self._complain("signed", "needs {timestamp} where there is a timestamp_header, and only there")
        if "{id}" in signed and seal.id_header is None:
            self._complain("signed", "needs an idempotency_header for {id}")
