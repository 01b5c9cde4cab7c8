"""Settings as environment variables: what a member of the fleet is started with is exactly what the fleet runs on."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from chordage.config.settings import Settings


def environment_of(settings: Settings) -> dict[str, str]:
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    return {f"CHORDAGE_{name.upper()}": _text(value) for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case str():
            return value
        case tuple():
            return ",".join(value)
        case _ if hasattr(value, "model_dump_json"):
            return str(value.model_dump_json())
        case _:
            return str(value)
