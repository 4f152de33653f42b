"""The tubes that a client watches, as the node that relays it knows them."""

from __future__ import annotations


class Watched:
    """The tubes that a client watches, in the order in which a session has them."""

    __slots__ = ("_positions", "names")

    def __init__(self, names: list[str]) -> None:
        self.names = list(names)
        self._positions = {name: position for position, name in enumerate(names)}

    def __contains__(self, name: str) -> bool:
        return name in self._positions

    def add(self, name: str) -> bool:
        """Add one; False if it is watched already."""
        if name in self._positions:
            return False
        self._positions[name] = len(self.names)
        self.names.append(name)
        return True

    def remove(self, name: str) -> bool:
        """Remove one; False if it is not watched. As in beanstalkd, the last one takes its place."""
        position = self._positions.pop(name, -1)
        if position < 0:
            return False
        last = self.names.pop()
        if last != name:
            self.names[position] = last
            self._positions[last] = position
        return True
