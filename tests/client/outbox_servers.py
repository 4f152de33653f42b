"""A server in memory for relays of an outbox: it remembers the tokens of puts, loses replies, and refuses what a test
says."""

import contextlib

from beanstalk_client.commands import Reply, make
from beanstalk_client.errors import BeanstalkdError, ConnectionLostError, ExistsError
from beanstalk_client.outbox.rows import COMMANDS


class FakeServer:
    """A server.

    Attributes:
        puts: the jobs of rows, in order: tube, key and body.
        others: what else was put, by tube and key: reports and statuses.
        refuses: by the body of a put, the command of another row, or the tube of `use`: the error of the reply.
        answers: how many of the next commands of pipelines have replies; after that the connection is lost. None: all.
        does: how many commands of that pipeline are done nevertheless. None: all.
    """

    def __init__(self):
        self.puts = []
        self.others = {}
        self.changes = []
        self.delays = []
        self.refuses = {}
        self.answers = self.does = None
        self.knows_put_with = True
        self._tokens = set()

    def connect(self):
        return FakeClient(self)

    def do(self, tube, name, arguments):
        if name != "put_with":
            self.changes.append((tube, name, arguments))
            if name in self.refuses:
                raise self.refuses[name]
            return None
        body = arguments["body"]
        if body in self.refuses:
            raise self.refuses[body]
        if arguments["once"] in self._tokens:
            raise ExistsError(1)
        self._tokens.add(arguments["once"])
        self.delays.append(arguments.get("delay", 0))
        self.puts.append((tube, arguments.get("key") or None, body))
        return len(self.puts)


class FakeClient:
    """A blocking client of it."""

    def __init__(self, server):
        self._server = server
        self._tube = "default"

    def knows(self, command):
        return self._server.knows_put_with

    def list_extensions(self):
        return {"put-with": "3"}

    def close(self):
        pass

    def use(self, tube):
        if tube in self._server.refuses:
            raise self._server.refuses[tube]
        self._tube = tube

    def put_with(self, body, **arguments):
        self._server.others[self._tube, arguments["key"]] = body

    @contextlib.contextmanager
    def pipeline(self, *, raise_errors):
        pipeline = FakePipeline()
        yield pipeline
        answers, does, server = self._server.answers, self._server.does, self._server
        server.answers = server.does = None
        for number, (reply, name, arguments) in enumerate(pipeline.replies):
            is_done = answers is None or number < answers or does is None or number < does
            result = None
            if is_done:
                try:
                    result = server.do(self._tube, name, arguments)
                except BeanstalkdError as error:
                    result = error
            if answers is not None and number >= answers:
                result = ConnectionLostError(maybe_done=True)
            reply.settle(result)


class FakePipeline:
    def __init__(self):
        self.replies = []

    def __getattr__(self, name):
        if name not in COMMANDS:
            raise AttributeError(name)

        def add(**arguments):
            getattr(make, name)(**arguments)  # which refuses bad ones
            reply = Reply(None)
            self.replies.append((reply, name, arguments))
            return reply

        return add
