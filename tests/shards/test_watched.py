"""A router knows which tubes its client watches, in the order in which a session has them."""

from hypothesis import given
from hypothesis import strategies as st
from virtual import World

from beanstalk_server.shards.watched import Watched


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde")), max_size=30))
def test_tubes_are_watched_in_the_order_in_which_a_session_has_them(steps):
    caller = World().connect()
    caller.session.restore("default", ["a", "b"])
    watched = Watched(["a", "b"])
    for adds, name in steps:
        names = [tube.name for tube in caller.session.watched]
        if adds:
            caller.send(b"watch %b\r\n" % name.encode())
            assert watched.add(name) is (name not in names)
        elif caller.send(b"ignore %b\r\n" % name.encode()) != b"NOT_IGNORED\r\n":
            assert watched.remove(name) is (name in names)
        assert (name in watched) is (name in watched.names)
    assert watched.names == [tube.name for tube in caller.session.watched]
