"""All models by name, and the call that survives their faults: retries, then fallbacks, each attempt on record.

While streaming, `on_delta` gets the text of every attempt as it comes. When an attempt broke off in the middle of a
text, `on_reset` is called before the next one begins. What `on_delta` raises ends the call at once and leaves
`complete` as it is.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import ConfigError, ModelFailed, OutOfTime, RoomError
from chordage.orchestrator.core.model import Attempt, Fault, Prompt, Reply, Usage
from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.gateways.models.providers import BUILTIN, SCRIPTED, ProviderConfig
from chordage.orchestrator.gateways.models.script import ScriptModel
from chordage.orchestrator.gateways.models.script_files import ScriptFolder
from chordage.orchestrator.gateways.models.wire import AttemptContext, AttemptFailed, Model
from chordage.orchestrator.gateways.ports import Abort
from chordage.orchestrator.gateways.proxies import proxy_of

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.http_client import HttpClient

BACKOFF = Backoff(first=0.5, longest=30.0, jitter=1.0)
LONGEST_RETRY_AFTER = 60.0  # where a provider wants more, it is called again sooner, or a fallback is


class ModelCatalog:
    """Models are named `provider:model`; `scripted:path` is a script, its path relative to the folder `scripts`.

    `providers` are those of the room, looked up when a model is needed: a file may be repaired meanwhile. `given`: the
    model of a whole name, where there is one that comes before all others.
    """

    def __init__(
        self,
        providers: Mapping[str, ProviderConfig] | None = None,
        *,
        environ: Mapping[str, str],
        scripts: Path = Path(),
        http: HttpClient | None = None,
        given: Callable[[str], Model | None] = lambda _name: None,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._providers = providers or {}
        self._environ = environ
        self._scripts = ScriptFolder(scripts)
        self._http = http
        self._given = given
        self._opening = threading.Lock()
        self._jitter = jitter
        self._clock = clock

    def check(self, agent: AgentSpec) -> None:
        """Whether every model of the agent could be called. Raises ConfigError or RoomError; sends no request."""
        inner = [name for name in (agent.compaction.model, agent.plan.model) if name]
        for name in dict.fromkeys((agent.model, *agent.fallbacks, *inner, *agent.named_models)):
            self._model(name, agent)

    def complete(
        self,
        agent: AgentSpec,
        prompt: Prompt,
        *,
        abort: Abort,
        on_delta: Callable[[str], None] | None = None,
        on_reset: Callable[[], None] | None = None,
        on_reasoning: Callable[[str], None] | None = None,
    ) -> Reply:
        attempts: list[Attempt] = []
        has_text = False

        def noting(receive: Callable[[str], None]) -> Callable[[str], None]:
            def pass_on(text: str) -> None:
                nonlocal has_text
                has_text = True
                receive(text)

            return pass_on

        shown = noting(on_delta) if on_delta else None
        thought = noting(on_reasoning) if on_reasoning else None

        for name in (agent.model, *agent.fallbacks):
            for number in range(1, agent.model_retries + 2):
                if has_text and on_reset is not None:
                    on_reset()
                has_text = False
                reply, delay = self._attempt(
                    name, agent, prompt, attempts, number=number, abort=abort, on_delta=shown, on_reasoning=thought
                )
                if reply is not None:
                    return replace(reply, attempts=tuple(attempts))
                if delay is None or number > agent.model_retries:
                    break
                abort.back_off(delay)
        raise _no_answer(agent, tuple(attempts))

    def close(self) -> None:
        if self._http is not None:
            self._http.close()

    def _attempt(
        self,
        name: str,
        agent: AgentSpec,
        prompt: Prompt,
        attempts: list[Attempt],
        *,
        number: int,
        abort: Abort,
        on_delta: Callable[[str], None] | None,
        on_reasoning: Callable[[str], None] | None,
    ) -> tuple[Reply | None, float | None]:
        """The reply, or how long to wait before this model is called again: None when that is of no use."""
        abort.check()
        started = self._clock()
        first_text: float | None = None

        def pass_on(text: str) -> None:
            nonlocal first_text
            if first_text is None:
                first_text = self._clock() - started
            assert on_delta is not None
            on_delta(text)

        def record(fault: Fault | None, detail: str = "", usage: Usage | None = None) -> None:
            seconds = self._clock() - started
            attempts.append(
                Attempt(
                    model=name, seconds=seconds, fault=fault, detail=detail, usage=usage or Usage(),
                    first_text=first_text,
                )
            )  # fmt: skip

        try:
            context = AttemptContext(
                abort=abort, number=number, timeout=agent.model_timeout, stream=agent.stream,
                on_delta=pass_on if on_delta else None, on_reasoning=on_reasoning,
            )  # fmt: skip
            reply = self._model(name, agent).attempt(prompt, context)
        except OutOfTime as error:
            record(Fault.TIMEOUT, "broken off: the time limit of the turn was reached")
            error.attempts = tuple(attempts)
            raise
        except AttemptFailed as failure:
            record(failure.fault, failure.detail)
            return None, self._delay(number, failure.retry_after) if failure.fault.retryable else None
        except (ConfigError, RoomError) as error:
            # `check` found nothing wrong at start-up, so it was changed under a running worker.
            record(Fault.AUTH if isinstance(error, ConfigError) else Fault.REJECTED, str(error))
            return None, None
        record(None, usage=reply.usage)
        return reply, None

    def _delay(self, failures: int, retry_after: float | None) -> float:
        """Retry-After and a random delay on top, so that callers who got the same one do not all return together."""
        return min(retry_after or 0.0, LONGEST_RETRY_AFTER) + BACKOFF.delay(failures, self._jitter())

    def _model(self, name: str, agent: AgentSpec) -> Model:
        if (given := self._given(name)) is not None:
            return given
        provider, _, model = name.partition(":")
        if not model:
            raise ConfigError(
                f"agent {agent.name!r}: model {name!r} must be written provider:model, as in openai:gpt-4o-mini"
            )
        if provider == SCRIPTED:
            return ScriptModel(self._scripts.script(model, as_code=name in agent.named_models), name)
        config = self._providers.get(provider) or BUILTIN.get(provider)
        if config is None:
            known = dict.fromkeys([*BUILTIN, *self._providers, SCRIPTED])
            raise ConfigError(
                f"agent {agent.name!r}: model {name!r}: there is no provider {provider!r}; choose from"
                f" {', '.join(known)}, or add [models.{provider}] to the room's agent.toml"
            )
        return self._remote(config, model)

    def _remote(self, provider: ProviderConfig, model: str) -> Model:
        """Imports httpx here: a worker that runs only tools or scripts does without."""
        from chordage.orchestrator.gateways.http_client import HttpClient
        from chordage.orchestrator.gateways.models.remote import RemoteModel

        with self._opening:
            if self._http is None:
                self._http = HttpClient(proxy=partial(proxy_of, self._environ))
        return RemoteModel(provider, model, http=self._http, environ=self._environ)


def _no_answer(agent: AgentSpec, attempts: tuple[Attempt, ...]) -> ModelFailed:
    last = {attempt.model: attempt for attempt in attempts}
    causes = "; ".join(f"{model}: {attempt.fault} ({attempt.detail})" for model, attempt in last.items())
    tries = f"{len(attempts)} attempt{'s' if len(attempts) != 1 else ''}"
    fault = attempts[-1].fault or Fault.SERVER
    return ModelFailed(f"agent {agent.name!r}: no model answered in {tries}: {causes}", fault=fault, attempts=attempts)
