"""Dumps of the engine of a cluster: all that Redis has as commands in JSON, and what PostgreSQL has as SQL."""

import json
import re
import subprocess

from harness.postgres import USER, binaries


def dump_redis(server):
    """The commands that make all keys of a server; bytes are read as Latin-1."""
    commands = []
    for key in sorted(server.ask("KEYS", "*")):
        if server.ask("TYPE", key) == b"hash":
            commands.append([b"HSET", key, *server.ask("HGETALL", key)])
        else:
            commands.append([b"SET", key, server.ask("GET", key)])
    lines = [json.dumps([word.decode("latin-1") for word in command]) for command in commands]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def restore_redis(server, text):
    for command in json.loads(text):
        server.ask(*[word.encode("latin-1") for word in command])


def dump_postgresql(server, name):
    """The schema of a cluster, with its rows."""
    where = ["-h", "127.0.0.1", "-p", str(server.port), "-U", USER, "-d", "postgres"]
    line = [binaries() / "pg_dump", *where, "--inserts", "--no-comments", "-n", name]
    text = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout
    kept = [each for each in text.splitlines() if not re.match(r"--|\\|SET |$", each)]
    return "\n".join(kept) + "\n"


def restore_postgresql(server, text):
    server.ask(text)
