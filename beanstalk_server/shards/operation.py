"""A command that concerns several shards, or that the router itself answers in part: what the router wants of it.

    operation.begin()             nothing is unanswered at any branch: ask them, and answer with `router.finish(reply)`
    operation.on_leader(shard)    a branch has got a place again

Must never know places or sockets.
"""

from __future__ import annotations

from beanstalk_server.queue.native import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Operation:
    """One command that is under way. No other command of the client is begun before `router.finish`, which is called
    exactly once, perhaps in `begin`."""

    __slots__ = ()

    def begin(self) -> None:
        """Ask the branches whatever it takes."""
        raise NotImplementedError

    def let_go(self) -> None:
        """The client is gone: refer to nothing that refers to this, because the collector may be off."""

    def on_leader(self, shard: int) -> None:
        """The branch of this shard has got a place, after it had none."""
