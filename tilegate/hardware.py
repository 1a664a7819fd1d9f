"""Builds a dispatch for a real NPU: kernel objects with Peano, the emitted module with aircc.

Both are nodes of the store; the versions of the toolchain are part of their keys. Nothing here has
been run against the real tools by this repository's tests, only against stand-ins for them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate import corecode
from tilegate.compile import execute, sources
from tilegate.device import Device
from tilegate.digests import digest
from tilegate.dispatch import Dispatch, describe
from tilegate.emission import description
from tilegate.emit import emit
from tilegate.errors import BrokenTool, UserError
from tilegate.kernels import folder
from tilegate.npu_doctor import WHEELS
from tilegate.store import Build, Node

# After Xilinx/mlir-air programming_examples/llms/shared/infra/external_kernels.py. The guard keeps
# aie.hpp from asking for adf.h, which only Vitis has.
FLAGS = (
    *("-O2", "-std=c++20", "-DNDEBUG", "-D__AIE_API_AIE_ADF_HPP__", "-Wno-parentheses"),
    *("-Wno-attributes", "-Wno-macro-redefined", "-Wno-empty-body"),
)
MOST_XCLBIN_ARGUMENTS = 5
OUTPUTS = {"elf": ("dispatch.elf",), "xclbin": ("dispatch.xclbin", "dispatch.insts.bin")}


@dataclass(frozen=True)
class Tools:
    """The toolchain: paths, what it says of its versions, and what is missing of it."""

    clang: str = ""
    peano: str = ""
    aircc: str = ""
    include: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()

    def need(self) -> None:
        """Raise UserError, one line, unless all of it is there."""
        if self.missing:
            raise UserError(
                f"building for a real NPU needs {', '.join(self.missing)}: {WHEELS}; "
                f"then set PEANO_INSTALL_DIR and MLIR_AIE_INSTALL_DIR (doit doctor device=npu2 "
                f"looks again). Without: device=emulated-npu2, or doit emit for the text"
            )


@functools.cache
def tools() -> Tools:
    """The toolchain of this environment."""
    return find(os.environ)


def find(environment: Mapping[str, str]) -> Tools:
    """Peano in PEANO_INSTALL_DIR, aircc on PATH, the AIE API beside aie-opt or as installed."""
    path = environment.get("PATH", "")
    peano = environment.get("PEANO_INSTALL_DIR", "")
    clang = Path(peano) / "bin" / "clang++"
    aircc = shutil.which("aircc", path=path) or ""
    opt = shutil.which("aie-opt", path=path)
    places = [Path(opt).parent.parent / "include"] if opt else []
    places.append(Path(environment.get("MLIR_AIE_INSTALL_DIR", "") or "/nowhere") / "include")
    include = next((str(p) for p in places if (p / "aie_api" / "aie.hpp").is_file()), "")
    missing = [
        what
        for what, there in (
            ("Peano (PEANO_INSTALL_DIR/bin/clang++)", bool(peano) and clang.is_file()),
            ("aircc of mlir-air", bool(aircc)),
            ("the AIE API of mlir-aie (include/aie_api)", bool(include)),
        )
        if not there
    ]
    versions = {"peano": str(clang) if peano else "", "mlir_air": aircc, "mlir_aie": opt or ""}
    said = tuple((name, _version(tool) if tool else "") for name, tool in versions.items())
    return Tools(str(clang), peano, aircc, include, said, tuple(missing))


def _version(tool: str) -> str:
    try:
        done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def nodes(dispatches: tuple[Dispatch, ...], device: Device) -> Iterator[Node]:
    """The node of each dispatch's binary, with its objects' nodes as needs."""
    for dispatch in dispatches:
        yield binary_node(dispatch, device)


def binary_node(dispatch: Dispatch, device: Device) -> Node:
    """The node that builds one dispatch.

    Raises UserError for a dispatch that the generation's flow cannot hold.
    """
    launches = sum(1 for _ in dispatch.launches())
    if device.binary == "xclbin" and (
        launches > 1 or len(dispatch.arguments) > MOST_XCLBIN_ARGUMENTS
    ):
        raise UserError(
            f"{device.target} has no ELF flow: an xclbin holds one launch of at most "
            f"{MOST_XCLBIN_ARGUMENTS} arguments, {dispatch.name} has {launches} launches and "
            f"{len(dispatch.arguments)} arguments; fusion=unfused comes nearest"
        )
    module = emit(dispatch)
    document = description(dispatch, module, device)
    objects = tuple(object_node(made, device) for made in document["objects"])
    return Node(
        name=f"{device.binary}:{dispatch.name}",
        kind="binary",
        doc=f"build {dispatch.name} for {device.target}",
        inputs={
            "module": module.text,
            "description": document,
            "name": module.name,
            "dispatch": describe(dispatch),
            "binary": device.binary,
            "tools": dict(tools().versions),
        },
        needs=objects,
        build=_build,
    )


def object_node(made: Mapping[str, Any], device: Device) -> Node:
    """The node that compiles one kernel object for the cores of a device."""
    return Node(
        name=_object_name(made, device.arch),
        kind="object",
        doc=f"compile {made['op']}/{made['source']} for {device.arch}",
        inputs={
            "object": made,
            "arch": device.arch,
            "block_float": device.block_float,
            "flags": list(FLAGS),
            "tools": dict(tools().versions),
        },
        needs=(),
        build=_compile,
        sources=sources(folder(made["op"]) / made["source"]),
    )


def _object_name(made: Mapping[str, Any], arch: str) -> str:
    """Dispatches that call a function in different ways have objects of their own."""
    return f"object:{made['op']}.{Path(made['source']).stem}-{arch}-{digest(made)[:10]}"


def _compile(build: Build) -> None:
    found = tools()
    found.need()
    made = build.inputs["object"]
    unit = build.out / "unit.cc"
    unit.write_text(corecode.unit(made))
    command = [found.clang, f"--target={build.inputs['arch']}-none-unknown-elf", *FLAGS]
    command += macros(made, build.inputs["block_float"])
    command += [f"-I{found.include}", f"-I{folder(made['op'])}"]
    target = build.out / "kernel.o"
    execute([*command, "-c", str(unit), "-o", str(target)], f"compile {made['file']}")
    if target.read_bytes()[:4] != b"\x7fELF":
        raise BrokenTool(f"{made['file']}: Peano left no ELF object")


def macros(made: Mapping[str, Any], block_float: bool) -> list[str]:
    """The macros that bake an object's shape and rename what it exports."""
    found = [f"-D{name}={value}" for name, value in made["defines"].items()]
    found += [f"-D{name}={symbol}" for name, symbol in made["symbols"].items()]
    if block_float:
        found.append("-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16")
    return found


def _build(build: Build) -> None:
    """Lay module and objects side by side, where aircc looks for them, and run it."""
    found = tools()
    found.need()
    work = build.out / "work"
    work.mkdir()
    (work / "module.mlir").write_text(build.inputs["module"])
    document = build.inputs["description"]
    for made in document["objects"]:
        node = build.need(_object_name(made, document["arch"]))
        shutil.copy(node.file("kernel.o"), work / made["file"])
    kind = build.inputs["binary"]
    command = [found.aircc, "--device", document["target"], "--output-format", kind]
    command += ["--peano", found.peano, "--no-xchesscc", "--no-xbridge"]
    command += ["--stack-size", str(document["stack_bytes"]), "--tmpdir", "air_project"]
    command += ["--xclbin-instance-name", build.inputs["name"]]
    outputs = OUTPUTS[kind]
    options = ("--elf-name",) if kind == "elf" else ("-o", "-i")
    for option, name in zip(options, outputs, strict=True):
        command += [option, name]
    _aircc([*command, "module.mlir"], work, build.node.name)
    for name in outputs:
        if not (work / name).is_file() or not (work / name).stat().st_size:
            raise BrokenTool(f"{build.node.name}: aircc ended well but left no {name}")
        shutil.copy(work / name, build.out / name)
    if kind == "elf" and (build.out / outputs[0]).read_bytes()[:4] != b"\x7fELF":
        raise BrokenTool(f"{build.node.name}: {outputs[0]} is not an ELF file")
    shutil.rmtree(work)
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    (build.out / "emission.json").write_text(text)
    table = json.dumps(build.inputs["dispatch"], indent=1, sort_keys=True) + "\n"
    (build.out / "dispatch.json").write_text(table)


def _aircc(command: list[str], work: Path, what: str) -> None:
    """aircc looks for objects where it runs, so it runs in their folder."""
    quoted = " ".join(command)
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=1800, check=False
        )
    except subprocess.TimeoutExpired:
        raise BrokenTool(f"{what}: no end after 1800 s: {quoted}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if re.search("error", line, re.I)]
        shown = (lines or done.stderr.splitlines() or [f"exit status {done.returncode}"])[0]
        raise BrokenTool(f"{what}: {shown.strip()} (command: {quoted})")
