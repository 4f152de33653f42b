"""An event loop whose clock jumps from one event to the next, for several processes at a time.

A process is a context: whatever was begun in it belongs to it. It has clocks of its own, which may be wrong and drift;
it can be paused, and killed, and nothing that belongs to it happens meanwhile, or ever again. Work in a thread is done
in a real thread, but only one thread runs at a time, and a thread that waits lets virtual time pass. So the same seed
gives the same run.
"""

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import math
import queue
import threading
from collections import deque

from beanstalk_server.storage.write_thread import await_end

SECOND = 1_000_000_000
START = 1_000 * SECOND
WALL = 1_800_000_000 * SECOND

LATE = 1 << 60

PROCESS = contextvars.ContextVar("process", default=None)


class Killed(BaseException):
    """The process of this thread was killed."""


class Process:
    """What is killed as a whole.

    Args:
        rate: how fast its clocks go.
        wall_error: nanoseconds by which its wall clock is wrong.
    """

    def __init__(self, loop, name, rate=1.0, wall_error=0):
        self.loop = loop
        self.name = name
        self.rate = rate
        self.wall_error = wall_error
        self.is_alive = True
        self.resumes = 0  # when it goes on, if it is paused
        self.on_death = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def run(self, call, *args):
        """Make a call as this process."""
        return self.context.copy().run(call, *args)

    def soon(self, call, *args):
        """Make a call as this process, in the event loop, unless it is killed first."""
        return self.loop.call_soon(call, *args, context=self.context.copy())

    def pause(self, nanoseconds):
        self.resumes = max(self.resumes, self.loop.now + nanoseconds)

    @property
    def is_paused(self):
        return self.resumes > self.loop.now

    def kill(self):
        if self.is_alive:
            self.is_alive = False
            for call in self.on_death:
                call()
            self.on_death.clear()

    def monotonic_ns(self):
        return START + round((self.loop.now - START) * self.rate)

    def time_ns(self):
        return WALL + self.loop.now + self.wall_error

    def __repr__(self):
        return self.name


class Handle(asyncio.Handle):
    """A callback, which happens in its process only."""

    __slots__ = ("number", "process", "when")

    def __init__(self, callback, args, loop, context, when=0):
        super().__init__(callback, args, loop, context)
        self.process = self._context.get(PROCESS)
        self.when = when
        self.number = None  # its place among those that wait until the process goes on


class VirtualLoop(asyncio.AbstractEventLoop):
    """See above.

    Args:
        on_error: called with the context of each exception that nobody has caught.
    """

    def __init__(self, on_error):
        self.now = START
        self.steps = 0
        self.network = None  # connects processes
        self._on_error = on_error
        self._ready = deque()
        self._timers = []
        self._numbers = itertools.count()
        self._batons = []  # threads without work
        self._executors = {}  # executor -> [how many are at work, what waits]
        self._tasks = set()

    # As asyncio has it

    def time(self):
        return self.now / SECOND

    def call_soon(self, callback, *args, context=None):
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay, callback, *args, context=None):
        process = PROCESS.get() if context is None else context.get(PROCESS)
        rate = 1.0 if process is None else process.rate
        return self.call_in(math.ceil(max(delay, 0) * SECOND / rate), callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        return self.call_later(when - self.time(), callback, *args, context=context)

    def call_in(self, nanoseconds, callback, *args, context=None):
        """As call_later, by true time."""
        when = self.now + max(nanoseconds, 0)
        handle = Handle(callback, args, self, context, when)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coroutine, *, name=None, context=None):
        task = asyncio.Task(coroutine, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_in_executor(self, executor, call, *args):
        future = self.create_future()
        limit = getattr(executor, "_max_workers", 8)
        state = self._executors.setdefault(executor, [0, deque()])

        def end(result, error):
            state[0] -= 1
            if state[1]:
                begin(*state[1].popleft())
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def begin(work, on_end, context):
            state[0] += 1
            self.in_thread(work, on_end, context)

        piece = (lambda: call(*args)), end, contextvars.copy_context()
        if state[0] < limit:
            begin(*piece)
        else:
            state[1].append(piece)
        return future

    async def create_connection(self, make_protocol, host, port, **_):
        return await self.network.connect(PROCESS.get(), make_protocol, host, port)

    async def create_server(self, make_protocol, host, port, **_):
        return self.network.listen(PROCESS.get(), make_protocol, host, port)

    def add_reader(self, descriptor, callback, *args):
        """Nothing here has a descriptor that becomes readable."""

    def remove_reader(self, descriptor):
        return True

    def call_exception_handler(self, context):
        process = PROCESS.get()
        if process is None or process.is_alive:
            self._on_error(context)

    def default_exception_handler(self, context):
        self._on_error(context)

    def get_debug(self):
        return False

    def is_running(self):
        return True

    def is_closed(self):
        return False

    def get_task_factory(self):
        return None

    def _timer_handle_cancelled(self, handle):
        """A cancelled timer is dropped when its time comes."""

    # Time

    def run_until(self, is_done, end):
        """Let everything happen until something is so, or a moment has come; return whether it is so."""
        asyncio._set_running_loop(self)
        try:
            while not is_done():
                if not self._ready:
                    while self._timers and self._timers[0][2]._cancelled:
                        heapq.heappop(self._timers)
                    if not self._timers or self._timers[0][0] > end:
                        self.now = max(self.now, end)
                        return is_done()
                    self.now = max(self.now, self._timers[0][0])
                while self._timers and self._timers[0][0] <= self.now:
                    self._ready.append(heapq.heappop(self._timers)[2])
                for _ in range(len(self._ready)):
                    self._run_one(self._ready.popleft())
        finally:
            asyncio._set_running_loop(None)
        return True

    def _run_one(self, handle):
        process = handle.process
        if handle._cancelled:
            return
        if process is not None:
            if not process.is_alive:
                return
            if process.resumes > self.now:
                # A process that goes on finds what has come before it looks at its timers.
                if handle.number is None:
                    handle.number = next(self._numbers) - (0 if handle.when else LATE)
                heapq.heappush(self._timers, (process.resumes, handle.number, handle))
                return
        self.steps += 1
        handle._run()

    def forget(self):
        """Let go of everything that waits."""
        self._ready.clear()
        self._timers.clear()
        for baton in self._batons:
            baton.end()
        self._batons.clear()
        asyncio._set_running_loop(self)
        try:
            while self._tasks:
                task = self._tasks.pop()
                task._log_destroy_pending = False
                for _ in range(10):  # it may go on when it is closed, and wait again
                    with contextlib.suppress(BaseException):
                        task.get_coro().close()
                        break
        finally:
            asyncio._set_running_loop(None)
        self._ready.clear()
        self._timers.clear()

    # Threads

    def in_thread(self, work, on_end, context=None):
        """Do some work in a thread; call `on_end` with what it returns and None, or with None and its error."""
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        baton = self._batons.pop() if self._batons else Baton(self)

        def run():
            if process is None or process.is_alive:
                baton.begin(work, end, context, process)

        def end(result, error):
            if not isinstance(error, Killed):
                self.call_soon(on_end, result, error, context=context.copy())
            self._batons.append(baton)

        self.call_soon(run, context=contextvars.Context())


class Baton:
    """A thread that runs while the event loop waits for it, and waits while the event loop runs."""

    current = threading.local()

    def __init__(self, loop):
        self.loop = loop
        self.process = None
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._work = queue.SimpleQueue()
        self._on_end = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, work, on_end, context, process):
        self.process = process
        self._on_end = on_end
        self._work.put((work, context))
        self._resume()

    def end(self):
        self._work.put(None)
        self._turn.release()

    def _resume(self):
        """Let the thread run until it waits or has ended."""
        self._turn.release()
        self._back.acquire()
        if self._on_end is not None and self._ended is not None:
            (result, error), on_end = self._ended, self._on_end
            self._ended = self._on_end = None
            on_end(result, error)

    _ended = None

    def wait(self, begin):
        """In the thread: call `begin` with a function that ends the wait, and wait for that."""
        begin(self._wake)
        self._back.release()
        self._turn.acquire()
        if self.process is not None and not self.process.is_alive:
            raise Killed

    def _wake(self):
        """End the wait. A process that is paused goes on later."""
        process = self.process
        if process is not None and process.is_alive and process.is_paused:
            self.loop.call_in(process.resumes - self.loop.now, self._wake, context=contextvars.Context())
        else:
            self._resume()

    def sleep(self, nanoseconds):
        """In the thread: let time pass."""
        self.wait(lambda wake: self.loop.call_in(nanoseconds, wake, context=contextvars.Context()))

    def _run(self):
        Baton.current.baton = self
        while True:
            self._turn.acquire()
            piece = self._work.get()
            if piece is None:
                return
            work, context = piece
            result = error = None
            try:
                result = context.copy().run(work)
            except BaseException as raised:
                error = raised
            self._ended = result, error
            del work, piece, context, result, error
            self._back.release()


def this_thread():
    """The Baton of the thread that asks; None for the event loop."""
    return getattr(Baton.current, "baton", None)


class VirtualWriteThread:
    """What storage.write_thread.WriteThread is, for a process in virtual time."""

    def __init__(self, name):
        self.name = name
        self.loop = PROCESS.get().loop
        self.pieces = deque()
        self.is_busy = False

    def begin(self, work, on_end, wait=0.0):
        if wait > 0 and not self.is_busy and self.loop.network.is_instant():
            error = None
            try:
                work()
            except Exception as raised:
                error = raised
            on_end(error)
            return
        self.pieces.append((work, on_end))
        if not self.is_busy:
            self._next()

    async def run(self, work):
        return await await_end(self, work)

    def close(self):
        """What is under way goes on, although nobody waits for it: worse than what a real thread does."""

    def _next(self):
        work, on_end = self.pieces.popleft()
        self.is_busy = True

        def end(_, error):
            self.is_busy = False
            on_end(error)
            if self.pieces and not self.is_busy:
                self._next()

        self.loop.in_thread(work, end)
