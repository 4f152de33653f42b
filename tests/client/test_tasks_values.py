"""Arguments that JSON lacks: each arrives as it was put, and no other type is made."""

import dataclasses
import enum
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from beanstalk_client.tasks import Tasks
from beanstalk_client.tasks.message import UnreadableError, read
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st


class Colour(enum.Enum):
    RED = "red"
    BLUE = ("blue", 1)


class Size(enum.StrEnum):
    SMALL = "small"


@dataclasses.dataclass
class Street:
    name: str
    number: int = 1


@dataclasses.dataclass(frozen=True)
class Address:
    street: Street
    colour: Colour | None = None
    hash: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Stranger:
    name: str


@pytest.fixture
def tasks():
    return Tasks(types=[Colour])


def carried(tasks, value):
    @tasks.task(name=f"take-{len(tasks.tubes)}-{id(value)}")
    def take(value, address: Address | None = None, more: "list[Street] | None" = None): ...

    (found,) = read(take.body(value), tasks.serializer).args
    return found


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["$type", "$", "$$value", Colour.RED, UUID(int=7), Decimal("9.90")])
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.dates()
    | st.times()
    | st.timedeltas(min_value=timedelta(days=-9999), max_value=timedelta(days=9999))
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.builds(Address, st.builds(Street, st.text(max_size=3)), st.none() | st.just(Colour.RED)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$type", "value", "$$type"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TASKS = Tasks(types=[Address])


@given(VALUES)
@settings(max_examples=examples(200))
def test_values_arrive_as_they_were_put(value):
    content = {"task": "x", "args": [value]}
    found = TASKS.serializer.read(TASKS.serializer.write(content))
    assert found == content
    assert [type(each) for each in found["args"]] == [type(value)]


def test_types_are_found_in_annotations_of_tasks(tasks):
    address = Address(Street("x", 7), Colour.RED)
    assert carried(tasks, [address, {"a": address}]) == [address, {"a": address}]
    assert carried(tasks, Street("y")) == Street("y")


def test_a_body_of_json_is_as_before(tasks):
    body = tasks.task(name="plain")(print).body("$5", {"a": [1, None]}, Size.SMALL)
    assert json.loads(body) == {"task": "plain", "args": ["$5", {"a": [1, None]}, "small"], "kwargs": {}}


def test_other_programs_can_write_these_values(tasks):
    body = b"""{"task": "x", "args": [{"$type": "date", "value": "2027-01-31"}],
        "kwargs": {"c": {"$type": "Colour", "value": "red"}}}"""
    message = read(body, tasks.serializer)
    assert (message.args, message.kwargs) == ([date(2027, 1, 31)], {"c": Colour.RED})


@pytest.mark.parametrize(
    "value",
    [
        {"$type": "Stranger", "value": {"name": "x"}},
        {"$type": "os:system", "value": "true"},
        {"$type": ["x"], "value": 1},
        {"$type": "Colour", "value": "green"},
        {"$type": "Colour", "value": {}},
        {"$type": "datetime", "value": "yesterday"},
        {"$type": "Decimal", "value": {}},
        {"$type": "timedelta", "value": 1e300},
        {"$type": "Street", "value": {}},
        {"$type": "Street", "value": "x"},
    ],
)
def test_other_types_and_values_are_not_read(value):
    tasks = Tasks(types=[Address, Colour])
    with pytest.raises(UnreadableError):
        read(json.dumps({"task": "x", "args": [value]}).encode(), tasks.serializer)


def test_a_field_that_a_dataclass_lacks_is_left_out(tasks):
    """A producer of a later version may have it."""
    value = {"$type": "Street", "value": {"name": "x", "postcode": "9"}}
    body = json.dumps({"task": "x", "args": [value]}).encode()
    assert read(body, Tasks(types=[Street]).serializer).args == [Street("x")]


@pytest.mark.parametrize("value", [Stranger("x"), object(), b"bytes", {1, 2}, Stranger])
def test_what_cannot_be_written_is_named(tasks, value):
    @tasks.task
    def take(name, what): ...

    with pytest.raises(TypeError, match=r"task take, argument what: .*(unknown type|is not serializable)"):
        take.body("x", [value])


def test_types_must_have_different_names():
    street = dataclasses.make_dataclass("Street", ["name"])
    with pytest.raises(TypeError, match="two types are named Street: rename one"):
        Tasks(types=[Street, street])
    with pytest.raises(TypeError, match="two types are named UUID: rename one"):
        Tasks(types=[dataclasses.make_dataclass("UUID", ["x"])])
    with pytest.raises(TypeError, match="must be dataclasses and enums"):
        Tasks(types=[int])


def test_an_annotation_that_cannot_be_evaluated_names_no_type(tasks):
    @tasks.task
    def take(what: "absent.Type"): ...  # noqa: F821

    with pytest.raises(TypeError, match="unknown type 'Stranger'"):
        take.body(Stranger("x"))


def test_results_and_checkpoints_have_these_values_too(tasks):
    moment = datetime(2027, 1, 1, tzinfo=UTC)
    content = {"state": "done", "value": {"at": moment, "left": time(1, 2)}}
    assert tasks.serializer.read(tasks.serializer.write(content)) == content
