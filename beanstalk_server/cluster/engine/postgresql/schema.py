"""The tables of a cluster in PostgreSQL, and the statements about them.

A cluster has a schema of its own, with its name:

    shards      for each shard: its lease; the position of the last commit that has changed this row (`base_epoch`,
                `base_number`); and its `tail`: NULL, or the table whose last row is of the last commit
    renewals    for each shard: the number of renewals of its lease. It changes often, and each commit reads `shards`:
                a row with both would have many versions while an old transaction keeps VACUUM from removing them
    files       the name and the size of each file, and the table with its bytes
    nodes       the reports of nodes; not logged, because nodes report again soon
    "S_E_N_I"   for each file of shard S, made by operation I of commit E.N: a row for each write; where the file is
                cut, `data` is NULL. No table gets this name again, also after a failover

A commit that only writes to the tail inserts one row. It locks the row of its shard against a change of the lease,
which makes no new version of that row. So a transaction that another application keeps open does not slow it down. The
key of the new row begins with the number of the commit before: no two commits can follow the same one.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final

LONGEST_NAME: Final = 63
"""Bytes of a name in PostgreSQL."""

VERSION: Final = "1"
"""Of these tables."""

CONDITIONS: Final = (
    "current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), pg_conf_load_time()"
)
"""What a commit in this session waits for, and when that was read: it may change while a commit waits."""

WARNS: Final = "set_config('client_min_messages', 'warning', true)"
"""Lets the server tell that the wait of this transaction was canceled."""

TABLES: Final = ("shards", "renewals", "files", "nodes")

_CREATE: Final = (
    """CREATE TABLE {s}.shards (shard int PRIMARY KEY, version text NOT NULL DEFAULT '',
epoch bigint NOT NULL DEFAULT 0, stamp text NOT NULL DEFAULT '', node text NOT NULL DEFAULT '',
address text NOT NULL DEFAULT '', secret text NOT NULL DEFAULT '', ttl bigint NOT NULL DEFAULT 0,
successor text NOT NULL DEFAULT '', lineage text NOT NULL DEFAULT '', shards int NOT NULL DEFAULT 0,
base_epoch bigint NOT NULL DEFAULT 0, base_number bigint NOT NULL DEFAULT 0, tail text, files int NOT NULL DEFAULT 0)
WITH (fillfactor = 20)""",
    "CREATE TABLE {s}.renewals (shard int PRIMARY KEY, count bigint NOT NULL) WITH (fillfactor = 20)",
    "CREATE TABLE {s}.files (shard int, name text, place text NOT NULL, size bigint, PRIMARY KEY (shard, name))",
    """CREATE UNLOGGED TABLE {s}.nodes (node text PRIMARY KEY, address text NOT NULL, shards int NOT NULL,
jobs bigint NOT NULL, size bigint NOT NULL, takes boolean NOT NULL, seen timestamptz NOT NULL)
WITH (fillfactor = 20)""",
)

_READ: Final = """SELECT s.shard, version, shards, tail, epoch, coalesce(r.count, 0), node, address, secret, base_epoch,
base_number, ttl, successor, lineage FROM {s}.shards s LEFT JOIN {s}.renewals r USING (shard)
WHERE s.shard = ANY ($1::int[])"""


class Schema:
    """The statements of one cluster.

    Args:
        name: of the cluster.
    """

    def __init__(self, name: str) -> None:
        if len(name) > LONGEST_NAME:
            name = f"{name[:40]}.{sha1(name.encode()).hexdigest()[:20]}"
        self.name = name
        self._prefix = f'"{name}".'  # a cluster's name has no quotes

        def made(text: str) -> bytes:
            return text.replace("{s}.", self._prefix).encode()

        self.exists = (
            f"SELECT count(*), to_regnamespace('\"{name}\"') IS NOT NULL FROM pg_tables "
            f"WHERE schemaname = '{name}' AND tablename IN {TABLES}"
        ).encode()
        self.create_tables: tuple[bytes, ...] = tuple([made(each) for each in _CREATE])
        self.create: tuple[bytes, ...] = (f'CREATE SCHEMA "{name}"'.encode(), *self.create_tables)
        # Leases
        self.add_shards = made("INSERT INTO {s}.shards (shard) SELECT unnest($1::int[]) ON CONFLICT DO NOTHING")
        self.lock = made("SELECT FROM {s}.shards WHERE shard = ANY ($1::int[]) ORDER BY shard FOR UPDATE")
        self.read = made(_READ)
        self.write = made(
            "UPDATE {s}.shards SET version = $2, shards = $3, epoch = $4, stamp = $5, node = $6, address = $7, "
            "secret = $8, ttl = $9, successor = $10, lineage = $11 WHERE shard = $1"
        )
        self.count = made(
            "INSERT INTO {s}.renewals (shard, count) VALUES ($1, $2) ON CONFLICT (shard) DO UPDATE SET count = $2"
        )
        self.number = made("UPDATE {s}.shards SET version = $1, shards = $2 WHERE shard = 0")
        self.report = made(
            "INSERT INTO {s}.nodes VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp()) ON CONFLICT (node) DO UPDATE SET "
            "address = $2, shards = $3, jobs = $4, size = $5, takes = $6, seen = clock_timestamp()"
        )
        self.forget = made("DELETE FROM {s}.nodes WHERE seen < clock_timestamp() - interval '60 s'")
        self.members = made(
            "SELECT node, address, extract(epoch FROM clock_timestamp() - seen), takes, shards, jobs, size "
            "FROM {s}.nodes WHERE seen >= clock_timestamp() - interval '60 s'"
        )
        # Commits
        self.touch = made("UPDATE {s}.shards SET base_epoch = base_epoch WHERE shard = $1")
        self.move_on = made(
            "UPDATE {s}.shards SET base_epoch = $2, base_number = $3, tail = $4, "
            "files = (SELECT count(*) FROM {s}.files f WHERE f.shard = $1) WHERE shard = $1"
        )
        # Files
        self.places = made("SELECT name, place FROM {s}.files WHERE shard = $1")
        self.add_file = made(
            "INSERT INTO {s}.files VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (shard, name) DO UPDATE SET place = excluded.place, size = excluded.size"
        )
        self.resize = made("UPDATE {s}.files SET size = $3 WHERE shard = $1 AND name = $2")
        self.rename = made("UPDATE {s}.files SET name = $3 WHERE shard = $1 AND name = $2")
        self.remove = made("DELETE FROM {s}.files WHERE shard = $1 AND name = $2")
        self.files = made(
            "SELECT name, place, size, to_regclass('{s}.' || quote_ident(place)) IS NULL FROM {s}.files "
            "WHERE shard = $1"
        )
        self.expected = made("SELECT files FROM {s}.shards WHERE shard = $1")
        self.unused = (
            "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE n.nspname = '{name}' AND relkind = 'r' AND relname ~ $1 "
            f"AND NOT EXISTS (SELECT FROM {self._prefix}files WHERE place = relname)"
        ).encode()

    def table(self, place: str) -> str:
        """The table with the bytes of a file, as a statement names it."""
        return f'{self._prefix}"{place}"'

    def create_table(self, place: str) -> bytes:
        """Create a table for the bytes of a file: long rows are stored as they are, and not in pieces elsewhere."""
        table = self.table(place)
        return (
            f"CREATE TABLE {table} (before bigint, part int, epoch bigint NOT NULL, number bigint NOT NULL, "
            "at int NOT NULL, data bytea, PRIMARY KEY (before, part)) WITH (toast_tuple_target = 8160); "
        ).encode()

    def store_plainly(self, place: str) -> bytes:
        """Compress nothing: most bodies are short, and compression costs more than it saves."""
        return f"ALTER TABLE {self.table(place)} ALTER data SET STORAGE EXTERNAL".encode()

    def drop(self, place: str) -> bytes:
        """Remove the table of a file that is gone."""
        return f"DROP TABLE IF EXISTS {self.table(place)}".encode()

    def append(self, place: str) -> bytes:
        """Make a commit that only writes to the tail, if the lease and the position are those that are given.

        $1 to $9: shard, epoch and stamp of the lease; epoch and number of the commit before; epoch and number of the
        commit; offset, bytes. Returns a row if it was made.
        """
        table = self.table(place)
        return (
            f"INSERT INTO {table} SELECT $5, 0, $6, $7, $8, $9 FROM {self._prefix}shards "
            f"WHERE shard = $1 AND epoch = $2 AND stamp = $3 AND tail = '{place}' AND EXISTS (SELECT FROM ("
            f"SELECT epoch, number FROM {table} ORDER BY before DESC, part DESC LIMIT 1) l "
            f"WHERE l.epoch = $4 AND l.number = $5) FOR SHARE ON CONFLICT DO NOTHING RETURNING {CONDITIONS}, {WARNS}"
        ).encode()

    def insert(self, place: str) -> bytes:
        """Add a row: number of the commit before, part, epoch and number of the commit, offset, bytes."""
        return f"INSERT INTO {self.table(place)} VALUES ($1, $2, $3, $4, $5, $6)".encode()

    def last(self, place: str) -> bytes:
        """Find the position of the last commit to a table."""
        return f"SELECT epoch, number FROM {self.table(place)} ORDER BY before DESC, part DESC LIMIT 1".encode()

    def length(self, place: str) -> bytes:
        """Find how many bytes of a file are not zeros to its end: a row counts up to where the file was cut later."""
        return (
            "SELECT coalesce(max(least(at + octet_length(data), lowest)), 0) FROM (SELECT at, data, min(at) "
            "FILTER (WHERE data IS NULL) OVER (ORDER BY before, part ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) "
            f"AS lowest FROM {self.table(place)}) w WHERE data IS NOT NULL"
        ).encode()

    def piece(self, place: str) -> bytes:
        """Read the rows of a file that concern the bytes from $1 to $2."""
        return (
            f"SELECT at, data FROM {self.table(place)} WHERE at < $2 "
            "AND (data IS NULL OR at + octet_length(data) > $1) ORDER BY before, part"
        ).encode()
