"""The pages of bodies, compared with a list of bodies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue.body_pages import LARGEST, LEAST_SLOTS, MOST_BYTES, BodyPages

BODIES = st.integers(1, 3).flatmap(lambda size: st.binary(min_size=size, max_size=size))


def pages_of(sizes, pages=None):
    """The page of each body that is added."""
    pages = pages or BodyPages()
    taken = []
    for size in sizes:
        page = pages.page_for(size)
        page.add(bytes(size))
        taken.append(page)
    pages.check()
    return taken


@given(st.lists(st.one_of(BODIES, st.integers(0, 200)), max_size=300))
def test_each_body_is_read_and_taken_as_it_was_added(steps):
    """A step is a body to add, or which of the bodies to take."""
    pages, model = BodyPages(), []
    for step in steps:
        if isinstance(step, bytes):
            page = pages.page_for(len(step))
            model.append((step, page, page.add(step)))
        elif model:
            body, page, slot = model.pop(step % len(model))
            assert page.take(slot) == body
        pages.check()
        assert pages.count() == len(model)
        for body, page, slot in model:
            assert page.read(slot) == body


@pytest.mark.parametrize("size", [1, 2, 100, LARGEST])
def test_thousands_of_bodies_come_and_go_in_pages_of_any_length(size):
    pages = BodyPages()
    bodies = [(b"%d" % number * size)[:size] for number in range(3000)]
    slots = []
    for body in bodies:
        page = pages.page_for(size)
        slots.append((page, page.add(body)))
    pages.check()
    used = {page for page, _ in slots}
    assert max(len(page.buffer) for page in used) <= MOST_BYTES
    assert len({(id(page), slot) for page, slot in slots}) == 3000
    for number in range(0, 3000, 2):
        page, slot = slots[number]
        assert page.take(slot) == bodies[number]
    pages.check()
    fresh = pages_of([size] * 1500, pages)
    assert len(set(fresh) - used) <= 1, "free slots are used before there are new pages"
    for number in range(1, 3000, 2):
        page, slot = slots[number]
        assert page.read(slot) == bodies[number]


def test_bodies_of_one_size_share_pages_that_get_longer():
    taken = pages_of([5] * 1000)
    lengths = [page.slots for page in dict.fromkeys(taken)]
    assert lengths[0] == LEAST_SLOTS and lengths == sorted(lengths) and len(lengths) < 40
    assert pages_of([5, 6])[0].sized.size == 5


def test_no_page_takes_a_body_that_is_empty_or_too_large():
    pages = BodyPages()
    assert pages.page_for(0) is pages.page_for(LARGEST + 1) is None
    assert pages.page_for(LARGEST) is not None


def test_a_lost_slot_is_noticed():
    pages = BodyPages()
    page = pages.page_for(3)
    page.add(b"abc")
    page.add(b"def")
    page.take(0)
    pages.check()
    page.first = 255
    with pytest.raises(AssertionError):
        pages.check()
