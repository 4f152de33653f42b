"""The build: compiles the hot modules with mypyc, all of them or none. What is built is said in pyproject.toml.

Compiled, a command costs half the CPU time that it costs interpreted (docs/performance.md). The modules stay plain
Python, so that the package does the same without them, slower. BEANSTALK_SERVER_PURE in the environment decides:

    (not set)   compiled; pure Python where there is no C compiler, or where it fails
    1           pure Python
    0           compiled, or the build fails: for those who publish wheels

Everything is built in a temporary directory, so nothing that an earlier build has left gets into a package.
"""

import os
import tempfile
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError

# In the order of their imports. journal.py is left out: it is an interface for others to implement in Python.
HOT = [
    "beanstalk_server/queue/ring.py",
    "beanstalk_server/queue/wheel.py",
    "beanstalk_server/queue/job.py",
    "beanstalk_server/queue/table.py",
    "beanstalk_server/queue/heap.py",
    "beanstalk_server/queue/tube.py",
    "beanstalk_server/queue/tubes.py",
    "beanstalk_server/queue/outcome.py",
    "beanstalk_server/queue/client.py",
    "beanstalk_server/queue/statistics.py",
    "beanstalk_server/queue/interface.py",
    "beanstalk_server/queue/bulk.py",
    "beanstalk_server/queue/stored_job.py",
    "beanstalk_server/queue/replay.py",
    "beanstalk_server/queue/broker.py",
    "beanstalk_server/storage/record.py",
    "beanstalk_server/storage/segment.py",
    "beanstalk_server/storage/room.py",
    "beanstalk_server/storage/segment_log.py",
    "beanstalk_server/storage/segment_reader.py",
    "beanstalk_server/wire/framing.py",
    "beanstalk_server/wire/grammar.py",
    "beanstalk_server/wire/replies.py",
    "beanstalk_server/wire/statistics.py",
    "beanstalk_server/wire/commands.py",
    "beanstalk_server/wire/server_info.py",
    "beanstalk_server/wire/session.py",
    "beanstalk_server/server/listeners.py",
    "beanstalk_server/server/scheduler.py",
    "beanstalk_server/server/commits.py",
    "beanstalk_server/server/connection.py",
]

PURE = os.environ.get("BEANSTALK_SERVER_PURE", "")


class Build(build):
    """Builds in a temporary directory."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self._directory = tempfile.TemporaryDirectory(prefix="beanstalk-server-")  # removed when the build is over
        self.build_base = self._directory.name


class BuildExt(build_ext):
    """Turns HOT into C, and the C into extension modules: all of them, or none."""

    def run(self) -> None:
        if self.inplace:
            self.leave_out("compiled modules beside their sources would hide every change of these")  # pip install -e
            return
        from mypyc.build import mypycify

        self.distribution.ext_modules = mypycify(
            HOT, opt_level="3", debug_level="0", group_name="beanstalk_server", target_dir=self.build_temp
        )
        self.reinitialize_command(self)
        self.ensure_finalized()
        try:
            super().run()
            for path in self.get_outputs():
                if not os.path.exists(path):
                    raise CompileError(f"the C compiler has not made {path}, and does not say why")
        except (BaseError, CCompilerError) as error:
            if PURE == "0":
                raise
            for path in self.get_outputs():
                if os.path.exists(path):
                    os.remove(path)
            self.leave_out(str(error))

    def leave_out(self, reason: str) -> None:
        """Go on without extension modules."""
        self.warn(f"the package will be pure Python: {reason}")
        self.extensions = []
        self.distribution.ext_modules = []


class BdistWheel(bdist_wheel):
    """Names the wheel after the build: only then it is known whether anything in it is compiled."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()


# What the extension modules are is found out by BuildExt; that there will be some, setuptools has to know before.
some: list[Any] = [Extension("beanstalk_server__mypyc", [])] if PURE in ("", "0") else []
setup(ext_modules=some, cmdclass={"build": Build, "build_ext": BuildExt, "bdist_wheel": BdistWheel})
