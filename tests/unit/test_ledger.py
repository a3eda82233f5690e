"""The ledger of the papers' numbers, and its checker."""

from copy import deepcopy

import pytest
import torch
import yaml

from fedlearn import claims

LEDGER, NAMES = claims.load(), claims.NAMES


def changed(name, **values):
    ledger = deepcopy(LEDGER)
    next(c for c in ledger if c["id"] == name).update(values)
    return ledger


ENTRIES = {"rpn": 51, "fed_kgf": 127, "fed_mmd_fusion": 50, "fed_gkt": 101, "fed_repopt": 134}


@pytest.mark.parametrize("paper", ENTRIES)
def test_every_entry_is_what_its_recomputation_says(paper):
    results = claims.audit(paper)  # which raises ValueError otherwise
    assert len(results) == ENTRIES[paper] and sum(ENTRIES.values()) == len(LEDGER)
    for r in results:
        assert r.verdict == r.claim["verdict"] and r.claim["id"].startswith(paper + "-")
        assert (r.computed is None) == (r.claim["formula"] is None)
        # digits stay text
        assert r.claim["value"] in (None, True) or isinstance(r.claim["value"], str)
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
        ("rpn-table1-reduction", {"formula": "params(no_such_network())"}),
        ("rpn-table2-map", {"formula": "1 +"}),
        ("fed_gkt-params-54", {"verdict": "inconsistent"}),
        ("fed_repopt-tr-folds", {"formula": "folding_gap('digits_repvgg', True) < 1e-9"}),
        ("fed_repopt-rule-position", {"formula": "repopt_gap('digits_repvgg', 'diagonal') < 1e-9"}),
    ],
)
def test_a_corrupted_entry_is_reported(name, change):
    with pytest.raises(ValueError, match=name):
        claims.audit(name.split("-")[0], changed(name, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "true"},
        {"unit": "%"},
        {"id": "rpn-table2-fl-params-voc"},
        {"reading_of": "rpn-no-such-claim"},
        {"reading_of": "fed_gkt-params-resnet8"},  # of another paper
        {"reading_of": "rpn-table2-fl-params-voc"},  # a reading itself
    ],
)
def test_load_refuses_wrong_keys_repeated_ids_and_readings_of_no_claim(tmp_path, change):
    few = "rpn-table2-map", "fed_gkt-params-resnet8", "rpn-table2-fl-params-voc"
    claim, *others = sorted((c for c in LEDGER if c["id"] in few), key=lambda c: few.index(c["id"]))
    others = [others[0], others[1] | {"reading_of": "rpn-table2-map"}]
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([claim, *others]))
    assert len(claims.load(path)) == 3
    path.write_text(yaml.safe_dump([claim | change, *others]))
    with pytest.raises(ValueError, match="Claim|Ids"):
        claims.load(path)


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


@pytest.mark.parametrize(
    "paper, name, computed",
    [
        ("rpn", "rpn-table1-rpn-params", "1,183,242"),
        ("fed_kgf", "fed_kgf-table4-fedavg-mb", "342.99"),
        ("fed_mmd_fusion", "fed_mmd_fusion-mmd-mnist-reduction", "43.75"),
    ],
)
def test_the_table_has_a_row_for_each_entry(paper, name, computed):
    frame = claims.table(paper)
    assert list(frame.index) == [c["id"] for c in LEDGER if c["paper"] == paper]
    assert frame.loc[name, "computed"] == computed


@pytest.mark.parametrize(
    "formula, value",
    [
        ("params(yolov3(80)), conv_weights(yolov3(80))", (61_949_149, 61_895_776)),
        ("params(yolov3(20)), kernels(yolov3(20))", (61_626_049, 12_060_000)),
        ("darknet_layers(yolov3(80))", 107),
        ("params(fcn32s(21)), pooled(fcn32s(21))", (23_577_621, 13_508_629)),
        ("base_params(resnet18(), 16), buffers(resnet18())", (510_778, 9_600)),
        ("base_params(resnet18(), 512) == params(resnet18())", True),
        ("spatial_weights(conv(3, 20, 3)), spatial_weights(conv(20, 4, 1))", (540, 0)),
        ("spatial_layers(conv(20, 4, 1), 4), spatial_layers(conv(3, 4, 3), 4)", (0, 1)),
        ("params(yolox_l()), mib(2**20), mib(2**20, 1)", (54_208_895, 4, 1 / 8)),
        ("params(mcmahan_cnn()), params(cifar_cnn())", (1_663_370, 1_756_426)),
        ("dense_weights(cifar_cnn())", 64 * 8 * 8 * 384 + 384 * 192 + 192 * 10),
        ("multiply_adds(conv(128, 64, 1), [128, 8, 8])", 128 * 64 * 8 * 8),
        ("[params(resnet(n)) for n in (8, 6, 4, 56)]", [10_586, 9_978, 5_306, 591_322]),
        ("[params(resnet(n, 100)) for n in (8, 110)]", [16_436, 1_170_868]),
        ("params(extractor(resnet(8)))", 464),
        ("multiply_adds(resnet(8), [3, 32, 32])", 9_618_048),
        ("columns(partition('fedgkt_table6'))", [5_000] * 10),
        ("params(repvgg('csla')), params(repvgg('inf'))", (55_741_768, 50_202_632)),
        ("params(repghost('csla')), params(repghost('inf'))", (1_286_688, 1_284_208)),
        ("params(repvgg('inf', 100))", 50_202_632 - 100 * 2049),
        ("params(repopt(repvgg('csla')))", 50_202_632),
        ("buffers(repopt(repghost('csla'))) - buffers(repghost('inf'))", 2_480),
        ("distances([[1, 2], [3, 4]], [1, 1])", [[0, 1], [4, 9]]),
        ("spread([[1, 2], [3, 6]]), mean([1, 2])", ([[3, 3], [3, 3]], 1.5)),
    ],
)
def test_what_formulas_call(formula, value):
    assert claims.evaluate(formula) == value


def test_only_the_multiplier_by_position_trains_as_the_branches_do():
    gap, before = NAMES["repopt_gap"], torch.get_rng_state()
    for family in ("digits_repvgg", "digits_repghost"):
        assert gap(family, "position") < 1e-11 and gap(family, "branches") > 0.03
    assert gap("digits_repvgg", "scalar") > 0.5
    assert gap("digits_repghost", "scalar") == gap("digits_repghost", "branches")  # no 1 x 1 branch
    assert gap.__wrapped__("digits_repvgg", "position") == gap("digits_repvgg", "position")
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyError):
        gap("digits_repvgg", "diagonal")


def test_branches_fold_into_one_kernel_only_when_they_do_not_train():
    gap, before = NAMES["folding_gap"], torch.get_rng_state()
    for family in ("digits_repvgg", "digits_repghost"):
        assert gap(family) < 1e-12 and gap(family, True) > 0.1
    assert gap.__wrapped__("digits_repvgg", True) == gap("digits_repvgg", True)
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
