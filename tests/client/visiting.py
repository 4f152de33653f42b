"""A browser without a window, and consoles that it visits: over ASGI, or at a port."""

import contextlib
import html
import re
import threading

import httpx
import uvicorn
from beanstalk_client.console import console

ORIGIN = "http://localhost"


def put(queue, tube, body=b"{}", count=1, **how):
    queue.use(tube)
    return [queue.put(body, **how) for _ in range(count)]


def bury(queue, tube, count=1, body=b"{}"):
    ids = put(queue, tube, body, count)
    queue.watch(tube)
    for _ in ids:
        queue.bury(queue.reserve(0))
    queue.ignore(tube)
    return ids


class Visitor:
    """A user who visits a console, keeps cookies, and sends the forms of its pages."""

    def __init__(self, app, base=""):
        self.app = app
        self.base = base
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN, timeout=30)
        self.page = None

    async def get(self, path, **headers):
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.page = await self.http.get(f"{self.base}{path}", headers=names)
        return self.page

    @property
    def csrf(self):
        return re.search(r'name="csrf" value="([0-9a-f]+)"', self.page.text)[1]

    async def send(self, path, *, follow=True, headers=None, csrf=None, **fields):
        """Send a form from the page that is shown."""
        if csrf is None:
            if self.page is None or 'name="csrf"' not in self.page.text:
                await self.get("/log")
            csrf = self.csrf if 'name="csrf"' in self.page.text else await self._any_csrf()
        sent = {"sec-fetch-site": "same-origin", "origin": ORIGIN} | (headers or {})
        data = dict(fields.items()) | {"csrf": csrf}
        self.page = await self.http.post(f"{self.base}{path}", data=data, headers=sent)
        while follow and self.page.status_code == 303:
            self.page = await self.http.get(self.page.headers["location"])
        return self.page

    async def _any_csrf(self):
        await self.get("/tube?name=default")
        return self.csrf

    async def order(self, op, *, sure=True, **fields):
        """Send an order, and say yes if it is asked once more."""
        return await self.send("/order", op=op, **({"sure": "1"} if sure else {}), **fields)

    @property
    def text(self):
        """The page as a person reads it."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", self.page.text)).split())


def console_of(address, **settings):
    """A console that anyone may use, unless the settings say who may."""
    anyone = not (settings.get("login") or settings.get("user_header"))
    return console(address, anyone=anyone, **settings)


@contextlib.asynccontextmanager
async def visiting(address, **settings):
    """A user who visits the console of a server."""
    app = console_of(address, **settings)
    visitor = Visitor(app, settings.get("base_path", ""))
    try:
        yield visitor
    finally:
        await visitor.http.aclose()
        await app.state.close()


@contextlib.contextmanager
def console_at_port(address, **settings):
    """The console of a server at a free port, in a thread: its URL. For browsers."""
    app = console_of(address, **settings)
    config = uvicorn.Config(app, port=0, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="console")
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the console does not start")
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}{settings.get('base_path', '')}"
    finally:
        server.should_exit = True
        thread.join(10)
