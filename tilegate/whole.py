"""Rules over a whole dispatch: launches merged, buffer objects, and the order of its accesses."""

from __future__ import annotations

from collections.abc import Iterator

from tilegate import legality
from tilegate.dispatch import Dispatch
from tilegate.plan import Requirement

MOST_LAUNCHES = 10  # the largest published dispatch: mlir-air programming_examples/llms/smolvla
MOST_BYTES = 2**32  # a buffer offset is an unsigned 32-bit number of bytes


def judge(dispatch: Dispatch) -> legality.Verdict:
    """Whether a dispatch can be built and run; `unknown` where it is larger than any measured."""
    broken = tuple(map(legality.violation, (*objects(dispatch), *hazards(dispatch))))
    if broken:
        return legality.Verdict("illegal", broken)
    unknown = tuple(map(legality.violation, launches(dispatch)))
    return legality.Verdict("unknown" if unknown else "legal", unknown)


def launches(dispatch: Dispatch) -> Iterator[Requirement]:
    """Compile time explodes with the launches that are merged, and with attention among them."""
    kernels = [op.plan.op for op in dispatch.ops]
    count = sum(len(op.plan.launches) for op in dispatch.ops)
    if count > MOST_LAUNCHES:
        hint = f"{dispatch.name}: cut it in two (fusion); larger ones were not measured"
        yield Requirement("R-LAUNCHES", False, count, MOST_LAUNCHES, "launches", hint)
    if len(kernels) > 1 and "flash_attention" in kernels:
        hint = f"{dispatch.name}: give flash attention a dispatch of its own (fusion)"
        yield Requirement("R-MERGE-FA", False, len(kernels), 1, "ops", hint)


def objects(dispatch: Dispatch) -> Iterator[Requirement]:
    """A buffer object must be within the reach of one descriptor's offset."""
    for argument in dispatch.arguments:
        if argument.bytes > MOST_BYTES:
            hint = f"{dispatch.name}: {argument.name} needs several buffer objects"
            yield Requirement("R-BO", False, argument.bytes, MOST_BYTES, "bytes", hint)


def hazards(dispatch: Dispatch) -> Iterator[Requirement]:
    """What only this dispatch holds must be written before it is read, and by one op."""
    inside = {i for i, a in enumerate(dispatch.arguments) if a.kind == "intermediate"}
    written: dict[int, str] = {}
    for op in dispatch.ops:
        roles = {tensor.name: tensor.role for tensor in op.plan.tensors}
        for name, index in op.arguments:
            role, what = roles[name], dispatch.arguments[index].name
            if role in ("in", "param") and index in inside and index not in written:
                hint = f"{dispatch.name}: {op.name} reads {what} before any launch writes it"
                yield Requirement("R-ORDER", False, op.name, "a writer before", "", hint)
            if role in ("out", "inout"):
                if index in written and role == "out":
                    hint = f"{dispatch.name}: {written[index]} and {op.name} both write {what}"
                    yield Requirement("R-ORDER", False, 2, 1, "writers", hint)
                written[index] = op.name
