"""One attempt at a provider over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.model import Prompt, Reply
from chordage.orchestrator.gateways.models.anthropic import AnthropicWire
from chordage.orchestrator.gateways.models.attempt import AttemptFailed, Order
from chordage.orchestrator.gateways.models.openai import OpenAIWire
from chordage.orchestrator.gateways.models.providers import ProviderConfig
from chordage.orchestrator.gateways.models.refusals import refused
from chordage.orchestrator.gateways.models.shape import malformed, parsed
from chordage.orchestrator.gateways.models.sse import data_of_events
from chordage.orchestrator.gateways.models.transport import Exchange, Post, Transport
from chordage.orchestrator.gateways.models.wire import Target, Wire, encoded

ANSWER_LIMIT = 32 * 2**20
ERROR_LIMIT = 65_536


class RemoteModel:
    def __init__(self, config: ProviderConfig, model: str, *, transport: Transport, environ: Mapping[str, str]) -> None:
        self._config = config
        self._target = Target(
            provider=config.name, model=model, max_tokens_key=config.max_tokens_key, json_schema=config.json_schema
        )
        self._wire = _wire(config)
        self._url = _url(config, self._wire)
        self._key = config.key(environ)
        self._secret_headers = config.secret_headers(environ)
        self._transport = transport

    def attempt(self, prompt: Prompt, order: Order) -> Reply:
        try:
            with self._transport.exchange(self._post(prompt, order), order.abort) as exchange:
                return self._reply(exchange, order)
        except AttemptFailed as failure:
            raise self._without_secrets(failure) from failure.__cause__

    def _post(self, prompt: Prompt, order: Order) -> Post:
        stream = {"accept": "text/event-stream", "accept-encoding": "identity"}  # a compressor would hold deltas back
        return Post(
            url=self._url,
            headers={
                "content-type": "application/json",
                "x-retry-count": str(order.number - 1),
                **(stream if order.stream else {}),
                **self._wire.headers(self._key),
                **self._config.plain_headers,
                **self._secret_headers,
            },
            body=encoded(self._wire.body(prompt, self._target, stream=order.stream)),
            timeout=order.timeout,
            silence=min(self._config.silence, order.timeout) if order.stream else order.timeout,
        )

    def _reply(self, exchange: Exchange, order: Order) -> Reply:
        if exchange.status != 200:
            body = exchange.read(ERROR_LIMIT).decode("utf-8", "replace")
            raise refused(exchange.status, exchange.headers, body)
        if _is_stream(exchange, order):
            return self._follow(exchange, order)
        answer = exchange.read(ANSWER_LIMIT)
        if len(answer) >= ANSWER_LIMIT:
            raise malformed(f"the answer is longer than {ANSWER_LIMIT} bytes")
        return self._wire.whole(parsed(answer), self._target)

    def _follow(self, exchange: Exchange, order: Order) -> Reply:
        reader = self._wire.reader(self._target)
        events = data_of_events(exchange.chunks())
        for data in events:
            order.delta(reader.feed(data))
            if reader.finished:
                exchange.skip_rest(events)
        return reader.reply()

    def _without_secrets(self, failure: AttemptFailed) -> AttemptFailed:
        """Some gateways repeat the request, or the header that did not please them, in their error."""
        detail = failure.detail
        for secret in filter(None, (self._key, *self._secret_headers.values())):
            detail = detail.replace(secret, "***")
        if detail == failure.detail:
            return failure
        return AttemptFailed(failure.fault, detail, retry_after=failure.retry_after)


def _wire(config: ProviderConfig) -> Wire:
    match config.wire:
        case "openai":
            return OpenAIWire()
        case "anthropic":
            return AnthropicWire()
        case unknown:
            raise ConfigError(f"model provider {config.name!r} has wire {unknown!r}: choose openai or anthropic")


def _url(config: ProviderConfig, wire: Wire) -> str:
    base = config.base_url.rstrip("/")
    # With or without the version at its end: both are in use for this format.
    return (base.removesuffix("/v1") if config.wire == "anthropic" else base) + wire.path


def _is_stream(exchange: Exchange, order: Order) -> bool:
    """What came, rather than what was asked for: some servers know only one of the two ways."""
    kind = exchange.headers.get("content-type", "")
    return "event-stream" in kind or (order.stream and "json" not in kind and "html" not in kind)
