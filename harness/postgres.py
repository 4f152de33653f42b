"""PostgreSQL as the engine of a cluster: a primary and its standbys, each a server of processes.

`Postgres` promotes nothing. `PromotingPostgres` does what a cluster manager such as Patroni does: when the primary does
not answer, it is killed, and the standby with most of its log is promoted.

Everything listens on 127.0.0.1. As root, the servers run as the user that Debian's package has made.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from harness.servers import POSTGRES, NotInstalledError, RefusedError, Restartable, ServerError, unused_port
from harness.waiting import eventually

USER: Final = "postgres"
"""Of the system, and of the database."""

ANSWER_WITHIN: Final = 5.0
SETTLE_WITHIN: Final = 60.0

GONE_AFTER: Final = 1.5
"""Seconds without an answer after which another primary is promoted."""

LOOK: Final = 0.1
"""Seconds between two looks at the primary."""

SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "synchronous_standby_names": "ANY 1 (*)",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "wal_log_hints": "on",
    "wal_retrieve_retry_interval": "100ms",
    "wal_sender_timeout": "5s",
    "wal_receiver_timeout": "5s",
    "max_wal_senders": "20",
    "wal_keep_size": "256MB",
    "full_page_writes": "on",
    "autovacuum_naptime": "5s",
    "log_min_messages": "fatal",
}


def binaries() -> Path:
    """The directory of the newest server that is installed, or POSTGRESQL_BIN of the environment.

    Raises:
        NotInstalledError: there is none.
    """
    if chosen := os.environ.get("POSTGRESQL_BIN"):
        return Path(chosen)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not found:
        raise NotInstalledError("postgresql is not installed (Debian: apt-get install postgresql)")
    return found[-1].parent


def _as_user(line: Sequence[str | Path]) -> list[str]:
    """A command line that runs as a user which PostgreSQL does not refuse."""
    words = [str(each) for each in line]
    if os.geteuid():
        return words
    return [str(shutil.which("setpriv")), f"--reuid={USER}", f"--regid={USER}", "--init-groups", *words]


def _run(*line: str | Path) -> None:
    done = subprocess.run(_as_user(line), capture_output=True, text=True, timeout=SETTLE_WITHIN, check=False, cwd="/")
    if done.returncode:
        raise ServerError(f"{line[0]}: {done.stderr.strip()}")


class PostgresServer(Restartable):
    """One server, which starts again with what it has on its disk.

    Args:
        directory: of its own; it has been made by initdb or pg_basebackup.
        port: where it listens.
    """

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        line = _as_user([binaries() / "postgres", "-D", directory, "-p", str(port)])
        super().__init__(POSTGRES, line, port, address=("127.0.0.1", port))

    def ask(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement on a connection of its own; return its rows.

        Raises:
            RefusedError: the server refuses it.
            OSError: there is no answer.
        """
        import psycopg

        seconds = int(ANSWER_WITHIN * 1000)
        where = f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres connect_timeout=2"
        try:
            with psycopg.connect(f"{where} options='-c statement_timeout={seconds}'", autocommit=True) as connection:
                cursor = connection.execute(statement, values or None)
                return cursor.fetchall() if cursor.description else []
        except psycopg.OperationalError as error:
            raise ConnectionError(str(error)) from None
        except psycopg.Error as error:
            raise RefusedError(str(error)) from None

    @property
    def is_primary(self) -> bool:
        with contextlib.suppress(OSError, RefusedError):
            return self.ask("SELECT pg_is_in_recovery()") == [(False,)]
        return False

    def _processes(self) -> list[int]:
        """All processes of the server: each has a session of its own."""
        found = [self.pid]
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())
        return found

    def _signal(self, number: int) -> None:
        for process in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self) -> None:
        if not self.is_running:  # its process id may be that of another process by now
            return
        others = self._processes()[1:]
        self._signal(signal.SIGKILL)
        super().kill()
        for process in others:
            eventually(partial(_has_ended, process), "a server process has exited")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)


class Postgres:
    """A primary with standbys that are never promoted: see `harness.engines.Alone` for what has no docstring here.

    Args:
        directory: gives the servers' own directory its name.
        settings: more lines of the configuration, by name.
    """

    promotes = False

    def __init__(self, directory: Path, replicas: int = 2, settings: dict[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"{directory.name}-"))  # pytest's is for its own user only
        self.settings = SETTINGS | (settings or {})
        self.servers: list[PostgresServer] = []
        _give(self.directory)
        self.ports = [unused_port() for _ in range(1 + replicas)]
        try:
            self._begin()
            self.settle()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        first = self.directory / "0"
        _run(binaries() / "initdb", "-D", first, "-U", USER, "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        with open(first / "postgresql.auto.conf", "a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self.settings.items())
        self.servers.append(PostgresServer(first, self.ports[0]))
        eventually(lambda: self.servers[0].is_primary, "PostgreSQL has recovered", SETTLE_WITHIN)
        for number in range(1, len(self.ports)):
            self._copy(number, self.ports[0])
            self.servers.append(PostgresServer(self.directory / str(number), self.ports[number]))

    def _copy(self, number: int, port: int) -> None:
        """Make the directory of a standby from the server at a port."""
        directory = self.directory / str(number)
        _back_up(port, directory)
        hosts = ",".join("127.0.0.1" for _ in self.ports)
        ports = ",".join(map(str, self.ports))
        follows = f"host={hosts} port={ports} user={USER} application_name=standby{number} connect_timeout=2"
        with open(directory / "postgresql.auto.conf", "a") as file:
            file.write(f"primary_conninfo = '{follows} target_session_attrs=read-write'\n")
        (directory / "standby.signal").touch()
        _give(directory / "standby.signal")

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{','.join(f'127.0.0.1:{port}' for port in self.ports)}/postgres"

    def url_at(self, port: int) -> str:
        return f"postgresql://{USER}@127.0.0.1:{port}/postgres"

    def primary(self, shard: int = 0) -> PostgresServer:  # noqa: ARG002 it keeps all of them
        for server in self.servers:
            if server.is_running and server.is_primary:
                return server
        raise ConnectionError("no PostgreSQL server is the primary")

    def replicas(self, shard: int = 0) -> list[PostgresServer]:
        primary = self.primary(shard)
        return [server for server in self.servers if server is not primary and server.is_running]

    def lease(self, shard: int, name: str) -> dict[str, str]:
        """What the primary has of a shard's lease, by column."""
        columns = "epoch", "node", "address", "secret", "successor"
        try:
            rows = self.primary(shard).ask(
                f'SELECT {", ".join(columns)} FROM "{name}".shards WHERE shard = %s',
                shard,
            )
        except RefusedError:  # the tables are not made yet
            rows = []
        return dict(zip(columns, map(str, rows[0]), strict=True)) if rows else {}

    def settle(self) -> None:
        eventually(self._has_settled, "PostgreSQL has a primary, and its standbys have replayed all WAL", SETTLE_WITHIN)

    def _has_settled(self) -> bool:
        with contextlib.suppress(OSError, RefusedError):
            rows = self.primary().ask(
                "SELECT count(*) FROM pg_stat_replication "
                "WHERE state = 'streaming' AND replay_lsn >= pg_current_wal_lsn()"
            )
            return rows == [(len(self.servers) - 1,)]
        return False

    def wipe(self) -> None:
        """Remove what all clusters have, at all servers."""
        rows = self.primary().ask(
            "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%' AND nspname NOT IN ('public', "
            "'information_schema')"
        )
        for (name,) in rows:
            self.primary().ask(f'DROP SCHEMA "{name}" CASCADE')

    def back_up(self) -> None:
        """Copy what the primary has, for `restore`."""
        _back_up(self.primary().port, self.directory / "backup")

    def restore(self) -> None:
        """Stop all servers, and start them with what the backup has."""
        first, *others = self.servers
        for server in self.servers:
            server.kill()
        shutil.rmtree(first.directory)
        _run("cp", "-a", self.directory / "backup", first.directory)
        self._start(0)
        eventually(lambda: first.is_primary, "PostgreSQL has recovered", SETTLE_WITHIN)
        for number, _ in enumerate(others, 1):
            self._copy(number, first.port)
            self._start(number)

    def restart(self) -> None:
        for server in self.servers:
            if server.is_running:
                server.resume()
        for number, server in enumerate(self.servers):
            if not server.is_running:
                self._start(number)

    def _start(self, number: int) -> None:
        """Start a server that was killed, as what it was."""
        server = self.servers[number]
        eventually(lambda: _started(server), "PostgreSQL starts again", SETTLE_WITHIN)

    def close(self) -> None:
        for server in self.servers:
            server.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _back_up(port: int, directory: Path) -> None:
    """Copy what the server at a port has to a directory, which is made anew."""
    shutil.rmtree(directory, ignore_errors=True)
    _run(
        *(binaries() / "pg_basebackup", "-D", directory, "-N", "-c", "fast", "-X", "stream"),
        *("-d", f"host=127.0.0.1 port={port} user={USER}"),
    )


def _has_ended(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def _started(server: PostgresServer) -> bool:
    """Start a server, unless processes of the one before still run."""
    with contextlib.suppress(ServerError):
        server.start()
        return True
    return False


def _give(path: Path) -> None:
    """Give a path to the user that the servers run as."""
    if not os.geteuid():
        owner = pwd.getpwnam(USER)
        os.chown(path, owner.pw_uid, owner.pw_gid)


class PromotingPostgres(Postgres):
    """The same, with a manager that promotes a standby when the primary is gone."""

    promotes = True

    def _begin(self) -> None:
        super()._begin()
        self._first = self.servers[0]
        self._is_closed = threading.Event()
        self._manager = threading.Thread(target=self._manage, name="manager", daemon=True)
        self._manager.start()

    def _manage(self) -> None:
        seen = time.monotonic()
        while not self._is_closed.wait(LOOK):
            if self._first.is_running and _answers(self._first):
                seen = time.monotonic()
            elif time.monotonic() - seen > GONE_AFTER:
                if self._first.is_running:  # or it might go on as a second primary
                    self._first.resume()
                    self._first.kill()
                with contextlib.suppress(OSError, RefusedError):
                    self._promote()

    def _promote(self) -> None:
        lsn = "SELECT coalesce(greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn, 0)"
        running = [server for server in self.servers if server.is_running and _answers(server)]
        if running:  # else they have just been started
            self._first = max(running, key=lambda server: int(str(server.ask(lsn)[0][0])))
            self._first.ask("SELECT pg_promote(false)")

    def _start(self, number: int) -> None:
        if self.servers[number] is not self._first:
            self._copy(number, eventually(self.primary, "there is a primary").port)
        super()._start(number)

    def primary(self, shard: int = 0) -> PostgresServer:  # noqa: ARG002 it keeps all of them
        if self._first.is_running and self._first.is_primary:
            return self._first
        raise ConnectionError("no PostgreSQL server is the primary")

    def close(self) -> None:
        if hasattr(self, "_is_closed"):
            self._is_closed.set()
            self._manager.join()
        super().close()


def _answers(server: PostgresServer) -> bool:
    with contextlib.suppress(OSError, RefusedError):
        server.ask("SELECT 1")
        return True
    return False


@contextlib.contextmanager
def single_postgres(fsync: str = "off") -> Iterator[PostgresServer]:
    """Run a server without standbys, which waits for none.

    Args:
        fsync: "on" for a server that a test kills.
    """
    settings = {"synchronous_standby_names": "", "fsync": fsync}
    with contextlib.closing(Postgres(Path("single"), 0, settings)) as servers:
        yield servers.servers[0]
