"""The device was given other tokens than the oracle."""

from __future__ import annotations

from tilegate.diagnose import Case, Finding, error

MOST = 4  # tokens by which a prompt may be moved


def diagnose(case: Case) -> Finding:
    """Matches rows that are the oracle's, some places later or earlier."""
    if case.op != "embedding" or not case.complete:
        return case.finding(False)
    count = len(case.expected)
    here = error(case.output[:count], case.expected)
    if here <= case.limit:
        return case.finding(False)
    for shift in range(1, min(MOST, count - 1) + 1):
        room = len(case.output) - shift
        more = error(case.output[shift : shift + count][:room], case.expected[:room])
        less = error(case.output[: count - shift], case.expected[shift:])
        for off, cause in (
            (
                more,
                f"{shift} token(s) too many stand before the prompt: a doubled BOS, left padding",
            ),
            (less, f"the first {shift} token(s) of the prompt are missing: no BOS"),
        ):
            if off <= case.limit:
                evidence = {"error in place": here, "error moved": off}
                return case.finding(True, cause, evidence=evidence)
    return case.finding(False)
