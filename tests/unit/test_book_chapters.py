"""What single chapters show: charts compute what the package computes, stored runs are those that
are stated, tables say what holds."""

import itertools
import json
import math
import random
import re
from pathlib import Path

import altair
import numpy as np
import pandas
import pytest
import torch
from test_link import history as history_of

import fedlearn as fl
from fedlearn import wire
from fedlearn.book import claims, compose, drawings, front, seeing, shootout
from fedlearn.book.grids import chapter_file
from fedlearn.book.wire import places, spans_of
from fedlearn.wire.bits import pack_rice

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


@pytest.mark.parametrize("p", [0.5, 0.2, 1 / 32, 0.001])
def test_the_bits_of_positions_are_those_of_the_code(p):
    bits = {code: vega(formula, p=p) for code, formula in places("p").items()}
    gaps = np.random.default_rng(0).geometric(p, 20_000) - 1
    b, words = pack_rice(gaps)
    assert abs(8 * len(words) / len(gaps) - bits["Golomb-Rice"]) < 0.02 * bits["Golomb-Rice"]
    assert bits["entropy"] <= bits["Golomb-Rice"] < 1.05 * bits["entropy"]


def as_python(expression, **names):
    """A Vega expression of sums, products and powers, computed."""
    text = re.sub(r"(datum|its)\.(\w+)", r"of_\2", expression).replace("pow(10,", "10**(")
    return eval(text, {"__builtins__": {}}, names)


@pytest.mark.parametrize("preset", fl.link.PRESETS)
@pytest.mark.parametrize(("slower", "stragglers"), [(0, 1.0), (7, 0.0), (7, 1.3)])
def test_pages_compute_with_the_formula_of_the_package(preset, slower, stragglers):
    up, down, latency = fl.link.check(**fl.link.PRESETS[preset])
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


def test_weak_boxes_are_not_kept_and_others_stay_in_the_picture():
    found = {
        "boxes": torch.tensor([[-3.0, 1.26, 70.0, 9.0], [0.0, 0.0, 5.0, 5.0]]),
        "labels": torch.tensor([7, 1]),
        "scores": torch.tensor([0.512, 0.1]),
    }
    assert seeing.confident(found, 0.1) == [[0.0, 1.3, 64.0, 9.0, 7, 0.51]]
    assert len(seeing.confident(found, 0.05)) == 2


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


def test_cards_show_what_a_paper_replaces():
    page = fl.book.cards().content
    pictures = re.findall('<div role="img".*?</svg></div>', page)
    for picture, (name, card) in zip(pictures, chapter_file("index")["cards"].items(), strict=True):
        assert f'href="{card["page"]}.html"' in page and card["says"] in page
        replaced = chapter_file(name)["drawing"]["replaces"]
        assert picture.count(drawings.PLATE) == len(replaced)
        alt = re.search('aria-label="([^"]+)"', picture)[1]
        assert all(part in alt for part in replaced) and "dense message" in alt


def test_the_front_has_what_nobody_beats_for_as_little():
    points = pandas.DataFrame({"up": [9, 1, 2, 2], "bytes": [1, 9, 3, 4], "accuracy": [4, 5, 6, 5]})
    assert fl.book.pareto(points)["bytes"].tolist() == [1, 3]
    assert fl.book.pareto(points, "up")["bytes"].tolist() == [9, 3]


# api is made of docstrings
PAGES = [p for p in [*ROOT.glob("book/*.md"), *ROOT.glob("book/appendix/*.md")] if p.stem != "api"]


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda p: p.stem)
def test_text_pages_are_plain_markdown_and_count_no_claims(path):
    text = path.read_text(encoding="utf-8")
    raw = r"\{[a-z:-]+\}`|^\([\w-]+\)=\s*$|^(?:`{3,}|:{3,})\{(?!code-cell\})"
    assert not re.search(raw, text, re.M) or path.name == "README.md"
    assert not re.search(r"\b\d[\d,]* (?:\w+ )?(?:claims|entries|readings)\b", text)


# ---- chapter 6, two streams ----------------------------------------------------------------------
