"""The console as an ASGI application: routes, security headers, checks of requests, and errors as pages.

    base path -> headers of every response -> Host, Origin and Sec-Fetch-Site -> who it is -> the page

It can be mounted in any ASGI application. What that one does for its start and end it need not do for the console: it
samples from the first request on.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beanstalk_client.address import Addresses, read_target
from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.console.actions import RefusedError, meaning
from beanstalk_client.console.pages import clients, events, failures, group, job, login, orders, overview, tube, tubes
from beanstalk_client.console.pages import schedules as schedule_pages
from beanstalk_client.console.security import COOKIE, HEADERS, is_local_host, is_trusted, new_cookie, refusal
from beanstalk_client.console.settings import LOOPBACK, Settings
from beanstalk_client.console.state import State
from beanstalk_client.console.visit import BadRequestError, Visit
from beanstalk_client.errors import BadFormatError, Error, ForbiddenError, NotFoundError, UnauthorizedError, shown
from beanstalk_client.names import own_name
from beanstalk_client.schedules.scheduler import GROUP

STATIC: Final = Path(__file__).parent / "static"

STATIC_LIFE: Final = "no-cache"
"""Browsers ask whether a file has changed, and get it again only then."""

STATUSES: Final[dict[type[Error], int]] = {
    BadFormatError: 400,
    UnauthorizedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
}
"""What the errors of the server are in HTTP; all others are 503."""

Page = Callable[[Visit], Awaitable[Response]]


def console(
    addresses: Addresses = "127.0.0.1:11300",
    *,
    login: bool = False,
    user_header: str = "",
    anyone: bool = False,
    read_only: bool = False,
    trusted: Sequence[str] = LOOPBACK,
    hosts: Sequence[str] = (),
    hsts: bool = False,
    base_path: str = "",
    schedules: Sequence[str] = (GROUP,),
    metrics: Sequence[str] = (),
    tls: ssl.SSLContext | bool = False,
    server_name: str | None = None,
    token: str = "",
    insecure_token: bool = False,
) -> Console:
    """The console of a server, as an ASGI application.

    One of `login`, `user_header` and `anyone` is required; `login` and `user_header` may be combined.

    Args:
        addresses: as AsyncClient takes them: "beanstalk://[:token@]host:port", or several for a cluster.
        login: each user gives a token of the server and has its rights. Otherwise all users have those of `token`.
        user_header: the header with the user's name that a proxy sets: "X-Forwarded-User". Requests without it, or from
            outside `trusted`, are refused.
        anyone: every client that reaches the application may do everything, or look at everything with `read_only`. The
            application around it must decide who that is.
        read_only: nothing can be changed.
        hosts: the names by which browsers may know the console, besides IP addresses and localhost.
        hsts: tell browsers to use TLS only for the names of `hosts`, for a year.
        base_path: what stands before all paths, if a proxy leaves it there: "/queue".
        schedules: the tubes in which schedulers keep their plans (their --group).
        metrics: "http://[:token@]host:port" of each node's HTTP listener, for percentiles and shards.

    Raises:
        ValueError: an address or the token is malformed, or it is not said who may use the console.
    """
    if anyone == bool(login or user_header):
        if anyone:
            raise ValueError("console(): anyone=True cannot be combined with login or user_header")
        raise ValueError("console(): login=True, user_header=NAME or anyone=True is required")
    target = read_target(addresses, tls=tls, server_name=server_name, token=token, insecure_token=insecure_token)
    del addresses, token  # error reports show the variables of a frame

    def connect(asked: str) -> AsyncClient[bytes]:
        return AsyncClient(
            list(target.addresses),
            encoding=None,
            tls=target.context or False,
            server_name=target.server_name,
            token=asked if login else target.token,
            connect_timeout=5,
            timeout=20,
            reconnect_timeout=2,
            insecure_token=insecure_token,
            name=own_name("beanstalk-console"),
        )

    settings = Settings(
        server=", ".join(map(str, target.addresses)),
        tls=target.context is not None,
        login=login,
        read_only=read_only,
        user_header=user_header.lower(),
        trusted=tuple(trusted),
        hosts=tuple(hosts),
        hsts=hsts,
        base_path="/" + base_path.strip("/") if base_path.strip("/") else "",
        schedules=tuple(schedules),
        metrics=tuple(metrics),
    )
    return Console(State(settings, connect))


class Console:
    """The application."""

    def __init__(self, state: State) -> None:
        self.state = state
        looks: dict[str, Page] = {
            "/": overview.overview,
            "/tubes": tubes.tubes,
            "/tube": tube.tube,
            "/search": tube.search,
            "/job": job.job,
            "/group": group.group,
            "/job/body": job.body,
            "/failures": failures.failures,
            "/failure": failures.failure,
            "/schedules": schedule_pages.schedules,
            "/clients": clients.clients,
            "/cluster": clients.cluster,
            "/log": orders.log,
            "/events": events.events,
        }
        routes: list[Any] = [Route(path, self._endpoint(page), methods=["GET"]) for path, page in looks.items()]
        routes.append(Route("/order", self._endpoint(orders.order, changes=True), methods=["POST"]))
        routes.append(Route("/stop", self._endpoint(orders.stop), methods=["POST"]))
        routes.append(Route("/search", self._endpoint(tube.begin_search), methods=["POST"]))
        routes.append(Route("/login", self._endpoint(login.login, known=False), methods=["GET", "POST"]))
        routes.append(Route("/logout", self._endpoint(login.logout, known=False), methods=["POST"]))
        routes.append(Mount("/static", StaticFiles(directory=STATIC)))
        handlers: Any = {404: self._missing, 405: self._missing}
        self._app: ASGIApp = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        if not self.state.settings.login:
            self.state.users.of("").sampler.start()  # so that the first who looks finds charts
        try:
            yield
        finally:
            await self.state.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _with_base(scope, self.state.settings.base_path)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = dict(HEADERS)
                if "/static/" in scope["path"]:
                    more["cache-control"] = STATIC_LIFE
                if self.state.settings.hsts and not is_local_host(headers.get("host", "")):
                    more["strict-transport-security"] = "max-age=31536000"
                for name, value in more.items():
                    if name.encode() not in given:
                        message["headers"].append((name.encode(), value.encode()))
            await send(message)

        refused = refusal(scope["method"], headers, self.state.settings.hosts) or self._refuse_user(scope, headers)
        app = PlainTextResponse(refused[1] + "\n", refused[0]) if refused else self._app
        await app(scope, receive, send_with_headers)

    def _refuse_user(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is refused whose user the proxy does not name; None if it is not."""
        settings = self.state.settings
        if not settings.user_header:
            return None
        peer = scope.get("client") or ("",)
        if not is_trusted(str(peer[0]), settings.trusted):
            return 403, "This request did not come through the proxy of the console."
        number = sum(name.lower() == settings.user_header.encode("latin-1") for name, _ in scope["headers"])
        if number != 1 or not headers[settings.user_header]:
            return 403, f"The proxy did not send your user name: it must set {settings.user_header} exactly once."
        return None

    def _endpoint(
        self, page: Page, *, changes: bool = False, known: bool = True
    ) -> Callable[[Request], Awaitable[Response]]:
        """What answers a request: the page, or what is wrong."""

        async def endpoint(request: Request) -> Response:
            visit = await self._visit(request, known)
            if visit is None:
                path = str(request.scope.get("root_path", "")).rstrip("/")
                return Response(status_code=303, headers={"location": f"{path}/login"})
            try:
                if changes and self.state.settings.read_only:
                    raise BadRequestError("This console is read-only.", 403)
                return visit.live_page() or await page(visit)
            except BadRequestError as error:
                return visit.message(error.status, "Request refused", str(error))
            except RefusedError as error:
                return visit.message(409, "Request refused", str(error))
            except (Error, OSError) as error:
                status = 503
                for kind, found in STATUSES.items():
                    if isinstance(error, kind):
                        status = found
                title = {400: "Request refused", 403: "Permission denied", 404: "Not found"}.get(
                    status, "The server does not answer"
                )
                return visit.message(status, title, meaning(error))

        return endpoint

    async def _missing(self, request: Request, error: HTTPException) -> Response:
        """What answers a request for a path, or with a method, that no page has."""
        path = str(request.scope["path"])
        if "/static/" in path:
            return PlainTextResponse("There is no such file.\n", error.status_code)

        async def page(visit: Visit) -> Response:
            return visit.message(error.status_code, "Not found", f"The console has no page {shown(path, 200)}.")

        return await self._endpoint(page)(request)

    async def _visit(self, request: Request, known: bool) -> Visit | None:
        """The visit of a request; None if the user has to sign in first."""
        state, settings = self.state, self.state.settings
        cookie = request.cookies.get(COOKIE, "")
        is_new = len(cookie) < 20 or len(cookie) > 100
        if is_new:
            cookie = new_cookie()
        name = request.headers.get(settings.user_header, "") if settings.user_header else ""
        if not settings.login:
            peer = request.client.host if request.client else "unix"
            who = shown(name, 80) or peer
            return Visit(request, state, state.users.of(""), who, "", cookie, is_new)
        session = state.sessions.find(cookie)
        if session is not None and state.users.of(session.token).sampler.is_unauthorized:
            state.sessions.end(cookie)
            await state.users.keep(state.sessions.tokens())
            session = None
        if session is not None:
            await state.users.keep(state.sessions.tokens())
            who = shown(name, 80) or session.name
            return Visit(request, state, state.users.of(session.token), who, session.owner, cookie, is_new)
        if known:
            return None
        return Visit(request, state, None, "", "", cookie, is_new)


def _with_base(scope: Scope, base: str) -> Scope:
    """A request below a base path, whether the proxy leaves it in the path or not."""
    if not base:
        return scope
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    if path != f"{root}{base}" and not path.startswith(f"{root}{base}/"):
        path = f"{root}{base}{path.removeprefix(root)}"
    return {**scope, "path": path, "raw_path": path.encode(), "root_path": root + base}
