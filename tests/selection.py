"""Which tests run on which package.

In `make test`, where pytest has workers with the sources and workers with the installed package:

    without sockets            on the sources
    marked `compiled`          on the installed package: they show that the compiler has changed nothing
    marked `sockets`           on the installed package, as users have it
    marked `interpreted`       on the sources: they replace what the compiler has fixed (below)

`make check` leaves out those with sockets, and has the sources alone. With `--everything`, all tests run on the
installed package, but interpreted ones on the sources.

What is interpreted, and why:

    routing/test_operations.py    two tests put another object in the place of a router
    routing/test_client.py         two tests replace a method and a constant (MOVES) that are compiled
    wire/test_pending.py           replaces a function of a compiled module, called by compiled code
    server/test_link_end.py        subclasses Connection, which allows that nowhere: each command calls it
    storage/test_binlog_commits.py  lets the event loop wait for a disk for longer than a busy machine takes
    storage/test_binlog_stopped.py  replaces how many ids a start leaves out
    cluster/test_engine_binlog.py  replaces the pauses between attempts to reach the engine
    cluster/test_simulation.py     replaces clocks that are defaults of arguments, the Listeners, and `set`

A test that only makes a constant smaller, to need fewer steps, runs on both: compiled, with the real value.
"""

# Tests that open sockets or start processes: directories, files, and beginnings of the names of files. Any other test
# that does so fails, unless it is marked `sockets` itself.
SOCKETS = (
    "tests/bench/test_bench",
    "tests/bench/test_clients",
    "tests/bench/test_console",
    "tests/bench/test_workers",
    "tests/client/test_asynchronous_at_servers",
    "tests/client/test_blocking",
    "tests/client/test_cli_bench",
    "tests/client/test_cli_commands",
    "tests/client/test_cli_top.py",
    "tests/client/test_cli_worker",
    "tests/client/test_client_page",
    "tests/client/test_coming_from_listings",
    "tests/client/test_console_actions",
    "tests/client/test_console_app",
    "tests/client/test_console_browser",
    "tests/client/test_console_empty",
    "tests/client/test_consumer.py",
    "tests/client/test_core",
    "tests/client/test_deliver_command",
    "tests/client/test_deliver_sending",
    "tests/client/test_deliver_serving",
    "tests/client/test_deploying_listings",
    "tests/client/test_idempotency_listings",
    "tests/client/test_imports",
    "tests/client/test_integrations_django",
    "tests/client/test_integrations_kombu",
    "tests/client/test_integrations_listings",
    "tests/client/test_integrations_taskiq",
    "tests/client/test_integrations_testcontainers",
    "tests/client/test_kept_clients",
    "tests/client/test_outbox_command",
    "tests/client/test_outbox_django",
    "tests/client/test_outbox_kills",
    "tests/client/test_outbox_listings",
    "tests/client/test_outbox_sqlalchemy",
    "tests/client/test_pipeline",
    "tests/client/test_pytest_plugin",
    "tests/client/test_schedules_listings",
    "tests/client/test_schedules_race",
    "tests/client/test_signals",
    "tests/client/test_tasks_reports",
    "tests/client/test_tasks_task",
    "tests/client/test_worker_",
    "tests/cluster/test_access_through_standby",
    "tests/cluster/test_conversations_with_nodes",
    "tests/cluster/test_engines",
    "tests/cluster/test_kill",
    "tests/cluster/test_links",
    "tests/cluster/test_node",
    "tests/cluster/test_operators_of_nodes",
    "tests/cluster/test_policies_of_shards",
    "tests/cluster/test_postgresql",
    "tests/cluster/test_redis_",
    "tests/cluster/test_relays",
    "tests/cluster/test_routing_over_sockets",
    "tests/cluster/test_shards.py",
    "tests/cluster/test_shards_of_nodes",
    "tests/conformance/",
    "tests/io_processes/",
    "tests/package/",
    "tests/packaging/",
    "tests/routing/test_client",
    "tests/server/",
    "tests/settings/test_options.py",
    "tests/test_examples.py",
    "tests/test_pool.py",
    "tests/test_walks.py",
    "tests/upgrades/",
)


def opens_sockets(nodeid):
    return nodeid.startswith(SOCKETS)


def runs_on(package, marks, pooled, everything):
    """Whether a test with these marks runs on a package; pooled: there are workers with the other package, too."""
    if "interpreted" in marks and (pooled or package == "compiled"):
        return package == "sources"
    if not pooled:
        return True
    if everything:
        return package != "sources"
    return bool(marks & {"sockets", "compiled"}) == (package != "sources")
