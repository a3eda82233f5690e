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
    clone = tmp_path / "clone"
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    words = [*git, "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0")[:-1]:
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    env = {k: v for k, v in os.environ.items() if k != "FEDLEARN_DATA"}
    env |= {"PYTHONPATH": str(clone), "MPLBACKEND": "agg", "FEDLEARN_OFFLINE": "1"}
    options = {"cwd": clone, "env": env, "text": True, "capture_output": True}

    def done(*words):
        return subprocess.run([sys.executable, *words], **options)

    done.folder = clone
    return done


@pytest.mark.slow
def test_the_commands_run_in_a_clean_clone_one_after_the_other(do):
    (do.folder / "mine.py").write_text(MINE)
    smaller = {"run": FEW, "compare": FEW, "reproduce": "--plan"}
    commands = [c for c in COMMANDS if not c.startswith(ELSEWHERE)]
    for command in commands + MORE:
        program, *words = shlex.split(command)
        assert program == "fedlearn", f"{command}: run it here, or name it in ELSEWHERE"
        done = do("-m", "fedlearn", *words, *smaller.get(words[0], "").split())
        printed = f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0
        assert "Traceback" not in printed, printed
        assert done.stdout.strip(), command
        for option in {"--out", "--plot"} & {*words}:
            assert (do.folder / words[words.index(option) + 1]).is_file(), command


@pytest.mark.slow
def test_the_python_of_a_user_runs_in_a_clean_clone(do):
    """One block after the other, with one round; loggers that want an account are played."""
    texts = [text for language, text in BLOCKS if language == "python"]
    elsewhere = [text for text in texts if "flower" in text or "RotatedTopK" in text]
    assert len(elsewhere) == 2
    code = "".join(text for text in texts if text not in elsewhere)
    code = code.replace("rounds=20", "rounds=1").replace(" 50", " 1")
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
    links = tomllib.loads(project)["project"]["urls"]
    version = fedlearn.__version__
    assert links["Documentation"] == "https://someone.github.io/the-fork/"
    assert links["Source"] == url == yaml.safe_load(citation)["repository-code"]
    assert (
        yaml.safe_load(citation)["version"]
        == tomllib.loads(project)["project"]["version"]
    )
    assert yaml.safe_load(citation)["version"] == version
    assert readme.count("[![") == 3
    published = repository.whole(readme, url, "v1")
    assert f"]({url}/blob/v1/CHANGELOG.md)" in published
    assert not re.search(r"\]\((?!https:)", published)
    assert "the-fork/v1/book/images/playground.png)" in published


def test_links_of_the_readme_and_the_papers_of_the_project_lead_to_files():
    for path in [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            assert re.match(r"https?:", link) or (path.parent / link).exists(), (
                path.name,
                link,
            )
