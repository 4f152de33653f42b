"""Builds the package: compiles the hot modules with mypyc, all of them or none. Everything else is in pyproject.toml.

A compiled command takes a quarter of the CPU time of an interpreted one with a hundred in flight, and two fifths with
one (bench/README.md). The modules stay plain Python, so the package works the same without a compiler, only slower.
BEANSTALK_SERVER_PURE in the environment decides:

    (not set)   compiled; pure Python if the C compiler is missing or fails
    1           pure Python
    0           compiled, or the build fails: for publishing wheels

The C files are compiled side by side, one for each processor. An object whose source, headers and flags are those of
an earlier build is taken from build/objects. Everything else is built in a temporary directory, so no remains of an
earlier build get into a package.
"""

import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError

# In the order of their imports. Where a class is compiled, so are the classes that inherit from it, and those that it
# inherits from. Classes outside the package may inherit from those that `mypyc_attr` allows it for.
HOT = [
    "beanstalk_server/queue/units.py",
    "beanstalk_server/queue/costs.py",
    "beanstalk_server/queue/ring.py",
    "beanstalk_server/queue/wheel.py",
    "beanstalk_server/queue/policy.py",
    "beanstalk_server/queue/body_pages.py",
    "beanstalk_server/queue/job.py",
    "beanstalk_server/queue/memory.py",
    "beanstalk_server/queue/table.py",
    "beanstalk_server/queue/heap.py",
    "beanstalk_server/queue/outcome.py",
    "beanstalk_server/queue/tube.py",
    "beanstalk_server/queue/fair_heap.py",
    "beanstalk_server/queue/throttle.py",
    "beanstalk_server/queue/groups.py",
    "beanstalk_server/queue/histogram.py",
    "beanstalk_server/queue/durations.py",
    "beanstalk_server/queue/wall_clock.py",
    "beanstalk_server/queue/weights.py",
    "beanstalk_server/queue/tubes.py",
    "beanstalk_server/queue/reserved_jobs.py",
    "beanstalk_server/queue/client.py",
    "beanstalk_server/queue/statistics.py",
    "beanstalk_server/queue/job_search.py",
    "beanstalk_server/queue/oldest.py",
    "beanstalk_server/queue/stored_job.py",
    "beanstalk_server/queue/replay.py",
    "beanstalk_server/queue/journal.py",
    "beanstalk_server/queue/state.py",
    "beanstalk_server/queue/recording.py",
    "beanstalk_server/queue/membership.py",
    "beanstalk_server/queue/transitions.py",
    "beanstalk_server/queue/restore.py",
    "beanstalk_server/queue/bulk.py",
    "beanstalk_server/queue/timers.py",
    "beanstalk_server/queue/broker.py",
    "beanstalk_server/storage/record.py",
    "beanstalk_server/storage/record_writer.py",
    "beanstalk_server/storage/segment.py",
    "beanstalk_server/storage/bodies.py",
    "beanstalk_server/storage/upkeep.py",
    "beanstalk_server/storage/segment_log.py",
    "beanstalk_server/storage/segment_reader.py",
    "beanstalk_server/storage/body_reader.py",
    "beanstalk_server/storage/binlog.py",
    "beanstalk_server/cluster/commit_sender.py",
    "beanstalk_server/cluster/directory.py",
    "beanstalk_server/cluster/engine/redis/resp.py",
    "beanstalk_server/cluster/engine/redis/commit_requests.py",
    "beanstalk_server/cluster/lanes.py",
    "beanstalk_server/cluster/engine_writer.py",
    "beanstalk_server/tube_names.py",
    "beanstalk_server/access/rights.py",
    "beanstalk_server/wire/framing.py",
    "beanstalk_server/wire/grammar.py",
    "beanstalk_server/wire/replies.py",
    "beanstalk_server/wire/yaml.py",
    "beanstalk_server/wire/listings.py",
    "beanstalk_server/wire/authorization.py",
    "beanstalk_server/wire/places.py",
    "beanstalk_server/wire/commands.py",
    "beanstalk_server/wire/server_info.py",
    "beanstalk_server/wire/session.py",
    "beanstalk_server/server/turns.py",
    "beanstalk_server/server/timers.py",
    "beanstalk_server/server/front/client_hello.py",
    "beanstalk_server/server/front/tls.py",
    "beanstalk_server/server/front/addresses.py",
    "beanstalk_server/server/commits.py",
    "beanstalk_server/server/intake.py",
    "beanstalk_server/server/connection.py",
    "beanstalk_server/server/front/pending.py",
    "beanstalk_server/routing/reply_framer.py",
    "beanstalk_server/routing/branch.py",
    "beanstalk_server/routing/operations.py",
    "beanstalk_server/link/link.py",
    "beanstalk_server/server/link_transport.py",
    "beanstalk_server/server/link_end.py",
    "beanstalk_server/io_processes/carried.py",
    "beanstalk_server/routing/clients.py",
    "beanstalk_server/routing/reserving.py",
    "beanstalk_server/routing/router.py",
    "beanstalk_server/routing/local.py",
    "beanstalk_server/routing/place.py",
    "beanstalk_server/routing/client.py",
]

PURE = os.environ.get("BEANSTALK_SERVER_PURE", "")
OPT_LEVEL = "2"  # the lowest that costs no figure (docs/decisions/0017)
OBJECTS = Path("build/objects")
UNUSED_AFTER = 7 * 24 * 3600  # seconds after which an object that no build has used is removed
LINE_EVERY = 3.0  # seconds


def say(line: str) -> None:
    sys.stderr.write(f"beanstalk-server: {line}\n")
    sys.stderr.flush()


class Build(build):
    """Builds in a temporary directory."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self._directory = tempfile.TemporaryDirectory(prefix="beanstalk-server-")  # removed when the build is over
        self.build_base = self._directory.name


class BuildExt(build_ext):
    """Turns HOT into C, and the C into extension modules: all of them, or none."""

    has_reused = False  # objects of earlier builds

    def run(self) -> None:
        if self.inplace:
            self.leave_out(
                "compiled modules beside their sources would hide every change to the sources"
            )  # pip install -e
            return
        self.ensure_finalized()
        try:
            self.translate()
            try:
                super().run()
            except (BaseError, CCompilerError):
                if not self.has_reused:
                    raise
                say("that failed; compiling everything anew, in case a kept object is damaged")
                shutil.rmtree(OBJECTS)
                self.compiler = None
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
            said = " ".join(str(error).split())  # which ends with the signal, of a compiler that was killed
            self.leave_out(said if len(said) <= 200 else f"{said[:90]} … {said[-107:]}")

    def translate(self) -> None:
        """Make extension modules of HOT, as C files."""
        from distutils import ccompiler, sysconfig  # setuptools has them, also where the standard library does not

        compiler: Any = ccompiler.new_compiler()
        sysconfig.customize_compiler(compiler)
        if shutil.which(compiler.compiler[0]) is None:
            raise CompileError(f"no C compiler: {compiler.compiler[0]} was not found")
        from mypyc.build import mypycify

        say(f"translating {len(HOT)} modules to C, which takes some seconds")
        self.distribution.ext_modules = mypycify(
            HOT,
            opt_level=OPT_LEVEL,
            debug_level="0",
            multi_file=True,
            group_name="beanstalk_server",
            target_dir=self.build_temp,
        )
        self.reinitialize_command(self)
        self.ensure_finalized()

    def build_extensions(self) -> None:
        """Compile the C files of all extension modules side by side, then link each module."""
        extensions = {source: extension for extension in self.extensions for source in extension.sources}
        OBJECTS.mkdir(parents=True, exist_ok=True)
        objects: dict[str, str] = {}
        told = time.monotonic()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            sizes = sorted(extensions, key=os.path.getsize, reverse=True)  # the last to end should be a small one
            tasks = {pool.submit(self.object_of, source, extensions[source]): source for source in sizes}
            try:
                for task in as_completed(tasks):
                    objects[tasks[task]] = task.result()
                    if time.monotonic() - told > LINE_EVERY or len(objects) == len(tasks):
                        told = time.monotonic()
                        say(f"compiled {len(objects)} of {len(tasks)} C files")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        self.compiler.compile = lambda sources, **_: [objects[source] for source in sources]
        self.parallel = os.cpu_count()
        super().build_extensions()
        for path in OBJECTS.iterdir():
            if time.time() - path.stat().st_mtime > UNUSED_AFTER:
                path.unlink()

    def object_of(self, source: str, extension: Extension) -> str:
        """Return the path of a C file's object: one of an earlier build, or a new one."""
        kept = OBJECTS / f"{self.fingerprint(source, extension)}.o"
        if kept.exists():
            self.has_reused = True
            os.utime(kept)
            return str(kept)
        (made,) = self.compiler.compile(
            [source],
            output_dir=self.build_temp,
            include_dirs=extension.include_dirs,
            extra_postargs=extension.extra_compile_args,
        )
        if not os.path.exists(made):
            raise CompileError(f"the C compiler did not create {made}, and reported no error")
        partial = f"{kept}.{os.getpid()}"  # beside it, so that an interrupted build leaves no part of an object
        shutil.copy(made, partial)
        os.replace(partial, kept)
        return str(kept)

    def fingerprint(self, source: str, extension: Extension) -> str:
        """Return a hash of everything that decides what the object of a C file is."""
        import mypy.version

        parts = [sys.version, mypy.version.__version__, *self.compiler.compiler_so, *extension.extra_compile_args]
        hashed = hashlib.sha256(repr(parts).encode())
        found = [Path(source)]
        for path in found:  # grows while it is gone through
            text = path.read_bytes()
            hashed.update(text)
            for name in re.findall(rb'^#include "(.+)"', text, re.MULTILINE):
                header = Path(self.build_temp) / os.fsdecode(name)  # others are Python's and mypyc's
                if header.exists() and header not in found:
                    found.append(header)
        return hashed.hexdigest()

    def leave_out(self, reason: str) -> None:
        """Build without extension modules, and say why."""
        say(f"the package will be pure Python: {reason}")
        self.extensions = []
        self.distribution.ext_modules = []


class BdistWheel(bdist_wheel):
    """Names the wheel only after the build, which decides whether the wheel is pure Python."""

    def run(self) -> None:
        self.run_command("build")
        self.skip_build = True  # or the installation into the wheel would build once more
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()


# BuildExt decides which extension modules to build; without one now, setuptools would expect a pure package.
placeholder: list[Any] = [Extension("beanstalk_server__mypyc", [])] if PURE in ("", "0") else []
setup(ext_modules=placeholder, cmdclass={"build": Build, "build_ext": BuildExt, "bdist_wheel": BdistWheel})
