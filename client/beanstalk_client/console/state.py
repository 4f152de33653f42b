"""The state of a console between requests: users, sessions, actions and searches, in memory and bounded."""

from __future__ import annotations

from collections import OrderedDict

from jinja2 import Environment

from beanstalk_client.console.actions import Actions
from beanstalk_client.console.metrics import Metrics
from beanstalk_client.console.rendering import make_environment
from beanstalk_client.console.search import Searches
from beanstalk_client.console.security import Attempts, Forms, Sessions
from beanstalk_client.console.settings import Settings
from beanstalk_client.console.users import Users
from beanstalk_client.observe.reader import Connect


class State:
    def __init__(self, settings: Settings, connect: Connect) -> None:
        self.settings = settings
        self.connect = connect
        self.users: Users = Users(connect)
        self.sessions: Sessions = Sessions()
        self.attempts: Attempts = Attempts()
        self.forms: Forms = Forms()
        self.actions: Actions = Actions()
        self.searches: Searches = Searches()
        self.metrics: Metrics = Metrics(settings.metrics)
        self.templates: Environment = make_environment()
        for name in self.templates.list_templates():
            self.templates.get_template(name)  # compiled now, so that no visitor waits for it
        self.streams: dict[object, str] = {}  # pages that are live, the oldest first, and whose they are
        self.live: OrderedDict[tuple[object, ...], str] = OrderedDict()
        """Pages that scripts have asked for again: of one sample, they are the same for all who look at them."""

    async def close(self) -> None:
        await self.actions.close()
        await self.searches.close()
        await self.users.close()
