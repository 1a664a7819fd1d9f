"""Kernel objects: one core function source, baked with its shape, compiled for the emulated NPU2.

The same source compiles for AIE2P with Peano; here the system's C++ compiler (else the one in the
`ziglang` wheel) builds it against the host's AIE API in `kernels/host`. Exported functions get a
suffix that is a digest of all that is baked in, so that two variants can be linked together.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilegate.digests import digest
from tilegate.errors import BrokenTool
from tilegate.kernels import ROOT as KERNELS
from tilegate.kernels import folder
from tilegate.plan import CoreObject, Launch
from tilegate.store import Build, Node

HOST = KERNELS / "host"
FLAGS = ("-std=c++17", "-march=native", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden")
# GCC finds its own AVX-512 headers "maybe uninitialized", and notes that vectors change the ABI.
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wno-maybe-uninitialized")
DEFINES = ("-DNDEBUG", "-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16")
# CPATH and its like would change the result behind the key's back.
ENVIRONMENT = ("PATH", "HOME", "TMPDIR")
TIMEOUT_S = 300
C_TYPES = {"bf16": "bfloat16", "f32": "float", "i32": "std::int32_t"}


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler: the command, the files that identify it by content, the CPU it targets."""

    command: tuple[str, ...]
    binaries: tuple[Path, ...]
    cpu: str


@functools.cache
def toolchain() -> Toolchain:
    """The compiler of this machine: $CXX, c++, g++, clang++ or the ziglang wheel.

    Raises BrokenTool when there is none.
    """
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        path = shutil.which(name)
        if path:
            return Toolchain((path,), _binaries(path), cpu_features())
    zig = importlib.util.find_spec("ziglang")
    if zig is not None and zig.origin is not None:
        command = (sys.executable, "-m", "ziglang", "c++")
        return Toolchain(command, (Path(zig.origin).parent / "zig",), cpu_features())
    raise BrokenTool(
        "no C++ compiler: looked for $CXX, c++, g++, clang++ and the ziglang wheel; "
        "install g++ with the system's package manager or run `pip install ziglang`"
    )


def _binaries(driver: str) -> tuple[Path, ...]:
    """The driver and what it calls: compiler proper, assembler, linker."""
    found = {Path(driver).resolve()}
    for program in ("cc1plus", "as", "ld"):
        asked = [driver, f"-print-prog-name={program}"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
            path = shutil.which(said.stdout.strip() or program)
            found |= {Path(path).resolve()} if path else set()
    return tuple(sorted(found))


def cpu_features() -> str:
    """What `-march=native` means here: machine and feature flags."""
    machine = os.uname().machine
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return f"{machine} {' '.join(sorted(line.split(':', 1)[1].split()))}"
    except OSError:
        pass  # not Linux: the machine name alone decides
    return machine


def suffix(op: str, core: CoreObject, in_block_float: bool) -> str:
    """The identity of an object, part of its symbols."""
    return digest([op, core, in_block_float])[:10]


def symbol(function: str, op: str, core: CoreObject, in_block_float: bool) -> str:
    return f"{function}_{suffix(op, core, in_block_float)}"


def in_block_float(launch: Launch) -> bool:
    """Whether all operands of the matrix unit are rounded as their buffers are loaded."""
    return any(buffer.matrix for buffer in launch.buffers)


def kernel_node(op: str, core: CoreObject, quantised: bool) -> Node:
    """The node that compiles one object."""
    tools = toolchain()
    source = folder(op) / core.source
    baked = " ".join(f"{name}={value}" for name, value in core.defines)
    stem = Path(core.source).stem
    return Node(
        name=f"kernel:{op}.{stem}-{suffix(op, core, quantised)}",
        kind="kernel",
        doc=f"compile {op}/{core.source} {baked}".rstrip(),
        inputs={
            "op": op,
            "core": core,
            "in_block_float": quantised,
            "flags": [*FLAGS, *WARNINGS, *DEFINES],
            "cpu": tools.cpu,
        },
        needs=(),
        build=functools.partial(_compile_object, op, core, quantised),
        sources=(*tools.binaries, *sources(source)),
    )


def walker_node() -> Node:
    """The node that compiles the plan interpreter which every dispatch is linked with."""
    tools = toolchain()
    return Node(
        name="kernel:walker",
        kind="kernel",
        doc="compile the plan walker of the emulated NPU2",
        inputs={"flags": [*FLAGS, *WARNINGS, *DEFINES], "cpu": tools.cpu},
        needs=(),
        build=_compile_walker,
        sources=(*tools.binaries, *sources(HOST / "walker.cc")),
    )


def _compile_object(op: str, core: CoreObject, quantised: bool, build: Build) -> None:
    renamed = [f"-D{name}={symbol(name, op, core, quantised)}" for name, _ in core.functions]
    baked = [f"-D{name}={value}" for name, value in core.defines]
    rounded = ["-DTILEGATE_OPERANDS_IN_BLOCK_FLOAT"] if quantised else []
    flags = [core.optimise, *baked, *renamed, *rounded]
    compile_source(folder(op) / core.source, build.out / "kernel.o", flags)


def _compile_walker(build: Build) -> None:
    compile_source(HOST / "walker.cc", build.out / "kernel.o", ["-O3"])


def compile_source(source: Path, target: Path, flags: Sequence[str]) -> None:
    """Compile one translation unit. Raises BrokenTool with the compiler's first error."""
    fixed = (*FLAGS, *WARNINGS, *DEFINES, f"-ffile-prefix-map={KERNELS}=kernels")
    paths = (f"-I{HOST}", f"-I{source.parent}", "-c", str(source), "-o", str(target))
    execute([*toolchain().command, *fixed, *flags, *paths], f"compile {source.name}")


def execute(command: Sequence[str], what: str) -> None:
    """Run a tool to its end. Raises BrokenTool with its own words when it fails or hangs."""
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    try:
        done = subprocess.run(
            command,
            env={**kept, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BrokenTool(f"{what}: no end after {TIMEOUT_S} s: {' '.join(command)}") from None
    except OSError as error:
        raise BrokenTool(f"{what}: cannot start {command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        shown = (lines or done.stderr.splitlines() or [f"exit status {done.returncode}"])[0]
        raise BrokenTool(f"{what}: {shown.strip()} (command: {' '.join(command)})")


_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


@functools.cache
def sources(source: Path) -> tuple[Path, ...]:
    """The source and every header of ours that it includes, directly or not."""
    found: dict[Path, None] = {}
    queue = [source]
    while queue:
        path = queue.pop()
        if path in found:
            continue
        found[path] = None
        for name in _includes(path):
            for base in (path.parent, source.parent, HOST):
                if (base / name).is_file():
                    queue.append((base / name).resolve())
                    break
    return tuple(sorted(found))


@functools.cache
def _includes(path: Path) -> tuple[str, ...]:
    try:
        return tuple(_INCLUDE.findall(path.read_text()))
    except OSError:
        return ()  # the store names the unreadable source
