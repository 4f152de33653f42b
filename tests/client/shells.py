"""Both clients with the same blocking calls, so that a test runs for both: `Blocking`, and `Asyncio` with its loop."""

import asyncio
import contextlib
import inspect
import socket
import threading

from beanstalk_client import AsyncClient, Client

from harness.waiting import WITHIN, eventually

END = object()


class Blocking(Client):
    """The blocking client."""

    def lose(self):
        """Cut the connection; the client sees that when it uses the connection next."""
        self._connection._sock.shutdown(socket.SHUT_RDWR)

    def see_loss(self):
        """Wait for the end of the connection, which the client sees before its next command."""
        eventually(lambda: self._connection is None or not self._connection.is_alive(), "the connection has ended")
        self._used -= 2  # seconds: so the client looks at the connection first

    @property
    def is_connected(self):
        return self._connection is not None


class Asyncio:
    """The client for asyncio. An event loop in another thread executes each call."""

    def __init__(self, *arguments, **options):
        self._loop = asyncio.new_event_loop()
        self._unseen = []
        self._loop.set_exception_handler(lambda _, context: self._unseen.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._queue = AsyncClient(*arguments, **options)
            self._execute(self._queue.connect())
        except BaseException:
            self._end()
            raise

    def __repr__(self):
        return repr(self._queue)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._execute(self._queue.close())
        tasks = self._execute(self._count_tasks())
        self._end()
        assert (tasks, self._unseen) == (1, []), "a task is left, or no caller has seen an error"

    def __getattr__(self, name):
        found = getattr(self._queue, name)
        if not inspect.ismethod(found):
            return found

        def call(*arguments, **named):
            result = found(*arguments, **named)
            if inspect.isasyncgen(result):
                return self._iterate(result)
            return self._execute(result) if inspect.iscoroutine(result) else result

        return call

    def _execute(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WITHIN)

    def _iterate(self, generator):
        async def following():
            return await anext(generator, END)

        while (found := self._execute(following())) is not END:
            yield found

    async def _count_tasks(self):
        return len(asyncio.all_tasks())

    def _end(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN)
        self._loop.close()

    @contextlib.contextmanager
    def pipeline(self, **how):
        pipeline = self._queue.pipeline(**how)
        yield pipeline
        self._execute(pipeline.__aexit__(None, None, None))

    def lose(self):
        self._loop.call_soon_threadsafe(self._queue._connection._transport.abort)
        self.see_loss()

    def see_loss(self):
        eventually(lambda: not self._queue.is_connected, "the client has seen the loss")
