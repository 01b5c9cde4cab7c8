"""Live tests run on local processes: these fixtures replace pytest-celery's containers."""

from __future__ import annotations

from support.pytest_celery_nodes import (  # noqa: F401  fixtures
    celery_backend_cluster,
    celery_broker_cluster,
    celery_setup_app,
    celery_worker_cluster,
    worker_plan,
)
