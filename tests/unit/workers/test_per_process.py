"""A process has one runtime, whichever thread is first."""

from __future__ import annotations

import multiprocessing
import os
import threading

from chordage.workers.app import PerProcess

ASKING = 8


def test_simultaneous_threads_get_the_same():
    begun = threading.Barrier(ASKING)
    making = threading.Event()
    made, given = [], []

    def make():
        making.wait(0.2)  # as long as it takes the others to come as well
        made.append(object())
        return made[-1]

    one = PerProcess(make)

    def ask():
        begun.wait()
        given.append(one())

    threads = [threading.Thread(target=ask) for _ in range(ASKING)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1
    assert {id(each) for each in given} == {id(made[0])}


def test_a_child_makes_its_own_also_when_it_was_forked_while_its_parent_made_one():
    forking = multiprocessing.get_context("fork")
    pipe, far = forking.Pipe()
    in_parent = os.getpid()

    def child():
        far.send(one())

    def make():
        if os.getpid() == in_parent:
            process = forking.Process(target=child)
            process.start()
            assert pipe.poll(20), "the child waits for a lock of its parent"
            process.join()
        return os.getpid()

    one = PerProcess(make)

    assert one() == in_parent
    assert pipe.recv() != in_parent
