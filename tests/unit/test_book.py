"""Figures, tables, explorers, drawings and solutions: what chapters call."""

import math
import re
from pathlib import Path

import altair
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

import fedlearn as fl
from fedlearn import wire
from fedlearn.book import classroom
from fedlearn.book.bills import ratio_rows
from fedlearn.book.coding import places
from fedlearn.book.exercises import empty, solutions
from fedlearn.book.grids import chapter_file, experiments, grid
from fedlearn.book.inspector import spans
from fedlearn.book.show import inline
from fedlearn.wire.bits import Reader, pack_rice

matplotlib.use("agg")


@pytest.fixture(scope="module")
def histories():
    task = fl.tasks.classification("digits", 3, train=90, test=50)
    return {m: fl.run(getattr(fl.methods, m)(), task, 2) for m in ("fedavg", "rpn")}


def axes():
    ax = fl.plot.axes()
    ax.plot([1, 2], [3, 4])
    ax.set_xlabel("round")
    return ax


def test_words_that_stand_in_html():
    """Formulas as the pages have them, for MathJax; a star between numbers is no emphasis."""
    formula = r'<span class="math notranslate nohighlight">\(%s\)</span>'
    assert inline("*a `b` c* `d*e` & $W * x$") == (
        "<em>a <code>b</code> c</em> <code>d*e</code> &amp; " + formula % "W * x"
    )
    assert inline("3 * 64 and 64 * 64\n<x>") == "3 * 64 and 64 * 64 &lt;x&gt;"
    found = solutions("shootout")["shootout-images"]
    assert formula % "2p(1-p)/N" in found._repr_html_()


def test_a_figure_has_number_caption_text_and_one_svg_a_panel():
    before = set(plt.get_fignums())  # of other tests
    shown = fl.book.figure("4.2", [axes(), axes()], caption="What *is*.", alt="two <lines>")
    page = shown._repr_html_()
    assert page.count("<svg") == 2 and "Figure 4.2.</b> What <em>is</em>." in page
    assert 'role="img"' in page and 'aria-label="two &lt;lines&gt;"' in page
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "two elements with one id"
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', page))
    assert used <= set(ids), "a picture refers to what is not there"
    assert set(plt.get_fignums()) <= before, "the inline backend would show it a second time"
    assert repr(shown) == "Figure 4.2. What *is*."


def test_axes_of_one_figure_are_one_picture():
    _, axs = plt.subplots(1, 2, figsize=(4, 2))
    assert fl.book.figure("1.1", axs, caption="c", alt="a")._repr_html_().count("<svg") == 1


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"number": "2"}, "has a number"),
        ({"caption": " "}, "needs a caption"),
        ({"alt": ""}, "alternative text"),
    ],
)
def test_a_figure_is_refused(change, reason):
    its = {"number": "1.1", "picture": axes(), "caption": "c", "alt": "a"} | change
    with pytest.raises(ValueError, match=reason):
        fl.book.figure(**its)
    plt.close("all")


def test_letters_that_a_telephone_cannot_show_are_refused():
    ax = fl.plot.axes(size=(8, 3))
    ax.set_xlabel("round")
    with pytest.raises(ValueError, match=r"at most 5\.6 inches wide"):
        fl.book.figure("1.1", ax, caption="c", alt="a")
    plt.close("all")


def test_a_table_sets_numbers_right_and_names_units():
    rows = [
        {"method": "RPN", "size": 1234, "accuracy": "0.9 ± 0.1", "note": "6 of 7"},
        {"method": "STC", "size": 5, "accuracy": "not reached", "note": "see"},
    ]
    page = fl.book.table("1.1", rows, caption="c", units={"size": "bytes"})._repr_html_()
    assert '<th scope="col" class="fl-number">size<span class="fl-unit">bytes</span></th>' in page
    assert '<td class="fl-number">1,234</td>' in page and "<td>RPN</td>" in page
    assert '<td class="fl-number">0.9 ± 0.1</td>' in page and "<td>6 of 7</td>" in page
    frame = pd.DataFrame({"a": [1.5, np.nan]}, index=["x", "y"]).rename_axis("name")
    page = fl.book.table("1.1", frame, caption="c")._repr_html_()
    assert '<th scope="row">x</th><td class="fl-number">1.500</td>' in page
    assert '<th scope="row">y</th><td class="fl-number"></td>' in page


def test_runs_are_a_table_with_units(histories):
    page = fl.book.runs("1.1", histories, caption="c", target=0.99)._repr_html_()
    assert "not reached" in page and page.count("fl-unit") >= 5


def test_the_opening_table_says_what_was_not_run(monkeypatch):
    from fedlearn.book import openings

    monkeypatch.setattr(openings.results, "load", lambda name: [])
    page = fl.book.opening("4.1", "rpn")._repr_html_()
    assert "1,199,882" in page and "0.9912" in page
    assert page.count("not yet run") == 6 and "fedlearn reproduce rpn" in page
    assert "fl.book" not in page


def test_the_opening_table_of_stored_runs():
    page = fl.book.opening("4.1", "rpn")._repr_html_()
    stored = {h.method: h.final["accuracy"] for h in fl.results.load("rpn_mnist")}
    for accuracy, paper in zip(stored.values(), (0.991, 0.9912), strict=False):
        assert f"{accuracy:.4f}" in page and f"{accuracy - paper:+.4f}" in page


PAPERS = ["rpn", "fed_kgf", "fed_mmd_fusion", "fed_gkt", "fed_repopt"]


@pytest.mark.parametrize("name", [*PAPERS, "seeing"])
def test_decimals_agree_in_a_column_of_the_opening_table(name):
    rows = re.findall("<tr>(.*?)</tr>", fl.book.opening("4.1", name).content)[1:]
    cells = [re.findall("<td[^>]*>(.*?)</td>", row)[1:] for row in rows]
    for column in zip(*cells, strict=True):
        numbers = [n for cell in column for n in re.findall(r"^[-+]?([\d,]+\.?\d*)", cell)]
        decimals = {len(n.partition(".")[2]) for n in numbers}
        # numbers in a message are whole, and stand above accuracies
        assert len(decimals - {0}) <= 1 and (len(decimals) <= 1 or name in ("rpn", "seeing"))


def test_a_difference_is_that_of_the_mean_over_the_seeds():
    from fedlearn.book.openings import difference

    assert difference([0.70, 0.80, 0.81], 0.75, 3) == "+0.020"
    assert difference([0.5], 0.75) == "-0.2500" and difference([2.0], 2.0) == "0"
    assert difference([], 0.75) == "" and difference([0.7], None) == ""


def test_the_grid_is_what_its_page_states():
    table = grid("rpn")
    spec = chapter_file("rpn")["grid"]
    runs = {where for where, _ in experiments("rpn")}
    lines = table.groupby(["line", "clients", "pooled", "one_of"], dropna=False).ngroups
    assert lines * len(spec["seeds"]) == len(runs)
    assert (table["low"] <= table["accuracy"] + 1e-4).all()
    assert (table["accuracy"] <= table["high"] + 1e-4).all()
    last = table[table["round"] == spec["shared"]["rounds"]].set_index("line")
    assert last.loc["FedAvg", "up"].max() > last.loc["RPN", "up"].max()


def test_a_grid_may_have_splits():
    spec, table = chapter_file("heterogeneity")["grid"], grid("heterogeneity")
    seen = {line: set(rows["alpha"].dropna()) for line, rows in table.groupby("line")}
    assert not seen.pop("FedAvg, even")
    assert all(alphas == set(spec["splits"]["positions"]) for alphas in seen.values())
    stated = {e.partition for where, e in experiments("heterogeneity") if where[4] == 0.1}
    assert stated == {"dirichlet:0.1"}
    third = table[(table["round"] == 3) & (table["clients"] == 12)].set_index("line")
    even, uneven = third.loc["FedAvg, even"], third[third["alpha"] == 0.1]
    assert even["accuracy"] > 0.8 > uneven["accuracy"].max()  # what the chapter says at its top


@pytest.mark.parametrize("guess", [None, 0.4])
def test_the_explorer_is_valid_vega_and_keeps_the_guess(guess):
    shown = fl.book.explorer("4.1", "rpn", caption="c", alt="a", guess=guess)
    spec = shown.spec
    altair.LayerChart.from_dict({k: v for k, v in spec.items()})  # the schema of Vega-Lite 5
    params = {p["name"]: p for p in spec["params"]}
    assert params["reveal"]["value"] is (guess is not None)
    assert params["guess"]["value"] == (0.85 if guess is None else guess)
    assert spec["description"] == "a" and spec["usermeta"]["keep"] == ["guess"]
    for p in params.values():
        bind = p["bind"]
        assert bind["name"].strip()
        if bind["input"] == "range":
            assert (bind["max"] - bind["min"]) / bind["step"] >= 4
    names = {row["line"] for row in spec["data"]["values"]}
    assert names == {"FedAvg", "RPN", "STC"}


def test_an_explorer_refuses_what_is_no_accuracy():
    with pytest.raises(ValueError, match="from 0 to 1"):
        fl.book.explorer("4.1", "rpn", caption="c", alt="a", guess=97)


def test_a_chart_needs_five_positions_and_names():
    bind = {"input": "range", "min": 0, "max": 3, "step": 1, "name": "x "}
    with pytest.raises(ValueError, match="fewer than 5"):
        fl.book.chart("1.1", {"params": [{"name": "x", "bind": bind}]}, caption="c", alt="a")
    nameless = {"input": "range", "min": 0, "max": 9}
    with pytest.raises(ValueError, match="needs a name"):
        fl.book.chart("1.1", {"params": [{"name": "x", "bind": nameless}]}, caption="c", alt="a")


def test_the_formula_of_pooling_is_valid_vega():
    spec = fl.book.pooled_kernel()
    altair.LayerChart.from_dict(spec)
    own = torch.tensor([row["own"] for row in spec["data"]["values"][:9]])
    assert abs(float(own.sum())) < 1e-3 and abs(float(own.square().sum()) - 9) < 1e-2


def test_positive_is_one_colour_throughout_the_book():
    colours = fl.book.pooled_kernel()["layer"][0]["encoding"]["color"]["scale"]
    shades = matplotlib.colormaps[fl.plot.SIGNED]
    for value, colour in zip(colours["domain"], colours["range"], strict=True):
        assert colour == matplotlib.colors.to_hex(shades((value + 2) / 4))
    root = Path(__file__).resolve().parents[2]
    written = [*root.glob("fedlearn/book/*.py"), *root.glob("book/*/*.ipynb")]
    two_sided = re.compile(  # the maps with two ends, by matplotlib's names and by Vega's
        r"\b(PuOr|PRGn|PiYG|BrBG|RdBu|RdGy|RdYlBu|RdYlGn|Spectral|coolwarm|bwr|seismic|purpleorange"
        r"|purplegreen|pinkyellowgreen|brownbluegreen|redblue|redgrey|redyellowblue|redyellowgreen"
        r"|blueorange|spectral)(_r)?\b"
    )
    named = [p.name for p in written if two_sided.search(p.read_text(encoding="utf-8"))]
    assert named == ["plot.py"]


def test_the_multiplier_of_repopt_is_valid_vega():
    shown = fl.book.chart("8.4", fl.book.gradient_multiplier(), caption="c", alt="a")
    altair.LayerChart.from_dict(shown.spec)
    assert len(shown.spec["data"]["values"]) == 27  # three panels of nine cells
    derived, _, printed = shown.spec["transform"][0]["calculate"].rpartition(" : ")
    assert printed == "s3 * s3 + s1 * s1" and "copies ? 1" in derived


def test_the_formula_of_a_round_is_valid_vega():
    shown = fl.book.chart("1.1", fl.book.round_time(), caption="c", alt="a")
    altair.LayerChart.from_dict(shown.spec)


def test_the_formula_of_soft_labels_is_valid_vega():
    spec = fl.book.soft_labels([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0]], [0, 1])
    altair.LayerChart.from_dict(spec)
    bars = spec["data"]["values"]
    assert [b["class"] for b in bars if b["true"]] == [0, 1] and len(bars) == 6
    shown = fl.book.chart("7.3", spec, caption="c", alt="a", units={"T": "temperature"})
    assert shown.spec["params"][1]["value"] == ["a 0: surest", "a 1: least sure"]


def test_the_formula_of_a_dirichlet_split_is_valid_vega():
    """And its numbers, through Marsaglia and Tsang's formula, have the variance of Dirichlet."""
    spec = fl.book.dirichlet_shares()
    altair.LayerChart.from_dict(spec)
    value = {p["name"]: np.array(p.get("value")) for p in spec["params"]}
    x, x2, w, u = (value[n].reshape(3, 10, 20) for n in ("x", "x2", "w", "u"))
    for alpha in (0.1, 1, 10):
        d = alpha + 2 / 3
        v, other = (np.maximum(1 + z / np.sqrt(9 * d), 0.01) ** 3 for z in (x, x2))
        passes = np.log(w) < x * x / 2 + d * (1 - v + np.log(v))
        gamma = d * np.where(passes, v, other) * u ** (1 / alpha)
        q = gamma / gamma.sum(2, keepdims=True)
        assert (
            np.isclose(q.var(), 0.05 * 0.95 / (20 * alpha + 1), rtol=0.25) and passes.mean() > 0.9
        )


def test_the_formula_of_two_parabolas_is_valid_vega():
    spec = fl.book.two_parabolas()
    altair.LayerChart.from_dict(spec)
    shown = fl.book.chart("2.6", spec, caption="c", alt="a")
    assert sum("bind" in p for p in shown.spec["params"]) == 3


def vega(expression, **values):
    """A Vega expression without fields, as Python computes it."""
    names = {"log": math.log, "pow": math.pow, "floor": math.floor, "sqrt": math.sqrt, "max": max}
    return eval(expression, names | {"LN2": math.log(2)} | values)


@pytest.mark.parametrize("p", [0.5, 0.2, 1 / 32, 0.001])
def test_the_formula_of_positions_is_valid_vega_and_right(p):
    altair.LayerChart.from_dict(fl.book.positions())
    shown = fl.book.positions([{"e": 3, "positions": 0.5, "mask": 0.6}])
    altair.LayerChart.from_dict(shown)
    bits = {code: vega(formula, p=p) for code, formula in places("p").items()}
    gaps = np.random.default_rng(0).geometric(p, 20_000) - 1
    b, words = pack_rice(gaps)
    assert abs(8 * len(words) / len(gaps) - bits["Golomb-Rice"]) < 0.02 * bits["Golomb-Rice"]
    assert bits["entropy"] <= bits["Golomb-Rice"] < 1.05 * bits["entropy"]


def test_the_formula_of_levels_is_valid_vega():
    spec = fl.book.quantiser()
    altair.LayerChart.from_dict(spec)
    assert {p["name"] for p in spec["params"]} == {"levels", "widest", "rounding", "m"}


ON_FLOWER = [
    {"network": net, "method": name, "message": sent, "added": 2000}
    for net, factor in (("small", 1), ("large", 100))
    for name, sent in (("fedavg", 80_000 * factor), ("stc", 3_000 * factor))
]


def controls(spec):
    return {p["name"]: p for p in spec["params"] if "bind" in p}


def computed(spec, field):
    """The expression of a field, with the fields that it uses as plain names."""
    (its,) = [t["calculate"] for t in spec["transform"] if t.get("as") == field]
    return its.replace("datum.", "")


def test_the_formula_of_flowers_share_is_valid_vega_and_right():
    spec = fl.book.framed(ON_FLOWER[:2], 2100.0, hidden="stc", guess=30)
    altair.LayerChart.from_dict(spec)
    params = controls(spec)
    assert {*params} == {"guess", "reveal", "bytes"} and params["guess"]["value"] == 30
    assert [p["value"] for p in spec["params"] if p["name"] == "reveal"] == [True]
    assert not controls(fl.book.framed(ON_FLOWER[:2], 2100.0, "stc"))["reveal"]["value"]
    assert all(p["bind"]["name"].strip() for p in params.values())
    condition = re.compile(r"\(method == '([^']+)' \? (.+?) : (.+?)\)(?= \+)")
    own, share = condition.search(computed(spec, "value"))[1], computed(spec, "value")
    theirs = condition.sub(r"(\2 if method == '\1' else \3)", share)
    for row in spec["data"]["values"]:
        sent = 1e4 if row["method"] == own else row["message"]
        its = {k: row[k] for k in ("method", "message", "added")}
        assert vega(theirs, bytes=4, **its) == pytest.approx(
            100 * row["added"] / (sent + row["added"])
        )
    assert spec["data"]["values"][-1] == {
        "method": own, "message": 0, "added": 2100.0, "part": 1
    }  # fmt: skip


def test_the_errors_of_coders_are_a_chart_of_five_rounds():
    rows = [
        {"coder": c, "setting": f"{c}({b})", "round": t, "bits": b, "error": 4.0**-b}
        for c in ("one", "other")
        for b in (1, 2)
        for t in (1, 3, 10, 30, 100)
    ]
    rows.append({"coder": "whole", "setting": "", "round": 1, "bits": 27.0, "error": 0.0})
    spec = fl.book.errors(rows, "one", "other")
    altair.LayerChart.from_dict(spec)
    fl.book.chart("3.10", spec, caption="c", alt="a", units={"e": "power of ten"})
    shown = spec["data"]["values"]
    assert len(shown) == 20 and {row["e"] for row in shown} == {0, 0.5, 1, 1.5, 2}
    says = next(p["expr"] for p in spec["params"] if p["name"] == "saysRound")
    number = says.removeprefix("'round ' + ")
    found = [vega(number, e=row["e"], format=lambda x, _: int(x)) for row in shown]
    assert found == [row["round"] for row in shown]


@pytest.mark.parametrize("name", ["fedavg", "stc", "qsgd", "smartidx"])
def test_every_byte_of_a_message_is_explained_by_the_decoder(name):
    task, settings = fl.tasks.classification("digits", 2, train=40, test=10), fl.Settings()
    method = fl.methods.get(name)
    server, workers = method.server_side(task, settings), fl.clients(method, task, settings)
    state = server.start()
    data = workers.answer(1, 0, server.send(1, 0, state)[0])
    parts = spans(data, server.up, lambda d: server.receive(1, 0, d, state))
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
    assert shown.content.count('tabindex="0"') == len(parts)
    with pytest.raises(fl.WireError):
        spans(data[:-1] + b"?", server.up, lambda d: server.receive(1, 0, d, state))


def coders():
    """One or more of every coder of the package."""
    classes = [c for c in vars(wire).values() if isinstance(c, type) and issubclass(c, wire.Coder)]
    yield from (c() for c in classes if hasattr(c, "__dataclass_fields__"))
    yield from (wire.Dense(16), wire.Pooled(16), wire.Pooled(threshold=1.0), wire.TopK(1, "sign"))
    yield wire.QSGD(5, entropy=True)


@pytest.mark.parametrize("coder", [*coders()], ids=repr)
def test_a_message_of_any_coder_is_taken_apart(coder):
    schema = fl.wire.Schema({"w": (12, 4, 3, 3), "none": (0, 4, 3, 3)})
    drawn = [torch.Generator().manual_seed(0)]
    shared = isinstance(coder, wire.SharedRandomness)
    dice, same = drawn * (shared or isinstance(coder, wire.Stochastic)), drawn * shared
    x = torch.randn(12, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    x = (x > 0).float() if isinstance(coder, wire.Mask | wire.Whole) else x
    coded = {"w": coder.encode(x, *dice), "none": coder.encode(x[:0], *dice)}
    data = wire.pack(wire.Message(wire.UP, 1, 0, 5, coded), schema)

    def decode(data):
        message = wire.unpack(data, schema, kind=wire.UP, round=1, client=0)
        for name, section in message.sections.items():
            coder.decode(section, schema.shapes[name], *same)

    parts = spans(data, schema, decode)
    assert [p.start for p in parts] == [0, *(p.end for p in parts[:-1])]
    assert parts[-1].end == len(data) and all(p.start < p.end for p in parts)
    told = [p.field for p in parts if p.section.startswith("w ")]
    floats = {wire.Dense: 432, wire.Pooled: 48}.get(type(coder))
    if floats and not getattr(coder, "threshold", 0):
        assert len(told) == 1 and told[0].startswith(f"{floats} floats, ")


def test_bytes_that_a_coder_reads_in_its_own_way_are_a_part():
    class Own(wire.Dense):
        def decode(self, section, shape, *generator):
            assert Reader(section[2:]).number(1) == Reader(section[2:]).number(1)  # told once
            return torch.zeros(shape)

    schema = fl.wire.Schema({"w": (2,)})
    data = wire.pack(wire.Message(wire.UP, 1, 0, 5, {"w": b"ab\7cde"}), schema)
    parts = spans(data, schema, lambda d: Own().decode(memoryview(d)[-10:-4], (2,)))
    told = [p.field for p in parts if p.section == "w 2"]
    assert told == ["2 bytes", "whole number, 7", "3 bytes"]


def test_the_formula_of_a_round_on_flower_is_valid_vega_and_right():
    spec = fl.book.carried(ON_FLOWER, 6.7, "large", clients=20, link=0.0, server=1.0)
    altair.LayerChart.from_dict(spec)
    assert {k: p["value"] for k, p in controls(spec).items()} == {
        "network": "large", "clients": 20, "link": 0.0, "server": 1.0
    }  # fmt: skip
    mbit = 8 * (80_000 + 2000) / 1e6
    for link, server, own, all_of_them in ((0, 3, 1, 0.01), (3, 0, 0.001, 10)):
        at = {"link": link, "server": server, "clients": 10, "message": 80_000, "added": 2000}
        done = {k: vega(computed(spec, k), **at) for k in ("own", "all")}
        assert done == pytest.approx({"own": own * mbit, "all": all_of_them * mbit})
        assert vega(computed(spec, "busy"), **done) == pytest.approx(max(own, all_of_them) * mbit)
    assert vega(computed(spec, "total"), busy=1.5) == pytest.approx(8.2)


def test_ratios_to_the_bare_loop_are_what_was_measured():
    seconds = {"bare loop": 2.0, "sequential": 3.0, "stacked": 1.0, "Flower (Ray)": "failed"}
    table = {"rows": [{"network": "a", "clients": 10, "seconds": seconds}]}
    table["rows"].append({"network": "b", "clients": 10, "seconds": {}})
    measured = {"table": table, "growth": {"clients": [{"clients": 1, "seconds": seconds}]}}
    rows = ratio_rows(measured)
    assert [(r["clients"], r["form"], r["ratio"]) for r in rows] == [
        (clients, *its) for clients in (1, 10) for its in (("sequential", 1.5), ("stacked", 0.5))
    ]
    spec = fl.book.ratios(measured)
    altair.LayerChart.from_dict(spec)
    assert "['b']" in str(spec["layer"][-1])  # what says that it was not measured


def test_a_drawing_is_as_wide_as_its_bytes(histories):
    page = fl.book.drawing("4.2", "rpn", histories["rpn"], histories["fedavg"])._repr_html_()
    assert page.count("<svg") == 2, "a wide form and a narrow one"
    wide, dense = (
        history.rows[1]["bytes_up"] / 3 for history in (histories["rpn"], histories["fedavg"])
    )
    assert f'stroke-width="{22 * wide / dense:.1f}"' in page and 'stroke-width="22.0"' in page
    assert page.count('type="radio"') == 5 and page.count(" checked>") == 1
    assert "uplink: pooled residual" in page
    whole = fl.book.drawing("1.1", "fedavg", histories["fedavg"], histories["fedavg"])
    assert "All six parts are FedAvg" in whole._repr_html_()


# ---- set-up ----


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"clients": 1}, "at least 2 clients, not 1"),
        ({"scale": "huge"}, "Allowed: quick, full"),
        ({"rounds": 0}, "rounds must be"),
        ({"dataset": "mnits"}, "mnist"),
    ],
)
def test_a_chapter_refuses_in_one_sentence(change, reason):
    with pytest.raises(ValueError, match=reason):
        fl.book.chapter(**{"device": "cpu", "dataset": "digits", "clients": 3} | change)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_chapter_without_a_gpu():
    with pytest.raises(ValueError, match="no GPU"):
        fl.book.chapter(device="cuda", dataset="digits", clients=3)
    assert fl.book.chapter(device="auto", dataset="digits", clients=3).device == "cpu"


def test_a_chapter_runs_each_seed():
    chapter = fl.book.chapter(rounds=1, dataset="digits", clients=3, train=60, test=20)
    runs = chapter.runs({"FedAvg": fl.methods.fedavg()})
    assert [h.meta["task"]["seed"] for h in runs["FedAvg"]] == [0, 1, 2]
    assert "<style>" in chapter._repr_html_() and "seeds 0, 1, 2" in repr(chapter)


# ---- exercises ----


def nothing(x):
    return ...


class Blank:
    def encode(self, x):
        return x

    def decode(self, x):
        """To be written."""


def test_an_empty_answer_is_no_wrong_answer():
    answers = (None, ..., nothing, lambda x: None, (len, nothing))
    for answer in answers:
        verdict = fl.check("rpn-pool", answer)
        assert empty(answer) and not verdict and not verdict.right
        assert "no answer yet" in repr(verdict)
    assert empty(Blank) and not empty(solutions) and not empty(0) and not empty(lambda x: x)


def test_a_wrong_answer_is_false_and_a_right_one_true():
    assert not fl.check("rpn-payload", 5) and fl.check("rpn-payload", 1_653_514)


CHAPTERS = [
    "compose",
    "fed_gkt",
    "fed_kgf",
    "fed_mmd_fusion",
    "fed_repopt",
    "fedavg",
    "flower",
    "heterogeneity",
    "rpn",
    "seeing",
    "shootout",
    "wire",
]


@pytest.mark.parametrize(
    "exercise", [name for chapter in CHAPTERS for name in solutions(chapter)], ids=str
)
def test_the_reference_answers_pass_their_checks(exercise):
    shown = fl.solution(exercise)
    assert "<details" in shown._repr_html_() and "<summary>" in shown._repr_html_()
    if shown.code:
        made = {"__name__": "solutions"}
        exec(compile(shown.code, exercise, "exec"), made)
        assert fl.check(exercise, made["answer"])


def test_a_solution_that_is_not_there():
    with pytest.raises(ValueError, match="solution 'rpn-none'"):
        fl.solution("rpn-none")
    with pytest.raises(ValueError, match="chapter with exercises"):
        fl.solution("nothing-here")


# ---- the class edition ----


def book(folder):
    folder.mkdir()
    text = '{"cells": [{"cell_type": "code", "source": ["%s"], "metadata": {}}]}'
    (folder / "a.ipynb").write_text(text % "fl.solution('a-b')")
    return folder


@pytest.mark.parametrize("out", ["book", "book/class", "."])
def test_the_class_edition_does_not_destroy_its_source(tmp_path, out):
    source = book(tmp_path / "book")
    with pytest.raises(ValueError, match="overlap"):
        classroom.make(source, tmp_path / out, force=True)
    assert "solution" in (source / "a.ipynb").read_text()


def test_the_class_edition_writes_over_nothing(tmp_path):
    source = book(tmp_path / "book")
    (path,) = classroom.make(source, tmp_path / "out")
    assert "solution" not in path.read_text()
    with pytest.raises(ValueError, match="--force"):
        classroom.make(source, tmp_path / "out")
    assert classroom.make(source, tmp_path / "out", force=True) == [path]
