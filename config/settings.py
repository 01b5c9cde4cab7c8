"""Every setting, from the environment and from chordage.toml. The only place that reads either.

The environment wins over the files of secrets, these over chordage.toml, that over the defaults. Secrets are masked
wherever settings are shown.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from chordage.config.redis_url import RedisAddress
from chordage.config.redis_url import parse as parse_redis

FILE = "chordage.toml"
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9._-]{1,253}(?::[0-9]{1,5})?")
_CHANNEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(?:\?[^=&\s]+=[^&\s]*(?:&[^=&\s]+=[^&\s]*)*)?")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
BASE64 = "whsec_"  # how secrets of Standard Webhooks begin
SECRETS = frozenset(
    {
        "cipher_keys",
        "otlp_endpoint",
        "webhook_secret",
        "database_url",
        "redis_url",
        "redis_sentinel_password",
        "metrics_token",
    }
)
Loop = Literal["server", "poll", "hook", "pulse"]
ScopeName = Literal["submit", "read", "payloads", "decide", "operate"]
PREFIX = "chordage:"
LOOPS: tuple[Loop, ...] = get_args(Loop)
OF_CLIENTS = ("url", "key")  # variables of programs that use `chordage.Client`; a fleet has no such settings
SECRETS_DIR = "CHORDAGE_SECRETS_DIR"  # of the environment alone: it says where settings are, and is none itself


class SettingsFault(Exception):
    """A setting is wrong; the text names it and says what to do."""


class Budgets(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    chat: int = Field(default=64, ge=0)
    task: int = Field(default=8, ge=0)
    chore: int = Field(default=2, ge=0)
    will: int = Field(default=1, ge=0)


class QueueBoundSetting(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    max_queued: int | None = Field(default=None, ge=0)  # 0: the group is closed
    overflow: Literal["reject", "drop_oldest", "replace_pending"] = "reject"


class QueueBounds(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    chat: QueueBoundSetting = QueueBoundSetting()
    task: QueueBoundSetting = QueueBoundSetting()
    chore: QueueBoundSetting = QueueBoundSetting()
    will: QueueBoundSetting = QueueBoundSetting()


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="CHORDAGE_", env_nested_delimiter="__", toml_file=FILE, extra="forbid", frozen=True
    )

    room: Path = Path()
    state: Path | None = None  # default: .chordage in the room
    database_url: SecretStr | None = None  # default: execution.db in the room
    database_schema: str | None = Field(default=None, pattern=r"^[a-z_][a-z0-9_]{0,62}$")  # of PostgreSQL: chordage
    redis_master: str | None = None  # the name under which sentinels know the server
    redis_sentinel_password: SecretStr | None = None  # of the sentinels themselves; that of the server is in the URL
    redis_url: SecretStr | None = None  # default: the bundled server of `chordage dev`
    prefix: str = PREFIX  # of our own keys
    # Of Celery's keys; code that enqueues by name must use the same. A Redis is often shared with other Celery apps.
    broker_prefix: str = Field(default_factory=lambda fields: f"{fields.get('prefix', PREFIX)}celery:")
    intake_queues: Annotated[
        tuple[str, ...], NoDecode
    ] = ()  # further queues in which others leave `turns.submit`, such as "celery"
    loops: Annotated[tuple[Loop, ...], NoDecode] = LOOPS  # the sources of turns that are on
    celery_app: str | None = None  # the team's own Celery app, current wherever the room's code runs
    around_tools: str | None = None  # a function of the room that returns a context manager, for each tool call
    cipher: str | None = None  # what encrypts stored contents: aes-gcm, an entry point, or a function module:name
    cipher_keys: SecretStr | None = None  # of aes-gcm: lines ID:KEY, of which the first encrypts
    pool_size: int = Field(default=5, ge=1)  # connections of a process to PostgreSQL, at most
    pipeline: Literal["on", "off"] = "on"  # off: for a pooler in transaction mode before PostgreSQL
    budgets: Budgets = Budgets()
    reserve: int = Field(default=0, ge=0)  # slots for turns, and as many for tools, that serve chat only
    bounds: QueueBounds = QueueBounds()

    lease: float = Field(default=30.0, gt=0)
    beat: float = Field(default=10.0, gt=0)
    sweep: float = Field(default=2.0, gt=0)
    presence: float = Field(default=2.0, gt=0)  # seconds between two signs of life of a worker
    gone_after: float = Field(default=7.0, gt=0)  # seconds without one, after which a machine counts as gone
    pulse: float = Field(default=5.0, gt=0)  # seconds between two looks at tasks, chores and the will
    poison_after: int = Field(default=3, ge=1)
    visibility_timeout: int = Field(default=3600, ge=1)

    max_text_bytes: int = Field(default=256 * 1024, ge=1)
    max_meta_bytes: int = Field(default=64 * 1024, ge=1)

    project: float = Field(default=1.0, gt=0)
    bus_keep: int = Field(default=100_000, ge=1)
    bus_keep_of_run: int = Field(default=10_000, ge=1)
    bus_keep_seconds: int = Field(default=86_400, ge=1)

    delivery_attempts: int = Field(default=12, ge=1)
    delivery_first: float = Field(default=5.0, gt=0)
    delivery_longest: float = Field(default=3600.0, gt=0)
    delivery_timeout: float = Field(default=10.0, gt=0)
    deliveries_at_once: int = Field(default=16, ge=1)
    deliveries_to_one: int = Field(default=4, ge=1)
    reply_hosts: Annotated[tuple[str, ...], NoDecode] = ()  # hosts that a caller's reply target may name
    reply_channels: Annotated[
        tuple[str, ...], NoDecode
    ] = ()  # channels that it may name, or NAME?KEY=VALUE: one address
    webhook_secret: SecretStr | None = None  # of it each receiver has its own; several: the first is the current one
    webhook_allow: Annotated[tuple[str, ...], NoDecode] = ()  # private networks that such a URL may lie in

    drill: Literal["on", "off"] = "off"  # on: `chordage drill --worker` may kill workers of this machine
    tool_time_limit: int = Field(default=900, gt=0)
    soft_shutdown: float = Field(default=25.0, ge=0)
    host: str = "127.0.0.1"
    port: int = Field(default=8630, ge=0, le=65535)
    hosts: Annotated[tuple[str, ...], NoDecode] = ()  # names the HTTP server is called by, beside those of loopback
    keyless: Literal["local", "none"] = "local"  # none: on loopback too every request needs a key
    metrics_token: SecretStr | None = Field(default=None, min_length=16)  # opens GET /metrics, beside keys that read
    otlp_endpoint: str | None = None  # of a collector, to which the spans of ended runs are sent
    sso_header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]{1,64}$")  # in which a proxy names people
    sso_networks: Annotated[tuple[str, ...], NoDecode] = ()  # from which that header counts
    sso_scopes: Annotated[tuple[ScopeName, ...], NoDecode] = ("read", "payloads")  # of those people
    sso_tenant: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    key_rate: float = Field(default=50.0, ge=0)  # requests a second of a key, in the long run; 0: any number
    key_burst: int = Field(default=200, ge=1)  # that may come at once
    tenant_rate: float = Field(default=200.0, ge=0)  # of all keys of a tenant together
    tenant_burst: int = Field(default=800, ge=1)
    key_bytes_rate: float = Field(default=1_048_576.0, ge=0)  # bytes of bodies a second of a key; 0: any number
    key_bytes_burst: int = Field(default=33_554_432, ge=1)
    tenant_bytes_rate: float = Field(default=4_194_304.0, ge=0)
    tenant_bytes_burst: int = Field(default=134_217_728, ge=1)
    tenant_streams: int = Field(default=400, ge=1)  # of all keys of a tenant, in each process of the HTTP server
    key_streams: int = Field(default=100, ge=1)  # open streams of a key, in each process of the HTTP server
    audit_keep_days: int = Field(default=400, ge=0, le=36_500)  # of the record of who did what; 0: for ever
    turn_keep_days: int = Field(default=0, ge=0, le=36_500)  # after their end; 0: for ever
    dedupe_keep_days: int = Field(default=30, ge=1, le=36_500)  # at least, of turns with a dedupe key
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    log_format: Literal["auto", "text", "json"] = "auto"

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None:
            parse_redis(value.get_secret_value(), master=info.data.get("redis_master"))
        return value

    @field_validator("prefix")
    @classmethod
    def _prefix_ends_with_colon(cls, value: str) -> str:
        return value if value.endswith(":") else f"{value}:"

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_collector(cls, value: str | None) -> str | None:
        parts = None if value is None else urlsplit(value)
        if parts is not None and (parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc):
            raise ValueError(
                "it is no address of a collector: give http:// or https:// with a host, such as http://127.0.0.1:4318, "
                "and secrets in OTEL_EXPORTER_OTLP_HEADERS"
            )
        return value

    @field_validator("webhook_allow", "sso_networks")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            try:
                ip_network(network)
            except ValueError as error:
                raise ValueError(f"{error}; give networks such as 10.1.0.0/16, separated by commas") from error
        return value

    @field_validator("hosts")
    @classmethod
    def _names_alone(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a host; give names such as agents.example.org, without port")
        return tuple(name.lower() for name in value)

    @field_validator("reply_hosts")
    @classmethod
    def _hosts_with_ports(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if not _HOST_AND_PORT.fullmatch(host):
                raise ValueError(f"{host!r} is no host; give hosts such as crm.example.org or 10.1.2.3:8080")
        return tuple(host.lower() for host in value)

    @field_validator("reply_channels")
    @classmethod
    def _channels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for channel in value:
            if not _CHANNEL.fullmatch(channel):
                raise ValueError(f"{channel!r} is no channel; give its name, or one address of it: phone?chat_id=42")
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _can_sign(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _check_secrets(value.get_secret_value())
        return value

    @field_validator(
        "intake_queues", "loops", "webhook_allow", "hosts", "reply_hosts", "reply_channels", "sso_networks",
        "sso_scopes", mode="before",
    )  # fmt: skip
    @classmethod
    def _names_with_commas(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return _json_list(value) or [name.strip() for name in value.split(",") if name.strip()]

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if self.database_schema is None:
            return self
        url = self.database_url.get_secret_value() if self.database_url else ""
        if not url.startswith("postgres"):
            raise ValueError(
                "database_schema is for PostgreSQL: take it out, or give a database_url that begins with "
                "postgresql://; an SQLite file should hold nothing else"
            )
        if self.database_schema.startswith("pg_"):
            raise ValueError("database_schema may not begin with pg_: PostgreSQL keeps such names for itself")
        if "search_path" in url:
            raise ValueError("database_schema and the search_path in database_url say the same: take one of them out")
        return self

    @model_validator(mode="after")
    def _trusts_a_proxy(self) -> Self:
        if (self.sso_header is None) is bool(self.sso_networks):
            raise ValueError("sso_header and sso_networks belong together: which header names people, and from where")
        if any(ip_network(network).prefixlen == 0 for network in self.sso_networks):
            raise ValueError("sso_networks would trust every address: give the addresses of the proxy")
        return self

    @model_validator(mode="after")
    def _beats_within_the_lease(self) -> Self:
        if 2 * self.beat > self.lease:
            raise ValueError(f"beat ({self.beat:g} s) must be at most half of lease ({self.lease:g} s)")
        return self

    @model_validator(mode="after")
    def _shown_often_enough(self) -> Self:
        if 3 * self.presence > self.gone_after:
            raise ValueError(
                f"presence ({self.presence:g} s) must be at most a third of gone_after ({self.gone_after:g} s)"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        secrets = [SecretsSettingsSource(settings_cls, secrets_dir=folder)] if (folder := _secrets_folder()) else []
        return init_settings, env_settings, *secrets, TomlConfigSettingsSource(settings_cls)

    @property
    def room_path(self) -> Path:
        return self.room.resolve()

    @property
    def state_path(self) -> Path:
        return (self.state or self.room / ".chordage").resolve()

    @property
    def database(self) -> str:
        if self.database_url is not None:
            url = self.database_url.get_secret_value()
            added = [] if self.database_schema is None else [f"options=-csearch_path%3D{self.database_schema}"]
            if self.pipeline == "off" and url.startswith("postgres"):
                added.append("chordage_pipeline=off")
            return f"{url}{'&' if '?' in url else '?'}{'&'.join(added)}" if added else url
        return f"sqlite:///{self.room_path / 'execution.db'}"

    @property
    def redis(self) -> str | None:
        return self.redis_url.get_secret_value() if self.redis_url else None

    @property
    def redis_address(self) -> RedisAddress | None:
        if self.redis is None:
            return None
        secret = self.redis_sentinel_password
        return parse_redis(
            self.redis, master=self.redis_master, sentinel_password=secret.get_secret_value() if secret else None
        )


def _json_list(value: str) -> list[Any] | None:
    try:
        parsed = json.loads(value)
    except ValueError:
        return None
    return parsed if isinstance(parsed, list) else None


def _check_secrets(value: str) -> None:
    """A blank secret would be noticed by the first receiver only."""
    if not all(secret.strip() for secret in value.split(",")):
        raise ValueError("is blank: give a secret, such as `whsec_` and 24 to 64 bytes in base64, or take it out")
    for secret in value.split(","):
        _check_secret(secret.strip())


def _check_secret(value: str) -> None:
    if value.startswith(BASE64):
        try:
            b64decode(value.removeprefix(BASE64), validate=True)
        except ValueError as error:
            raise ValueError(
                f"what follows {BASE64} is not base64; give base64, or a secret without {BASE64}"
            ) from error


def _secrets_folder() -> Path | None:
    """The folder in which each file is a setting, as Docker and Kubernetes mount secrets.

    Its files are checked here, because pydantic leaves out with a warning what it cannot use.
    """
    if not (given := environment().get(SECRETS_DIR)):
        return None
    folder = Path(given)
    if not folder.is_dir():
        raise SettingsFault(f"{SECRETS_DIR}: {given} is no folder; mount the secrets there, or take the variable out")
    try:
        files = _secret_files(folder)
        for file in files:
            _check_secret_file(file, folder)
    except OSError as error:
        raise SettingsFault(f"{SECRETS_DIR}: {error}; let the account of this process read it") from error
    return folder


def _secret_files(folder: Path) -> list[Path]:
    prefix = str(Settings.model_config["env_prefix"]).upper()
    return sorted(file for file in folder.iterdir() if file.name.upper().startswith(prefix))


def _check_secret_file(file: Path, folder: Path) -> None:
    if not file.is_file() or folder.resolve() not in file.resolve().parents:
        raise SettingsFault(f"{SECRETS_DIR}: {file} is no file within that folder")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsFault(f"{SECRETS_DIR}: {file} is not UTF-8") from error
    if not text.strip():
        raise SettingsFault(f"{SECRETS_DIR}: {file} is empty; write the secret into it, or take the file out")


def load(**values: Any) -> Settings:
    """Settings for this process. `values` override the environment and the file."""
    try:
        return Settings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise SettingsFault(_in_words(error.errors()[0])) from error
    except (ValueError, RecursionError) as error:  # the file is not TOML, or lies too deep in itself
        raise SettingsFault(f"{FILE}: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingProblem:
    """`key`: the setting, with the tables around it; empty where it concerns several."""

    key: tuple[str, ...]
    text: str


def problems() -> list[SettingProblem]:
    """All that is wrong with the settings of this process, where `load` stops at the first."""
    try:
        Settings()
    except ValidationError as error:
        return [SettingProblem(key=_names(detail), text=_in_words(detail)) for detail in error.errors()]
    except (ValueError, RecursionError) as error:
        return [SettingProblem(key=(), text=f"{FILE}: {error}")]
    except SettingsFault as fault:  # of the files of secrets
        return [SettingProblem(key=(), text=str(fault))]
    return []


def unknown_variables() -> list[str]:
    """A fault for each variable, and each file of secrets, that looks like a setting and is none. It is ignored."""
    prefix = str(Settings.model_config["env_prefix"]).upper()
    known = [name.upper() for name in (*Settings.model_fields, *OF_CLIENTS)]
    faults = []
    for place, variable in (*(("variable", name) for name in sorted(environment())), *_names_of_secret_files()):
        name = variable.upper().removeprefix(prefix).partition("__")[0]
        if not variable.upper().startswith(prefix) or name in known or variable == SECRETS_DIR:
            continue
        close = get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"did you mean {prefix}{close[0]}?" if close else "docs/reference/settings.md lists all there are"
        faults.append(f"{place} {variable}: there is no such setting; {hint}")
    return faults


def _names_of_secret_files() -> list[tuple[str, str]]:
    try:
        folder = _secrets_folder()
    except SettingsFault:  # reported where the settings are loaded
        return []
    return [("file of secrets", file.name) for file in _secret_files(folder)] if folder else []


def variable_of(key: tuple[str, ...]) -> str:
    """The environment variable that sets the key."""
    return f"CHORDAGE_{'__'.join(key).upper()}"


def _names(error: ErrorDetails) -> tuple[str, ...]:
    return tuple(part for part in error["loc"] if isinstance(part, str))


def _in_words(error: ErrorDetails) -> str:
    if not (names := _names(error)):
        return f"settings: {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "extra_forbidden":
        where = f"{variable_of(names)} or {FILE}" if len(names) > 1 else FILE
        close = get_close_matches(names[0], Settings.model_fields, n=1, cutoff=0.7) if len(names) == 1 else []
        hint = f"did you mean {close[0]}?" if close else "take it out"
        return f"setting {'__'.join(names)} ({where}): there is no such setting; {hint}"
    value = "" if error["type"] == "missing" or names[0] in SECRETS else f", not {error['input']!r}"
    return f"setting {'__'.join(names)} ({variable_of(names)} or {FILE}): {_words(error)}{value}"


def _words(error: ErrorDetails) -> str:
    """Our own as they are; those of pydantic without their capital."""
    return error["msg"].removeprefix("Value error, ") if error["type"] == "value_error" else error["msg"].lower()


def as_environment(settings: Settings) -> dict[str, str]:
    """The environment variables from which another process loads these settings unchanged."""
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    return {f"CHORDAGE_{name.upper()}": _as_text(value) for name, value in values.items() if value is not None}


def _as_text(value: Any) -> str:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case tuple():
            return ",".join(value)
        case BaseModel():
            return value.model_dump_json()
        case _:
            return str(value)


def environment() -> Mapping[str, str]:
    """What keys named `_env` are looked up in."""
    return os.environ
