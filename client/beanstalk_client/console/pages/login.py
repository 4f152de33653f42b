"""Signs users in with a token of the queue, and out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from starlette.responses import Response

from beanstalk_client.console.actions import meaning
from beanstalk_client.console.security import set_cookie
from beanstalk_client.console.visit import SMALL_FORM, Visit
from beanstalk_client.errors import Error, UnauthorizedError, UnknownCommandError, shown

MAX_FORM: Final = SMALL_FORM
"""Maximum bytes of a form from a user who has not signed in."""

MAX_NAME: Final = 40


async def login(visit: Visit) -> Response:
    if not visit.settings.login:
        return visit.redirect(visit.url(""))
    if visit.request.method != "POST":
        return visit.page("login.html", tab="", problem="")
    form = await visit.form(MAX_FORM)
    token, name = form.get("token", [""])[0].strip(), form.get("name", [""])[0].strip()
    problem = await _problem(visit, token)
    if problem:
        return visit.page("login.html", 401, tab="", problem=problem)
    visit.state.sessions.end(visit.cookie)
    cookie, _ = visit.state.sessions.begin(token, shown(name, MAX_NAME))
    response = visit.redirect(visit.url(""))
    if visit.is_new:
        del response.headers["set-cookie"]
    response.headers.append("set-cookie", set_cookie(visit.base, cookie, secure=visit.is_secure))
    return response


async def logout(visit: Visit) -> Response:
    await visit.form(MAX_FORM)
    visit.state.sessions.end(visit.cookie)
    await visit.state.users.keep(visit.state.sessions.tokens())
    response = visit.redirect(visit.url("login" if visit.settings.login else ""))
    response.headers.append("set-cookie", set_cookie(visit.base, "", secure=visit.is_secure, life=0))
    return response


async def _problem(visit: Visit, token: str) -> str:
    """Why a token is not taken; "" if it is."""
    if not token:
        return "Enter a token of the queue server."
    if token in visit.state.sessions.tokens() and not visit.state.users.of(token).sampler.is_unauthorized:
        return ""
    async with visit.state.attempts.place(visit.address):
        if await visit.request.is_disconnected():  # while it waited: there is no answer to find
            return "The browser disconnected."
        problem, is_wrong = await _try(visit, token)
    if is_wrong:
        await asyncio.sleep(visit.state.attempts.pause())  # it takes no place
    return problem


async def _try(visit: Visit, token: str) -> tuple[str, bool]:
    """Why the server does not take a token, "" if it does; and whether the token is wrong."""
    try:
        client = visit.state.connect(token)
    except ValueError as error:
        return str(error), True
    try:
        await client.connect()
    except UnknownCommandError:
        return "This server has no users and accepts no tokens: use the console without login.", True
    except UnauthorizedError:
        return "The server does not accept this token.", True
    except (Error, OSError) as error:
        return meaning(error), False
    finally:
        with contextlib.suppress(Error, OSError):
            await client.close()
    return "", False
