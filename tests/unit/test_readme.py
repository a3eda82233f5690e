"""What the README and the pages about the package show runs as it stands there: its Python, and its
commands in a clean clone. One value fills in where the repository is."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import fedlearn

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    (ROOT / p).read_text("utf-8")
    for p in ("README.md", "book/package.md", "book/extend.md")
]
# the README's first example opens the page about the package, too
BLOCKS = [
    *dict.fromkeys(re.findall(r"^```(\w+)\n(.*?)^```", "\n".join(TEXTS), re.S | re.M))
]
COMMANDS = dict.fromkeys(
    line.partition(" #")[0].strip()
    for language, text in BLOCKS
    if language in ("bash", "sh")
    for line in text.splitlines()
    if line.strip() and not line.startswith("#")
)
# What is run elsewhere, by how it begins.
ELSEWHERE = "make ", "pip "
FEW = "--rounds 1 --train 100 --test 20"  # a run is made smaller by it; of hours of runs, the plan
# What a command prints or leaves behind, by a part of it.
SHOWS = {
    "fedlearn methods": ["rpn(", "fed_gkt("],
    "--plot first.png": ["fedavg ", "rpn ", "first.png"],
    "--out results/both.json --plot both.png": [
        "fedavg ",
        "rpn ",
        "results/both.json",
        "both.png",
    ],
    "rpn:share=0.25": ["fedavg ", "rpn share=0.25 ", "rpn share=1 ", " ± "],
    "--task detection": ["mAP@0.5"],
    "--task segmentation": ["mIoU"],
    "fedlearn cost": ["fedavg", "rpn"],
    "fedlearn check": ["rpn-table1-fl-params", "claims: "],
    "fedlearn reproduce fed_kgf": ["Fed-KGF without MU", "stored"],
    "--plan": ["runs, "],
    "fedlearn reproduce rpn --scale small": ["segmentation", "STC"],
    "fedlearn pack": ["Nothing to pack."],
    "compare fedavg mine.py:rotated": ["fedavg ", "mine.py:rotated "],
    "run mine.py:rotated": ["mine.py:rotated ratio=0.01 "],
}
MINE = re.search(r"```python\n(.*?)```", TEXTS[-1], re.DOTALL)[1]
MORE = ["fedlearn run fed_kgf --task segmentation"]  # which a comment names
LOGGERS = """
import sys
from types import SimpleNamespace as Named
logged = []
log = lambda numbers, round: logged.append((numbers, round))
sys.modules["wandb"] = Named(init=lambda project: Named(log=log))
sys.modules["mlflow"] = Named(log_metrics=log)
"""


@pytest.fixture
def do(tmp_path):
    """do(words): run in a clean copy of what git knows, and of what is new."""
    clone, git = tmp_path / "clone", ["git", "-C", str(ROOT), "ls-files", "-z"]
    words = [*git, "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0")[:-1]:
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    env = {k: v for k, v in os.environ.items() if k != "FEDLEARN_DATA"}
    env |= {"PYTHONPATH": str(clone), "MPLBACKEND": "agg", "FEDLEARN_OFFLINE": "1"}
    how = {"cwd": clone, "env": env, "text": True, "capture_output": True}

    def done(*words):
        return subprocess.run([sys.executable, *words], **how)

    done.folder = clone
    return done


@pytest.mark.slow
def test_the_commands_run_in_a_clean_clone_one_after_the_other(do):
    (do.folder / "mine.py").write_text(MINE)
    commands, shown = [c for c in COMMANDS if not c.startswith(ELSEWHERE)] + MORE, set()
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "fedlearn", f"{command}: run it here, or name it in ELSEWHERE"
        few = {"run": FEW, "compare": FEW, "reproduce": "--plan"}.get(
            words[0], ""
        ).split()
        done = do("-m", "fedlearn", *words, *few)
        said = f"{command}\n{done.stdout}\n{done.stderr}"
        [(part, expected)] = [(p, e) for p, e in SHOWS.items() if p in command]
        assert done.returncode == 0 and "Traceback" not in said, said
        for text in expected:
            assert text in done.stdout + done.stderr or (do.folder / text).is_file(), (
                said
            )
        shown.add(part)
    assert shown == SHOWS.keys()


@pytest.mark.slow
def test_the_python_of_a_user_runs_in_a_clean_clone(do):
    """One block after the other, with one round; loggers that want an account are played."""
    texts = [text for language, text in BLOCKS if language == "python"]
    here = [
        text for text in texts if "flower" not in text and "RotatedTopK" not in text
    ]
    assert len(here) == len(texts) - 2
    code = re.sub(
        r"rounds=20|\b50\b", lambda m: "rounds=1" if "=" in m[0] else "1", "".join(here)
    )
    code = code.replace("import wandb", "method = fl.methods.fedavg()\nimport wandb")
    code = re.sub(r"method,\s+task,", "method, task, 1,", code)
    done = do(
        "-c", f"{LOGGERS}{code}\nassert [round for _, round in logged] == [1, 1]\n"
    )
    assert done.returncode == 0, done.stderr
    assert (do.folder / "rpn.jsonl").read_text().count("\n") == 1


@pytest.fixture
def repository():
    """The script that writes where the repository is."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "book/_ext/fl_repository.py")))


def test_one_value_fills_badges_links_and_citation(repository):
    names = "README.md", "pyproject.toml", "CITATION.cff"
    before = [(ROOT / name).read_text("utf-8") for name in names]
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    assert [*repository.filled(*before, config["repository"]["url"])] == before
    url = "https://github.com/someone/the-fork"
    readme, project, citation = after = repository.filled(*before, url)
    assert repository.filled(*after, url) == after
    assert [*repository.filled(*after, "")] == [*repository.filled(*before, "")]
    links, version = tomllib.loads(project)["project"]["urls"], fedlearn.__version__
    assert links["Documentation"] == "https://someone.github.io/the-fork/"
    assert links["Source"] == url == yaml.safe_load(citation)["repository-code"]
    assert (
        yaml.safe_load(citation)["version"]
        == tomllib.loads(project)["project"]["version"]
    )
    assert yaml.safe_load(citation)["version"] == version and readme.count("[![") == 3
    there = repository.whole(readme, url, "v1")
    assert f"]({url}/blob/v1/CHANGELOG.md)" in there and not re.search(
        r"\]\((?!https:)", there
    )
    assert "the-fork/v1/book/images/playground.png)" in there


def test_links_of_the_readme_and_the_papers_of_the_project_lead_to_files():
    for path in [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            assert re.match(r"https?:", link) or (path.parent / link).exists(), (
                path.name,
                link,
            )
