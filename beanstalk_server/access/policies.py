"""Makes the policies of tubes, as a broker takes them, from the `[[tube]]` sections.

The first section that matches a tube applies. Names and prefixes are looked up in tables, because a client may make any
number of tubes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from beanstalk_server.queue.policy import NO_POLICY, Policy, PolicyOf
from beanstalk_server.queue.units import SECOND
from beanstalk_server.settings.kinds import interval_of
from beanstalk_server.settings.sections import TUBE_KEYS, TubeConfig, label_of
from beanstalk_server.tube_names import NONE, FirstMatch

MOST_SAID: Final = 20
"""Maximum number of changed sections that are named one by one."""

_SETTINGS: Final = tuple([each for each in TUBE_KEYS if each.name != "match"])

_DURATIONS: Final = ("max_delay", "backoff", "backoff_max", "ttl", "key_hold")
"""In seconds in a section, and in nanoseconds in a policy."""

Settings = tuple[tuple[str, int | str], ...]
"""The arguments of Policy that differ from its defaults."""

NO_SETTINGS: Final[Settings] = ()


class Policies:
    """The policies that sections ask for. `of` is a PolicyOf.

    Args:
        tubes: the sections, in their order.
        old: those before a reload: an equal policy stays the same object, so that a broker sees which tubes have
            another one.
    """

    def __init__(self, tubes: Sequence[TubeConfig], old: Policies | None = None) -> None:
        self.tubes = tuple(tubes)
        self._sections = FirstMatch([each.match for each in tubes])
        self._made: dict[Settings, Policy] = {NO_SETTINGS: NO_POLICY}  # by what they say
        known = self._made if old is None else old._made
        self._policies: list[Policy] = []
        self._without_dead_tube: list[Policy] = []  # the same, but for that
        for each in self.tubes:
            self._policies.append(self._make(_settings_of(each), known))
            self._without_dead_tube.append(self._make(_settings_of(each, dead_tube=""), known))

    def _make(self, settings: Settings, known: Mapping[Settings, Policy]) -> Policy:
        policy = self._made.get(settings) or known.get(settings)
        if policy is None:
            arguments: dict[str, Any] = dict(settings)
            policy = Policy(**arguments)
        self._made[settings] = policy
        return policy

    def of(self, name: str) -> Policy:
        """The policy of the tube of this name."""
        found = self._sections.of(name)
        return NO_POLICY if found == NONE else self._policies[found]

    def local(self, is_local: Callable[[str], bool]) -> PolicyOf:
        """The same for a broker that has only some of the tubes: it cannot move a job to a dead tube that is not one
        of them, and so has no such dead tube."""
        pairs = zip(self.tubes, self._policies, self._without_dead_tube, strict=True)
        policies = [policy if is_local(each.dead_tube) else without for each, policy, without in pairs]

        def find(name: str) -> Policy:
            found = self._sections.of(name)
            return NO_POLICY if found == NONE else policies[found]

        return find


def _settings_of(tube: TubeConfig, **instead: str) -> Settings:
    found: dict[str, int | str] = {}
    for each in _SETTINGS:
        value = instead.get(each.name, getattr(tube, each.name))
        if value == each.default:
            continue
        if each.name == "rate":
            found["interval"] = interval_of(value)
        elif each.name in _DURATIONS:
            found[each.name] = round(value * SECOND)
        else:
            found[each.name] = value
    return tuple(found.items())


def differences(old: Sequence[TubeConfig], new: Sequence[TubeConfig]) -> list[str]:
    """The changes of new sections: a line for each section, for the log."""
    before = {each.match: each for each in reversed(old)}  # of two with the same patterns, the first counts
    after = {each.match: each for each in reversed(new)}
    said = []
    for match, each in reversed(after.items()):
        if match not in before:
            said.append(f"{label_of(match)} added: {_shown(each)}")
        elif changes := _changes(before[match], each):
            said.append(f"{label_of(match)}: {changes}")
    said += [f"{label_of(match)} removed" for match in reversed(before) if match not in after]
    if [match for match in reversed(before) if match in after] != [
        match for match in reversed(after) if match in before
    ]:
        said.append("the order of the sections changed")
    left = len(said) - MOST_SAID
    return said if left <= 0 else [*said[:MOST_SAID], f"and {left} more"]


def _shown(tube: TubeConfig) -> str:
    given = [(each.key, getattr(tube, each.name)) for each in _SETTINGS if getattr(tube, each.name) != each.default]
    return ", ".join([f"{key} = {_value(value)}" for key, value in given]) or "no policy"


def _changes(old: TubeConfig, new: TubeConfig) -> str:
    pairs = [(each.key, getattr(old, each.name), getattr(new, each.name)) for each in _SETTINGS]
    return ", ".join([f"{key} = {_value(now)}, was {_value(was)}" for key, was, now in pairs if was != now])


def _value(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"
