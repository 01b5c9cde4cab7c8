"""Providers of models and how to reach them: two are built in, the room adds more in its [models.<name>] tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chordage.orchestrator.core.errors import ConfigError, RoomError

WIRES = ("openai", "anthropic")
SCRIPTED = "scripted"
FILE = "_FILE"  # at the end of a variable: it has the path of a file with the value
FROM_ENVIRONMENT = "_env"  # at the end of a header's name: its value is the name of a variable


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderConfig:
    """`api_key_env` names the variable, never the key; None for a server that wants none.

    `silence` is how long a stream may pause before it counts as stalled. `max_tokens_key` is what the provider calls
    the parameter max_tokens. `json_schema`: it takes an output schema as response_format, also beside tools.
    """

    name: str
    wire: str
    base_url: str
    api_key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    silence: float = 60.0
    max_tokens_key: str = "max_tokens"
    json_schema: bool = False

    def key(self, environ: Mapping[str, str]) -> str | None:
        """The API key. Raises ConfigError when it is missing or cannot be sent."""
        return None if self.api_key_env is None else self._from(environ, self.api_key_env, "an API key")

    def secret_headers(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The headers written as NAME_env, with the values of their variables. Raises ConfigError as `key` does."""
        return {
            name.removesuffix(FROM_ENVIRONMENT): self._from(environ, variable, f"the header {name}")
            for name, variable in self.headers.items()
            if name.endswith(FROM_ENVIRONMENT)
        }

    @property
    def plain_headers(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if not name.endswith(FROM_ENVIRONMENT)}

    def _from(self, environ: Mapping[str, str], variable: str, what: str) -> str:
        """Of the variable, or of the file that NAME_FILE names. Messages name both, and never the value."""
        value, source = environ.get(variable, "").strip(), variable
        if not value and (path := environ.get(f"{variable}{FILE}", "").strip()):
            value, source = self._from_file(path, f"{variable}{FILE}", what), path
        if not value:
            raise ConfigError(
                f"model provider {self.name!r} needs {what}: set {variable} in the environment, or {variable}{FILE} to "
                "the path of a file with it"
            )
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(
                f"{what} of model provider {self.name!r} holds characters that cannot be sent: set {source} anew"
            )
        return value

    def _from_file(self, path: str, variable: str, what: str) -> str:
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(
                f"model provider {self.name!r} needs {what}, and {variable} names {path}, which cannot be read: {why}"
            ) from error
        if not value:
            raise ConfigError(f"model provider {self.name!r} needs {what}, and {path} of {variable} is empty")
        return value


BUILTIN: Mapping[str, ProviderConfig] = {
    "openai": ProviderConfig(
        name="openai",
        wire="openai",
        base_url="https://api.openai.com/v1",
        api_key_env="OPENAI_API_KEY",
        max_tokens_key="max_completion_tokens",
        json_schema=True,
    ),
    "anthropic": ProviderConfig(
        name="anthropic",
        wire="anthropic",
        base_url="https://api.anthropic.com",
        api_key_env="ANTHROPIC_API_KEY",
    ),
}


class TableProviders(Mapping[str, ProviderConfig]):
    """The providers of the [models.<name>] tables as they are now; the room has checked the type of every value.

    A table with the name of a builtin provider changes that one in part.
    """

    def __init__(self, tables: Callable[[], Mapping[str, Mapping[str, Any]]], path: Path) -> None:
        self._tables = tables
        self._path = path

    def __getitem__(self, name: str) -> ProviderConfig:
        """Raises RoomError."""
        table, where = self._tables()[name], f"{self._path}: [models.{name}]"
        if name == SCRIPTED or ":" in name:
            raise RoomError(f"{where}: the name is taken or holds a colon: choose another")
        config = replace(BUILTIN.get(name) or ProviderConfig(name=name, wire="openai", base_url=""), **table)
        if not config.base_url:
            raise RoomError(f"{where}: base_url must be an address that starts with http:// or https://")
        if config.wire not in WIRES:
            raise RoomError(f"{where}: wire {config.wire!r} is unknown: choose one of {', '.join(WIRES)}")
        return config

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables())

    def __len__(self) -> int:
        return len(self._tables())
