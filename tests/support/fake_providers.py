"""Models under test: a catalogue that talks to a scripted server, and aborts that do what a test wants."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import Aborted
from chordage.orchestrator.core.model import Prompt, Said, UserSays
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from chordage.orchestrator.gateways.models.providers import ProviderConfig
from support import scripted_server

WIRES = ("openai", "anthropic")
KEYS = {"OPENAI_API_KEY": "sk-one", "ANTHROPIC_API_KEY": "sk-two"}


class Calm:
    """Never aborts. Sleeps are noted down and not slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def check(self) -> None:
        return

    def wait(self, seconds: float) -> None:
        self.slept.append(seconds)

    def back_off(self, seconds: float) -> None:
        self.wait(seconds)


class AbortsAfter:
    """The work is cancelled a moment after it began."""

    def __init__(self, seconds: float, error: type[Exception] = Aborted) -> None:
        self.at = time.monotonic() + seconds
        self._error = error

    def check(self) -> None:
        if time.monotonic() >= self.at:
            raise self._error

    def wait(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self.at - time.monotonic())))
        self.check()

    def back_off(self, seconds: float) -> None:
        self.wait(seconds)


@contextmanager
def serving(folder: Path, script: str) -> Iterator[scripted_server.ScriptedServer]:
    server = scripted_server.serve(a_script(folder, script))
    try:
        yield server
    finally:
        server.close()


@contextmanager
def catalog_at(url: str, **settings: Any) -> Iterator[ModelCatalog]:
    catalog = ModelCatalog(providers_at(url), environ=KEYS, jitter=lambda: 0.0, **settings)
    try:
        yield catalog
    finally:
        catalog.close()


def providers_at(url: str, **settings: Any) -> dict[str, ProviderConfig]:
    base = {"openai": f"{url}/v1", "anthropic": url}
    return {
        wire: ProviderConfig(
            name=wire, wire=wire, base_url=base[wire], api_key_env=f"{wire.upper()}_API_KEY", **settings
        )
        for wire in WIRES
    }


def a_script(folder: Path, text: str, name: str = "script.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def an_agent(model: str, *fallbacks: str, **settings: Any) -> AgentSpec:
    return AgentSpec(name="tester", model=model, fallbacks=fallbacks, **{"model_retries": 0, **settings})


def a_prompt(*said: Said | str, **settings: Any) -> Prompt:
    spoken = tuple(UserSays(text=one) if isinstance(one, str) else one for one in said)
    return Prompt(**{"system": "Be brief.", "said": spoken, **settings})
