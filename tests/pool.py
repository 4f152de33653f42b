"""One run of pytest on two packages: which worker runs which tests, in which order, and until when.

pytest-xdist wants all workers to collect the same tests. Here, each worker runs on one of two packages, and collects
the tests that belong to it; workers with the same tests share a queue of files. A file's tests stay together, because
its fixtures of module scope do.
"""

import random
import time
from collections import OrderedDict

from xdist.scheduler.loadscope import LoadScopeScheduling


class Pool(LoadScopeScheduling):
    """Gives out files to workers, each from the queue of the workers that have collected the same tests.

    With `seed`, files come in an order of its own. After `seconds`, no more files are given out; `left_out` has them.
    """

    def __init__(self, config, log, seed=None, seconds=None):
        super().__init__(config, log)
        self.seed = seed
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.left_out = []
        self.number = 0  # of tests
        self.waiting = None  # the tests that have not ended, once the workers have collected them
        self._queues = {}  # the tests that workers have collected -> their queue of files

    def schedule(self):
        """Give out the first files, when all workers have collected their tests."""
        if self.collection is None:
            self.collection = []
            for tests in self.registered_collections.values():
                if tuple(tests) not in self._queues:
                    self._queues[tuple(tests)] = self._files_of(tests)
            self.number = sum(map(len, self._queues))
            self.waiting = {test for tests in self._queues for test in tests}
        for node in self.nodes:
            self._reschedule(node)

    def add_node_collection(self, node, collection):
        """Take note of what a worker has collected, also of one that replaces a worker that has crashed."""
        self.registered_collections[node] = list(collection)

    def _files_of(self, tests):
        files = {}
        for test in tests:
            files.setdefault(self._split_scope(test), {})[test] = False
        order = list(files)
        if self.seed is not None:
            random.Random(self.seed).shuffle(order)
        return OrderedDict((file, files[file]) for file in order)

    def _split_scope(self, nodeid):
        return nodeid.split("::", 1)[0]

    def _reschedule(self, node):
        if self.deadline is not None and time.monotonic() > self.deadline:
            for queue in self._queues.values():
                self.left_out.extend(test for tests in queue.values() for test in tests)
                queue.clear()
        self.workqueue = self._queue_of(node)  # what the methods of LoadScopeScheduling take from
        super()._reschedule(node)
        # A worker runs a test when it knows which one is next: one file with one test would leave it idle.
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 3:
            self._assign_work_unit(node)

    def _queue_of(self, node):
        return self._queues.setdefault(tuple(self.registered_collections[node]), OrderedDict())

    @property
    def tests_finished(self):
        return not any(self._queues.values()) and super().tests_finished

    @property
    def has_pending(self):
        return any(self._queues.values()) or super().has_pending

    def mark_test_complete(self, node, item_index, duration=0):
        self.waiting.discard(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)

    def remove_node(self, node):
        """Give back what a worker has not run. Return the test that it crashed in, which is not run again."""
        files = self.assigned_work.pop(node)
        left = [(file, test) for file, tests in files.items() for test, ended in tests.items() if not ended]
        if not left:
            return None
        (_, crashed), *others = left
        self.waiting.discard(crashed)
        for file, test in others:
            self._queue_of(node).setdefault(file, {})[test] = False
        for other in self.nodes:
            if other in self.registered_collections:
                self._reschedule(other)
        return crashed

    def never_run(self):
        """The tests that were neither run nor left out; None if the workers have not even collected them."""
        return None if self.waiting is None else sorted(self.waiting.difference(self.left_out))
