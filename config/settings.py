"""Every setting, from the environment and from chordage.toml. The only place that reads either.

The environment wins over the file, the file over the defaults. Secrets are masked wherever settings are shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

FILE = "chordage.toml"


class SettingsFault(Exception):
    """A setting is wrong; the text names it and says what to do."""


class Budgets(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    chat: int = Field(default=64, ge=0)
    task: int = Field(default=8, ge=0)
    chore: int = Field(default=2, ge=0)
    will: int = Field(default=1, ge=0)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="CHORDAGE_", env_nested_delimiter="__", toml_file=FILE, extra="forbid", frozen=True
    )

    room: Path = Path()
    state: Path | None = None  # default: .chordage in the room
    database_url: SecretStr | None = None  # default: execution.db in the room
    redis_url: SecretStr | None = None  # default: the bundled server of `chordage dev`
    prefix: str = "chordage:"  # of our own keys
    broker_prefix: str = ""  # of Celery's keys; whoever enqueues by name must use the same
    intake_queues: Annotated[
        tuple[str, ...], NoDecode
    ] = ()  # further queues in which others leave `turns.submit`, such as "celery"
    pool_size: int = Field(default=3, ge=1)
    budgets: Budgets = Budgets()

    lease: float = Field(default=30.0, gt=0)
    beat: float = Field(default=10.0, gt=0)
    sweep: float = Field(default=5.0, gt=0)
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
    webhook_secret: SecretStr | None = None  # signs replies to reply targets that name a URL
    webhook_allow: Annotated[tuple[str, ...], NoDecode] = ()  # private networks that such a URL may lie in

    tool_time_limit: int = Field(default=900, gt=0)
    soft_shutdown: float = Field(default=25.0, ge=0)
    host: str = "127.0.0.1"
    port: int = Field(default=8630, ge=0, le=65535)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    log_format: Literal["auto", "text", "json"] = "auto"

    @field_validator("prefix")
    @classmethod
    def _prefix_ends_with_colon(cls, value: str) -> str:
        return value if value.endswith(":") else f"{value}:"

    @field_validator("webhook_allow")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ip_network(network)  # says what is wrong with it
        return value

    @field_validator("intake_queues", "webhook_allow", mode="before")
    @classmethod
    def _names_with_commas(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _beats_within_the_lease(self) -> Self:
        if 2 * self.beat > self.lease:
            raise ValueError(f"beat ({self.beat:g} s) must be at most half of lease ({self.lease:g} s)")
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
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def room_path(self) -> Path:
        return self.room.resolve()

    @property
    def state_path(self) -> Path:
        return (self.state or self.room / ".chordage").resolve()

    @property
    def database(self) -> str:
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.room_path / 'execution.db'}"

    @property
    def redis(self) -> str | None:
        return self.redis_url.get_secret_value() if self.redis_url else None


def load(**given: Any) -> Settings:
    """Settings for this process. What is passed in wins over everything."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise SettingsFault(_in_words(error)) from error
    except ValueError as error:  # the file is not TOML
        raise SettingsFault(f"{FILE}: {error}") from error


def _in_words(error: ValidationError) -> str:
    first = error.errors()[0]
    if not first["loc"]:
        return f"settings: {first['msg'].removeprefix('Value error, ')}"
    name = "__".join(str(part) for part in first["loc"])
    told = "" if first["type"] == "missing" else f", not {first['input']!r}"
    return f"setting {name} (CHORDAGE_{name.upper()} or {FILE}): {first['msg'].lower()}{told}"


def environment() -> Mapping[str, str]:
    """What keys named `_env` are looked up in."""
    return os.environ
