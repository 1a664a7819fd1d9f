"""Building for a real NPU, with stand-ins for Peano and aircc."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from emission_cases import CASES, TINY, alone, fused

from tilegate import compile, corecode, device, emission, graph, hardware
from tilegate.config import load
from tilegate.emission import description
from tilegate.emit import emit
from tilegate.errors import BrokenTool, UserError
from tilegate.hardware import Tools, binary_node, find, macros, object_node
from tilegate.kernels import folder
from tilegate.store import Artifact, Node, Store

NPU2 = device.load("npu2")
SAY = 'if [ "$1" = --version ]; then echo "{name} version {version}"; exit 0; fi\n'
CLANG = "#!/bin/sh\n" + SAY + 'echo "$@" >> {log}\nwhile [ "$1" != -o ]; do shift; done\n'
CLANG += "printf '\\177ELFobject' > \"$2\"\n"
AIRCC = "#!/bin/sh\n" + SAY + 'echo "$@" >> {log}\nls *.o >> {log}\n'
AIRCC += "printf '\\177ELFprogram' > dispatch.elf\necho x > dispatch.xclbin\n"
AIRCC += "echo i > dispatch.insts.bin\n"


@dataclasses.dataclass
class Toolchain:
    """Stand-ins that write down how they were called."""

    root: Path
    log: Path
    environment: dict[str, str]

    def install(self, peano: str = "21.0", air: str = "0.0.1", body: str = AIRCC) -> Tools:
        for name, text, version in (
            ("peano/bin/clang++", CLANG, peano),
            ("bin/aircc", body, air),
            ("bin/aie-opt", "#!/bin/sh\n" + SAY, "1.4.2"),
        ):
            tool = self.root / name
            tool.parent.mkdir(parents=True, exist_ok=True)
            filled = text.replace("{name}", tool.name).replace("{version}", version)
            tool.write_text(filled.replace("{log}", str(self.log)))
            tool.chmod(0o755)
        api = self.root / "include" / "aie_api" / "aie.hpp"
        api.parent.mkdir(parents=True, exist_ok=True)
        api.touch()
        return find(self.environment)


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    made = Toolchain(
        tmp_path,
        tmp_path / "log",
        {"PATH": path, "PEANO_INSTALL_DIR": str(tmp_path / "peano")},
    )
    monkeypatch.setattr(hardware, "tools", lambda: find(made.environment))
    return made


def make(store: Store, node: Node) -> Artifact:
    for need in node.needs:
        store.make(need)
    return store.make(node)


def test_a_dispatch_is_built_from_its_module_and_objects(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    toolchain.install()
    store = Store(tmp_path / "cache", tmp_path / "state")
    made = make(store, binary_node(fused()["decode.rms_gemv_rope"], NPU2))
    assert made.file("dispatch.elf").read_bytes() == b"\x7fELFprogram"
    told = toolchain.log.read_text()
    assert "--target=aie2p-none-unknown-elf -O2 -std=c++20" in told
    assert "-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16" in told
    assert "--device npu2 --output-format elf" in told
    assert "--xclbin-instance-name decode.rms_gemv_rope" in told
    assert "--no-xchesscc --no-xbridge" in told
    document = json.loads(made.file("emission.json").read_text())
    beside = told.split()
    assert all(entry["file"] in beside for entry in document["objects"])
    assert document["kernel"] == "main:decode.rms_gemv_rope"
    names = [argument["name"] for argument in document["arguments"]]
    assert names == [argument.name for argument in fused()["decode.rms_gemv_rope"].arguments]


def test_the_versions_of_the_toolchain_are_in_the_key(toolchain: Toolchain, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", tmp_path / "state")
    keys = set()
    for versions in (("21.0", "0.0.1"), ("21.1", "0.0.1"), ("21.1", "0.0.2")):
        toolchain.install(*versions)
        keys.add(make(store, binary_node(alone("gemv"), NPU2)).key)
    assert len(keys) == 3
    toolchain.log.unlink()
    assert make(Store(store.cache, store.state), binary_node(alone("gemv"), NPU2)).key in keys
    assert not toolchain.log.exists(), "what is there is not built again"


def test_a_missing_toolchain_is_one_line_with_the_fix(toolchain: Toolchain, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", tmp_path / "state")
    with pytest.raises(UserError, match=r"needs Peano .*, aircc .*mlir_air\[aie\].*PEANO_INSTALL"):
        make(store, binary_node(alone("gemv"), NPU2))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'error: no more DMA channels' >&2; exit 1\n", "no more DMA channels"),
        ("exit 0\n", "left no dispatch.elf"),
        ("echo text > dispatch.elf\n", "is not an ELF file"),
    ],
)
def test_an_aircc_that_fails_or_leaves_nothing_is_named(
    toolchain: Toolchain, tmp_path: Path, body: str, words: str
) -> None:
    toolchain.install(body="#!/bin/sh\n" + SAY + body)
    store = Store(tmp_path / "cache", tmp_path / "state")
    with pytest.raises(BrokenTool, match=words):
        make(store, binary_node(alone("gemv"), NPU2))


def test_a_generation_without_elf_takes_one_launch_of_five_arguments(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    toolchain.install()
    older = dataclasses.replace(NPU2, target="npu1", arch="aie2", binary="xclbin")
    with pytest.raises(UserError, match="npu1 has no ELF flow: an xclbin holds one launch"):
        binary_node(fused()["decode.rms_gemv_rope"], older)
    store = Store(tmp_path / "cache", tmp_path / "state")
    made = make(store, binary_node(alone("gemv"), older))
    assert {"dispatch.xclbin", "dispatch.insts.bin"} <= set(made.manifest["outputs"])
    assert "--device npu1 --output-format xclbin" in toolchain.log.read_text()


@pytest.mark.parametrize("case", CASES)
def test_every_symbol_that_a_module_calls_is_in_its_object(case: str, tmp_path: Path) -> None:
    """The same translation units, compiled for the host."""
    for made in description(alone(case), emit(alone(case)), NPU2)["objects"]:
        source = tmp_path / "unit.cc"
        source.write_text(corecode.unit(made))
        flags = [*macros(made, True), f"-I{folder(made['op'])}", "-O0"]
        compile.compile_source(source, tmp_path / made["file"], flags)
        command = ["nm", "--defined-only", str(tmp_path / made["file"])]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert {entry["symbol"] for entry in made["entries"]} <= set(listed)


def test_dispatches_that_call_a_function_differently_have_objects_of_their_own() -> None:
    made = description(alone("gemv"), emit(alone("gemv")), NPU2)["objects"][0]
    other = {**made, "entries": []}
    assert object_node(made, NPU2).name != object_node(other, NPU2).name


def test_a_deployment_for_the_npu_builds_its_binaries_before_anything_else(tmp_path: Path) -> None:
    """So that a missing toolchain is said before minutes of gates; and `deploy` needs them all."""
    config = load((*TINY, "device=npu2", "weights=synthetic"))
    found = graph.nodes(config, Store(tmp_path / "cache", tmp_path / "state"))
    assert found[0].kind == "object"
    binaries = [node.name for node in found if node.kind == "binary"]
    assert sorted(binaries) == sorted(f"elf:{name}" for name in fused())
    assert set(binaries) <= {need.name for need in found[-1].needs}
    emulated = graph.nodes(load(TINY), Store(tmp_path / "cache", tmp_path / "state"))
    assert not [node for node in emulated if node.kind in ("object", "binary")]


def test_binaries_are_laid_beside_what_was_gated_and_said_to_be_unproven(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    toolchain.install()
    store = Store(tmp_path / "cache", tmp_path / "state")
    made = make(store, binary_node(alone("gemv"), NPU2))
    place = tmp_path / "bundle" / "dispatches" / "decode.x"
    place.mkdir(parents=True)
    build = SimpleNamespace(needs={"elf:decode.x": made, "gate:block": made})
    text = graph.skill("phase-6-runner")._add_binaries(build, tmp_path / "bundle")  # type: ignore[attr-defined]
    assert (place / "dispatch.elf").read_bytes() == b"\x7fELFprogram"
    assert "gated on the emulated device only" in text
    build = SimpleNamespace(needs={"gate:block": made})
    assert graph.skill("phase-6-runner")._add_binaries(build, tmp_path) == ""  # type: ignore[attr-defined]


def test_emit_needs_no_toolchain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emission, "PLACE", tmp_path)
    emission.main(load((*TINY, "device=npu2", "device.dram_gbps=60")))
    for name in fused():
        folder = tmp_path / "smollm2-135m" / "npu2" / name
        assert (folder / "module.mlir").read_text().startswith('"builtin.module"() ({')
        document = json.loads((folder / "emission.json").read_text())
        assert document["kernel"] == f"main:{name}" and document["target"] == "npu2"
    assert "no chip has run it" in capsys.readouterr().out
