"""Celery's settings. Each answers to a measured loss, doubling or stall; change none without its drill in
tests/live.
"""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue

from chordage.config.redis_url import RedisKind
from chordage.config.settings import Settings

NEVER_HANG = {"socket_timeout": 5, "socket_connect_timeout": 5, "socket_keepalive": True, "health_check_interval": 25}


def celery_settings(settings: Settings, queues: tuple[str, ...]) -> dict[str, Any]:
    address = settings.redis_address
    url = address.broker_url if address else None
    tls = dict(address.tls) if address and address.tls else None
    to_master = address.sentinel_options if address else {}
    return {
        "broker_url": url,
        "result_backend": url,
        "broker_use_ssl": tls,
        "redis_backend_use_ssl": tls,
        # A queue's place in this list is its priority; a name that is not in it is an error, not a new queue.
        "task_queues": [Queue(name, Exchange(name), routing_key=name) for name in (*queues, *settings.intake_queues)],
        "task_default_queue": "chat",
        "task_create_missing_queues": False,
        "broker_transport_options": {
            **NEVER_HANG,
            **to_master,
            "queue_order_strategy": "priority",
            "visibility_timeout": settings.visibility_timeout,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "global_keyprefix": settings.broker_prefix,
        },
        "result_backend_transport_options": {
            **NEVER_HANG,
            **to_master,
            "global_keyprefix": settings.broker_prefix,
            "retry_policy": {"timeout": 5.0},
        },
        "result_backend_always_retry": True,
        "result_backend_max_retries": 20,
        # JSON only: every client of Redis can write a message.
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        # A message is acknowledged when its work is done, and comes back when the worker dies.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_acks_on_failure": True,
        "task_acks_on_timeout": True,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "worker_deduplicate_successful_tasks": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # Rows are the results; the chord needs none of Celery's.
        "task_ignore_result": True,
        "task_track_started": False,
        "result_expires": 3600,
        "result_chord_expires": 86400,
        "result_extended": False,
        "task_publish_retry_policy": {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1},
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,
        "broker_pool_limit": 10,
        "broker_pool_acquire_timeout": 5,
        "redis_max_connections": 200,
        "redis_socket_timeout": 5,
        "redis_socket_connect_timeout": 5,
        "redis_socket_keepalive": not (address and address.kind is RedisKind.SOCKET),  # which redis-py refuses there
        "worker_soft_shutdown_timeout": settings.soft_shutdown,
        "worker_enable_soft_shutdown_on_idle": False,
        "worker_max_tasks_per_child": 10_000,
        "worker_max_memory_per_child": 400_000,
        "worker_send_task_events": False,  # `chordage worker --events`, for Flower
        "worker_hijack_root_logger": False,
        "beat_scheduler": "celery.beat:Scheduler",
        "beat_enable_remote_control": True,
        "beat_schedule": _ticks(settings),
        "timezone": "UTC",
        "enable_utc": True,
    }


def _ticks(settings: Settings) -> dict[str, Any]:
    """What beat sends, and how often. Without the loop `pulse` no scheduled work of the room becomes due."""
    every = {"rescue": settings.sweep, "project": settings.project}
    if "pulse" in settings.loops:
        every["pulse"] = settings.pulse
    return {
        name: {"task": f"system.{name}", "schedule": seconds, "options": {"queue": "system", "expires": seconds}}
        for name, seconds in every.items()
    }
