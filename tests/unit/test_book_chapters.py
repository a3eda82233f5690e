"""What single chapters show: charts compute what the package computes, stored runs are those that
are stated, tables say what holds."""

import csv
import io
import itertools
import json
import math
import random
import re
import sys
from functools import partial
from pathlib import Path

import altair
import numpy as np
import pandas
import pytest
import torch
from test_link import history as history_of

import fedlearn as fl
from fedlearn import wire
from fedlearn.book import claims, compose, drawings, fed_mmd_fusion, front, seeing, shootout
from fedlearn.book.grids import chapter_file
from fedlearn.book.speed import ratio_rows
from fedlearn.book.wire import places, spans_of
from fedlearn.methods.fedmmd import mmd2
from fedlearn.wire.bits import Reader, pack_rice

ROOT = Path(__file__).resolve().parents[2]
ON_FLOWER = [
    {"network": net, "method": name, "message": sent, "added": 2000}
    for net, factor in (("small", 1), ("large", 100))
    for name, sent in (("fedavg", 80_000 * factor), ("stc", 3_000 * factor))
]
SECONDS = {"bare loop": 2.0, "sequential": 3.0, "stacked": 1.0, "Flower (Ray)": "failed"}
MEASURED = {
    "table": {"rows": [{"network": "a", "clients": 10, "seconds": SECONDS},
                       {"network": "b", "clients": 10, "seconds": {}}]},
    "growth": {"clients": [{"clients": 1, "seconds": SECONDS}]},
}  # fmt: skip
CODERS = [
    {"coder": c, "setting": f"{c}({b})", "round": t, "bits": b, "error": 4.0**-b}
    for c, b, t in itertools.product(("one", "other"), (1, 2), (1, 3, 10, 30, 100))
] + [{"coder": "whole", "setting": "", "round": 1, "bits": 27.0, "error": 0.0}]
CHARTS = {
    "pooled_kernel": lambda: fl.book.pooled_kernel(),
    "gradient_multiplier": lambda: fl.book.gradient_multiplier(),
    "round_time": lambda: fl.book.round_time(),
    "kernel_generation": lambda: fl.book.kernel_generation(0.01, 0.1),
    "kernel_widths": lambda: fl.book.kernel_widths([0.1, 1, 10]),
    "soft_labels": lambda: fl.book.soft_labels([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0]], [0, 1]),
    "dirichlet_shares": lambda: fl.book.dirichlet_shares(),
    "two_parabolas": lambda: fl.book.two_parabolas(),
    "positions": lambda: fl.book.positions([{"e": 3, "positions": 0.5, "mask": 0.6}]),
    "quantiser": lambda: fl.book.quantiser(),
    "errors": lambda: fl.book.errors(CODERS, "one", "other"),
    "framed": lambda: fl.book.framed(ON_FLOWER[:2], 2100.0, hidden="stc", guess=30),
    "carried": lambda: fl.book.carried(ON_FLOWER, 6.7, "large", clients=20, server=1.0),
    "ratios": lambda: fl.book.ratios(MEASURED),
    "mixing": lambda: fl.book.mixing(20),
    "rivals": lambda: fl.book.rivals(5),
    "moving_boxes": lambda: fl.book.moving_boxes(0.25),
}


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_is_valid_vega_small_and_its_sliders_are_named(name):
    spec = CHARTS[name]()
    shown = fl.book.chart("1.1", spec, caption="c", alt="a")  # refuses sliders without names
    altair.LayerChart.from_dict(dict(shown.spec))
    assert len(json.dumps(spec, separators=(",", ":"))) < 500_000


@pytest.mark.parametrize(
    "chart",
    [fl.book.mixing, fl.book.rivals, fl.book.moving_boxes,
     lambda guess: fl.book.framed(ON_FLOWER[:2], 2100.0, "stc", guess),
     lambda guess: fl.book.ratios(MEASURED, guess)],
)  # fmt: skip
def test_the_answer_is_not_there_before_the_guess(chart):
    for guess in (None, 7):
        spec = chart(guess)
        params = {p["name"]: p.get("value") for p in spec["params"]}
        assert params["guess"] == 7 or guess is None
        if "reveal" in params:
            assert params["reveal"] is (guess is not None)
            assert any("reveal" in str(step.get("filter")) for step in spec["transform"])


# ---- the formulas --------------------------------------------------------------------------------


def vega(expression, **values):
    """A Vega expression without fields, as Python computes it."""
    names = {"log": math.log, "pow": math.pow, "floor": math.floor, "sqrt": math.sqrt, "max": max}
    return eval(expression, names | {"LN2": math.log(2)} | values)


def computed(spec, field):
    """The expression of a field, with the fields that it uses as plain names."""
    (text,) = [t["calculate"] for t in spec["transform"] if t.get("as") == field]
    return text.replace("datum.", "")


def test_pooling_keeps_the_common_push_alone():
    values = fl.book.pooled_kernel()["data"]["values"]
    own = torch.tensor([row["own"] for row in values[:9]])
    assert abs(float(own.sum())) < 1e-3 and abs(float(own.square().sum()) - 9) < 1e-2


def test_dirichlet_shares_have_dirichlets_variance():
    """Through Marsaglia and Tsang's formula."""
    spec = fl.book.dirichlet_shares()
    value = {p["name"]: np.array(p.get("value")) for p in spec["params"]}
    x, x2, w, u = (value[n].reshape(3, 10, 20) for n in ("x", "x2", "w", "u"))
    for alpha in (0.1, 1, 10):
        d = alpha + 2 / 3
        v, other = (np.maximum(1 + z / np.sqrt(9 * d), 0.01) ** 3 for z in (x, x2))
        passes = np.log(w) < x * x / 2 + d * (1 - v + np.log(v))
        gamma = d * np.where(passes, v, other) * u ** (1 / alpha)
        q = gamma / gamma.sum(2, keepdims=True)
        assert np.isclose(q.var(), 0.05 * 0.95 / (20 * alpha + 1), rtol=0.25)
        assert passes.mean() > 0.9


@pytest.mark.parametrize("p", [0.5, 0.2, 1 / 32, 0.001])
def test_the_bits_of_positions_are_those_of_the_code(p):
    bits = {code: vega(formula, p=p) for code, formula in places("p").items()}
    gaps = np.random.default_rng(0).geometric(p, 20_000) - 1
    b, words = pack_rice(gaps)
    assert abs(8 * len(words) / len(gaps) - bits["Golomb-Rice"]) < 0.02 * bits["Golomb-Rice"]
    assert bits["entropy"] <= bits["Golomb-Rice"] < 1.05 * bits["entropy"]


def test_the_errors_of_coders_stand_at_five_rounds():
    spec = CHARTS["errors"]()
    rows = spec["data"]["values"]
    assert len(rows) == 20 and {row["e"] for row in rows} == {0, 0.5, 1, 1.5, 2}
    text = next(p["expr"] for p in spec["params"] if p["name"] == "saysRound")
    said = [vega(text, e=row["e"], format=lambda x, _: int(x)) for row in rows]
    assert said == [row["round"] for row in rows]


def test_what_flower_adds_and_how_long_a_round_lasts():
    spec = CHARTS["framed"]()
    condition = re.compile(r"\(method == '([^']+)' \? (.+?) : (.+?)\)(?= \+)")
    share = computed(spec, "value")
    own, python = (
        condition.search(share)[1],
        condition.sub(r"(\2 if method == '\1' else \3)", share),
    )
    for row in spec["data"]["values"]:
        sent = 1e4 if row["method"] == own else row["message"]
        fields = {k: row[k] for k in ("method", "message", "added")}
        right = 100 * row["added"] / (sent + row["added"])
        assert vega(python, bytes=4, **fields) == pytest.approx(right)
    spec, mbit = CHARTS["carried"](), 8 * (80_000 + 2000) / 1e6
    for link, server, one, all_of_them in ((0, 3, 1, 0.01), (3, 0, 0.001, 10)):
        at = {"link": link, "server": server, "clients": 10, "message": 80_000, "added": 2000}
        done = {k: vega(computed(spec, k), **at) for k in ("own", "all")}
        assert done == pytest.approx({"own": one * mbit, "all": all_of_them * mbit})
        assert vega(computed(spec, "busy"), **done) == pytest.approx(max(one, all_of_them) * mbit)
    assert vega(computed(spec, "total"), busy=1.5) == pytest.approx(8.2)


def test_ratios_to_the_bare_loop_are_what_was_measured():
    assert [(r["clients"], r["form"], r["ratio"]) for r in ratio_rows(MEASURED)] == [
        (n, *of) for n in (1, 10) for of in (("sequential", 1.5), ("stacked", 0.5))
    ]
    assert "['b']" in str(CHARTS["ratios"]()["layer"][-1])  # what says that it was not measured


def as_python(expression, **names):
    """A Vega expression of sums, products and powers, computed."""
    text = re.sub(r"(datum|its)\.(\w+)", r"of_\2", expression).replace("pow(10,", "10**(")
    return eval(text, {"__builtins__": {}}, names)


@pytest.mark.parametrize("preset", fl.link.PRESETS)
@pytest.mark.parametrize(("slower", "stragglers"), [(0, 1.0), (7, 0.0), (7, 1.3)])
def test_pages_compute_with_the_formula_of_the_package(preset, slower, stragglers):
    up, down, latency = fl.link.check(**fl.link.PRESETS[preset].asdict())
    history = history_of(rounds=5, clients=3, up=12345, down=67890)
    sums = {k: np.cumsum(v) for k, v in fl.link.shares(history).items()}
    sliders = {"up": math.log10(up) - 6, "down": math.log10(down) - 6, "slower": slower}
    sliders |= {"latency": 1000 * latency}
    times = fl.link.time(history, up, down, latency, slower=slower, stragglers=stragglers)
    for t, right in enumerate(times):
        row = {"of_up": sums["up"][t], "of_down": sums["down"][t], "of_sec": sums["computing"][t]}
        row |= {"of_round": t + 1, "of_stretch": fl.link.stretch(3, stragglers)}
        assert as_python(front.SECONDS, **row, **sliders) == pytest.approx(right, rel=1e-6)
    (run,) = entries([entry(up=12345.0, down=67890.0, clients=3)]).itertuples()
    text = shootout.SECONDS.format(its="its")
    cost = as_python(text, of_sec=0.5, of_up=12345, of_down=67890, **sliders)
    times = fl.link.time(shootout.history(run), up, down, latency, slower)
    assert times == pytest.approx(cost * np.arange(1, 21))


# ---- chapter 3: a message, byte by byte ----------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "stc", "qsgd", "smartidx"])
def test_every_byte_of_a_message_is_explained_by_the_decoder(name):
    task, settings = fl.tasks.classification("digits", 2, train=40, test=10), fl.Settings()
    method = fl.methods.get(name)
    server, workers = method.server_side(task, settings), fl.clients(method, task, settings)
    state = server.start()
    data = workers.answer(1, 0, server.send(1, 0, state)[0])
    parts = spans_of(data, server.up, lambda d: server.receive(1, 0, d, state))
    assert parts[0].start == 0 and parts[-1].end == len(data)
    assert "samples n_k, 20" in {part.field for part in parts if part.section == "head"}
    lengths = [part.field for part in parts if part.section == "lengths"]
    assert len(lengths) == len(server.up.shapes)
    fields = " ".join(part.field for part in parts)
    assert ("Golomb-Rice" in fields) == (name in ("stc", "smartidx"))
    assert ("8-bit number" in fields) == (name == "qsgd") and "float" in fields
    shown = fl.book.message("3.11", data, server.up, lambda d: server.receive(1, 0, d, state), "c")
    hexadecimal = re.sub(r'<span class="fl-says">.*?</span>|<[^>]*>', "", shown.content)
    assert bytes.fromhex(hexadecimal.split("Figure")[0].replace(" ", "")) == data
    with pytest.raises(fl.WireError):
        spans_of(data[:-1] + b"?", server.up, lambda d: server.receive(1, 0, d, state))


def coders():
    """One or more of every coder of the package."""
    classes = [c for c in vars(wire).values() if isinstance(c, type) and issubclass(c, wire.Coder)]
    yield from (c() for c in classes if hasattr(c, "__dataclass_fields__"))
    yield from (wire.Dense(16), wire.Pooled(16), wire.Pooled(threshold=1.0), wire.TopK(1, "sign"))
    yield wire.QSGD(5, entropy=True)


@pytest.mark.parametrize("coder", [*coders()], ids=repr)
def test_a_message_of_any_coder_is_taken_apart(coder):
    schema = fl.wire.Schema({"w": (12, 4, 3, 3), "none": (0, 4, 3, 3)})
    dice = [torch.Generator().manual_seed(0)]
    shared = isinstance(coder, wire.SharedRandomness)
    drawn, same = dice * (shared or isinstance(coder, wire.Stochastic)), dice * shared
    x = torch.randn(12, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    x = (x > 0).float() if isinstance(coder, wire.Mask | wire.Whole) else x
    coded = {"w": coder.encode(x, *drawn), "none": coder.encode(x[:0], *drawn)}
    data = wire.pack(wire.Message(wire.UP, 1, 0, 5, coded), schema)

    def decode(data):
        message = wire.unpack(data, schema, kind=wire.UP, round=1, client=0)
        for name, section in message.sections.items():
            coder.decode(section, schema.shapes[name], *same)

    parts = spans_of(data, schema, decode)
    assert [p.start for p in parts] == [0, *(p.end for p in parts[:-1])]
    assert parts[-1].end == len(data) and all(p.start < p.end for p in parts)


def test_bytes_that_a_coder_reads_in_its_own_way_are_a_part():
    def decode(data):
        section = memoryview(data)[-10:-4]
        assert Reader(section[2:]).number(1) == Reader(section[2:]).number(1)  # told once

    schema = fl.wire.Schema({"w": (2,)})
    data = wire.pack(wire.Message(wire.UP, 1, 0, 5, {"w": b"ab\7cde"}), schema)
    told = [p.field for p in spans_of(data, schema, decode) if p.section == "w 2"]
    assert told == ["2 bytes", "whole number, 7", "3 bytes"]


# ---- papers' claims beside our runs --------------------------------------------------------------


def test_the_opening_table_says_what_was_measured_and_what_was_not_run(monkeypatch):
    page = fl.book.opening("4.1", "rpn")._repr_html_()
    stored = {h.method: h.final["accuracy"] for h in fl.results.load("rpn_mnist")}
    for accuracy, paper in zip(stored.values(), (0.991, 0.9912), strict=False):
        assert f"{accuracy:.4f}" in page and f"{accuracy - paper:+.4f}" in page
    monkeypatch.setattr(claims.results, "load", lambda name: [])
    page = fl.book.opening("4.1", "rpn")._repr_html_()
    assert "1,199,882" in page and "0.9912" in page
    assert page.count("not yet run") == 6 and "fedlearn reproduce rpn" in page


@pytest.mark.parametrize("name", [*claims.PAPERS, "seeing"])
def test_decimals_agree_in_a_column_of_the_opening_table(name):
    rows = re.findall("<tr>(.*?)</tr>", fl.book.opening("4.1", name).content)[1:]
    cells = [re.findall("<td[^>]*>(.*?)</td>", row)[1:] for row in rows]
    for column in zip(*cells, strict=True):
        numbers = [n for cell in column for n in re.findall(r"^[-+]?([\d,]+\.?\d*)", cell)]
        decimals = {len(n.partition(".")[2]) for n in numbers}
        # numbers in a message are whole, and stand above accuracies
        assert len(decimals - {0}) <= 1 and (len(decimals) <= 1 or name in ("rpn", "seeing"))


def test_a_difference_is_that_of_the_mean_over_the_seeds():
    assert claims.difference([0.70, 0.80, 0.81], 0.75, 3) == "+0.020"
    assert claims.difference([0.5], 0.75) == "-0.2500" and claims.difference([2.0], 2.0) == "0"
    assert claims.difference([], 0.75) == "" and claims.difference([0.7], None) == ""
    assert claims.printed("fed_kgf-table2-values", [1, 0]) == 0.363
    assert claims.printed("fed_kgf-table2-values", 0) == 0.384


def run(label, accuracy, seed=0, **task):
    task = {"dataset": "digits", "partition": "Iid()", "seed": seed, "clients": 1} | task
    row = {"accuracy": accuracy, "loss": 1.0, "round": 1, "clients": [0], "refused": {}}
    row |= {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0}
    return fl.History("fedavg", {"task": task, "label": label}, [row])


def test_a_row_tells_tasks_and_sets_apart():
    runs = [
        run("FedAvg", 0.5, task="detection", dataset="voc:160"),
        run("FedAvg", 0.6, task="segmentation", dataset="voc:160"),
        run("FedAvg", 0.7, task="detection", dataset="coco:160"),
        run("FedAvg", 0.8),
    ]
    row = {"line": "FedAvg", "measure": "accuracy"}
    assert claims.measured(row, runs) == [0.5, 0.6, 0.7, 0.8]
    where = {"task": ["detection"], "dataset": ["digit", "voc"]}
    assert claims.measured(row | {"where": where}, runs) == [0.5]


@pytest.mark.parametrize(
    "lead, wanted, verdict",
    [
        ([1.0, 2.0, 1.5], "ahead", "holds"),
        ([0.1, 5.0, 0.1], "ahead", "cannot be told"),  # in front with each seed, but wildly
        ([1.0, -0.1], "ahead", "cannot be told"),
        ([0.0, -0.1], "ahead", "does not hold"),
        ([1.0, -1.0], "level", "holds"),
        ([1.1, -1.0], "level", "cannot be told"),
        ([2.0, 2.5], "level", "does not hold"),
        ([-2.0, -2.5], "level", "does not hold"),
        ([9.0, -1.0], "no lower", "holds"),
        ([9.0, -1.1], "no lower", "cannot be told"),
        ([-2.0, -2.5], "no lower", "does not hold"),
        ([50.0], "ahead", "one seed"),
        ([100 * 0.0045 - 100 * 0.0145, 0.5], "level", "holds"),  # 20 of 2,000 images are a point
    ],
)
def test_verdicts(lead, wanted, verdict):
    assert claims.verdict(lead, wanted) == verdict


def test_leads_pair_the_seeds_of_one_data_set_and_split():
    runs = [run("A", 0.9, 1), run("A", 0.8), run("b", 0.7), run("B", 0.75, 1), run("B", 0.1, 2)]
    runs += [run("A", 0.5, partition="Dirichlet(alpha=0.5, min_samples=1)"), run("C", 0.2)]
    runs += [run("A", 0.4, dataset="mnist"), run("B", 0.3, dataset="mnist")]
    leads = claims.leads(runs, "A", "B")
    assert leads.keys() == {("digits", "iid"), ("mnist", "iid")}
    assert leads["digits", "iid"] == pytest.approx([10, 15])  # in the order of the seeds
    assert claims.leads(runs, "A", "nobody") == {}


def test_the_table_says_what_holds_and_what_was_not_run(monkeypatch):
    both = [run("RPN", 0.9), run("FedAvg", 0.905), run("RPN", 0.8, 1), run("FedAvg", 0.8, 1)]
    stored = {"rpn_small": both}
    monkeypatch.setattr(claims.results, "load", lambda name: stored.get(name, []))
    page = fl.book.holds("4.8", "rpn")._repr_html_().replace("\N{NO-BREAK SPACE}", " ")
    assert "holds (-0.2 ± 0.4; 2 seeds)" in page and "digits, small" in page
    assert "1 hold, 0 do not and 0 cannot be told" in page
    assert page.count("not yet run") == 3 and "fedlearn reproduce rpn --scale full" in page


@pytest.mark.parametrize("name", ["rpn", "fed_kgf", "fed_gkt", "fed_repopt"])
def test_every_statement_is_about_rows_of_the_recipes(name):
    from fedlearn import recipes

    known = {
        run.label.lower()
        for recipe, scale in itertools.product(recipes.RECIPES, recipes.SCALES)
        if scale in recipes.RECIPES[recipe]
        for run in recipes.runs(recipe, scale)
        if run.folder.startswith(name)
    }
    for statement in chapter_file(name)["holds"]["statements"]:
        assert {statement["one"].lower(), statement["other"].lower()} <= known
        assert claims.verdict([3.0, 3.0], statement["wanted"]) in ("holds", "does not hold")


def test_the_table_of_claims_has_every_claim_once_with_its_readings():
    content, entries = fl.book.ledger("B.2", "c").content, fl.claims.load()
    rows = content.split("<tbody>")[1].split("</tr>")[:-1]
    stated = {c["id"]: c for c in entries if "reading_of" not in c}
    assert len(rows) == len(stated)
    left = dict(stated)
    for row in rows:
        name, *readings = re.findall('<(?:span|p) id="([^"]+)"', row)
        assert readings == [c["id"] for c in entries if c.get("reading_of") == name]
        assert f"{left.pop(name)['verdict']}</td>" in row
    rows = fl.book.ledger_counts("B.1", "c").text
    assert f"'claims': {len(stated)}" in rows and f"{len(entries) - len(stated)}" in rows


# ---- chapter 10, seeing --------------------------------------------------------------------------

SHARED = {"dataset": "digits", "network": "scene_detector", "train": 8, "test": 4, "rounds": 2}
GRID = {"shared": SHARED | {"task": "detection", "batch_size": 2}, "rate": 0.001, "scenes": [1, 2]}


def test_weak_boxes_are_not_kept_and_others_stay_in_the_picture():
    found = {
        "boxes": torch.tensor([[-3.0, 1.26, 70.0, 9.0], [0.0, 0.0, 5.0, 5.0]]),
        "labels": torch.tensor([7, 1]),
        "scores": torch.tensor([0.512, 0.1]),
    }
    assert seeing.confident(found, 0.1) == [[0.0, 1.3, 64.0, 9.0, 7, 0.51]]
    assert len(seeing.confident(found, 0.05)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("pooled, up", [(0, 98_367), (5, 12_223)])
def test_a_run_of_the_grid_keeps_a_row_a_round_and_boxes(pooled, up, monkeypatch):
    monkeypatch.setattr(sys.modules["fedlearn.tasks.kinds"], "SCORE", 0.0)
    rows = seeing.of_grid(GRID | {"score": 0.0}, 2, pooled)
    assert [row[:3] for row in rows["rounds"]] == [[2, pooled, 1], [2, pooled, 2]]
    buffers = 2 * sum((16, 32, 64, 64, 64)) + 5  # and what batch normalisation counts
    assert 4 * up < rows["rounds"][0][4] < 4 * (up + buffers) + 3000
    assert {tuple(row[2:4]) for row in rows["boxes"]} == {*itertools.product((1, 2), (0, 1))}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_a_longer_run_keeps_what_it_draws_and_both_numbers(task):
    spec = {"rounds": [2], "scenes": [0, 3], "score": 0.0}
    spec["shared"] = {k: v for k, v in SHARED.items() if k != "network"} | {"clients": 2}
    stated = {"task": task, "label": "RPN", "method": "rpn", "options": {}, "rate": 0.001}
    kept = seeing.of_picture(spec, stated)
    assert set(kept["drawn"]) == {"2"} and len(kept["drawn"]["2"]) == 2
    assert 0 <= kept["as it is"] <= 1 and 0 <= kept["measured anew"] <= 1
    if task == "segmentation":
        mask = seeing.mask_of(kept["drawn"]["2"][0])
        assert mask.shape == (64, 64) and 0 <= int(mask.min()) <= int(mask.max()) <= 10


def test_the_stored_runs_are_those_that_the_chapter_states():
    text = seeing.written({"commit": "a"}, {"rounds": [[1, 2], [3, 4]], "boxes": []})
    assert json.loads(text) == {"commit": "a", "rounds": [[1, 2], [3, 4]], "boxes": []}
    spec, stored = chapter_file("seeing"), fl.book.seen()
    runs = {tuple(row[:2]) for row in stored["rounds"]}
    assert runs == {*itertools.product(spec["grid"]["clients"], spec["grid"]["pooled"])}
    assert len(fl.book.pooled_layers()) == len(runs) * spec["grid"]["shared"]["rounds"]
    stated, kept = (
        sorted((r["task"], r["label"], r["rate"]) for r in rows)
        for rows in (spec["pictures"]["runs"], stored["pictures"])
    )
    assert stated == kept
    for picture in stored["pictures"]:
        assert list(picture["drawn"]) == [str(t) for t in spec["pictures"]["rounds"]]
    assert stored["images"].shape[1:] == (1, 64, 64) and stored["masks"].shape[1:] == (64, 64)
    boxes = next(
        layer["data"]["values"] for layer in fl.book.moving_boxes()["layer"]
        if "x2" in layer["data"].get("format", {}).get("parse", {})
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(boxes)))
    assert len(rows) == len(stored["boxes"]) and float(rows[0]["x2"]) <= 64


def test_scenes_side_by_side():
    image = torch.zeros(1, 64, 64, dtype=torch.uint8)
    panels = [
        {"image": image, "title": "a", "truth": [[1, 2, 3, 9, 4]], "boxes": [[1, 2, 3, 9, 4, 0.9]]},
        {"image": image, "mask": torch.ones(64, 64), "cells": 8},
    ]
    first, second, third = fl.book.scenes(panels, columns=3).axes
    assert len(first.patches) == 2 and [t.get_text() for t in first.texts] == ["4"]
    assert len(second.images) == 2 and len(second.lines) == 14
    assert first.get_title() == "a" and not third.get_visible()


# ---- chapter 11, composing -----------------------------------------------------------------------

FEDAVG = ("fedavg",) * 6
STC = ("fedavg", "fedavg", "fedavg", "stc", "stc", "stc")


def mixed(mix, accuracy, rate=1.0, seed=0, split="iid", up=100, down=200):
    values = (*mix, split, rate, seed, accuracy, up, down)
    return dict(zip(compose.COLUMNS, values, strict=True))


def test_the_best_rate_of_a_mix_is_that_of_the_first_seed():
    rows = [
        mixed(FEDAVG, 0.7, 0.3),
        mixed(FEDAVG, 0.9, 1.0, up=110),
        mixed(FEDAVG, 0.8, 3.0),
        mixed(FEDAVG, 0.6, 1.0, seed=1),
        mixed(FEDAVG, 0.8, 1.0, seed=2),
        mixed(FEDAVG, 0.99, 3.0, seed=1),  # not the rate that was chosen
        mixed(FEDAVG, 0.5, 3.0, split="dirichlet:0.1"),
        mixed(FEDAVG, 0.6, compose.SLOWER),
        mixed(STC, None),  # what did not train has no row
        mixed(STC, None, 3.0, seed=1),
    ]
    for order in (rows, rows[::-1]):  # the file may have grown in any order
        table = fl.book.mixtures(order).set_index("split")
        best, other = table.loc["iid"], table.loc["dirichlet:0.1"]
        assert (best["accuracy"], best["rate"], best["rates"], best["bytes"]) == (0.9, 1.0, 3, 310)
        assert best["again"] == pytest.approx(0.7) and best["seeds"] == 2
        assert best["spread"] == pytest.approx(0.02**0.5)
        assert (other["accuracy"], other["rates"], other["seeds"]) == (0.5, 1, 0)
        assert pandas.isna([other["again"], other["spread"], other["slower"]]).all()
        assert best["method"] == "fedavg" and best["slower"] == 0.6
    with pytest.raises(ValueError, match="no grid 'mixes'"):
        fl.book.mixtures([])


def test_the_front_has_what_nobody_beats_for_as_little():
    dice = random.Random(0)
    for _ in range(20):
        points = [(dice.randint(1, 9), dice.randint(1, 9) / 10) for _ in range(12)]
        front = fl.book.pareto(pandas.DataFrame(points, columns=["bytes", "accuracy"]))
        kept = list(zip(front["bytes"], front["accuracy"], strict=True))
        beaten = {
            (b, a)
            for b, a in points
            if any(x <= b and y >= a and (x, y) != (b, a) for x, y in points)
        }
        assert kept == sorted(set(points) - beaten)
    dear = pandas.DataFrame({"up": [1, 2], "bytes": [9, 3], "accuracy": [0.5, 0.6]})
    assert len(fl.book.pareto(dear)) == 1 and len(fl.book.pareto(dear, "up")) == 2


def test_a_refusal_is_foretold_and_a_mix_has_words():
    dice, refused = random.Random(3), 0
    for _ in range(100):
        mix = tuple(dice.choice(list(compose.choices(kind))) for kind in compose.KINDS)
        text = compose.refusal(mix)
        if text is None:
            compose.build(mix)
            continue
        refused += 1
        with pytest.raises(ValueError, match="needs"):
            compose.build(mix)
        assert text.startswith(f"The {(kind := text.split()[1])} of ")
        assert f" of {mix[compose.KINDS.index(kind)]} needs" in text
    assert 60 < refused < 100
    assert compose.said(STC) == "stc" and compose.said(FEDAVG) == "fedavg"
    words = "model of fed_kgf; uplink of stc; downlink of stc; server of stc"
    assert compose.said(("fed_kgf", *STC[1:])) == words
    for name, mix in compose.origins().items():
        assert compose.build(mix).parts() == compose.methods()[name].parts()


def test_the_chart_has_every_part_in_its_menus_and_every_mix():
    spec = fl.book.mixing(20)
    params = {p["name"]: p for p in spec["params"]}
    for kind, start in zip(compose.KINDS, compose.START, strict=True):
        assert params[kind]["bind"]["options"] == list(compose.choices(kind))
        assert params[kind]["value"] == start
    rows = list(csv.DictReader(io.StringIO(spec["data"]["values"])))
    table = fl.book.mixtures()
    assert len(rows) == len(table)
    assert any(tuple(r[kind] for kind in compose.KINDS) == compose.START for r in rows)
    for split, name in itertools.product(compose.SPLITS, compose.methods()):
        of_method = table[(table["split"] == split) & (table["method"] == name)]
        assert list(of_method["rates"]) == [len(compose.RATES)], (split, name)


def test_which_mixes_are_run_again(monkeypatch):
    monkeypatch.setattr(compose, "BEST", 1)
    good, cheap, poor = (("fed_kgf", *STC[1:5], server) for server in ("rpn", "stc", "fedcams"))
    rows = [
        *(mixed(FEDAVG, 0.9, 0.3), mixed(FEDAVG, 0.8, 1.0), mixed(good, 0.95, 3.0, down=300)),
        *(mixed(cheap, 0.5, 1.0, up=10), mixed(poor, 0.4, 1.0, down=400)),
    ]
    wanted = {(*mix, "iid", rate) for mix, rate in ((FEDAVG, 0.3), (good, 3.0), (cheap, 1.0))}
    assert {run[:-1] for run in compose.again(rows)} == wanted
    assert sorted(run[-1] for run in compose.again(rows)) == sorted([1, 2, 3, 4] * 3)
    split, masks = compose.SPLITS[-1], ("fedpm", *STC[1:])
    rows = [mixed(FEDAVG, 0.9, 0.3, split=split), mixed(STC, 0.75, split=split)]
    rows += [mixed(poor, 0.4, split=split), mixed(masks, 0.1, split=split), mixed(poor, 0.3)]
    adam = tuple("fedpm" if kind == "optimizer" else "fedavg" for kind in compose.KINDS)
    slower = [(*mix, split, compose.SLOWER, 0) for mix in (FEDAVG, adam, poor)]
    assert list(compose.slower(rows)) == slower


# ---- chapter 12, which one wins ------------------------------------------------------------------

SPEC = shootout.spec()


def entry(method="FedAvg", seed=0, accuracy=None, task="digits", clients=10, short=False, **more):
    last, every = SPEC["tasks"][task]["rounds"], SPEC["tasks"][task].get("evaluate_every", 1)
    curve = [round(0.5 + 0.02 * t, 4) for t in range(1 if short else last // every)]
    row = {"task": task, "split": "IID", "clients": clients, "method": method, "value": 0.2}
    row |= {"seed": seed, "short": short, "accuracy": curve if accuracy is None else accuracy}
    return row | {"up": 1000.0, "down": 3000.0, "seconds": 0.5} | more


def entries(rows, short=False):
    return shootout.entries(short, rows)


@pytest.fixture
def stored(monkeypatch):
    """Puts rows in the place of the stored ones."""

    def put(rows):
        monkeypatch.setattr(shootout, "stored", lambda name: (rows, 1.0))
        shootout._runs.cache_clear()

    yield put
    shootout._runs.cache_clear()


def test_entries_know_their_rounds_and_the_least_disturbed_computing():
    frame = entries([entry(), entry(task="CIFAR-10")])
    assert frame["rounds"].tolist() == [[*range(1, 21)], [*range(2, 21, 2)]]
    assert entries([entry(short=True)], short=True)["rounds"].tolist() == [[10]]
    rows = [entry(seconds=0.5), entry(seed=1, seconds=0.2), entry(split="other", seconds=0.3)]
    rows += [entry("STC", seconds=0.9), entry(clients=100, seconds=0.1)]
    assert entries(rows)["least"].tolist() == [0.2, 0.2, 0.2, 0.9, 0.1]
    rows = [entry(task="MNIST", seconds=0.5), entry(task="MNIST", seconds=0.2, short=True)]
    assert entries(rows)["least"].tolist() == [pytest.approx(0.2 * 2000 / 1000)]  # more images


def test_short_failed_and_whole_runs_are_apart(stored):
    stored([entry(), entry(seed=1, accuracy=[]), entry(short=True)])
    assert len(fl.book.entries()) == len(fl.book.entries(short=True)) == 1
    assert [r["seed"] for r in shootout.failed()] == [1]
    assert shootout.progress()["digits"] == (1, 489, 2, 489)
    nowhere = {"split": "one main class", "clients": 100, "short": True, "accuracy": []}
    tried = [entry(m, value=v, **nowhere) for m in SPEC["methods"] for v in (0.05, 0.2, 0.8)]
    stored(tried + [entry("STC", value=v, short=True, accuracy=[]) for v in (0.05, 0.2)])
    assert len(shootout.dead()) == 27  # STC has a value left that may train
    assert shootout.progress()["digits"] == (83, 489, 0, 489 - 3 * 27)
    (line,) = (v for v in fl.book.rivals()["data"]["values"] if v["method"] == "no such split")
    assert (line["task"], line["split"], line["clients"]) == ("digits", "one main class", 100)
    stored([])
    assert fl.book.entries().empty and shootout.central(fl.book.entries()) == {}
    assert {v["words"] for v in fl.book.rivals()["data"]["values"]} == {shootout.COMMAND}


def test_ranks_are_drawn_with_the_best_on_top():
    ranks = {"IID 10": {"a": 2, "b": 1}, "IID 100": {"a": 3, "b": 1, "c": 2}}
    ax = shootout.standings(ranks, "equal rounds")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["b", "c", "a"]
    written = {t.get_position(): t.get_text() for t in ax.texts}
    assert written == {(0, 0): "1", (1, 0): "1", (1, 1): "2", (0, 2): "2", (1, 2): "3"}
    (words,) = shootout.standings({}, "equal rounds").texts
    assert shootout.COMMAND in words.get_text()


def test_an_entry_as_a_history_is_measured_by_the_package():
    (run,) = entries([entry(accuracy=[0.1, 0.3, 0.2, 0.5] + 16 * [0.6], clients=4)]).itertuples()
    history = shootout.history(run)
    assert history.rounds_to(0.3) == 2 and history.rounds_to(0.9) is None
    assert history.accuracy_at(3 * 4 * 4000 / 1e6) == 0.2  # three rounds of four clients
    assert history.megabytes_to(0.5) == pytest.approx(4 * 4 * 4000 / 1e6)
    (run,) = entries([entry(task="CIFAR-10", accuracy=[k / 10 for k in range(10)])]).itertuples()
    assert shootout.history(run).rounds_to(0.3) == 8
    assert shootout.history(run).accuracy_at(5 * 10 * 4000 / 1e6) == 0.1  # one knows the fourth


def test_ranks_count_who_is_ahead():
    spread, ranks = np.array([-0.01, 0.0, 0.01]), shootout.ranks
    assert ranks({name: [0.9, 0.91] for name in "abc"}) == {"a": 1, "b": 1, "c": 1}
    assert ranks({"a": [0.9, 0.9], "b": [0.8, 0.8], "c": [0.9, 0.9]}) == {"a": 1, "b": 3, "c": 1}
    scores = {"a": 0.96 + spread, "b": 0.94 + spread, "c": 0.92 + spread}
    assert ranks(scores) == {"a": 1, "b": 1, "c": 2}  # b ties with both, a beats c
    a, b = [0.90, 0.92, 0.94], [0.87, 0.89, 0.91]
    error = math.sqrt(2 * 0.02**2 / 3)
    assert shootout.ahead(a, b, 0.03 / error - 1e-6) and not shootout.ahead(b, a, 1)
    assert not shootout.ahead(a, b, 0.03 / error + 1e-6) and not shootout.ahead(a, b)
    with pytest.raises(ValueError, match="second seed"):
        ranks({"a": [0.9], "b": [0.8, 0.9]})


def test_lines_are_means_with_the_extremes():
    ends = [[0.1, 0.2] + 18 * [0.9], [0.3, 0.4] + 18 * [0.8]]
    rows = [entry(seed=k, accuracy=a, seconds=0.2 + k) for k, a in enumerate(ends)]
    (line,) = shootout.lines(entries([*rows, entry(clients=1, accuracy=20 * [0.95])]))
    assert line["mean"][:2] == [0.2, 0.3] and line["mean"][-1] == 0.85
    assert (line["low"][0], line["high"][0], line["seeds"]) == (0.1, 0.3, 2)
    assert (line["sec"], line["up"], line["down"]) == (0.2, 1000, 3000)
    assert (line["last"], line["every"], line["tuned"]) == (20, 1, "lr 0.2")
    assert line["target"] == round(0.9 * 0.95, 3)
    assert shootout.lines(entries(rows))[0]["target"] is None


def test_what_is_stored_is_what_is_stated():
    rows = shootout._runs()
    assert len({tuple(r[k] for k in shootout.RUN) for r in rows}) == len(rows)  # none twice
    best = shootout.best(rows)
    for r in rows:
        case = shootout.cell(r)
        assert case in {*shootout.contests(r["task"])}
        assert r["value"] in shootout.tuning(r["method"])[1]
        assert r["short"] or r["value"] == best[case]
        assert len(r["accuracy"]) in (0, len(shootout.evaluated(r)))


# ---- the first page, text pages ------------------------------------------------------------------


@pytest.fixture(scope="module")
def minutes():
    return fl.book.minutes("0.1", caption="c", alt="a").spec


def test_the_first_chart_is_valid_vega_and_every_comparison_has_its_runs(minutes):
    # `on` is Vega's own: Vega-Lite hands it through, though its schema does not have it
    params = [{k: v for k, v in p.items() if k != "on"} for p in minutes["params"]]
    altair.LayerChart.from_dict(minutes | {"params": params})
    names = {p["name"]: p for p in params}
    assert names["link"]["bind"]["options"] == [*fl.link.PRESETS, "own"]
    says = minutes["usermeta"]["says"]
    assert set(says) == {p for p in names if names[p].get("bind", {}).get("max")}
    for comparison in chapter_file("index")["minutes"]["comparisons"]:
        rows = [r for r in minutes["data"]["values"] if r["runs"] == comparison["name"]]
        lines = list(dict.fromkeys(r["line"] for r in rows))
        assert lines[0] == "FedAvg" and len(lines) > 1, comparison["name"]
        for line, histories in front.runs_of(comparison).items():
            last = [r for r in rows if r["line"] == line][-1]
            accuracy = np.mean([h.final["accuracy"] for h in histories])
            up = np.mean([fl.link.shares(h)["up"].sum() for h in histories])
            assert last["accuracy"] == pytest.approx(accuracy, abs=1e-4)
            assert last["up"] == pytest.approx(up, abs=1)
    with pytest.raises(ValueError, match="no stored run of FedAvg"):
        front.runs_of({"name": "x", "results": "fed_kgf_digits", "partition": "Iid", "lines": None})


def test_the_page_knows_what_stragglers_cost(minutes):
    text = next(t["calculate"] for t in minutes["transform"] if t.get("as") == "stretch")
    for n, factors in json.loads(text[1 : text.index(")[")]).items():
        for s, factor in zip(front.STRAGGLERS, factors, strict=True):
            assert factor == pytest.approx(fl.link.stretch(int(n), s), rel=1e-4)


def test_cards_show_what_a_paper_replaces_and_their_arrows_have_one_scale():
    page, stated, arrows = fl.book.cards().content, chapter_file("index")["cards"], []
    pictures = re.findall('<div role="img".*?</svg></div>', page)
    for picture, (name, card) in zip(pictures, stated.items(), strict=True):
        assert f'href="{card["page"]}.html"' in page and card["says"] in page
        replaced = chapter_file(name)["drawing"]["replaces"]
        assert picture.count(drawings.PLATE) == len(replaced)
        alt = re.search('aria-label="([^"]+)"', picture)[1]
        assert all(part in alt for part in replaced) and "dense message" in alt
        down, up, dense = (float(n) for n in re.findall(r"([\d.]+) kB", alt))
        widths = re.findall(r'stroke-width="([\d.]+)"/><polygon', picture)  # pale and full
        arrows += zip((dense, down, dense, up), map(float, widths), strict=True)
    most, widest = max(arrows)
    for size, width in arrows:
        assert width == pytest.approx(max(1.2, widest * size / most), abs=0.06)


# api is made of docstrings
PAGES = [p for p in [*ROOT.glob("book/*.md"), *ROOT.glob("book/appendix/*.md")] if p.stem != "api"]


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda p: p.stem)
def test_text_pages_are_plain_markdown_and_count_no_claims(path):
    text = path.read_text(encoding="utf-8")
    raw = r"\{[a-z:-]+\}`|^\([\w-]+\)=\s*$|^(?:`{3,}|:{3,})\{(?!code-cell\})"
    assert not re.search(raw, text, re.M) or path.name == "README.md"
    assert not re.search(r"\b\d[\d,]* (?:\w+ )?(?:claims|entries|readings)\b", text)


# ---- chapter 6, two streams ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "w, size, s, d, n", [(1, 1, 1, 1.5, 16), (10, 1, 2, 0, 8), (0.1, 0.5, 0.5, 1, 4)]
)
def test_the_explorer_of_widths_has_the_mean_of_sampled_clouds(w, size, s, d, n):
    """Gaussian integrals in the page's expressions, beside MMD^2 of many drawn clouds."""
    normal = partial(torch.randn, 3000, n, 2, generator=torch.Generator().manual_seed(0))
    first, alike = size * normal(), size * normal()
    second = size * (s * normal() + torch.tensor([d, 0.0]))
    names = {"w": w, "v": size**2, "s": s, "d": d, "n": n, "exp": math.exp}
    for cloud, formula in ((second, fed_mmd_fusion.MMD), (alike, fed_mmd_fusion.CHANCE)):
        expected = eval(formula, names)
        assert abs(float(mmd2(first, cloud, [w]).mean()) - expected) < 0.03 * expected
