"""Stored runs: the packed files, the two tables, and what is packed."""

import json

import pytest

import fedlearn as fl
from fedlearn import recipes, reproduce, results
from fedlearn.cli import main
from fedlearn.data.sources import data_path

FILES = sorted(data_path("results").glob(f"*{results.PACKED}"))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout without results, and a run of a recipe that is not packed."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(results, "data_path", tmp_path.joinpath("data").joinpath)
    monkeypatch.chdir(tmp_path)
    block = {"partition": ["iid"], "rounds": 1, "train": 40, "test": 20, "clients": 2}
    block |= {"rows": {name: {"method": "fedavg"} for name in "ab"}}
    made = {"paper": "own", "shows": "", "quick": {"seeds": [0], "runs": [block]}}
    for name, its in {"RECIPES": {"own_table": made}, "PAPERS": {"own": None}}.items():
        monkeypatch.setattr(recipes, name, its)
    return tmp_path


def do(commit="abcdef123456", **how):
    provenance = {"commit": commit}
    reproduce.reproduce("own", provenance=provenance, report=str, progress=False, **how)


def test_the_packed_files_are_the_same_when_they_are_packed_again(tmp_path):
    order = {(r.folder, r.key): k for k, r in enumerate(recipes.every())}
    for path in FILES:
        name, lines = path.name.removesuffix(results.PACKED), results.read(path)
        results.write(tmp_path / path.name, lines)
        again = results.read(tmp_path / path.name)
        assert json.dumps(again) == json.dumps(lines)  # nan is not equal to itself
        assert path.read_bytes()[4:8] == bytes(4)  # no time is in it
        places = [order[name, line["hash"]] for line in lines]
        assert places == sorted(places)


def test_a_run_is_packed_read_and_not_done_again(checkout, monkeypatch, capsys):
    do()
    before = dict(results.recent("own_digits"))
    do(train=30)  # a shorter run is not the recipe's
    assert len(before) == 2 and not main(["pack", "own_table"])
    assert "own_digits: 2 runs packed" in capsys.readouterr().out
    assert len(results.recent("own_digits")) == 2  # the shorter ones stay
    assert [line["experiment"]["label"] for line in results.packed("own_digits")] == ["a", "b"]
    assert [h.meta["label"] for h in results.load("own_digits")] == ["a", "b"]
    runs, rounds = results.tables(checkout / "data")
    assert list(runs["label"]) == ["a", "b"] and list(rounds["run"]) == [0, 1]
    assert {*runs["hash"]} == {line["hash"] for line in before.values()}
    monkeypatch.setattr(reproduce, "do", None)
    do()
    assert not main(["pack"]) and "Nothing to pack" in capsys.readouterr().out


@pytest.mark.parametrize("commit", ["abcdef123456-dirty", "not a checkout"])
def test_a_run_of_code_that_was_not_committed_is_refused(checkout, capsys, commit):
    do(only=("a",))
    do(commit)
    assert main(["pack"]) == 2
    error = capsys.readouterr().err
    assert "committed" in error and error.count("\n") == 1
    assert not results.packed("own_digits") and len(results.recent("own_digits")) == 2


def test_the_same_experiment_is_not_stored_twice(checkout):
    do(only=("a",))
    [(path, line)] = results.recent("own_digits").items()
    text = path.read_text()
    assert not main(["pack"])
    path.write_text(text)
    with pytest.raises(ValueError, match="packed already"):
        reproduce.pack()
    file = checkout / "data" / "results" / "own_digits.jsonl.gz"
    results.write(file, [line, line])
    with pytest.raises(ValueError, match="twice"):
        results.read(file)


def test_a_line_is_the_run_that_its_hash_says(checkout, capsys):
    do(only=("a",))
    [(path, line)] = results.recent("own_digits").items()
    line["experiment"]["rounds"] = 7
    path.write_text(json.dumps(line))
    for command in (["pack"], ["reproduce", "own"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "hash" in error and "runs" in error and error.count("\n") == 1


def test_only_a_checkout_is_packed_into(checkout):
    (checkout / "pyproject.toml").unlink()
    with pytest.raises(ValueError, match="checkout"):
        reproduce.pack()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x1f\x8b\x08\x00"])
def test_what_is_no_packed_file_is_one_sentence(tmp_path, content):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="x.jsonl.gz is no result"):
        results.read(path)


def test_a_files_and_a_packed_files_runs_are_one_list():
    assert {h.method for h in fl.results.load("rpn_mnist")} == {"fedavg", "rpn"}
    assert results.load("nothing") == []


@pytest.mark.parametrize("text", [e for *_, e in fl.partition.PARTS.values()])
def test_a_split_is_written_as_it_is_typed(text):
    assert results.split_text(repr(fl.partition.parse(text))) == text


@pytest.mark.parametrize(
    "shown",
    ["Dirichlet(alpha=0.5, min_samples=3)", "Given(3 clients, 9 samples)", "Table(source='x')"],
)
def test_a_split_that_cannot_be_typed_stays_as_it_is(shown):
    assert results.split_text(shown) == shown
