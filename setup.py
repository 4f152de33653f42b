"""Compiles the hot modules with mypyc; everything else about the build is in pyproject.toml.

Compiled, a command costs half the CPU time that it costs interpreted (docs/performance.md). The modules stay plain
Python: where there is no C compiler, or with BEANSTALK_SERVER_PURE=1 in the environment, the package is built without
the compiled ones and does the same, slower.
"""

import os

from setuptools import setup

# In the order of their imports. journal.py is left out: it is an interface for others to implement in Python.
HOT = [
    "beanstalk_server/queue/ring.py",
    "beanstalk_server/queue/wheel.py",
    "beanstalk_server/queue/job.py",
    "beanstalk_server/queue/table.py",
    "beanstalk_server/queue/heap.py",
    "beanstalk_server/queue/tube.py",
    "beanstalk_server/queue/client.py",
    "beanstalk_server/queue/bulk.py",
    "beanstalk_server/queue/replay.py",
    "beanstalk_server/queue/broker.py",
    "beanstalk_server/storage/record.py",
    "beanstalk_server/storage/segment.py",
    "beanstalk_server/storage/room.py",
    "beanstalk_server/storage/segment_log.py",
    "beanstalk_server/storage/segment_reader.py",
    "beanstalk_server/wire/framing.py",
    "beanstalk_server/wire/grammar.py",
    "beanstalk_server/wire/statistics.py",
    "beanstalk_server/wire/session.py",
    "beanstalk_server/server/listeners.py",
    "beanstalk_server/server/scheduler.py",
    "beanstalk_server/server/commits.py",
    "beanstalk_server/server/connection.py",
]

extensions = []
if not os.environ.get("BEANSTALK_SERVER_PURE"):
    from mypyc.build import mypycify

    extensions = mypycify(HOT, opt_level="3", debug_level="0", group_name="beanstalk_server")
    for extension in extensions:
        extension.optional = True  # without a compiler, setuptools goes on without it

setup(ext_modules=extensions)
