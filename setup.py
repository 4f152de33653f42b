"""Builds the package: compiles the hot modules with mypyc, all of them or none. Everything else is in pyproject.toml.

A compiled command takes half the CPU time of an interpreted one (docs/performance.md). The modules stay plain Python,
so the package works the same without a compiler, only slower. BEANSTALK_SERVER_PURE in the environment decides:

    (not set)   compiled; pure Python if the C compiler is missing or fails
    1           pure Python
    0           compiled, or the build fails: for publishing wheels

The build uses a temporary directory, so no remains of an earlier build get into a package.
"""

import os
import tempfile
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError

# In the order of their imports. journal.py stays interpreted: others implement its interface in Python.
HOT = [
    "beanstalk_server/queue/units.py",
    "beanstalk_server/queue/costs.py",
    "beanstalk_server/queue/ring.py",
    "beanstalk_server/queue/wheel.py",
    "beanstalk_server/queue/job.py",
    "beanstalk_server/queue/policy.py",
    "beanstalk_server/queue/counters.py",
    "beanstalk_server/queue/memory.py",
    "beanstalk_server/queue/table.py",
    "beanstalk_server/queue/heap.py",
    "beanstalk_server/queue/tube.py",
    "beanstalk_server/queue/outcome.py",
    "beanstalk_server/queue/lifetimes.py",
    "beanstalk_server/queue/limits.py",
    "beanstalk_server/queue/throttle.py",
    "beanstalk_server/queue/histogram.py",
    "beanstalk_server/queue/durations.py",
    "beanstalk_server/queue/tries.py",
    "beanstalk_server/queue/wall_clock.py",
    "beanstalk_server/queue/tubes.py",
    "beanstalk_server/queue/reserved_jobs.py",
    "beanstalk_server/queue/client.py",
    "beanstalk_server/queue/statistics.py",
    "beanstalk_server/queue/job_search.py",
    "beanstalk_server/queue/interface.py",
    "beanstalk_server/queue/bulk.py",
    "beanstalk_server/queue/delivery.py",
    "beanstalk_server/queue/stored_job.py",
    "beanstalk_server/queue/replay.py",
    "beanstalk_server/queue/broker.py",
    "beanstalk_server/storage/record.py",
    "beanstalk_server/storage/segment.py",
    "beanstalk_server/storage/bodies.py",
    "beanstalk_server/storage/room.py",
    "beanstalk_server/storage/segment_log.py",
    "beanstalk_server/storage/segment_reader.py",
    "beanstalk_server/storage/body_reader.py",
    "beanstalk_server/cluster/latency.py",
    "beanstalk_server/cluster/sender.py",
    "beanstalk_server/cluster/directory.py",
    "beanstalk_server/cluster/request.py",
    "beanstalk_server/cluster/commit_requests.py",
    "beanstalk_server/cluster/lanes.py",
    "beanstalk_server/cluster/engine_writer.py",
    "beanstalk_server/access/patterns.py",
    "beanstalk_server/access/user.py",
    "beanstalk_server/wire/framing.py",
    "beanstalk_server/wire/grammar.py",
    "beanstalk_server/wire/replies.py",
    "beanstalk_server/wire/statistics.py",
    "beanstalk_server/wire/listing.py",
    "beanstalk_server/wire/client_listing.py",
    "beanstalk_server/wire/tube_listing.py",
    "beanstalk_server/wire/tube_page.py",
    "beanstalk_server/wire/job_page.py",
    "beanstalk_server/wire/authorization.py",
    "beanstalk_server/wire/places.py",
    "beanstalk_server/wire/commands.py",
    "beanstalk_server/wire/server_info.py",
    "beanstalk_server/wire/session.py",
    "beanstalk_server/wire/home.py",
    "beanstalk_server/server/listeners.py",
    "beanstalk_server/server/scheduler.py",
    "beanstalk_server/server/client_hello.py",
    "beanstalk_server/server/tls.py",
    "beanstalk_server/server/commits.py",
    "beanstalk_server/server/entrance.py",
    "beanstalk_server/server/intake.py",
    "beanstalk_server/server/connection.py",
    "beanstalk_server/server/refusals.py",
    "beanstalk_server/server/arrivals.py",
    "beanstalk_server/cluster/watched.py",
    "beanstalk_server/cluster/reply_framer.py",
    "beanstalk_server/cluster/operation.py",
    "beanstalk_server/cluster/operations.py",
    "beanstalk_server/cluster/reserving.py",
    "beanstalk_server/cluster/branch.py",
    "beanstalk_server/cluster/routing.py",
    "beanstalk_server/link/link.py",
    "beanstalk_server/server/link_transport.py",
    "beanstalk_server/server/link_end.py",
    "beanstalk_server/server/carried.py",
    "beanstalk_server/server/local_place.py",
    "beanstalk_server/server/routed.py",
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
            self.leave_out(
                "compiled modules beside their sources would hide every change to the sources"
            )  # pip install -e
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
                    raise CompileError(f"the C compiler did not create {path}, and reported no error")
        except (BaseError, CCompilerError) as error:
            if PURE == "0":
                raise
            for path in self.get_outputs():
                if os.path.exists(path):
                    os.remove(path)
            self.leave_out(str(error))

    def leave_out(self, reason: str) -> None:
        """Build without extension modules, and say why."""
        self.warn(f"the package will be pure Python: {reason}")
        self.extensions = []
        self.distribution.ext_modules = []


class BdistWheel(bdist_wheel):
    """Names the wheel only after the build, which decides whether the wheel is pure Python."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()


# BuildExt decides which extension modules to build; without one now, setuptools would expect a pure package.
placeholder: list[Any] = [Extension("beanstalk_server__mypyc", [])] if PURE in ("", "0") else []
setup(ext_modules=placeholder, cmdclass={"build": Build, "build_ext": BuildExt, "bdist_wheel": BdistWheel})
