"""The ledger of the papers' numbers, and its checker."""

from collections import Counter
from copy import deepcopy

import pytest
import torch

from fedlearn import claims

LEDGER, NAMES = claims.load(), claims.NAMES
ENTRIES = {"rpn": 51, "fed_kgf": 127, "fed_mmd_fusion": 50, "fed_gkt": 101, "fed_repopt": 134}


def test_entries_have_their_keys_and_read_claims_of_their_own_paper():
    required = {"id", "paper", "where", "printed", "value", "formula", "verdict", "why"}
    claimed = {c["id"]: c["paper"] for c in LEDGER if "reading_of" not in c}
    assert len({c["id"] for c in LEDGER}) == len(LEDGER)
    for claim in LEDGER:
        assert required <= claim.keys() <= required | {"read", "reading_of", "data"}
        assert claim["id"].startswith(claim["paper"] + "-") and claim["verdict"] in claims.VERDICTS
        assert claimed[claim.get("reading_of", claim["id"])] == claim["paper"]
        assert claim["value"] in (None, True) or isinstance(claim["value"], str)  # digits are text


def test_every_entry_is_what_its_recomputation_says():
    results = claims.audit()  # which raises ValueError otherwise
    assert Counter(r.claim["paper"] for r in results) == ENTRIES
    for r in results:
        assert r.verdict == r.claim["verdict"]
        assert (r.computed is None) == (r.claim["formula"] is None)
        reading = "reading_of" in r.claim
        assert (r.verdict == "rejected") <= reading and not (reading and r.verdict[:2] == "in")
    counts, readings = claims.counts(results), sum("reading_of" in r.claim for r in results)
    assert sum(counts.values()) == len(results) - readings and "rejected" not in counts
    last = claims.report(results).splitlines()[-1]
    assert last.startswith(f"{sum(counts.values())} claims: ") and f"{readings} other" in last


@pytest.mark.parametrize(
    "name, change",
    [
        ("rpn-table1-fl-params", {"verdict": "rounding"}),
        ("rpn-table1-fl-params", {"printed": "another number"}),
        ("rpn-table1-reduction", {"formula": "params(no_such_network())"}),
        ("rpn-table2-map", {"formula": "1 +"}),
        ("fed_repopt-tr-folds", {"formula": "folding_gap('digits_repvgg', True) < 1e-9"}),
        ("fed_repopt-rule-position", {"formula": "repopt_gap('digits_repvgg', 'diagonal') < 1e-9"}),
    ],
)
def test_a_corrupted_entry_is_reported(name, change):
    [claim] = [deepcopy(c) | change for c in LEDGER if c["id"] == name]
    with pytest.raises(ValueError, match=name):
        claims.audit(claims=[claim])
    assert "LEDGER WRONG" in claims.report(claims.audit(claims=[claim], strict=False))
    assert not claims.audit("another paper", [claim])


@pytest.mark.parametrize(
    "formula", ["().__class__", "open('x')", "__import__('os')", "data.__len__()"]
)
def test_formulas_reach_nothing_but_their_functions(formula):
    with pytest.raises((NameError, ValueError)):
        claims.evaluate(formula)


@pytest.mark.parametrize(
    "value, computed, verdict",
    [
        ("12", 12, "matches"),
        ("12", 13, "inconsistent"),
        ("1.4", 1.3868, "rounding"),
        ("1.40", 1.3868, "inconsistent"),
        ("7E+1", 70.09, "rounding"),
        ("44", 43.48, "inconsistent"),
        ("44", 44.99, "rounding"),  # cut
        ("44", 45, "inconsistent"),
        ("-44", -44.99, "rounding"),  # towards zero
        ("-44", -43.4, "inconsistent"),
        ("39", (38.7, 39.74, 40.8), "rounding"),
        (True, True, "matches"),
        (True, False, "inconsistent"),
        (None, 3, "not derivable"),
        ("3", None, "not derivable"),
    ],
)
def test_verdicts(value, computed, verdict):
    assert claims.verdict_of(value, computed) == verdict


def test_the_table_has_a_row_for_each_entry():
    frame = claims.table("fed_mmd_fusion")
    assert list(frame.index) == [c["id"] for c in LEDGER if c["paper"] == "fed_mmd_fusion"]
    assert frame.loc["fed_mmd_fusion-mmd-mnist-reduction", "computed"] == "43.75"
    assert "(read: " in " ".join(frame["printed"])


@pytest.mark.parametrize(
    "computed, text",
    [
        *((None, ""), (True, "yes"), (False, "no"), (1183242, "1,183,242"), (342.9911, "342.99")),
        ((2.64, 2.659, 2.679), "2.659 (2.64 to 2.679)"),
    ],
)
def test_what_is_shown_of_a_value(computed, text):
    assert claims.show(computed) == text


@pytest.mark.parametrize(
    "formula, value",
    [
        ("params(yolov3(20)), kernels(yolov3(20))", (61_626_049, 12_060_000)),
        ("params(fcn32s(21)), pooled(fcn32s(21))", (23_577_621, 13_508_629)),
        ("base_params(resnet18(), 16), buffers(resnet18())", (510_778, 9_600)),
        ("base_params(resnet18(), 512) == params(resnet18())", True),
        ("spatial_weights(conv(3, 20, 3)), spatial_weights(conv(20, 4, 1))", (540, 0)),
        ("spatial_layers(conv(20, 4, 1), 4), spatial_layers(conv(3, 4, 3), 4)", (0, 1)),
        ("params(yolox_l()), mib(2**20), mib(2**20, 1)", (54_208_895, 4, 1 / 8)),
        ("dense_weights(cifar_cnn())", 64 * 8 * 8 * 384 + 384 * 192 + 192 * 10),
        ("multiply_adds(conv(128, 64, 1), [128, 8, 8])", 128 * 64 * 8 * 8),
        ("params(repvgg('inf', 100))", 50_202_632 - 100 * 2049),
        ("buffers(repopt(repghost('csla'))) - buffers(repghost('inf'))", 2_480),
        ("distances([[1, 2], [3, 4]], [1, 1])", [[0, 1], [4, 9]]),
        ("spread([[1, 2], [3, 6]]), mean([1, 2])", ([[3, 3], [3, 3]], 1.5)),
    ],
)
def test_what_formulas_call(formula, value):
    assert claims.evaluate(formula) == value


def test_only_the_multiplier_by_position_trains_as_the_branches_do():
    gap, folding, before = NAMES["repopt_gap"], NAMES["folding_gap"], torch.get_rng_state()
    for family in ("digits_repvgg", "digits_repghost"):
        assert gap(family, "position") < 1e-11 and gap(family, "branches") > 0.03
        assert folding(family) < 1e-12 and folding(family, True) > 0.1
    assert gap("digits_repvgg", "scalar") > 0.5
    assert gap("digits_repghost", "scalar") == gap("digits_repghost", "branches")  # no 1 x 1 branch
    for function in (gap, folding):  # which are drawn from a seed of their own
        arguments = ("digits_repvgg", "position")[: 2 if function is gap else 1]
        assert function.__wrapped__(*arguments) == function(*arguments)
    assert torch.equal(torch.get_rng_state(), before)


def test_ranges_of_printed_numbers():
    assert claims.quotient("3", "2") == pytest.approx((1, 1.5, 3.5 / 1.5))
    assert NAMES["rise"]("2", "3") == pytest.approx((0, 50, 100 * 2 / 1.5))
    assert NAMES["drop"]("2", "3") == pytest.approx((-100 * 2 / 1.5, -50, 0))
    assert NAMES["chi2_per_dof"]([[10, 20], [30, 20]]) == pytest.approx(16 / 3)


@pytest.mark.parametrize("bound", [1.0, 1 / 24])
def test_what_a_generated_kernel_has_of_its_base(bound):
    """The sums against draws of Eq. (2), differentiated by torch."""
    generator = torch.Generator().manual_seed(0)
    w, beta, alpha = torch.rand(3, 200_000, generator=generator, dtype=torch.float64)
    w, beta, alpha = (w * bound).requires_grad_(), 2 + 8 * beta, 0.00001 + 0.09999 * alpha
    kernels = w.abs() ** beta + alpha
    (gradient,) = torch.autograd.grad(kernels.sum(), w)
    drawn = (float(1 - alpha.mean() / kernels.detach().mean()), float(gradient.mean()))
    assert NAMES["generated"](bound) == pytest.approx(drawn, rel=0.02)
