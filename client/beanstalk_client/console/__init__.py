"""A web console that shows the problems of a queue server and lets an operator fix them (docs/console.md).

    from beanstalk_client.console import console

    app.mount("/queue", console("beanstalk://127.0.0.1:11300", login=True))

Runs in a process of its own, or in that of another ASGI application: to the server it is a client. It needs the extra
`console`, and Python 3.11. Must never show text from outside but through `shown`.
"""

from beanstalk_client.console.app import console

__all__ = ["console"]
