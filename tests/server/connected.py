"""Who is connected to a server in a thread, and who is not known yet."""

from harness.waiting import eventually


def pending(server):
    return server.call(lambda: len(server.server.pending))


def taken(server):
    return server.call(lambda: server.server.listeners.taken)


def nobody_is_left(server):
    eventually(lambda: (pending(server), taken(server)) == (0, 0), "no client is connected")


def users(server):
    """The names of the users that are connected."""

    def names():
        found = [connection.session.user for connection in server.server.connections.open]
        return sorted("nobody" if user is None else user.name for user in found)

    return server.call(names)
