"""The ledger of the papers' numbers, and its checker."""

from collections import Counter
from copy import deepcopy

import pytest
import torch
import yaml

from fedlearn import claims
from fedlearn.models.fcn import FCN32s
from fedlearn.models.yolo import YOLOv3

LEDGER = claims.load()


def changed(name, **values):
    ledger = deepcopy(LEDGER)
    next(c for c in ledger if c["id"] == name).update(values)
    return ledger


def test_entries_are_complete_and_ids_unique():
    assert len({c["id"] for c in LEDGER}) == len(LEDGER)
    for c in LEDGER:
        assert claims.KEYS <= c.keys() and c["verdict"] in claims.VERDICTS, c["id"]
        assert all(
            isinstance(c[k], str) and c[k].strip()
            for k in ("id", "paper", "where", "printed", "why")
        ), c["id"]
        # digits stay text
        assert c["value"] is None or c["value"] is True or isinstance(c["value"], str), c["id"]
        assert c["id"].startswith(c["paper"] + "-")
    entries = {"rpn": 51, "fed_kgf": 127, "fed_mmd_fusion": 50, "fed_gkt": 101, "fed_repopt": 134}
    assert Counter(c["paper"] for c in LEDGER) == entries


def test_readings_are_no_claims_and_only_they_are_rejected():
    results = claims.audit()
    readings = [r for r in results if "reading_of" in r.claim]
    each = claims.counts(results)
    assert sum(each.values()) == len(LEDGER) - len(readings) and "rejected" not in each
    assert each["inconsistent"] == sum(r.verdict == "inconsistent" for r in results)
    for r in results:
        assert (r.verdict == "rejected") <= ("reading_of" in r.claim)
        assert not (r.verdict == "inconsistent" and "reading_of" in r.claim), r.claim["id"]
    kept = [r for r in readings if r.verdict != "rejected"]
    assert readings and kept, "a reading may hold as well"
    last = claims.report(results).splitlines()[-1]
    assert last.startswith(f"{sum(each.values())} claims: ") and f"{len(readings)} other" in last


@pytest.mark.parametrize("result", claims.audit(strict=False), ids=lambda r: r.claim["id"])
def test_verdict_is_the_recomputed_one(result):
    assert result.problem == ""
    assert (result.computed is None) == (result.claim["formula"] is None)
    assert result.verdict == result.claim["verdict"]


@pytest.mark.parametrize(
    "name, change",
    [
        ("rpn-table1-fl-params", {"verdict": "rounding"}),
        ("rpn-table1-fl-params", {"value": "1199883", "printed": "1,199,883"}),
        ("rpn-table1-fl-params", {"value": "1199883"}),
        ("rpn-table1-reduction", {"value": "1.5", "read": "1.5 %"}),
        ("rpn-table1-reduction", {"formula": "params(no_such_network())"}),
        ("rpn-table3-rpn-params", {"verdict": "matches"}),
        ("rpn-table4-client3", {"data": [[1]] * 10}),
        ("rpn-table2-map", {"verdict": "matches"}),
        ("rpn-table2-map", {"formula": "1 +"}),
        ("fed_kgf-table4-fedavg-mb", {"value": "342.98", "read": "342.98"}),
        ("fed_kgf-drift-variance", {"data": [[0.0] * 3] * 3}),
        ("fed_kgf-table1-fedcom-rate", {"verdict": "rounding"}),
        ("fed_mmd_fusion-mmd-mnist-reduction", {"data": [[260, 326], [98, 128]]}),
        ("fed_mmd_fusion-abstract-accuracy-single", {"verdict": "matches"}),
        ("fed_mmd_fusion-shards-digits", {"data": [600] * 99 + [1] * 600}),
        ("fed_mmd_fusion-table2-order", {"data": [[95.20, 100, 256], [95.25, 87, 257]]}),
        ("fed_gkt-params-54", {"verdict": "rounding"}),
        ("fed_gkt-params-54", {"verdict": "inconsistent"}),
        ("rpn-table3-caption", {"data": ["Semantic segmentation", "Semantic segmentation"]}),
        ("fed_kgf-drift-permuted", {"verdict": "matches"}),
        ("fed_repopt-tr-folds", {"formula": "folding_gap('digits_repvgg', True) < 1e-9"}),
        ("fed_gkt-table8-weights", {"data": [[[16, 16, 1]], [[64, 16, 1]]]}),
        ("fed_gkt-table6-printed", {"data": [87, 2, 131, 1325, 0, 1117, 704, 0, 0, 0]}),
        ("fed_gkt-table4-edges", {"data": [69.51, 69.57, 69.65, 69.69]}),
        ("fed_gkt-cost-advantage", {"verdict": "matches"}),
        ("fed_repopt-params-ghost-csla", {"value": "1.288", "read": "1.288"}),
        ("fed_repopt-rule-scalar", {"formula": "repopt_gap('digits_repvgg', 'position') < 1e-9"}),
        ("fed_repopt-rule-position", {"formula": "repopt_gap('digits_repvgg', 'diagonal') < 1e-9"}),
        ("fed_repopt-abstract-boost-vgg", {"formula": "rise('33.54', '37.27')"}),
        ("fed_repopt-table4-first-column", {"data": [[[[35.30]]], [[0, 0, 35.31]]]}),
        ("fed_repopt-table6-degradation", {"verdict": "matches"}),
    ],
)
def test_a_corrupted_entry_is_reported(name, change):
    with pytest.raises(ValueError, match=name):
        claims.audit(name.split("-")[0], changed(name, **change))


def test_load_refuses_wrong_keys_and_repeated_ids(tmp_path):
    path = tmp_path / "claims.yaml"
    for ledger in (
        LEDGER + LEDGER[:1],
        changed("rpn-table2-map", verdict="true"),
        changed("rpn-table2-map", unit="%"),
        changed("rpn-table2-map", reading_of="rpn-no-such-claim"),
        changed("rpn-table2-map", reading_of="fed_gkt-params-resnet8"),
        changed("rpn-table2-map", reading_of="rpn-table2-fl-params-voc"),
    ):
        path.write_text(yaml.safe_dump(ledger))
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
        ("7E+1", 76, "rounding"),
        ("7E+1", 64, "inconsistent"),
        ("44", 43.48, "inconsistent"),
        ("44", 44.99, "rounding"),  # cut
        ("44", 45, "inconsistent"),
        ("18.28", 18.2857, "rounding"),
        ("-44", -44.99, "rounding"),  # towards zero
        ("-44", -43.4, "inconsistent"),
        ("39", (38.7, 39.74, 40.8), "rounding"),
        ("2.6", (2.64, 2.66, 2.68), "rounding"),
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
        ("fed_gkt", "fed_gkt-cost-gkt", "655.76"),
        ("fed_repopt", "fed_repopt-constants-vgg", "24,704"),
    ],
)
def test_table_and_markdown_have_a_row_for_each_entry(paper, name, computed):
    frame = claims.table(paper)
    assert list(frame.index) == [c["id"] for c in LEDGER if c["paper"] == paper]
    assert frame.loc[name, "computed"] == computed
    assert claims.markdown(paper).count("\n") == len(frame) + 1


def test_network_counts_on_the_meta_device():
    count, kernels = claims.NAMES["params"], claims.NAMES["conv_weights"]
    with torch.device("meta"):
        coco, voc, fcn = YOLOv3(80), YOLOv3(20), FCN32s(21)
    assert (count(coco), count(voc)) == (61_949_149, 61_626_049)
    assert (kernels(coco), kernels(voc)) == (61_895_776, 61_573_216)
    assert claims.NAMES["kernels"](voc) == 12_060_000
    assert coco.layers() == {
        "convolutional": 75,
        "shortcut": 23,
        "route": 4,
        "upsample": 2,
        "yolo": 3,
    }
    assert count(fcn) == 23_577_621 and claims.NAMES["pooled"](fcn) == 13_508_629
    assert all(p.is_meta for net in (coco, fcn) for p in net.parameters())


def test_counts_of_fed_kgf():
    names, small = (
        claims.NAMES,
        torch.nn.Sequential(torch.nn.Conv2d(3, 20, 3), torch.nn.Conv2d(20, 4, 1)),
    )
    assert names["base_params"](small, 16) == 16 * 3 * 9 + 20 + 4 * 20 + 4
    assert names["spatial_weights"](small) == 20 * 3 * 9 and names["spatial_layers"](small, 4) == 0
    net = names["resnet18"]()
    assert names["base_params"](net, 16) == 510_778 and names["base_params"](net, 512) == names[
        "params"
    ](net)
    assert names["buffers"](net) == 9_600 and names["params"](names["yolox_l"]()) == 54_208_895
    assert names["mib"](2**20) == 4 and names["mib"](2**20, 1) == 1 / 8


def test_counts_of_fed_mmd_and_fed_fusion():
    names = claims.NAMES
    mnist, cifar = names["mcmahan_cnn"](), names["cifar_cnn"]()
    assert (names["params"](mnist), names["params"](cifar)) == (1_663_370, 1_756_426)
    dense = names["dense_weights"](cifar)
    assert dense == 64 * 8 * 8 * 384 + 384 * 192 + 192 * 10
    kernels = 64 * 3 * 25 * 32 * 32 + 64 * 64 * 25 * 16 * 16
    assert names["multiply_adds"](cifar, [3, 32, 32]) == kernels + dense
    assert names["multiply_adds"](names["conv"](128, 64, 1), [128, 8, 8]) == 128 * 64 * 8 * 8


def test_counts_of_fed_gkt():
    count, resnet = claims.NAMES["params"], claims.NAMES["resnet"]
    layers = (8, 6, 4, 56, 110, 55, 109)
    assert [count(resnet(n)) for n in layers] == [
        10_586,
        9_978,
        5_306,
        591_322,
        1_147_738,
        590_858,
        1_147_274,
    ]
    assert [count(resnet(n, 100)) for n in (8, 56, 110)] == [16_436, 614_452, 1_170_868]
    assert count(claims.NAMES["extractor"](resnet(8))) == 464
    adds = [claims.NAMES["multiply_adds"](resnet(n), [3, 32, 32]) for n in (8, 56, 110)]
    assert adds == [9_618_048, 87_214_592, 167_430_656]
    table = claims.NAMES["partition"]("fedgkt_table6")
    assert (len(table), claims.NAMES["columns"](table)) == (16, [5_000] * 10)
    assert table[7] == [87, 2, 131, 1325, 0, 1117, 704, 0, 0, 0]


def test_counts_of_fed_repopt():
    names = claims.NAMES
    expected = {
        "repvgg": (55_741_768, 50_202_632, 24_704),
        "repghost": (1_286_688, 1_284_208, 2_480),
    }
    for family, (branches, plain, constants) in expected.items():
        csla, inf = names[family]("csla"), names[family]("inf")
        assert (names["params"](csla), names["params"](inf)) == (branches, plain)
        one = names["repopt"](csla)
        assert (
            names["params"](one) == plain
            and names["buffers"](one) - names["buffers"](inf) == constants
        )
    assert names["params"](names["repvgg"]("inf", 100)) == 50_202_632 - 100 * 2049


def test_only_the_multiplier_by_position_trains_as_the_branches_do():
    gap, before = claims.NAMES["repopt_gap"], torch.get_rng_state()
    for family in ("digits_repvgg", "digits_repghost"):
        assert gap(family, "position") < 1e-11 and gap(family, "branches") > 0.03
    assert gap("digits_repvgg", "scalar") > 0.5
    assert gap("digits_repghost", "scalar") == gap("digits_repghost", "branches")  # no 1 x 1 branch
    assert gap.__wrapped__("digits_repvgg", "position") == gap("digits_repvgg", "position")
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyError):
        gap("digits_repvgg", "diagonal")


def test_branches_fold_into_one_kernel_only_when_they_do_not_train():
    gap, before = claims.NAMES["folding_gap"], torch.get_rng_state()
    for family in ("digits_repvgg", "digits_repghost"):
        assert gap(family) < 1e-12 and gap(family, True) > 0.1
    assert gap.__wrapped__("digits_repvgg", True) == gap("digits_repvgg", True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("bound", [1.0, 1 / 24])
def test_what_a_generated_kernel_has_of_its_base(bound):
    """The sums against a million draws of Eq. (2), differentiated by torch."""
    generator = torch.Generator().manual_seed(0)
    w, beta, alpha = torch.rand(3, 1_000_000, generator=generator, dtype=torch.float64)
    w, beta, alpha = (w * bound).requires_grad_(), 2 + 8 * beta, 0.00001 + 0.09999 * alpha
    made = w.abs() ** beta + alpha
    (gradient,) = torch.autograd.grad(made.sum(), w)
    share = 1 - alpha.mean() / made.detach().mean()
    drawn = (float(share), float(gradient.mean()))
    assert claims.NAMES["generated"](bound) == pytest.approx(drawn, rel=0.02)


def test_ranges_of_printed_numbers():
    names = claims.NAMES
    assert names["quotient"]("3", "2") == pytest.approx((1, 1.5, 3.5 / 1.5))
    assert names["rise"]("2", "3") == pytest.approx((0, 50, 100 * 2 / 1.5))
    assert names["drop"]("2", "3") == pytest.approx((-100 * 2 / 1.5, -50, 0))


def test_maps_of_fed_gkt_are_those_of_its_networks():
    """The entry on memory lists the outputs of the convolutions by hand."""
    listed = next(c["data"] for c in LEDGER if c["id"] == "fed_gkt-memory")
    for layers, rows in zip((8, 56), listed, strict=True):
        net, sizes = claims.NAMES["resnet"](layers), []
        convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
        hooks = [
            m.register_forward_hook(lambda m, x, y, sizes=sizes: sizes.append(y.numel()))
            for m in convolutions
        ]
        net(torch.zeros(1, 3, 32, 32, device="meta"))
        for hook in hooks:  # the network is shared
            hook.remove()
        assert sum(sizes) == sum(channels * pixels * times for channels, pixels, times in rows)


@torch.no_grad()
def test_networks_run_on_a_small_image():
    x = torch.zeros(1, 3, 64, 64)
    assert [tuple(y.shape) for y in YOLOv3(20).eval()(x)] == [
        (1, 75, 2, 2),
        (1, 75, 4, 4),
        (1, 75, 8, 8),
    ]
    assert FCN32s(21).eval()(x).shape == (1, 21, 64, 64)
