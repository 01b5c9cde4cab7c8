"""Tools run beside the worker's thread: the side thread is kept, replaced when it is lost, and does not outlive it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from chordage import tool

FORKED = """
import os, sys
from chordage import tool
from chordage.orchestrator.gateways.ports import CallOrder
from chordage.orchestrator.gateways.tools.declare import declared_on
from chordage.orchestrator.gateways.tools.toolbox import ToolBox

@tool
def who() -> int:
    return os.getpid()

class Calm:
    def check(self): ...
    def wait(self, seconds): ...

box = ToolBox(lambda agent: {"who": declared_on(who)})
order = CallOrder(call_id="c", run_id="r", thread_id="t", tool="who", arguments={}, idempotency_key="k")
def run():
    return int(box.run(None, order, abort=Calm(), on_progress=print).content)
assert run() == os.getpid()
child = os.fork()
if child == 0:
    os._exit(0 if run() == os.getpid() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@tool
def thread_number() -> int:
    return threading.get_ident()


@tool(timeout=0.05)
def stuck() -> None:
    HOLD.wait(5)


HOLD = threading.Event()


def test_the_side_thread_is_used_again(bench):
    box, order = bench.box(thread_number), bench.order(thread_number)
    seen = {box.run(None, order, abort=bench.calm, on_progress=print).content for _ in range(5)}
    assert len(seen) == 1
    assert seen != {str(threading.get_ident())}


def test_a_stuck_tool_does_not_hold_up_the_next(bench):
    box = bench.box(thread_number, stuck)
    first = box.run(None, bench.order(thread_number), abort=bench.calm, on_progress=print).content
    assert box.run(None, bench.order(stuck), abort=bench.calm, on_progress=print).code == "timeout"
    second = box.run(None, bench.order(thread_number), abort=bench.calm, on_progress=print).content
    HOLD.set()
    assert first != second


def test_threads_of_a_pool_do_not_wait_for_each_other(bench):
    together = threading.Barrier(2, timeout=5)

    @tool
    def meet() -> int:
        return together.wait()

    box, answers = bench.box(meet), []

    def work():
        answers.append(box.run(None, bench.order(meet), abort=bench.calm, on_progress=print).content)

    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(answers) == ["0", "1"]


def test_a_side_thread_ends_with_its_box(bench):
    found = []

    @tool
    def find() -> None:
        found.append(threading.current_thread())

    bench.call(find)
    gc.collect()
    found[0].join(5)
    assert not found[0].is_alive()


def test_a_forked_child_gets_side_threads_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKED], check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
