"""What the README shows runs as it stands there."""

import re
from pathlib import Path

import fedlearn as fl
from fedlearn import cli

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def block(heading):
    """The first Python block below a heading."""
    section = README.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


def run(code):
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


def test_a_method_of_ones_own_takes_thirty_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = block("Add a method")
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 30
    Path("mine.py").write_text(code)
    words = ["run", "mine.py:rotated", "--partition", "dirichlet:0.5", "--out", "mine.json"]
    assert not cli.main([*words, "--engine", "stacked"])
    history = fl.History.from_json("mine.json")
    assert history.final["accuracy"] > 0.9
    assert not any(row["refused"] for row in history.rows)
    task = fl.tasks.classification("digits", partition="dirichlet:0.5")
    link = fl.methods.get("mine.py:rotated").uplink.steps[:-1]
    plain = fl.Uplink(*link, fl.parts.Lossy(fl.wire.TopK(1 / 32)))
    same = fl.run(fl.Averaging("plain", uplink=plain), task, rounds=1)
    # the rotation costs no byte: a position among a power of two of entries is a few bits longer
    assert abs(history.bytes_up[0] / same.bytes_up[0] - 1) < 0.05


def test_the_first_example_runs(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    code = block("Use the package").replace("rounds=20", "rounds=1")
    names = run(code)
    task = names["task"]
    dense = names["average"].bytes_up[0] - names["average"].bytes_up_buffers[0]
    assert names["pooled"].bytes_up[0] < dense / 4
    half, mixed = (fl.run(names[name], task, rounds=1) for name in ("half", "mixed"))
    assert half.bytes_up[0] < 0.55 * names["average"].bytes_up[0]
    assert mixed.bytes_up[0] < half.bytes_up[0]
