"""Stored runs: the packed files, the two tables, and what is packed."""

import gzip
import json
import math
import subprocess

import pytest

import fedlearn as fl
from fedlearn import recipes, reproduce, results
from fedlearn.lab.cli import main
from fedlearn.data.sources import data_path


def history(accuracies=(0.2, None, 0.8), seed=0, up=1000, clients=2, label="by hand", **task):
    """A run whose every round sends so many bytes up, and thrice as many down."""
    same = {"loss": 1.0, "bytes_up": up, "bytes_down": 3 * up, "seconds": 4.0}
    same |= {"clients": list(range(clients)), "refused": {}}
    rows = [{"round": t, "accuracy": a, **same} for t, a in enumerate(accuracies, 1)]
    task = {"dataset": "digits", "clients": clients, "partition": "Iid()", "network": "mlp"} | task
    meta = {"label": label, "task": {**task, "seed": seed, "train": 1347}, "settings": {}}
    return fl.History("hand", meta, rows)


def test_a_row_a_run_and_a_row_a_round(tmp_path):
    history((0.1, 0.2, 0.3, 0.4, None, 0.6, 0.7)).to_json(tmp_path / "x.json")
    whole = history(seed=3, partition="Dirichlet(alpha=0.5, min_samples=1)").to_dict()
    whole["meta"] |= {"options": {"method": "rpn", "lr": 0.02}, "provenance": {"seconds": "7200"}}
    whole["meta"]["tuned"] = {"lr": {"0.02": 0.5}}
    experiment = {"rounds": 3}
    line = {"hash": results.hash_of(experiment), "experiment": experiment} | whole
    short = {"hash": results.hash_of({"short": True}), "experiment": {"short": True}} | whole
    results.write(tmp_path / "y.jsonl.gz", [line, short])
    runs, rounds = results.tables(tmp_path)
    assert list(runs["rounds"]) == [7, 3] and list(rounds["run"]) == 7 * [0] + 3 * [1]
    first, second = (row for _, row in runs.iterrows())
    assert (first["last test"], first["last quarter"]) == (0.7, pytest.approx(0.65))
    assert (first["chosen on"], second["chosen on"]) == ("", "test")
    assert (first["partition"], second["partition"]) == ("iid", "dirichlet:0.5")
    assert (first["hours"], second["hours"]) == (pytest.approx(28 / 3600), 2.0)
    assert list(rounds["clients"]) == 10 * [2] and rounds["bytes_down"].sum() == 30_000


GOOD = history().to_dict()
ROW = GOOD["rows"][0]


@pytest.mark.parametrize(
    "data",
    [
        "{",
        [GOOD, 3],
        GOOD | {"rows": [{k: v for k, v in ROW.items() if k != "bytes_up"}]},
        GOOD | {"rows": [ROW | {"accuracy": "good"}]},
        GOOD | {"hash": "0", "experiment": {}},
    ],
)
def test_what_is_no_result_is_one_sentence_and_left_out_of_a_folder(data, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    history((0.5, math.nan)).to_json(tmp_path / "b.json")  # what diverged is a result
    (tmp_path / "broken.json").symlink_to("nowhere.json")
    with pytest.raises(ValueError, match="x.json") as error:
        results.tables([tmp_path / "b.json", path])
    assert "\n" not in str(error.value) and len(results.tables(tmp_path)[0]) == 1
    (tmp_path / "x.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00")
    for place in ("x.jsonl.gz", "nowhere"):
        with pytest.raises(ValueError, match=place):
            results.tables(tmp_path / place)


def test_a_cut_line_costs_itself(tmp_path):
    good = GOOD | {"experiment": {}, "hash": results.hash_of({})}
    text, strange = json.dumps(good), json.dumps(good | {"meta": {"label": "\ud800"}})
    other = json.dumps(good | {"experiment": {"seed": 1}, "hash": results.hash_of({"seed": 1})})
    path = tmp_path / "own.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join([text, text[:99], strange, other]).encode()))
    with pytest.warns(UserWarning, match="line 2 of .*move it away") as warned:
        assert results.read(path) == [json.loads(text), json.loads(other)]
    assert "line 3" in str(warned[1].message)
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    with pytest.raises(ValueError, match="hash None"):
        results.read(path)
    (tmp_path / "own").mkdir()
    for name, content in {"a": text[:99], "b": text}.items():
        (tmp_path / "own" / f"{name}.json").write_text(content)
    with pytest.warns(UserWarning, match="a.json is left out"):
        assert [path.stem for path in results.recent("own", tmp_path)] == ["b"]


def test_seeds_are_told_by_mean_and_deviation():
    one, other = history(), history((0.5, 0.6, 0.4))
    table = fl.summary({"a": [one, other], "b": other}, target=0.75, megabytes=0.005)
    told = ["0.600 ± 0.283", "0.350 ± 0.212", "3.0 (1 of 2 runs)", "0.01 (1 of 2 runs)"]
    told = [3, told[0], *told]  # of three rounds the last is the last quarter
    assert table.loc["a"].to_list() == [*told, "0.00", "0.01"]
    assert table.loc["b", "rounds to 75%"] == "not reached"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout without results, and a recipe of two runs; do(commit, ...) does them."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(results, "data_path", tmp_path.joinpath("data").joinpath)
    monkeypatch.chdir(tmp_path)
    block = {"partition": ["iid"], "rounds": 1, "train": 40, "test": 20, "clients": 2}
    block |= {"rows": {name: {"method": "fedavg"} for name in "ab"}}
    made = {"paper": "own", "shows": "", "quick": {"seeds": [0], "runs": [block]}}
    monkeypatch.setattr(recipes, "RECIPES", {"own_table": made})
    monkeypatch.setattr(recipes, "PAPERS", {"own": None})

    def do(commit="abcdef123456", **how):
        monkeypatch.setattr(results, "provenance", lambda: {"commit": commit})
        return reproduce.reproduce("own", progress=False, **how)

    do.file = tmp_path / "data" / "results" / "own_digits.jsonl.gz"
    return do


def test_the_packed_files_are_the_same_when_they_are_packed_again(tmp_path):
    order = reproduce.order()
    for path in sorted(data_path("results").glob(f"*{results.PACKED}")):
        name, lines = path.name.removesuffix(results.PACKED), results.read(path)
        results.write(tmp_path / path.name, lines)
        assert path.read_bytes()[4:8] == bytes(4)  # no time is in it, and nan is not nan:
        assert json.dumps(results.read(tmp_path / path.name)) == json.dumps(lines)
        places = [reproduce.place_in(order, name, line) for line in lines]
        known = [place for place in places if place < len(order)]  # not tries on test images
        assert known == sorted(known)
        stale = [x for x, p in zip(lines, places, strict=True) if p == len(order)]
        assert all(line["experiment"]["short"] for line in stale)


def test_a_run_is_packed_read_and_not_done_again(checkout, monkeypatch, capsys):
    table = checkout()
    assert list(table["MB up"]) == 2 * [0.08]
    before = dict(results.recent("own_digits"))
    checkout(train=30)  # a shorter run is not the recipe's
    assert len(before) == 2 and not main(["pack"])
    assert len(results.recent("own_digits")) == 2  # the shorter ones stay
    runs, _ = results.tables()
    assert list(runs["label"]) == ["a", "b"]
    assert {*runs["hash"]} == {line["hash"] for line in before.values()}
    monkeypatch.setattr(reproduce, "do", None)
    checkout()
    assert not main(["pack"]) and "Nothing to pack" in capsys.readouterr().out


def test_what_was_chosen_on_test_images_or_not_committed_is_replaced(checkout, monkeypatch):
    monkeypatch.setattr(recipes, "MORE", 0)
    block = recipes.RECIPES["own_table"]["quick"]["runs"][0]
    checkout(only=("a",))
    [line] = results.recent("own_digits").values()
    on_test = line["experiment"] | {"tune": {"lr": [0.1], "seed": 0}}
    tried = line["experiment"] | {"label": "a, lr 0.1", "short": True}
    old = [line | {"experiment": e, "hash": results.hash_of(e)} for e in (on_test, tried)]
    dirty = line["experiment"] | {"label": "b"}
    meta = line["meta"] | {"provenance": {"commit": "abc-dirty"}}
    old.append(line | {"experiment": dirty, "hash": results.hash_of(dirty), "meta": meta})
    checkout.file.parent.mkdir(parents=True)
    results.write(checkout.file, old)
    block["tune"] = {"options": {"lr": [0.03, 0.1]}}
    checkout()
    assert reproduce.pack() == ["own_digits: 6 runs packed"]
    lines = results.packed("own_digits")
    assert not {line["hash"] for line in lines} & {line["hash"] for line in old}


@pytest.mark.parametrize("commit", ["abcdef123456-dirty", "not a checkout"])
def test_what_was_not_committed_is_not_packed(checkout, capsys, commit):
    checkout(only=("a",))
    checkout(commit)
    assert main(["pack"]) == 2 and "committed" in capsys.readouterr().err
    assert not results.packed("own_digits") and len(results.recent("own_digits")) == 2


def test_a_line_is_stored_once_and_is_the_run_that_its_hash_says(checkout, capsys):
    checkout(only=("a",))
    [(path, line)] = results.recent("own_digits").items()
    assert not main(["pack"])
    path.write_text(json.dumps(line))
    with pytest.raises(ValueError, match="packed already"):
        reproduce.pack()
    results.write(checkout.file, [line, line])
    with pytest.raises(ValueError, match="twice"):
        results.read(checkout.file)
    checkout.file.unlink()
    line["experiment"]["rounds"] = 7
    path.write_text(json.dumps(line))
    for command in (["pack"], ["reproduce", "own"]):
        assert main(command) == 2 and "hash" in capsys.readouterr().err


def test_packing_loses_no_line_that_cannot_be_read(checkout, capsys):
    checkout(only=("a",))
    assert not main(["pack"])
    whole = gzip.decompress(checkout.file.read_bytes())
    checkout.file.write_bytes(damaged := gzip.compress(whole + whole[:99] + b"\n"))
    with pytest.warns(UserWarning, match="line 2"):
        checkout()
    assert main(["pack"]) == 2 and "line 2" in capsys.readouterr().err
    assert checkout.file.read_bytes() == damaged and len(results.recent("own_digits")) == 1


def test_a_commit_is_dirty_if_programs_differ_not_if_results_do(tmp_path, monkeypatch):
    def git(*words):
        own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", tmp_path, *own, *words], check=True, capture_output=True)

    names = "fedlearn/a.py", "data/results/a.json", "data/grids/a.json", "book/a.md"
    files = [tmp_path / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("1")
    monkeypatch.setattr(results, "__file__", str(files[0]))
    assert results.provenance()["commit"] == "not a checkout"
    for words in ("init -q", "add .", "commit -qm all"):
        git(*words.split())
    whole = results.provenance()["commit"]
    for file in files[1:]:
        file.write_text("2")
    assert results.provenance()["commit"] == whole and len(whole) == 12
    new = tmp_path / "fedlearn" / "b.py"
    new.write_text("1")
    assert results.provenance()["commit"] == f"{whole}-dirty"
    new.unlink()
    files[0].write_text("2")
    assert results.provenance()["commit"] == f"{whole}-dirty"


def test_ahead_takes_five_seeds_and_an_interval_without_zero():
    leads = [0.1, 0.2, 0.3, 0.2, 0.2]
    gap = results.paired(dict(enumerate(leads)), dict.fromkeys(range(9), 0.0))
    half = 2.776 * 0.0707107 / 5**0.5  # Student's t with four degrees of freedom
    assert (gap.low, gap.high) == pytest.approx((0.2 - half, 0.2 + half), rel=1e-3)
    assert gap.sure and str(gap).startswith("ahead by 0.2 [0.112, 0.288]")
    for some, says in ((leads[:4], "4 of 4"), ([*leads, -0.9], "5 of 6"), ([], "0 of 0")):
        gap = results.paired(dict(enumerate(some)), dict.fromkeys(range(9), 0.0))
        assert not gap.sure and str(gap) == f"higher in {says} seeds"
    gap = results.paired(dict.fromkeys(range(5), 0.0), dict(enumerate(leads)))
    assert str(gap) == "behind by 0.2 [0.112, 0.288]"
    gap = results.paired(dict(enumerate([*leads, math.nan])), dict.fromkeys(range(6), 0.0))
    assert not gap.sure  # a run that diverged decides nothing
