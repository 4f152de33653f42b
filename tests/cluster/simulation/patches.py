"""Puts virtual clocks, threads and sockets into the place of the real ones, in the modules of the server.

The modules name them when they are imported, so every name, and every default of an argument, that is one of them is
replaced while a simulation runs. That works with the sources only, and not with what is compiled.
"""

import contextlib
import os
import resource
import secrets
import sys
import time
import types

from beanstalk_server.server import alarm, hangups
from beanstalk_server.server.front import listeners
from beanstalk_server.storage import write_thread
from tests.cluster.simulation.virtual_loop import PROCESS, START, WALL, VirtualWriteThread, this_thread


class OrderedSet(dict):
    """A set whose order is that of insertion, and so the same in each run."""

    def __init__(self, items=()):
        super().__init__(dict.fromkeys(items))

    def add(self, item):
        self[item] = None

    def discard(self, item):
        self.pop(item, None)

    remove = dict.__delitem__


class VirtualListeners(listeners.Listeners):
    """What server.listeners.Listeners is, for a process in virtual time, which has one address at the most."""

    def allow(self, max_connections):
        pass

    def listen(self):
        pass

    def start(self, loop, headroom):
        for listener in self.all:
            self._prepare(listener, self._client_maker)
        process = PROCESS.get()
        self._server = loop.network.listen(process, lambda: self.all[0].make_protocol(), process.name, 11300)

    def note_forbidden(self, client, user, reason):
        pass

    def connection_closed(self):
        pass

    async def stop(self):
        self._server.close()

    def close(self):
        pass

    def remove_paths(self):
        pass


def virtual_listener(config, settings):
    """What server.listeners.open_listener makes."""
    return types.SimpleNamespace(
        config=config, address=("node", 11300), inherited=False, close=lambda: None, remove_path=lambda: None
    )


class VirtualHangups:
    """What server.hangups.HangupWatch is."""

    def start(self, loop):
        self.network = loop.network

    def stop(self):
        pass

    def watch(self, descriptor, on_hangup):
        return self.network.watch(descriptor, on_hangup)

    def unwatch(self, descriptor):
        self.network.unwatch(descriptor)


def virtual_alarm(loop, clock, on_due):
    return alarm.LoopAlarm(loop, clock, on_due)


@contextlib.contextmanager
def virtual(loop, rng):
    """Let the server's modules live in the virtual time of a loop."""

    def monotonic_ns():
        process = PROCESS.get()
        return loop.now if process is None else process.monotonic_ns()

    def time_ns():
        process = PROCESS.get()
        return WALL + loop.now - START if process is None else process.time_ns()

    def sleep(seconds):
        baton = this_thread()
        assert baton is not None, "the event loop must not sleep"
        baton.sleep(round(seconds * 1e9))

    places = {
        time.monotonic_ns: monotonic_ns,
        time.monotonic: lambda: monotonic_ns() / 1e9,
        time.time_ns: time_ns,
        time.time: lambda: time_ns() / 1e9,
        time.sleep: sleep,
        write_thread.WriteThread: VirtualWriteThread,
        listeners.Listeners: VirtualListeners,
        listeners.open_listener: virtual_listener,
        hangups.HangupWatch: VirtualHangups,
        alarm.finest_alarm: virtual_alarm,
    }
    undo = []

    def put(where, name, value):
        undo.append((where, name, where.__dict__.get(name, undo)))
        setattr(where, name, value)

    def replaced(values):
        return None if values is None else tuple(_replace(value, places) for value in values)

    for module_name, module in sorted(sys.modules.items()):
        if not module_name.startswith("beanstalk_server") or module is None:
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType) and value.__module__ == module_name:
                _patch_defaults(value, replaced, places, undo)
            elif isinstance(value, type) and value.__module__ == module_name:
                for member in vars(value).values():
                    if isinstance(member, types.FunctionType):
                        _patch_defaults(member, replaced, places, undo)
            if _is_one(value, places):
                put(module, name, places[value])
        if module_name.startswith("beanstalk_server.server.connection"):
            put(module, "set", OrderedSet)
    # What a process says of itself in stats: how long that is must be the same in each run.
    put(os, "getpid", lambda: 12345)
    put(os, "uname", lambda: os.uname_result(("Linux", "node", "6.1", "#1", "machine")))
    put(resource, "getrusage", lambda _: types.SimpleNamespace(ru_utime=12.0, ru_stime=12.0))
    put(os, "urandom", rng.randbytes)
    put(secrets, "token_hex", lambda size: rng.randbytes(size).hex())
    put(secrets, "randbits", rng.getrandbits)
    try:
        yield
    finally:
        for where, name, value in reversed(undo):
            if value is undo:
                delattr(where, name)
            else:
                setattr(where, name, value)


def _is_one(value, places):
    try:
        return value in places
    except TypeError:
        return False


def _replace(value, places):
    return places[value] if _is_one(value, places) else value


def _patch_defaults(function, replaced, places, undo):
    if function.__defaults__ and any(_is_one(value, places) for value in function.__defaults__):
        undo.append((function, "__defaults__", function.__defaults__))
        function.__defaults__ = replaced(function.__defaults__)
    if function.__kwdefaults__ and any(_is_one(value, places) for value in function.__kwdefaults__.values()):
        undo.append((function, "__kwdefaults__", function.__kwdefaults__))
        function.__kwdefaults__ = {name: _replace(value, places) for name, value in function.__kwdefaults__.items()}
