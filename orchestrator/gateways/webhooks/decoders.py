"""Decoders read the message from a delivery: one for JSON, and functions of users, by entry point or import path.

A user's decoder gets a delivery whose signature is right. It returns a dict with `text` and optionally `thread` and
`meta`, or None for a delivery that is no message. ValueError refuses the delivery; its text is for the sender.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core import webhooks
from chordage.orchestrator.core.errors import ChordageError, InvalidMessage
from chordage.orchestrator.core.webhooks import WEBHOOK, DecodedMessage, WebhookBinding
from chordage.orchestrator.system import user_code
from chordage.orchestrator.system.user_code import JobRaised, TookTooLong, within, words_of

ENTRY_POINTS = "chordage.hooks"
SECONDS = 5.0  # the sender waits for an answer
MESSAGE_KEYS = {"text", "thread", "meta"}


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookDelivery:
    """What came in, once its signature was right."""

    binding: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    config: Mapping[str, Any] = field(default_factory=dict)  # of its binding


Decoder = Callable[[WebhookDelivery], Mapping[str, Any] | None]


class DecoderFailed(ChordageError):
    """The function raised, did not come back, or returned what is no message."""


def find(name: str) -> Decoder:
    """Raises RoomError."""
    decoder: Decoder = user_code.load_function(name, ENTRY_POINTS, what="hook decoder")
    return decoder


def decode(binding: WebhookBinding, headers: Mapping[str, str], body: bytes) -> DecodedMessage | None:
    """Raises InvalidMessage, and DecoderFailed."""
    if binding.plugin == WEBHOOK:
        return _from_json(binding, headers, body)
    delivery = WebhookDelivery(
        binding=binding.name, path=binding.path, headers=headers, body=body, config=binding.options
    )  # fmt: skip
    return _from_code(binding.plugin, delivery)


def _from_json(binding: WebhookBinding, headers: Mapping[str, str], body: bytes) -> DecodedMessage:
    shape, payload = binding.shape, webhooks.read(body)
    return DecodedMessage(
        text=webhooks.text_of(shape, payload),
        thread=webhooks.thread_of(shape, payload),
        meta=webhooks.meta_of(shape, payload, headers),
    )


def _from_code(name: str, delivery: WebhookDelivery) -> DecodedMessage | None:
    decoder = find(name)
    try:
        content = within(SECONDS, lambda: decoder(delivery), f"hook decoder {name}")
    except JobRaised as error:
        if isinstance(error.error, ValueError):
            raise InvalidMessage(words_of(error.error), field="body") from error.error
        raise DecoderFailed(f"hook decoder {name!r} raised {error}") from error
    except TookTooLong as error:
        raise DecoderFailed(f"hook decoder {name!r} did not answer within {SECONDS:g} s") from error
    return None if content is None else _decoded(name, content)


def _decoded(name: str, content: Any) -> DecodedMessage:
    if not isinstance(content, Mapping) or not set(content) <= MESSAGE_KEYS or not isinstance(content.get("text"), str):
        may = ", ".join(sorted(MESSAGE_KEYS))
        raise DecoderFailed(f"hook decoder {name!r} must return None, or a dict with text and at most {may}")
    thread, meta = content.get("thread"), content.get("meta") or {}
    if not isinstance(thread, str | None) or not isinstance(meta, Mapping):
        raise DecoderFailed(f"hook decoder {name!r}: thread must be a text, and meta a dict")
    return DecodedMessage(text=content["text"], thread=thread, meta=meta)
