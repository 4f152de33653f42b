"""Which tests run on which package.

In `make test`, where pytest has workers with the sources and workers with the installed package:

    without sockets            on the sources
    marked `compiled`          on the installed package: they show that the compiler has changed nothing
    marked `sockets`           on the installed package, as users have it
    marked `interpreted`       on the sources: they replace what the compiler has fixed (below)

`make check` leaves out those with sockets, and has the sources alone. With `--everything`, each test runs on both, but
interpreted ones on the sources, and slow ones with sockets on the installed package.

What is interpreted, and why:

    server/test_routed_walks.py    replaces a constant (PATIENCE); with its real value, the test runs on both
    wire/test_pending.py           replaces a function of a compiled module, called by compiled code
    server/test_link_end.py        subclasses Connection, which allows that nowhere: each command calls it
    cluster/test_simulation.py     replaces clocks that are defaults of arguments, the Listeners, and `set`

A test that only makes a constant smaller, to need fewer steps, runs on both: compiled, with the real value.
"""

# Tests that open sockets or start processes, by directory or file; any other that does so fails.
SOCKETS = (
    "tests/bench/",
    "tests/cli/operator/test_top.py",
    "tests/client/",
    "tests/cluster/",
    "tests/conformance/",
    "tests/package/",
    "tests/packaging/",
    "tests/server/",
    "tests/test_examples.py",
)
# Files in these directories that do not.
WITHOUT = ()


def opens_sockets(nodeid):
    return nodeid.startswith(SOCKETS) and not nodeid.startswith(WITHOUT)


def runs_on(package, marks, pooled, everything):
    """Whether a test with these marks runs on a package; pooled: there are workers with the other package, too."""
    if "interpreted" in marks and (pooled or package == "compiled"):
        return package == "sources"
    if not pooled:
        return True
    if everything:
        return package != "sources" or not {"sockets", "slow"} <= marks
    return bool(marks & {"sockets", "compiled"}) == (package != "sources")
