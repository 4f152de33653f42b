"""A whole server in virtual time at the other end of a network in memory: what a client says and hears travels turn by
turn of the event loop, cut into pieces at random, and the test moves the clock.
"""

import asyncio
import random

from virtual import World


class Served:
    """Serves the connections of a network.

    Args:
        network: a fake_network.Network.
        seed: of the pieces and delays.

    Attributes:
        world: the server.
    """

    def __init__(self, network, seed=0, **how):
        self._network = network
        self._rng = random.Random(seed)
        self._how = how
        self.world = World(**how)
        self._callers = {}  # by peer
        self._heard = {}  # by peer: what is still on its way to the client

    def restart(self):
        """The server dies with all that it has not journalled, which is everything; an empty one takes its place."""
        self.drop()
        self.world = World(**self._how)

    def drop(self):
        """All connections are lost, with what is under way."""
        for peer in list(self._callers):
            self._callers.pop(peer).disconnect()
            self._heard.pop(peer)
            if not peer.is_left:
                peer.hang_up(ConnectionResetError(104, "Connection reset by peer"))
            peer.is_dropped = True

    async def turn(self):
        """One turn of the loop, in which some of what is under way arrives."""
        await asyncio.sleep(0)
        for peer in self._network.peers:
            self._serve(peer)

    async def turns(self, count):
        for _ in range(count):
            await self.turn()

    def _serve(self, peer):
        if peer.is_dropped:
            return
        if peer not in self._callers:
            self._callers[peer] = self.world.connect()
            self._heard[peer] = b""
        caller = self._callers[peer]
        if peer.is_left:
            caller.disconnect()
            del self._callers[peer], self._heard[peer]
            peer.is_dropped = True
            return
        unread = peer.transport.unread
        arrives = self._rng.choice((len(unread), self._rng.randint(0, len(unread))))
        data = bytes(unread[:arrives])
        del unread[:arrives]
        self._heard[peer] += caller.send(data) if data else caller.read()
        size = self._rng.choice((len(self._heard[peer]), self._rng.randint(0, len(self._heard[peer]))))
        piece, self._heard[peer] = self._heard[peer][:size], self._heard[peer][size:]
        if piece:
            peer.say(piece)

    async def until(self, done, what, turns=100_000):
        """Let turns pass until something is true."""
        for _ in range(turns):
            if done():
                return
            await self.turn()
        raise AssertionError(f"not within {turns} turns: {what}")

    async def finish(self, *awaitables):
        """Let turns pass until these are done; return their outcomes, errors among them."""
        tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        await self.until(lambda: all(task.done() for task in tasks), "it is done")
        return await asyncio.gather(*tasks, return_exceptions=True)
