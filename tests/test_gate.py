"""Gates: good data holds, and nothing else does."""

import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tilegate import policy as policies
from tilegate.digests import digest
from tilegate.errors import GateFailed, UserError
from tilegate.evidence import Generation
from tilegate.gate import (
    compare_block,
    compare_faster,
    compare_oracle,
    compare_tensors,
    compare_tokens,
    require,
    table,
)

RAW = yaml.safe_load((Path(__file__).parent.parent / "conf/gate/default.yaml").read_text())
POLICY = policies.load(RAW)
SHAPE = (64, 256)
STOP = 7


def f32(array) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)


def noisy(reference: np.ndarray, share: float, seed: int = 1) -> np.ndarray:
    """The reference with an error of about `share` of each row's mean size."""
    rng = np.random.default_rng(seed)
    scale = np.abs(reference).mean(1, keepdims=True)
    return f32(reference + share * 1.25 * scale * rng.standard_normal(reference.shape))


@pytest.fixture
def reference() -> np.ndarray:
    """Rows whose sizes span three orders of magnitude, as activations do."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-2, 1, (SHAPE[0], 1))
    return f32(rng.standard_normal(SHAPE) * sizes)


def kernel(candidate, reference, inputs="random", tier="gemm", count=None):
    expected = reference.size if count is None else count
    tolerance = POLICY.tier(tier, inputs)
    return compare_tensors("gate:kernel", "gemm", candidate, reference, tolerance, expected)


def block(candidate, reference, head_dim=64, count=None):
    expected = reference.size if count is None else count
    return compare_block("gate:block", "layer 0", candidate, reference, POLICY, head_dim, expected)


@pytest.mark.parametrize("inputs", ["random", "real"])
@pytest.mark.parametrize("tier", sorted(POLICY.tiers))
def test_an_error_in_tier_holds_at_any_size(reference, tier, inputs):
    share = 0.5 * POLICY.tier(tier, inputs)["mean_rel_l1"]
    if tier == "gemv":  # its error is the order of an FP32 sum, or a bf16 neighbour now and then
        share = 1e-6
    for scale in (1e-3, 1.0, 1e3):
        ref = f32(reference * scale)
        record = kernel(noisy(ref, share), ref, inputs, tier)
        assert record.passed, (scale, record)


def _shuffle(array):
    return np.random.default_rng(2).permutation(array.reshape(-1)).reshape(array.shape)


def _with(array, index, value):
    changed = array.copy()
    changed[index] = value
    return changed


def _swap_columns(array):
    changed = array.copy()
    changed[:, [3, 4]] = array[:, [4, 3]]
    return changed


def _small_rows_zeroed(array):
    sizes = np.abs(array).mean(1)
    return f32(np.where((sizes < np.median(sizes))[:, None], 0, array))


def _tile(array):
    return _with(array, np.s_[16:32, 64:128], array[0:16, 0:64])


HOSTILE = {
    "empty": lambda a: a[:0],
    "truncated": lambda a: a[:-1],
    "one nan": lambda a: _with(a, (5, 5), np.nan),
    "all nan": lambda a: np.full_like(a, np.nan),
    "inf": lambda a: _with(a, (0, 0), np.inf),
    "huge": lambda a: _with(a, (0, 0), 3e38),
    "twice": lambda a: a * 2,
    "negated": lambda a: -a,
    "zeros": lambda a: a * 0,
    "constant": np.ones_like,
    "shuffled": _shuffle,
    "rows shuffled": lambda a: a[::-1],
    "every second row zeroed": lambda a: _with(a, np.s_[::2], 0),
    "small rows zeroed": _small_rows_zeroed,
    "two columns swapped": _swap_columns,
    "one tile from elsewhere": _tile,
    "one row of the row before": lambda a: _with(a, 9, a[8]),
    "transposed": lambda a: a.T,
    "flat": lambda a: a.reshape(-1),
    "float64": lambda a: a.astype(np.float64),
    "bf16 bits": lambda a: (a.view(np.uint32) >> 16).astype(np.uint16),
    "list": lambda a: a.tolist(),
    "none": lambda a: None,
}
ELEMENTS = ("two columns swapped", "one tile from elsewhere")  # the kernel gate's, not the block's
KEEPS_TYPE = ("list", "none", "float64", "bf16 bits")


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        *((name, inputs) for name in HOSTILE for inputs in ("random", "real")),
        *((name, "block") for name in HOSTILE if name not in ELEMENTS),
    ],
)
def test_hostile_tensors_fail(reference, name, inputs, swapped):
    bad = HOSTILE[name](noisy(reference, 1e-3))
    bad = bad if name in KEEPS_TYPE else f32(bad)
    sides = (reference, bad) if swapped else (bad, reference)
    if inputs == "block":
        record = block(*sides, count=reference.size)
    else:
        record = kernel(*sides, inputs, count=reference.size)
    assert record.verdict == "fail" and record.reasons, record
    json.dumps(record.to_json(), allow_nan=False)


@pytest.mark.parametrize("tier", sorted(POLICY.tiers))
@pytest.mark.parametrize("inputs", ["random", "real"])
def test_one_wrong_element_fails_every_tier(reference, tier, inputs):
    candidate = reference.copy()
    row = np.abs(reference[3])
    candidate[3, 3] += 20 * row.mean()
    assert kernel(candidate, reference, inputs, tier).verdict == "fail"


def test_evidence_is_counted(reference):
    good = noisy(reference, 1e-3)
    assert not kernel(good, reference, count=reference.size + 1).passed
    assert not kernel(good, reference, count=0).passed
    empty = f32(np.zeros((0, 8)))
    assert not kernel(empty, empty.copy(), count=0).passed
    assert "same memory" in kernel(reference, reference).reasons[0]
    assert "constant" in kernel(good, np.zeros_like(good)).reasons[0]
    nans = np.full_like(good, np.nan)
    assert not kernel(nans, nans.copy()).passed


def test_near_zero_is_a_verdict_of_its_own():
    rng = np.random.default_rng(3)
    reference = f32(rng.standard_normal((64, 1024)))
    small = np.argwhere(np.abs(reference) < 0.05)
    off = np.float32(0.13)  # above gemm's allowance of 0.068, below a quarter of the row's scale

    def with_near_zero(number):
        candidate = reference.copy()
        for row, column in small[:number]:
            candidate[row, column] += off
        return kernel(candidate, reference)

    few, many = with_near_zero(20), with_near_zero(600)
    assert few.passed and few.metrics["near_zero_share"] > 0 and "waived" in few.metrics
    assert many.verdict == "near-zero" and not many.passed
    with pytest.raises(GateFailed):
        require([many], 1)
    large = np.argwhere(np.abs(reference) > 1.0)[0]
    candidate = reference.copy()
    candidate[tuple(large)] += np.float32(
        0.2
    )  # the same kind of error where the reference is not small
    assert kernel(candidate, reference).verdict == "fail"


def test_the_allowance_follows_the_row_down_as_well_as_up():
    rng = np.random.default_rng(4)
    reference = f32(rng.standard_normal((8, 512)))
    reference[0] *= 1e4
    candidate = noisy(reference, 5e-3)
    assert kernel(candidate, reference).passed
    candidate[7] += 0.5 * np.abs(reference[7]).mean()  # nothing beside row 0, all of row 7
    record = kernel(candidate, reference)
    assert record.metrics["mean_rel_l1"] < POLICY.tier("gemm")["mean_rel_l1"]
    assert record.verdict == "fail"


def test_block_thresholds(reference):
    for head_dim in (16, 64, 128):
        assert block(noisy(reference, 2e-2), reference, head_dim).passed
    record = block(noisy(reference, 0.11), reference)
    assert not record.passed and record.metrics["cosine"] > 0.98
    with pytest.raises(UserError, match="head_dim 256"):
        block(reference, reference, 256)


def generation(seed=0, steps=32, vocab=64) -> Generation:
    logits = f32(np.random.default_rng(seed).standard_normal((steps, vocab)))
    logits[:, STOP] -= 10  # never chosen
    return Generation(logits.argmax(1).tolist(), logits)


def near(golden: Generation, share=1e-2) -> Generation:
    logits = noisy(golden.logits, share)
    return Generation(logits.argmax(1).tolist(), logits)


def tokens(candidate, golden):
    return compare_tokens("gate:model", "prompt 0", candidate, golden, POLICY, stop_ids=[STOP])


def diverge(golden: Generation, step: int, rank: int, back: int) -> Generation:
    """Another sequence from `step` on, where its token is number `rank` of the oracle and the
    oracle's token number `back` of its own."""
    order = np.argsort(-golden.logits[step])
    other = generation(seed=99)
    logits = np.concatenate([noisy(golden.logits, 1e-4)[:step], other.logits[step:]])
    row = f32(np.linspace(0, 5, golden.logits.shape[1]))
    ranked = [order[rank - 1], *[i for i in order[::-1] if i not in (order[0], order[rank - 1])]]
    ranked.insert(back - 1, order[0])
    logits[step, ranked] = row[::-1]
    return Generation(logits.argmax(1).tolist(), logits)


def test_tokens_alike_and_divergent():
    golden = generation()
    same = tokens(Generation(golden.tokens, golden.logits.copy()), golden)
    assert same.passed and same.metrics["matched"] == 32 and same.metrics["kl"] == 0
    assert tokens(near(golden, 1e-3), golden).passed
    within = tokens(diverge(golden, 10, 5, 5), golden)
    assert within.passed and within.metrics["matched"] == 10
    assert (within.metrics["candidate_rank"], within.metrics["oracle_rank"]) == (4, 4)
    assert "candidate's token" in tokens(diverge(golden, 10, 6, 2), golden).reasons[0]
    assert "oracle's token" in tokens(diverge(golden, 10, 2, 6), golden).reasons[0]
    assert not tokens(diverge(golden, 0, 6, 6), golden).passed


def stopped(golden: Generation, at: int) -> Generation:
    logits = golden.logits[: at + 1].copy()
    logits[at, STOP] = 50
    return Generation([*golden.tokens[:at], STOP], logits)


def test_a_stop_token_ends_early_on_both_sides_only():
    golden = generation()
    assert tokens(stopped(golden, 9), stopped(golden, 9)).passed
    assert not tokens(stopped(golden, 9), golden).passed  # STOP is last among the oracle's


def _logits(golden, change):
    logits = golden.logits.copy()
    change(logits)
    return Generation(golden.tokens, logits)


def _constant(token):
    def make(golden):
        logits = golden.logits.copy()
        logits[:, token] = 50
        return Generation([token] * len(golden.tokens), logits)

    return make


BAD_TOKENS = {
    "empty": lambda g: Generation([], g.logits[:0]),
    "short": lambda g: Generation(g.tokens[:20], g.logits[:20]),
    "one": lambda g: Generation(g.tokens[:1], g.logits[:1]),
    "long": lambda g: Generation([*g.tokens, 1], np.vstack([g.logits, g.logits[:1]])),
    "fewer logits": lambda g: Generation(g.tokens, g.logits[:-1]),
    "nan logits": lambda g: _logits(g, lambda x: x.__setitem__((4, 4), np.nan)),
    "inf logits": lambda g: _logits(g, lambda x: x.__setitem__((31, 0), np.inf)),
    "flat logits": lambda g: _logits(g, lambda x: x.__setitem__(3, 0)),
    "no logits": lambda g: Generation(g.tokens, None),
    "logits as list": lambda g: Generation(g.tokens, g.logits.tolist()),
    "float64 logits": lambda g: Generation(g.tokens, g.logits.astype(np.float64)),
    "logits of another run": lambda g: Generation(g.tokens, generation(5).logits),
    "negated logits": lambda g: Generation(g.tokens, -g.logits),
    "tokens shuffled": lambda g: Generation(g.tokens[::-1], g.logits),
    "other vocabulary": lambda g: Generation(g.tokens, np.pad(g.logits, ((0, 0), (0, 2)))),
    "token outside": lambda g: Generation([*g.tokens[:-1], 64], g.logits),
    "negative token": lambda g: Generation([*g.tokens[:-1], -1], g.logits),
    "always 0": _constant(0),
    "always 9": _constant(9),
    "another run": lambda g: generation(77),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", BAD_TOKENS)
def test_bad_generations_fail(name, swapped):
    golden = generation()
    bad = BAD_TOKENS[name](golden)
    record = tokens(golden, bad) if swapped else tokens(bad, golden)
    assert record.verdict == "fail" and record.reasons
    json.dumps(record.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", ["empty", "short", "nan logits", "always 9"])
def test_the_same_badness_on_both_sides_fails(name):
    golden = generation()
    assert not tokens(BAD_TOKENS[name](golden), BAD_TOKENS[name](golden)).passed


def test_oracle():
    def gate(candidate, reference):
        return compare_oracle("gate:oracle", "logits", candidate, reference, POLICY)

    golden = generation()
    good = Generation(golden.tokens, golden.logits + np.float32(5e-4))
    assert gate(good, golden).passed
    assert not gate(Generation(golden.tokens, golden.logits + np.float32(2e-3)), golden).passed
    assert not gate(Generation(golden.tokens[:-1], good.logits), golden).passed
    assert not gate(Generation([*golden.tokens[:-1], 63], good.logits), golden).passed
    assert not gate(Generation([], good.logits), Generation([], golden.logits)).passed
    assert not gate(BAD_TOKENS["nan logits"](golden), golden).passed


def test_faster(reference):
    held = [kernel(noisy(reference, 1e-3), reference)]

    def gate(now, before=100.0, predicted=80.0, records=held):
        return compare_faster("gate:speed", "gemm", now, before, predicted, records, POLICY)

    assert gate(80.0).passed
    assert not gate(100.0, predicted=100.0).passed  # equal is not better
    assert not gate(60.0).passed  # too good
    assert not gate(120.0, before=200.0).passed  # the prediction does not hold
    for value in (float("nan"), 0.0, -1.0, float("inf")):
        assert not gate(value).passed
        assert not gate(80.0, before=value).passed
        assert not gate(80.0, predicted=value).passed
    assert not gate(80.0, records=[]).passed
    assert not gate(80.0, records=[kernel(reference * 2, reference)]).passed


def test_require_counts_what_ran(reference):
    good = kernel(noisy(reference, 1e-3), reference)
    require([good, good], 2)
    for records, expected in (([], 0), ([], 1), ([good], 2), ([good, good], 1)):
        with pytest.raises(GateFailed):
            require(records, expected)
    bad = kernel(reference * 2, reference)
    with pytest.raises(GateFailed) as caught:
        require([good, bad], 2)
    assert caught.value.record["verdict"] == "fail"


def test_record_says_what_was_seen(reference):
    candidate = noisy(reference, 1e-3)
    record = kernel(candidate, reference)
    plain = json.loads(json.dumps(record.to_json(), allow_nan=False))
    assert plain["policy"] == digest(POLICY.tiers["gemm"])
    assert plain["counts"]["compared"] == reference.size
    assert plain["candidate"] != plain["reference"]
    assert all(limit["note"] and limit["source"] for limit in plain["thresholds"].values())
    assert table([record, kernel(reference * 2, reference)]).row_count == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.verdict = "pass"


def _change(path, value):
    raw = copy.deepcopy(RAW)
    *parents, last = path.split(".")
    place = raw
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("tiers.gemm.rtol.note", "", "note is empty"),
        ("tiers.gemm.rtol.note", None, "note is missing"),
        ("tiers.gemm.rtol.source", None, "source is missing"),
        ("tiers.gemm.rtol.source", "regstry", "did you mean 'registry'"),
        ("tiers.gemm.rtol", 0.5, "must be a mapping"),
        ("tiers.gemm.rtol.value", "1e-2", "must be a number"),
        ("tiers.gemm.rtol.value", True, "must be a number"),
        ("tiers.gemm.rtol.value", float("nan"), "must be finite"),
        ("tiers.gemm.rtol.value", float("inf"), "must be finite"),
        ("tiers.gemm.rtol.value", -1.0, "at least 0"),
        ("tiers.gemm.rtoll", {}, "did you mean 'rtol'"),
        ("tiers.gemm.rtol", None, "rtol is missing"),
        ("tiers", {}, "empty"),
        ("block.cosine", None, "cosine is missing"),
        ("modle", {}, "did you mean 'model'"),
        ("prompts.quick", [], "at least one prompt"),
        ("prompts.full", ["a", " "], "empty prompt"),
        ("prompts.full", ["a", "a"], "twice"),
        ("sources.house", " ", "not in gate.sources"),
    ],
)
def test_a_policy_without_evidence_does_not_load(path, value, says):
    with pytest.raises(UserError, match=says) as caught:
        policies.load(_change(path, value))
    assert "\n" not in str(caught.value)


def test_a_loosened_policy_shows():
    loose = policies.load(_change("tiers.gemm.atol.value", 0.5))
    assert loose.digest != POLICY.digest
    assert loose.changed_from(POLICY) == ["tiers.gemm.atol: 0.0015 -> 0.5"]
    assert POLICY.changed_from(policies.load(RAW)) == []
    with pytest.raises(UserError, match="did you mean 'gemv'"):
        POLICY.tier("gemvv")


def test_the_prompt_sets():
    assert len(POLICY.prompts["quick"]) == 2 and len(POLICY.prompts["full"]) == 8
    assert "What is the capital of France?" in POLICY.prompts["quick"]
