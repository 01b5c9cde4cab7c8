"""One attempt at a provider over HTTP, with an answer that comes whole or as server-sent events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import httpx

from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.model import Fault, Prompt, Reply
from chordage.orchestrator.gateways.http_client import Exchange, HttpClient
from chordage.orchestrator.gateways.models import wire
from chordage.orchestrator.gateways.models.anthropic import AnthropicWire
from chordage.orchestrator.gateways.models.openai import OpenAIWire
from chordage.orchestrator.gateways.models.providers import ProviderConfig
from chordage.orchestrator.gateways.models.refusals import refused
from chordage.orchestrator.gateways.models.wire import AttemptContext, AttemptFailed, Target, WireFormat

ANSWER_LIMIT = 32 * 2**20
ERROR_LIMIT = 65_536
LINE_LIMIT = 16 * 2**20
REST_SECONDS = 0.25
FORMATS: Mapping[str, type[WireFormat]] = {"openai": OpenAIWire, "anthropic": AnthropicWire}


class RemoteModel:
    def __init__(self, config: ProviderConfig, model: str, *, http: HttpClient, environ: Mapping[str, str]) -> None:
        self._config = config
        self._target = Target(
            provider=config.name, model=model, max_tokens_key=config.max_tokens_key, json_schema=config.json_schema
        )
        if config.wire not in FORMATS:
            known = " or ".join(FORMATS)
            raise ConfigError(f"model provider {config.name!r} has wire {config.wire!r}: choose {known}")
        self._wire = FORMATS[config.wire]()
        base = config.base_url.rstrip("/")
        # Anthropic's base with or without the version at its end: both are in use.
        self._url = (base.removesuffix("/v1") if config.wire == "anthropic" else base) + self._wire.path
        self._key = config.key(environ)
        self._secret_headers = config.secret_headers(environ)
        self._http = http

    def attempt(self, prompt: Prompt, context: AttemptContext) -> Reply:
        silence = self._config.silence if context.stream else None
        request = self._request(prompt, context)
        try:
            with (
                _transport_failures(),
                self._http.send(request, context.abort.check, timeout=context.timeout, silence=silence) as exchange,
            ):
                return self._reply(exchange, context)
        except AttemptFailed as failure:
            raise self._without_secrets(failure) from failure.__cause__

    def _request(self, prompt: Prompt, context: AttemptContext) -> httpx.Request:
        # A compressor would hold deltas back.
        stream = {"accept": "text/event-stream", "accept-encoding": "identity"}
        headers = httpx.Headers(
            {
                "user-agent": "chordage",
                "content-type": "application/json",
                "x-retry-count": str(context.number - 1),
                **(stream if context.stream else {"accept": "*/*", "accept-encoding": "gzip, deflate"}),
            }
        )
        for more in (self._wire.headers(self._key), self._config.plain_headers, self._secret_headers):
            headers.update(more)  # in any case of letters: a header is sent once
        body = wire.encoded(self._wire.body(prompt, self._target, stream=context.stream))
        return httpx.Request("POST", self._url, headers=headers, content=body)

    def _reply(self, exchange: Exchange, context: AttemptContext) -> Reply:
        if exchange.status != 200:
            body = exchange.read(ERROR_LIMIT).decode("utf-8", "replace")
            raise refused(exchange.status, exchange.headers, body)
        # What came decides, rather than what was asked for: some servers know only one of the two ways.
        kind = exchange.headers.get("content-type", "")
        if "event-stream" in kind or (context.stream and "json" not in kind and "html" not in kind):
            return self._follow(exchange, context)
        answer = exchange.read(ANSWER_LIMIT)
        if len(answer) >= ANSWER_LIMIT:
            raise wire.malformed(f"the answer is longer than {ANSWER_LIMIT} bytes")
        return self._wire.whole(wire.parse(answer), self._target)

    def _follow(self, exchange: Exchange, context: AttemptContext) -> Reply:
        reader = self._wire.reader(self._target)
        events = data_of_events(exchange.chunks())
        for data in events:
            text = reader.feed(data)
            context.reasoning(reader.reasoning.taken())
            context.delta(text)
            if reader.finished:
                # The connection can be kept only if what follows the last event is read. It is not waited for long.
                exchange.hurry(REST_SECONDS)
                with suppress(httpx.HTTPError, AttemptFailed):
                    for _ in events:
                        pass
        return reader.reply()

    def _without_secrets(self, failure: AttemptFailed) -> AttemptFailed:
        """Some gateways repeat the request, or the header that they refuse, in their error."""
        detail = failure.detail
        for secret in filter(None, (self._key, *self._secret_headers.values())):
            detail = detail.replace(secret, "***")
        if detail == failure.detail:
            return failure
        return AttemptFailed(failure.fault, detail, retry_after=failure.retry_after)


@contextmanager
def _transport_failures() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise AttemptFailed(Fault.TIMEOUT, str(error)) from error
    except httpx.DecodingError as error:
        raise AttemptFailed(Fault.MALFORMED, str(error)) from error
    except httpx.TransportError as error:
        raise AttemptFailed(Fault.CONNECTION, str(error) or type(error).__name__) from error


def data_of_events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each complete server-sent event. One without its closing blank line was cut off and is dropped."""
    data: list[str] = []
    for line in _lines(chunks):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split on bytes and only at line feeds: str.splitlines would also cut at U+2028, which JSON strings may hold."""
    pending = b""
    for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        if len(pending) > LINE_LIMIT:
            raise wire.malformed(f"a line of the stream is longer than {LINE_LIMIT} bytes")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
