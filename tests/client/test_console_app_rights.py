"""Against the rights of docs/access.md: no page shows and no order does what a token may not, with any rights."""

import asyncio
import contextlib
from itertools import combinations
from types import SimpleNamespace

import pytest
from beanstalk_client import Client
from beanstalk_client.console import actions, search, security
from beanstalk_client.console.pages import events
from beanstalk_client.console.security import MAX_ATTEMPTS_OF_ADDRESS, fingerprint
from beanstalk_client.console.visit import BadRequestError
from beanstalk_client.errors import UnauthorizedError
from visiting import Visitor, visiting

from beanstalk_server import Config
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.settings.sections import ListenerConfig, UserConfig

RIGHTS = ("produce", "consume", "inspect", "admin")
SETS = [each for number in range(len(RIGHTS) + 1) for each in combinations(RIGHTS, number)]

ROOT = "root-token-of-all-rights-" + "0" * 20
SECRET = "SECRET-BODY"
KEY = "SECRET-KEY"
TUBE = "hidden-bills"


def token_of(rights):
    return "token-" + ("-".join(rights) or "none") + "-" * 20


@pytest.fixture
def server(run):
    users = [
        UserConfig(
            name="-".join(rights) or "none",
            token_sha256=(hash_of_token(token_of(rights)),),
            **{right: ("open", TUBE) if right in rights else ("open",) for right in RIGHTS},
        )
        for rights in SETS
    ]
    users.append(UserConfig(name="root", token_sha256=(hash_of_token(ROOT),), **dict.fromkeys(RIGHTS, ("*",))))
    return run(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=tuple(users))


@pytest.fixture
def queue(server):
    with Client(server.address, encoding=None, token=ROOT) as client:
        yield client


@pytest.fixture
@contextlib.asynccontextmanager
async def app(server):
    """The console of the server, at which users sign in."""
    async with visiting(server.address, login=True) as visitor:
        yield visitor.app


@pytest.fixture
def visitor(server):
    return visiting(server.address, login=True)


async def sign_in(app, token):
    visitor = Visitor(app)
    await visitor.get("/login")
    await visitor.send("/login", token=token, name="")
    return visitor


def state_of(queue):
    """All that orders could change, but for what reserving counts."""
    found = queue.stats_tube(TUBE)
    jobs = [
        (job["id"], job["state"], job["pri"])
        for state in ("ready", "delayed", "buried")
        for job in queue.list_jobs(TUBE, state)
    ]
    return jobs, found["pause"], found["total-jobs"]


@pytest.fixture
def ids(queue):
    queue.use(TUBE)
    made = {"ready": queue.put(SECRET.encode()), "delayed": queue.put_with(SECRET.encode(), delay=1000, key=KEY)}
    made["buried"] = queue.put(SECRET.encode(), 0)
    queue.watch(TUBE)
    queue.bury(queue.reserve(0), 0)
    queue.use("open")
    queue.put(b"for all")
    return made


ORDERS = {
    "kick": ({"scope": "all", "tube": TUBE, "state": "buried"}, "admin"),
    "kick ": ({"id": "{buried}"}, "admin"),
    "delete": ({"id": "{ready}"}, "consume"),
    "delete ": ({"scope": "all", "tube": TUBE, "state": "ready"}, "consume"),
    "bury": ({"id": "{ready}"}, "consume"),
    "move": ({"id": "{ready}", "to": "open"}, "consume"),
    "move ": ({"scope": "all", "tube": TUBE, "state": "buried", "to": "open"}, "admin"),
    "clear": ({"tube": TUBE}, "admin"),
    "kick-tubes": ({"tube": TUBE}, "admin"),
    "pause": ({"tube": TUBE, "seconds": "60"}, "admin"),
    "pause-until-resumed": ({"tube": TUBE}, "admin"),
    "reprioritize": ({"id": "{ready}", "pri": "1"}, "produce"),
    "reprioritize ": ({"scope": "all", "tube": TUBE, "state": "ready", "pri": "1"}, "produce"),
    "put": ({"tube": TUBE, "body": "x"}, "produce"),
    "change": ({"id": "{ready}", "body": "x"}, "produce"),
}
"""What is ordered, and a right without which nothing may change."""


@pytest.mark.parametrize("rights", [each for each in SETS if "inspect" not in each], ids="-".join)
async def test_no_page_shows_what_the_token_may_not_see(queue, ids, rights, app):
    root = await sign_in(app, ROOT)
    await root.get("/tube?name=" + TUBE)  # so the console itself has seen it
    await root.send("/search", name=TUBE, state="ready", text="SECRET")
    visitor = await sign_in(app, token_of(rights))
    paths = ["/", "/tubes", "/failures", "/schedules", "/clients", "/cluster", "/log", "/search?id=1"]
    paths += [f"/tube?name={TUBE}&state={state}" for state in ids]
    paths += [f"/{page}?id={job_id}" for page in ("job", "job/body") for job_id in ids.values()]
    for path in paths * 2:
        for live in ("", "1"):
            page = await visitor.get(path, x_live=live)
            assert SECRET not in page.text and KEY not in page.text, path
            assert TUBE not in page.text or rights, path
    await visitor.get("/tubes")
    assert TUBE not in visitor.page.text and "open" in visitor.text


@pytest.mark.parametrize("rights", SETS, ids=lambda rights: "-".join(rights) or "none")
async def test_no_order_does_what_the_token_may_not_do(queue, ids, rights, app):
    before = state_of(queue)
    visitor = await sign_in(app, token_of(rights))
    for op, (fields, needed) in ORDERS.items():
        if needed in rights:
            continue
        filled = {name: value.format(**ids) for name, value in fields.items()}
        await visitor.get("/log")
        await visitor.order(op.strip(), **filled)
        assert state_of(queue) == before, (op, visitor.text)


async def test_signing_in_takes_a_token_that_the_server_knows_and_out_forgets_it(queue, ids, visitor):
    for path in ("/", "/tubes", f"/job?id={ids['ready']}", "/events", "/log"):
        page = await visitor.get(path)
        assert page.status_code == 303 and page.headers["location"] == "/login"
    await visitor.get("/login")
    assert (await visitor.send("/login", token="wrong", name="")).status_code == 401
    assert "does not accept this token" in visitor.text and "wrong" not in visitor.page.text
    fixed = dict(visitor.http.cookies)
    await visitor.send("/login", token=ROOT, name="Ada")
    assert dict(visitor.http.cookies) != fixed, "a cookie from before is not the session's"
    assert (await visitor.get(f"/job?id={ids['ready']}")).status_code == 200
    assert ROOT not in visitor.page.text
    await visitor.order("pause", tube="open", seconds="5")
    await visitor.get("/log")
    assert "Ada" in visitor.text and ROOT not in visitor.page.text
    await visitor.get("/login")
    await visitor.send("/login", token=ROOT, name="Ada")
    assert len(visitor.app.state.sessions) == 1, "signing in again ends the session before"
    cookies = dict(visitor.http.cookies)
    await visitor.send("/logout")
    assert len(visitor.app.state.sessions) == 0
    visitor.http.cookies.update(cookies)
    assert (await visitor.get("/")).status_code == 303


async def test_the_log_shows_the_orders_of_the_same_token_only(queue, ids, app):
    root, other = await sign_in(app, ROOT), await sign_in(app, token_of(("consume",)))
    await root.get("/log")
    await root.order("pause", tube=TUBE, seconds="5")
    await root.get("/log")
    assert TUBE in root.text
    for path in ("/log", "/log?id=1", "/log?did=1"):
        await other.get(path)
        assert TUBE not in other.text


async def test_no_user_takes_the_place_of_the_orders_and_searches_of_others(queue, ids, monkeypatch, app):
    monkeypatch.setattr(actions, "KEPT", 4)
    monkeypatch.setattr(search, "MAX_SEARCHES", 2)
    root, other = await sign_in(app, ROOT), await sign_in(app, token_of(RIGHTS))
    await root.order("pause", tube=TUBE, seconds="5")
    await root.send("/search", name=TUBE, state="ready", text="SECRET")
    for _ in range(6):
        await other.order("resume", tube="open")
        await other.send("/search", name="open", state="ready", text="all")
    await root.get("/log")
    assert TUBE in root.text
    assert (await root.get("/search?id=1")).status_code == 200


async def test_a_page_that_is_live_ends_with_the_session(queue, app):
    visitor = await sign_in(app, ROOT)
    await visitor.get("/")
    user = app.state.users.of(ROOT)

    async def ticks():
        return [tick async for tick in events._ticks(SimpleNamespace(user=user, state=app.state, owner="", who=""))]

    stream = asyncio.create_task(ticks())
    await asyncio.sleep(0)
    await visitor.send("/logout")
    assert (await asyncio.wait_for(stream, 10))[-1].startswith("event: tick")
    await user.sampler.look()
    assert user.sampler._task.done()


async def test_a_session_ends_with_its_token(server, queue, ids, app):
    visitor = await sign_in(app, token_of(RIGHTS))
    sampler = app.state.users.of(token_of(RIGHTS)).sampler
    await sampler.sample()
    assert TUBE in (await visitor.get("/tubes")).text
    listeners = (ListenerConfig(address="127.0.0.1:0", auth="token"),)
    root = UserConfig(name="root", token_sha256=(hash_of_token(ROOT),), inspect=("*",))
    reload = server.server.reload(Config(listeners=listeners, users=(root,)))
    await asyncio.to_thread(server.wait_for, reload)
    await sampler.sample()
    for path in ("/tubes", "/", f"/tube?name={TUBE}"):
        assert (await visitor.get(path)).status_code == 303
    assert len(app.state.users) == 0


async def test_the_log_of_the_process_tells_who_took_the_name_of_another(app, queue, ids, caplog):
    caplog.set_level("INFO", "beanstalk_client.console")

    for token in (ROOT, token_of(RIGHTS)):
        visitor = Visitor(app)
        await visitor.get("/login")
        await visitor.send("/login", token=token, name="Ada")
        await visitor.get("/log")
        await visitor.order("pause", tube="open", seconds="5")
    tokens = (ROOT, token_of(RIGHTS))
    told = [record.getMessage() for record in caplog.records if record.name == "beanstalk_client.console"]
    assert all(f'"Ada" ({fingerprint(token)})' in text for token, text in zip(tokens, told, strict=True))


async def test_the_name_of_a_person_imitates_no_entry_of_the_log(visitor, queue, ids, caplog):
    caplog.set_level("INFO", "beanstalk_client.console")

    await visitor.get("/login")
    await visitor.send("/login", token=ROOT, name='eve" (token 1): Clear\n\u202e')
    await visitor.get("/log")
    await visitor.order("pause", tube="open", seconds="5")
    assert caplog.messages[0].startswith(f'"eve\\" (token 1): Clear\\\\n\\\\u202e" ({fingerprint(ROOT)}): ')


async def try_to_sign_in(app, token):
    """The status that a new visitor gets for a token."""
    visitor = Visitor(app)
    await visitor.get("/login")
    return (await visitor.send("/login", token=token, name="")).status_code


async def test_a_right_token_is_never_refused_because_of_wrong_ones(queue, app):
    *refused, taken = await asyncio.gather(
        *[try_to_sign_in(app, "wrong-token-" * 3) for _ in range(40)], try_to_sign_in(app, ROOT)
    )
    assert set(refused) == {401} and taken == 200
    assert len(app.state.attempts) == 0


class WrongCheck:
    """A client whose token is wrong, as it finds out when the test lets it."""

    def __init__(self, opened):
        self.opened = opened

    async def connect(self):
        await self.opened.wait()
        raise UnauthorizedError("wrong")

    async def close(self):
        pass


async def test_pages_and_known_tokens_wait_for_no_check_and_new_tokens_for_those_before_them(
    app, queue, ids, monkeypatch
):
    wrong = [f"wrong-token-{number}" for number in range(200)]
    right = token_of(RIGHTS)
    monkeypatch.setattr(security, "PAUSE", 0.0)
    monkeypatch.setattr(security, "SPACING", 0.0)

    opened, begun = asyncio.Event(), []
    state = app.state
    connect = state.connect
    root = await sign_in(app, ROOT)

    def check(token):
        begun.append(token)
        return WrongCheck(opened) if token in wrong else connect(token)

    monkeypatch.setattr(state, "connect", check)
    tries = []
    for count, token in enumerate([*wrong, right], 1):
        tries.append(asyncio.create_task(try_to_sign_in(app, token)))
        async with asyncio.timeout(60):
            while len(state.attempts) < count:
                await asyncio.sleep(0)
    assert begun == wrong[:MAX_ATTEMPTS_OF_ADDRESS]
    assert (await root.get(f"/job?id={ids['ready']}")).status_code == 200
    again = await sign_in(app, ROOT)
    assert again.page.status_code == 200
    assert begun == wrong[:MAX_ATTEMPTS_OF_ADDRESS]
    opened.set()
    *refused, taken = await asyncio.gather(*tries)
    assert set(refused) == {401} and taken == 200
    assert begun == [*wrong, right] and len(state.attempts) == 0


async def test_the_token_of_a_client_that_has_gone_is_not_checked(queue, monkeypatch, visitor):
    await visitor.get("/login")
    tried = []
    monkeypatch.setattr(visitor.app.state, "connect", tried.append)

    async def is_disconnected(request):
        return True

    monkeypatch.setattr("starlette.requests.Request.is_disconnected", is_disconnected)
    assert (await visitor.send("/login", token=ROOT, name="")).status_code == 401
    assert tried == []


async def test_the_live_pages_of_one_user_take_no_place_of_another(queue, monkeypatch, app):
    monkeypatch.setattr(events, "MAX_STREAMS", 3)
    users, state = app.state.users, app.state

    def viewer(owner):
        return SimpleNamespace(user=users.of(ROOT), state=state, owner=owner, who="")

    streams = [events._ticks(viewer("greedy")) for _ in range(3)]
    for each in streams:
        await anext(each)
    with pytest.raises(BadRequestError, match="too many pages"):
        await events.events(viewer("greedy"))
    await events.events(viewer("modest"))
    other = events._ticks(viewer("modest"))
    await anext(other)
    assert sorted(state.streams.values()) == ["greedy", "greedy", "modest"]
    assert [each async for each in streams[0]] == [], "the oldest one has ended"
    for each in (*streams, other):
        await each.aclose()
    assert not state.streams
