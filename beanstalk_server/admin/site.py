"""Maps paths to pages, and checks the rights of each request.

path             answers                                           required right
---------------  ------------------------------------------------  ------------------------
/healthz         200 while the event loop runs
/readyz          200 if clients are served here, else 503 and why
/readyz/cluster  the same, and 200 if they are through the leaders
/metrics         the metrics, as text in either format             to inspect every tube
/stats.json      statistics                                        to inspect every tube
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from beanstalk_server.access.rights import INSPECT, User
from beanstalk_server.admin.exposition import choose
from beanstalk_server.admin.health import OK, Condition
from beanstalk_server.admin.metrics import MetricsPage
from beanstalk_server.admin.scrapes import Page, Scrapes, Written
from beanstalk_server.admin.stats_json import StatsPage

PLAIN: Final = "text/plain; charset=utf-8"

MOST_PAGES: Final = 8
"""Pages that are being written or sent at a time. A page of a thousand tubes has two megabytes, and slow readers keep
theirs for as long as they may."""

METHODS: Final = ("GET", "HEAD")


class RequestPolicy(Protocol):
    """The listener policy of a request, as far as HTTP needs it."""

    auth: str
    user: User | None

    def answers_to(self, host: str) -> bool:
        """Whether a request for this host and port is answered."""

    def authenticate(self, token: str) -> User | None:
        """The user with this token; None if there is none, which counts as a failure."""

    def user_now(self, user: User) -> User | None:
        """The same user as the settings have it by now; None if it is gone."""


class Request(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: Mapping[str, Sequence[str]]
    """By their names in lower case."""
    policy: RequestPolicy
    user: User | None
    """Authenticated by a certificate or a uid."""
    name: str
    """What the log calls the client."""


class Answer(NamedTuple):
    """An answer."""

    status: int
    pieces: Sequence[bytes]
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()
    on_end: Callable[[], object] | None = None
    """Called when it has been sent, or cannot be."""


Done = Callable[[Answer], object]


def say(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    """An answer that is a line of text."""
    return Answer(status, [f"{text}\n".encode()], PLAIN, headers)


class Site:
    """Answers requests.

    Args:
        scrapes: writes the pages.
        condition: returns what the server does at present.
        limit: how many tubes a page shows, each by itself.
        note: logs that a client is refused: its name, and why.
    """

    def __init__(
        self,
        scrapes: Scrapes,
        condition: Callable[[], Condition],
        limit: int,
        note: Callable[[str, str], object],
    ) -> None:
        self._scrapes = scrapes
        self._condition = condition
        self._limit = limit
        self._note = note
        self._pages = 0  # that are being written or sent
        self.requests: Counter[int] = Counter()  # by the status that has answered them

    def answer(self, request: Request, done: Done) -> None:
        """Answer a request, at once or later."""
        path = request.path
        if path not in ("/healthz", "/readyz", "/readyz/cluster", "/metrics", "/stats.json"):
            done(say(404, "not found: the paths are /metrics, /stats.json, /healthz, /readyz and /readyz/cluster"))
        elif request.method not in METHODS:
            done(say(405, "method not allowed: use GET or HEAD", ("Allow", ", ".join(METHODS))))
        elif path == "/healthz":
            done(say(200, OK))
        elif path in ("/readyz", "/readyz/cluster"):
            condition = self._condition()
            hindrance = condition.hindrance() if path == "/readyz" else condition.hindrance_of_cluster()
            done(say(503 if hindrance else 200, hindrance or OK))
        else:
            self._show(request, done)

    def _show(self, request: Request, done: Done) -> None:
        """Answer a request for a page, if the client may see it."""
        refusal = self._refusal(request)
        if refusal is not None:
            done(refusal)
            return
        condition = self._condition()
        if condition.is_starting or condition.is_stopping:
            done(say(503, condition.hindrance()))
            return
        if self._pages >= MOST_PAGES:
            done(say(503, f"busy sending {MOST_PAGES} responses: try again later", ("Retry-After", "1")))
            return
        self._pages += 1
        limit = self._limit
        if request.path == "/stats.json":
            self._scrapes.ask("json", lambda: StatsPage(limit), lambda found: done(self._page(found)))
            return
        chosen = choose(",".join(request.headers.get("accept", ())))

        def make_page() -> Page:
            return MetricsPage(chosen, limit)

        self._scrapes.ask(chosen.content_type, make_page, lambda found: done(self._page(found)))

    def _page(self, found: Written | None) -> Answer:
        if found is None:
            self._pages -= 1
            return say(500, "internal error: see the server's log")
        return Answer(200, found.pieces, found.content_type, (("Cache-Control", "no-store"),), self._end_page)

    def _end_page(self) -> None:
        self._pages -= 1

    def _refusal(self, request: Request) -> Answer | None:
        """Why a request is refused; None if it is not."""
        policy = request.policy
        user = request.user
        host = "".join(request.headers.get("host", ()))
        if not policy.answers_to(host):
            self._note(request.name, "unknown name in the Host header")
            return say(
                421, "unknown name in the Host header: use an IP address, or add the name to http-hosts or hosts"
            )
        if policy.auth == "none":
            user = policy.user
            if user is None:
                return None  # every client there may do everything
        elif policy.auth == "token":
            token = _token(request.headers.get("authorization", ()))
            if not token:
                return say(
                    401,
                    "missing token: send Authorization: Bearer TOKEN",
                    ("WWW-Authenticate", 'Bearer realm="beanstalk-server"'),
                )
            user = policy.authenticate(token)
            if user is None:
                self._note(request.name, "unknown token")
                challenge = 'Bearer realm="beanstalk-server", error="invalid_token"'
                return say(401, "unknown token", ("WWW-Authenticate", challenge))
        elif user is not None:
            user = policy.user_now(user)
        if user is None or not user.everywhere & INSPECT:
            return say(403, "forbidden: the user needs the right to inspect every tube")
        return None


def _token(values: Sequence[str]) -> str:
    """The token in an Authorization header; "" if there is none, or more than one header."""
    if len(values) != 1:
        return ""
    scheme, _, token = values[0].strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
