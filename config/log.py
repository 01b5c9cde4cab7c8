"""Logging: one line an event, with the ids that tie it to a turn; JSON where a machine reads it."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.types import Processor

SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]
QUIET = (
    "httpx", "httpcore", "httpx2", "httpcore2", "mcp", "kombu", "amqp", "alembic", "celery.worker.strategy",
    "celery.app.trace", "celery.beat",  # which tells each tick
)  # fmt: skip


def configure(level: str, style: str) -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(style))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in QUIET if level.upper() != "DEBUG" else ():
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _formatter(style: str) -> logging.Formatter:
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    last: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=SHARED,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
