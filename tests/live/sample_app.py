"""A Celery project of two tasks, to try the nodes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

app = Celery("sample", broker=os.environ["SAMPLE_BROKER"], backend=os.environ["SAMPLE_BACKEND"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 8, "unacked_restore_interval": 1, "unacked_restore_throttle": 1},
)


@app.task(name="sample.tool", bind=True)
def tool(self, number, gate=None):
    """Report to be running, then wait until the gate is opened, if there is one."""
    print(f"tool {number} begins", flush=True)
    while gate and not Path(gate).exists():
        time.sleep(0.02)
    return [number, self.request.hostname, bool(self.request.delivery_info.get("redelivered"))]


@app.task(name="sample.join")
def join(results):
    return results
