"""Which shard has a tube or a job, and what each command concerns."""

import pytest

from beanstalk_server.wire.commands import DIALECTS, LINKED
from beanstalk_server.wire.places import EVERYTHING, GROUP, ITSELF, JOB, JOBS, NAMED, USED, WATCHED, Places

CONCERNS = {
    USED: "put put-with put-keyed replace-keyed cancel-keyed reschedule-keyed reprioritize-keyed list-extensions "
    "put-batch peek-keyed peek-ready peek-delayed peek-buried kick",
    NAMED: "use watch ignore pause-tube stats-tube clear-tube redrive list-jobs move-jobs unwatch",
    JOB: "delete release bury touch peek kick-job reserve-job stats-job cancel reschedule reprioritize give-back "
    "save unreserve",
    JOBS: "delete-batch release-batch touch-batch",
    WATCHED: "reserve reserve-with-timeout reserve-batch probe await",
    EVERYTHING: "stats list-tubes stats-tubes list-clients drain undrain "
    "here-stats here-list-tubes here-stats-tubes here-list-clients here-drain here-undrain here-touch-all",
    GROUP: "stats-group cancel-group",
    ITSELF: "list-tube-used list-tubes-watched quit unuse cancel-reserve reserve-mode touch-all client-name",
}


def test_the_place_of_a_tube_or_a_job_never_changes():
    places = Places(8)
    names = (b"default", b"emails", b"a", b"-", b"a" * 200)
    assert [places.of_tube(name) for name in names] == [7, 2, 3, 0, 0]
    assert [places.of_group(name) for name in (b"emails/1", b"a/b/c", b"a/b", b"a/", b"emails")] == [
        places.of_tube(name) for name in (b"emails", b"a/b", b"a", b"a", b"emails")
    ]
    assert [places.of_job(job_id) for job_id in (1, 8, 17, 2**64 - 1)] == [1, 0, 1, 7]


def test_one_shard_has_everything():
    places = Places(1)
    assert places.of_tube(b"emails") == places.of_job(12345) == 0


@pytest.mark.parametrize("shards", [-1, 0])
def test_there_is_at_least_one_shard(shards):
    with pytest.raises(ValueError, match="must be 1 or more"):
        Places(shards)


def test_every_command_concerns_one_thing():
    for dialect in LINKED.values():
        for concern, names in CONCERNS.items():
            for name in names.encode().split():
                found = dialect.with_arguments.get(name) or dialect.without_arguments[name]
                assert found.concerns == concern, name
        names = {*dialect.with_arguments, *dialect.without_arguments}
        assert names == set(" ".join(CONCERNS.values()).encode().split())


def test_clients_do_not_have_the_commands_of_places():
    for version, dialect in DIALECTS.items():
        plain = {**dialect.with_arguments, **dialect.without_arguments}
        linked = {**LINKED[version].with_arguments, **LINKED[version].without_arguments}
        more = {name for name in linked if name not in plain}
        places = (
            b"probe await unreserve unuse unwatch "
            b"here-stats here-list-tubes here-stats-tubes here-list-clients here-drain here-undrain here-touch-all"
        )
        assert more == set(places.split())
        assert all(linked[name] is command for name, command in plain.items())
