"""One HTTP request with its user: reads the query and the form, and renders the page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from markupsafe import Markup
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from beanstalk_client.console.security import network_of, set_cookie
from beanstalk_client.console.settings import Settings
from beanstalk_client.console.state import State
from beanstalk_client.console.users import User
from beanstalk_client.errors import ForbiddenError, UnknownCommandError, shown
from beanstalk_client.replies import is_name

MAX_FORM: Final = 17 * 1024 * 1024
"""Bytes of the largest form: a body of 10 MB, as it is encoded."""

SMALL_FORM: Final = 4096
"""Bytes of the largest form that does not wait for a thread: it is parsed in 2 ms, with 2,000 fields."""

CSRF: Final = re.compile(rb"(?:^|&)csrf=([0-9a-f]{64})(?=&|$)")
"""The field of a form that shows whose page it is from; its value needs no encoding."""

MAX_FIELDS: Final = 20_000

MAX_LIVE: Final = 32
"""Maximum number of rendered pages that viewers of the same page share."""

Form = Mapping[str, Sequence[str]]


class BadRequestError(Exception):
    """A request is malformed; the message says how, and `field` which field of the form is wrong, if it is one."""

    def __init__(self, message: str, status: int = 400, field: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.field = field


@dataclass(eq=False, repr=False)
class Visit:
    """A request, with its user and session.

    Attributes:
        user: the user with whose rights it runs. (BadRequestError: there is none, on the page to sign in.)
        who: what the log calls them.
        owner: a digest of the token, or "": the owner of actions and searches.
        cookie: theirs; `is_new` if they have to get it yet.
        base: what stands before all paths.
        live: the script asks again for what is on the screen: only what has been sampled may change, and the server
            must be asked for nothing.
    """

    request: Request
    state: State
    _user: User | None
    who: str
    owner: str
    cookie: str
    is_new: bool

    def __post_init__(self) -> None:
        request = self.request
        self.base: str = str(request.scope.get("root_path", "")).rstrip("/")
        self.live: bool = self.is_known and request.method == "GET" and request.headers.get("x-live") == "1"

    @property
    def user(self) -> User:
        if self._user is None:
            raise BadRequestError("Sign in first.", 401)
        return self._user

    @property
    def is_known(self) -> bool:
        """Whether it has a user."""
        return self._user is not None

    async def knows(self, command: str) -> bool:
        """Whether the server knows a command, and says so to this user."""
        try:
            return await self.user.client.knows(command)
        except (UnknownCommandError, ForbiddenError):
            return False

    @property
    def settings(self) -> Settings:
        return self.state.settings

    @property
    def address(self) -> str:
        """Where the request comes from, as attempts are counted."""
        return network_of(self.request.client.host if self.request.client else "")

    @property
    def is_secure(self) -> bool:
        """Whether the browser speaks TLS: with the console, or with the proxy before it."""
        forwarded = self.request.headers.get("x-forwarded-proto", "")
        return "https" in (self.request.url.scheme, forwarded.split(",")[0].strip())

    # What it asks for

    def text(self, name: str, default: str = "") -> str:
        return str(self.request.query_params.get(name, default))

    def tube(self, name: str = "name") -> str:
        """The name of a tube."""
        return read_name(self.text(name))

    def number(self, name: str, default: int | None = None, most: int = 2**64 - 1) -> int:
        return read_number(self.text(name), name, default, most)

    async def form(self, most: int = MAX_FORM) -> Form:
        """The fields of a form, each with all its values, if it has been sent from a page of who sends it.

        Args:
            most: bytes of it.

        Raises:
            BadRequestError: it is too large, or has not.
        """
        size = self.request.headers.get("content-length", "")
        if size.isascii() and size.isdigit() and int(size[:20]) > most:
            raise BadRequestError("The form is too large.", 413)
        data = bytearray()
        try:
            async for part in self.request.stream():
                data += part
                if len(data) > most:
                    raise BadRequestError("The form is too large.", 413)
        except ClientDisconnect:
            raise BadRequestError("The form is not complete.") from None
        sent = CSRF.search(data)  # before the rest is parsed, which can take a second
        if sent is None or not self.state.forms.fits(self.cookie, sent[1].decode("ascii")):
            raise BadRequestError("This form is from an older page: reload the page, and try again.", 403)
        fields: dict[str, list[str]] = {}
        try:
            if len(data) <= SMALL_FORM:
                pairs = _read_form(data)
            else:
                pairs = await asyncio.to_thread(_read_form, data)  # seconds for one of MAX_FORM
        except ValueError:
            raise BadRequestError("The form is malformed.") from None
        for name, value in pairs:
            fields.setdefault(name, []).append(value)
        return fields

    # Its page

    def url(self, path: str, **query: Any) -> str:
        """The address of a page."""
        asked = urlencode([(name, value) for name, value in query.items() if value not in (None, "")], quote_via=quote)
        return f"{self.base}/{path}" + (f"?{asked}" if asked else "")

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        """A page made of a template."""
        own = csrf_field(self.state.forms.value(self.cookie))
        text = self.state.templates.get_template(template).render(
            visit=self,
            base=self.base,
            url=self.url,
            settings=self.settings,
            can_change=not self.settings.read_only,
            csrf=csrf_field("") if self.live else own,
            did=self._did(),
            live=self.live,
            failed=self._user.sampler.totals["buried"] if self._user is not None else 0,
            **context,
        )
        if self.live and status == 200 and "data-busy" not in text:  # what is at work changes sooner
            self.state.live[self.live_key] = text
            while len(self.state.live) > MAX_LIVE:
                self.state.live.popitem(last=False)
        response = HTMLResponse(text.replace(csrf_field(""), own) if self.live else text, status)
        self.keep_cookie(response)
        return response

    def message(self, status: int, title: str, text: str) -> Response:
        """A page that says what was not done, with a link to the page that asked for it."""
        try:
            asked = urlsplit(self.request.headers.get("referer", ""))
        except ValueError:
            asked = urlsplit("")
        is_own = asked.netloc == self.request.headers.get("host", "") and asked.path.startswith(f"{self.base}/")
        back = f"{asked.path}?{asked.query}" if asked.query else asked.path
        is_own = is_own and not back.startswith("//")  # which would be another host
        return self.page("message.html", status, title=title, text=text, back=back if is_own else "")

    def live_page(self) -> Response | None:
        """The page that another viewer has got from the same sample, if the script asks for it."""
        text = self.state.live.get(self.live_key) if self.live else None
        return (
            HTMLResponse(text.replace(csrf_field(""), csrf_field(self.state.forms.value(self.cookie))))
            if text
            else None
        )

    @property
    def live_key(self) -> tuple[object, ...]:
        url, sampler = self.request.url, self.user.sampler
        return self.owner, self.who, url.path, url.query, self.base, sampler.taken, sampler.problem

    def redirect(self, url: str) -> Response:
        response = RedirectResponse(url, 303)
        self.keep_cookie(response)
        return response

    def keep_cookie(self, response: Response) -> None:
        if self.is_new:
            response.headers.append("set-cookie", set_cookie(self.base, self.cookie, secure=self.is_secure))

    def _did(self) -> Any:
        """The action whose outcome is to be told on this page, or None."""
        asked = self.text("did")
        is_number = asked.isascii() and asked.isdigit() and len(asked) < 21
        return self.state.actions.find(self.owner, int(asked)) if is_number else None


def _read_form(data: bytearray) -> list[tuple[str, str]]:
    return parse_qsl(data.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)


def csrf_field(value: str) -> Markup:
    """The field of a form that shows whose page it is from."""
    return Markup('<input type="hidden" name="csrf" value="{}">').format(value)


def read_name(text: str, what: str = "tube", field: str = "") -> str:
    """The name of a tube, or a key, of a field of a form.

    Raises:
        BadRequestError: it can be none.
    """
    if not is_name(text):
        raise BadRequestError(
            f"Bad {what} {shown(text, 210)!r}: must be 1 to 200 characters of A-Z a-z 0-9 - + / ; . $ _ ( ), "
            "not beginning with a hyphen.",
            field=field,
        )
    return text


def read_number(text: str, name: str, default: int | None = None, most: int = 2**64 - 1) -> int:
    """A whole number.

    Raises:
        BadRequestError: it is none, or too large.
    """
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 21 and int(text) <= most):
        raise BadRequestError(f"Bad {name} {shown(text, 30)!r}: must be a number from 0 to {most}.", field=name)
    return int(text)
