"""Instructions a command: whose they are, and that no change makes the path of a command longer unnoticed."""

import platform
import sysconfig
import tomllib
from pathlib import Path

import pytest
from programs import find

from bench import instructions
from bench.instructions import ALL_WORKS, count, package_of
from harness.servers import OURS, ROOT, imported

WORSE = 1.03
"""How many times the figure in the repository a figure may be. Two runs differ by half a percent."""


def build():
    """What instruction counts depend on, but for the sources: Python and how it was compiled, the C library."""
    optimized = "optimized" if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") else "plain"
    compiler, libc = platform.python_compiler(), " ".join(platform.libc_ver())
    return f"{platform.python_implementation()} {platform.python_version()}, {optimized}, {compiler}, {libc}"


@pytest.mark.parametrize(
    ("function", "library", "package"),
    [
        ("CPyDef_session___Session____do_commands", "beanstalk_server__mypyc.so", "wire"),
        ("CPyPy_branch___Branch___on_data", "beanstalk_server__mypyc.so", "routing"),
        ("CPyDef_units___seconds", "beanstalk_server__mypyc.so", "queue"),
        ("CPyBytes_Build", "beanstalk_server__mypyc.so", "mypyc's runtime"),
        ("_PyObject_Malloc", "libpython3.11.so.1.0", "Python"),
        ("malloc", "libc.so.6", "C library"),
        ("uv__read", "loop.cpython-311.so", "uvloop"),
        ("ffi_call", "libffi.so.8", "libffi.so.8"),
    ],
)
def test_each_function_belongs_to_a_package_or_a_library(function, library, package):
    assert package_of(function, library) == package


@pytest.mark.sockets
def test_functions_are_read_with_their_libraries(monkeypatch, tmp_path):
    tool = tmp_path / "callgrind_annotate"
    tool.write_text(
        "#!/bin/sh\necho '36,079,905 (100.0%)  PROGRAM TOTALS'\n"
        "echo '1,653,000 ( 4.58%)  ???:_PyObject_Free [/usr/lib/libpython3.11.so.1.0]'\n"
        "echo '   12,000 ( 0.03%)  ???:0x00000000000a1234 [???]'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert list(instructions._counted(Path("some.file"))) == [
        ("_PyObject_Free", "libpython3.11.so.1.0", 1_653_000),
        ("0x00000000000a1234", "???", 12_000),
    ]


@pytest.mark.slow
@pytest.mark.sockets
@pytest.mark.compiled
@pytest.mark.parametrize("work", ALL_WORKS)
def test_no_command_takes_more_instructions_than_in_the_repository(work, tmp_path):
    find("valgrind")
    figures = tomllib.loads((ROOT / "bench" / "instructions.toml").read_text()).get(build())
    if figures is None:
        pytest.skip(f"bench/instructions.toml has no figures of {build()}")
    assert imported() == OURS
    assert count(work, tmp_path).total <= WORSE * figures[work]
