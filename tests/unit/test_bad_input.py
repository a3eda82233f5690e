"""Bad input ends in one sentence: what was wrong and what is allowed. Nothing trains, nothing is
written, and no line of a traceback is seen."""

import inspect
import io
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest

import fedlearn as fl
from fedlearn import cli
from fedlearn.arguments import check_value
from fedlearn.data import sources
from fedlearn.errors import DataError


class Began(Exception):
    """The input was taken, and the first round would begin."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the command lines below name."""
    path = tmp_path_factory.mktemp("here")
    (path / "binary.csv").write_bytes(b"\xff\xfe\x00" * 40)
    (path / "huge.csv").write_text(f"client,c0\n0,{10**30}\n")
    (path / "large.csv").write_text(f"client,{'c,' * 9}c\n" + f"0{',4611686018427387904' * 10}\n")
    (path / "noise.npz").write_bytes(b"PK\x03\x04 no archive")
    np.savez(path / "lacks.npz", x=np.zeros((4, 2)))
    np.savez(path / "pickled.npz", x=np.array([{}, []], dtype=object), y=np.zeros(2))
    np.savez(path / "whose.npz", x=np.eye(40), y=np.arange(40) % 2, test_users=np.arange(40))
    np.savez(path / "fine.npz", x=np.eye(40), y=np.arange(40) % 2, users=np.arange(40) % 4)
    (path / "empty").mkdir()
    (path / "broken" / "cats").mkdir(parents=True)
    (path / "broken" / "cats" / "a.png").write_bytes(b"no picture")
    (path / "mine.py").write_text(
        "def needy(lr):\n    pass\n\ndef odd(confusion, clients):\n    1\n"
    )
    return path


def said(words):
    """What a command line prints to standard error, and its status; ``Began`` is status 0."""
    err = io.StringIO()
    with redirect_stderr(err), redirect_stdout(io.StringIO()):
        try:
            status = cli.main(words)
        except Began:
            status = 0
    return status, err.getvalue()


@pytest.fixture
def nothing_trains(monkeypatch, folder):
    def began(*args, **kwargs):
        raise Began

    monkeypatch.setattr("fedlearn.round.one_round", began)
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.chdir(folder)


REFUSED = """
    run fedavg --option lr=abc ~ lr of fedavg must be a finite number, not 'abc'
    run fedavg --option lr=nan ~ finite
    run fedavg --option lr=None ~ finite
    run fedavg --option lr=True ~ finite
    run fedavg --option lr=1e400 ~ finite
    run fedavg --option lr=1e39 ~ finite
    run fedavg --option lr=-1 ~ lr > 0
    run fedavg --option lr=(1,2) ~ finite
    run fedavg --option lr={'a':1} ~ finite
    run fedavg --option momentum=1 ~ 0 <= momentum < 1
    run fedavg --lr inf ~ lr must be a finite number or None, not inf
    run fedavg --lr nan ~ finite
    run fedavg --lr abc ~ Error parsing --lr
    run fed_gkt --option T=nan ~ T of fed_gkt must be a finite number
    run fed_gkt --option T=0 ~ temperature
    run fed_gkt --option server_lr=inf ~ finite
    run fed_gkt --option server_epochs=1.5 ~ whole number
    run fed_gkt --option server_epochs=0 ~ whole number
    run fed_gkt --option memory_limit=nan ~ finite
    run fed_gkt --option edge={'a':1} ~ no network
    run fed_gkt --option edge=3 ~ no network 3
    run fed_gkt --option bits=8 ~ 16 or 32
    run fed_gkt --option asynchronous=yes ~ True or False
    run signsgd --option server_lr=inf ~ finite
    run fedcams --option server_lr=inf ~ finite
    run fedcams --option ratio=nan ~ finite number or None
    run fedcams --option feedback=1 ~ True or False
    run dgc --option clip=nan ~ finite
    run dgc --option warmup=2.5 ~ whole
    run stc --option ratio=0 ~ ratio
    run qsgd --option levels=99999999999 ~ levels
    run qsgd --option bucket=x ~ whole
    run fedcom --option bits=64 ~ bits
    run rpn --option share=2 ~ share
    run rpn --option by=nobody ~ weighting
    run fedmmd --option lam=inf ~ finite
    run fedmmd --option distance=3 ~ text
    run fed_repopt --option scales=3 ~ Scales
    run fed_kgf --option base_kernels=0 ~ base
    run fed_kgf --option sign=maybe ~ True or False
    run fedavg --option =3 ~ no option of fedavg ''
    run fedavg --option lr ~ NAME=VALUE
    run mine.py:needy ~ needs its option lr
    run fedavg --device banana ~ no device 'banana'
    run fedavg --device cpu:9 ~ no device
    run fedavg --device mps ~ no device
    run fedavg --threads -2 ~ threads must be a whole number from 1 to
    run fedavg --threads 0 ~ threads
    run fedavg --threads 100000 ~ threads
    run fedavg --threads two ~ Error parsing --threads
    run fedavg --rounds 0 ~ rounds
    run fedavg --rounds 1e3 ~ Error parsing --rounds
    run fedavg --epochs -1 ~ epochs
    run fedavg --batch-size 0 ~ batch_size
    run fedavg --evaluate-every 0 ~ evaluate_every
    run fedavg --participation nan ~ finite
    run fedavg --participation inf ~ finite
    run fedavg --participation 1.1 ~ share
    run fedavg --precision half ~ precision
    run fedavg --clients 0 ~ clients
    run fedavg --clients many ~ "users", not 'many'
    run fedavg --clients users ~ names no users
    run fedavg --clients 100000 ~ fewer clients
    run fedavg --train 0 ~ cannot be kept
    run fedavg --train 99999999999999999999 ~ cannot be kept
    run fedavg --test -1 ~ cannot be kept
    run fedavg --augment blur ~ no augmentation
    run fedavg --network lenet ~ no network
    run fedavg --network mine.py:nothing ~ no network in mine.py
    run fedavg --network os:system ~ The network 'os:system' cannot be built for inputs
    run fedavg --network os:strerror ~ The network 'os:strerror' cannot be built for inputs
    run fedavg --network builtins:dict ~ The network 'builtins:dict'
    run math:sin ~ math:sin makes no method of options (missing a required argument: 'x').
    run fedavg --lr 0.1 --option lr=0.2 ~ lr is stated twice
    compare fedavg:lr=0.1/0.3 --lr 0.2 ~ lr is stated twice
    run fedavg --metric f1 ~ no metric 'f1'
    run fedavg --metric per_class --metric per_class ~ name of its own
    run fedavg --engine warp ~ engine
    run fedavg --engine stacked --memory-limit nan ~ finite
    run fedavg --engine stacked --memory-limit -1 ~ memory_limit
    run fedavg --dataset mnits ~ Did you mean 'mnist'
    run fedavg --dataset nowhere/photos ~ no file or folder
    run fedavg --metric per_client ~ digits belong to no client, so per_client cannot be measured
    run fedavg --metric mine.py:odd ~ A metric takes one argument
    run fedavg --dataset whose.npz ~ whose.npz has test_users without test_x
    run fedavg --dataset noise.npz ~ can be read
    run fedavg --dataset lacks.npz ~ lacks.npz 'y'
    run fedavg --dataset pickled.npz ~ can be read
    run fedavg --dataset ./empty ~ no folders with images
    run fedavg --dataset ./broken ~ a.png cannot be read
    run fedavg --dataset fine.npz --augment crop ~ vectors
    run fedavg --dataset fine.npz --partition permuted ~ pixels
    run fedavg --dataset fine.npz --clients users --partition classes ~ neither partition nor train
    run fedavg --dataset fine.npz --clients users --train 10 ~ neither partition nor train
    run fedavg --dataset fine.npz --network mcmahan_cnn ~ cannot be built
    run fedavg --partition table:binary.csv ~ not a table of counts
    run fedavg --partition table:huge.csv ~ not a table of counts
    run fedavg --partition table:large.csv --clients 1 ~ not a table of counts
    run fedavg --partition table:none.csv ~ no partition table
    run fedavg --partition dirichlet:nan ~ finite
    run fedavg --partition dirichlet:1e-300 --clients 11 ~ raise alpha
    run fedavg --partition shards:1e9 ~ write it like
    run fedavg --partition shards:999999999999 ~ fewer clients
    run fedavg --partition main_class:inf ~ finite
    run fedavg --out empty ~ folder
    run fedavg --plot x.txt ~ image type
    run fedavg --checkpoint noise.npz ~ not a readable checkpoint
    run ~ required
    run fedavg --seed x ~ Error parsing --seed
    run fedavg --rounds ~ '--rounds'
    compare fedavg fedavg ~ of its own
    compare fedavg rpn:share=abc ~ finite
    compare fedavg --jobs 0 ~ jobs
    compare fedavg --against speed ~ invalid choice
    check --paper none ~ no paper
    reproduce nothing ~ nothing
    classroom nowhere there ~ nowhere
"""
LINES = [line.strip().split(" ~ ") for line in REFUSED.strip().splitlines()]


@pytest.mark.parametrize(("line", "sentence"), LINES)
def test_a_command_line_is_refused_in_one_sentence(nothing_trains, folder, line, sentence):
    before = {p: p.stat().st_size for p in folder.rglob("*") if "__pycache__" not in p.parts}
    status, err = said(line.split())
    assert status == 2 and sentence in err, err
    *notes, error = err.splitlines()
    assert error.startswith("fedlearn: ") and len(error) < 700
    assert all(note.startswith("Going on from") for note in notes)
    after = {p: p.stat().st_size for p in folder.rglob("*") if "__pycache__" not in p.parts}
    assert after == before


# ---- all options of all methods, with values drawn from a seed

VALUES = """
    abc nan inf -inf 0 -1 1 0.5 1e400 1e300 1e-300 3.5 99999999999999999999 True None '' [] (1,2)
    {'a':1} digits_cnn -0.0 conv 1e9
""".split()


def lines_of_a_fuzz(count, seed=0):
    """Command lines with one option of a method each, any value behind it."""
    draw = random.Random(seed)
    options = [
        (name, option)
        for name, function in fl.methods.METHODS.items()
        for option in inspect.signature(function).parameters
    ]
    every = [(*pair, value) for pair in options for value in VALUES]
    return [["run", m, "--option", f"{o}={v}"] for m, o, v in draw.sample(every, count)]


def test_any_value_of_any_option_is_taken_or_refused_in_one_sentence(nothing_trains):
    taken = refused = 0
    for words in lines_of_a_fuzz(150):
        status, err = said([*words, "--train", "60", "--test", "20"])
        assert status in (0, 2), words
        if status:
            assert err.startswith("fedlearn: ") and err.count("\n") == 1, (words, err)
            refused += 1
        else:
            taken += 1
    assert taken > 10 and refused > 70


# ---- calls

X, Y = np.random.default_rng(0).integers(0, 255, (60, 8, 8), np.uint8), np.arange(60) % 3
TASK = fl.tasks.classification("digits", 2, train=40, test=20)
HUGE = 10**5000
HISTORY = fl.History("fedavg", {}, [{"round": 1, "accuracy": 0.5, "loss": 1.0}])


def tasks(*args, **more):
    return lambda: fl.tasks.classification(*args, **more)


CALLS = {
    "a method's function": (lambda: fl.run(fl.methods.fedavg, TASK), r"call it, fedavg\(\)"),
    "a wrong name": (lambda: fl.run("fedawg", TASK), "Did you mean 'fedavg'"),
    "no method": (lambda: fl.run(None, TASK), "A run takes a method"),
    "a task's name": (lambda: fl.run("fedavg", "digits"), "A run takes a task"),
    "half a round": (lambda: fl.run("fedavg", TASK, rounds=2.5), "whole number"),
    "text rounds": (lambda: fl.run("fedavg", TASK, rounds="2"), "whole number"),
    "threads": (lambda: fl.run("fedavg", TASK, threads=10**5), "threads must be"),
    "threads -2": (lambda: fl.run("fedavg", TASK, threads=-2), "threads must be"),
    "participation": (lambda: fl.run("fedavg", TASK, participation="all"), "finite number"),
    "batch size": (lambda: fl.run("fedavg", TASK, batch_size=8.0), "whole number"),
    "precision": (lambda: fl.run("fedavg", TASK, precision=16), "text"),
    "precision list": (lambda: fl.run("fedavg", TASK, precision=["bf16"]), "text"),
    "engine": (lambda: fl.run("fedavg", TASK, engine=["stacked"]), "An engine is one of"),
    "memory": (lambda: fl.run("fedavg", TASK, memory_limit=float("nan")), "number of bytes"),
    "lr text": (lambda: fl.methods.fedavg(lr="abc"), "lr of fedavg must be a finite number"),
    "lr inf": (lambda: fl.SGD(float("inf")), "lr of SGD must be a finite number"),
    "lr None": (lambda: fl.Adam(None), "finite"),
    "lr tensor": (lambda: fl.SGD(X), "finite"),
    "T": (lambda: fl.methods.get("fed_gkt", T=float("nan")), "finite"),
    "server lr": (lambda: fl.methods.fedcams(server_lr=float("inf")), "finite"),
    "ratio": (lambda: fl.wire.TopK("x"), "finite"),
    "coder": (lambda: fl.parts.Code("topk"), "no coder"),
    "step": (lambda: fl.Uplink("update"), "A link is steps"),
    "part": (lambda: fl.methods.fedavg().but(server=3), "cannot be a method's server"),
    "by": (lambda: fl.Mean(["samples"]), "text"),
    "settings": (lambda: fl.Settings(epochs=True), "whole number"),
    "experiment": (lambda: fl.Experiment(options=3), "options must be a dict"),
    "experiment's metrics": (lambda: fl.Experiment(metrics="per_class"), "a list"),
    "momentum 1": (lambda: fl.methods.dgc(momentum=1), "at least 0 and below 1, not 1.0"),
    "warmup": (lambda: fl.methods.dgc(warmup=-1), "of at least 0, not -1"),
    "fedcams' server_lr": (
        lambda: fl.methods.fedcams(server_lr=0),
        "server_lr of fedcams is above",
    ),
    "fed_gkt's server_lr": (
        lambda: fl.methods.fed_gkt(server_lr=0),
        "server_lr of fed_gkt is above",
    ),
    "fed_gkt's edge": (lambda: fl.methods.fed_gkt(edge=0), "no network 0: a network is a name"),
    "fed_gkt's server": (lambda: fl.methods.fed_gkt(server=0), "no network 0"),
    "split learning's edge": (lambda: fl.methods.split_learning(edge=0), "no network 0"),
    "fed_repopt's network": (lambda: fl.methods.fed_repopt(network=0), "no network 0"),
    "groups": (lambda: fl.methods.fed_kgf(groups=0), "groups must be a whole number of at least 1"),
    "groups -1": (lambda: fl.methods.fed_kgf(groups=-1), "of at least 1, not -1"),
    "replay": (lambda: fl.parts.Replay([1]), r"through an Uplink, not \[1\]"),
    "a search's task": (lambda: fl.repopt_search(5), "A search takes a task .*, not 5"),
    "a search's rounds": (lambda: fl.repopt_search(TASK, 0), "rounds must be a whole number"),
    "huge bits": (lambda: fl.methods.rpn(bits=HUGE), "not a number too long to show"),
    "huge levels": (lambda: fl.methods.qsgd(levels=HUGE), "not a number too long to show"),
    "huge base": (lambda: fl.methods.fed_kgf(base_kernels=-HUGE), "too long to show"),
    "huge groups": (lambda: fl.run(fl.methods.fed_kgf(groups=HUGE), TASK), "too long to show"),
    "huge liars": (
        lambda: fl.run(fl.methods.fedavg().but(server=fl.parts.Krum(HUGE)), TASK),
        "liars of Krum must be a whole number, not a number too long to show",
    ),
    "huge scales": (lambda: fl.methods.fed_repopt(scales=HUGE), "not a number too long to show"),
    "huge network": (lambda: fl.methods.fed_repopt(network=HUGE), "too long to show"),
    "one history": (lambda: fl.plot.compare(HISTORY, what="precision"), "no column"),
    "no histories": (lambda: fl.plot.compare(3), "Histories are drawn"),
    "no rounds": (lambda: fl.plot.compare([fl.History("fedavg")]), "with rounds"),
    "empty list": (lambda: fl.plot.compare([[]]), "with rounds"),
    "clients": (tasks("digits", 2.0), "clients must be"),
    "clients none": (tasks("digits", None), "clients must be"),
    "seed": (tasks("digits", 2, seed="one"), "seed of classification must be a whole number"),
    "train": (tasks("digits", 2, train=0.5), "whole number"),
    "partition": (tasks("digits", 2, partition=0.5), "no partition"),
    "alpha": (lambda: fl.partition.dirichlet("0.5"), "finite"),
    "device": (tasks("digits", 2, device="banana"), "no device 'banana'"),
    "metric": (tasks("digits", 2, metrics=["f1"]), "no metric 'f1'"),
    "metric of its own": (tasks("digits", 2, metrics=lambda c, k: 1), "needs a name of its own"),
    "augment": (tasks("digits", 2, augment=["blur"]), "no augmentation"),
    "network": (tasks("digits", 2, network=["lenet"]), "no network"),
    "data set": (tasks(3.5, 2), "A data set is a name"),
    "labels": (tasks((X, Y[:-1]), 2), "cannot have labels"),
    "one-hot": (tasks((X, np.eye(60)), 2), "one-hot"),
    "fractions": (tasks((X, Y + 0.5), 2), "Labels are one whole number"),
    "negative labels": (tasks((X, Y - 1), 2), "Labels are 0, 1, 2"),
    "huge labels": (tasks((X, Y * 10**8), 2), "classes are not learned from"),
    "one class": (tasks((X, Y * 0), 2), "at least two classes"),
    "NaN": (tasks((X * np.nan, Y), 2), "NaN"),
    "texts as samples": (tasks((["a"] * 60, Y), 2), "Samples are numbers"),
    "ragged": (tasks(([[1], [1, 2]], [0, 1]), 2), "not all of one shape"),
    "five axes": (tasks((X[..., None, None], Y), 2), "Samples are images"),
    "nothing": (tasks((X[:0], Y[:0]), 2), "Samples are images"),
    "a share": (lambda: fl.data.from_arrays(X, Y, test=1.5), "share above 0 and below 1"),
    "another shape": (lambda: fl.data.from_arrays(X, Y, (X[:, :4], Y)), "but those to train"),
    "users of the test": (
        lambda: fl.data.from_arrays(X, Y, (X, Y, Y)),
        "The test set's users do not fit its samples, or the other users",
    ),
    "no folder": (lambda: fl.data.from_folder("no/where"), "There is no folder"),
    "size": (lambda: fl.data.from_folder(".", size=0), "number of pixels"),
    "nobody": (tasks((X, Y), [[0, 1], []]), "Client 1 is given no sample"),
    "out of range": (tasks((X, Y), [[0, 1], [60]]), "sample 60, but samples are 0 to 59"),
    "twice": (tasks((X, Y), [[0, 1], [1, 2]]), "Sample 1 is given twice"),
    "twice by one": (tasks((X, Y), [[0, 0], [1, 2]]), "Sample 0 is given twice"),
    "fractions of samples": (tasks((X, Y), [[0.5], [1]]), "list of positions"),
    "a short column": (tasks((X, Y), ["ann", "bob"]), "user of each of 60 samples"),
    "a column of None": (tasks((X, Y), [None] * 60), "whole numbers or texts"),
    "train with clients": (tasks((X, Y), [[0], [1]], train=10), "neither partition nor train"),
    "history": (lambda: fl.History.from_json('{"rows": 3}'), "no history"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_in_one_sentence(name, nothing_trains):
    call, sentence = CALLS[name]
    with pytest.raises((ValueError, DataError), match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_what_is_easily_meant_works():
    named = fl.run("fedavg", TASK, 1)
    assert named == fl.run(fl.methods.fedavg(), TASK, 1)
    assert len(fl.plot.compare(named).lines) == 1


def test_numbers_are_checked_as_they_are_annotated():
    for value, annotation, default in (
        (np.float32(1), float, 0.0),
        (np.int64(3), int, 0),
        (1, float | None, None),
        (None, float | None, None),
        (float("inf"), float, float("inf")),
        ([], list[int], None),
    ):
        check_value("it", value, annotation, default)
    for value, annotation in (("1", int), (1.0, int), (True, int), (1, bool), (10**400, float)):
        with pytest.raises(ValueError, match="it must be"):
            check_value("it", value, annotation)


# ---- the machine


def test_a_folder_of_nobody(nothing_trains, monkeypatch):
    monkeypatch.setenv("FEDLEARN_DATA", "~nobody-of-this-name/x")
    sources.load.cache_clear()
    status, err = said(["run", "fedavg", "--dataset", "cifar100"])
    assert status == 2 and "names the home of nobody" in err and err.count("\n") == 1


FULL = """
import resource, signal, sys
from fedlearn.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
sys.exit(main(sys.argv[1:]))
"""


def test_a_disk_that_is_full(tmp_path):
    """No file may grow beyond 3,000 bytes, as on a disk with so much left: the checkpoint of round
    1 cannot be written."""
    pytest.importorskip("resource", reason="limits of files are a thing of Unix")
    words = ["run", "fedavg", "--clients", "2", "--train", "40", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-c", FULL, *words, "--out", "out.json", "--no-progress"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("fedlearn: ") and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture
def silent():
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_a_download_that_cannot_work_says_so(silent, tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")
    assert sources.PATIENCE < 15
    monkeypatch.setenv("FEDLEARN_OFFLINE", "0")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "mine"))
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.MNIST, "mirrors", [silent])
    monkeypatch.setattr(sources, "PATIENCE", 1.5)
    sources.load.cache_clear()
    began = time.monotonic()
    with pytest.raises(DataError, match="fetching it failed .(timed out|nothing came for 1.5 s)"):
        sources.load("mnist")
    with pytest.raises(TimeoutError, match="nothing came for 1.5 s"):  # a silent name server
        sources._while_it_grows(tmp_path, lambda: time.sleep(60))
    assert time.monotonic() - began < 50


def test_a_download_goes_on_while_something_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PATIENCE", 1.0)

    def slowly():
        for i in range(8):
            (tmp_path / "part").write_bytes(b"x" * (i + 1))
            time.sleep(0.3)

    sources._while_it_grows(tmp_path, slowly)
    assert (tmp_path / "part").stat().st_size == 8


def test_numbers_of_numpy_are_as_good_as_pythons():
    i, f = np.int64, np.float32
    for numpy, python in (
        (fl.methods.fed_kgf(base_kernels=i(4)), fl.methods.fed_kgf(base_kernels=4)),
        (fl.methods.fedcom(bits=i(4)), fl.methods.fedcom(bits=4)),
        (fl.methods.qsgd(levels=np.int32(5)), fl.methods.qsgd(levels=5)),
        (fl.parts.Krum(liars=i(2)), fl.parts.Krum(liars=2)),
        (fl.methods.dgc(warmup=i(2)), fl.methods.dgc(warmup=2)),
        (fl.methods.fed_gkt(memory_limit=f(1e6)), fl.methods.fed_gkt(memory_limit=1e6)),
        (fl.methods.rpn(bits=i(16)), fl.methods.rpn(bits=16)),
        (fl.methods.stc(ratio=np.float64(0.25)), fl.methods.stc(ratio=0.25)),
        (fl.methods.stc(ratio=1), fl.methods.stc(ratio=1.0)),
        (fl.methods.dgc(clip=5), fl.methods.dgc(clip=5.0)),
        (fl.Settings(epochs=i(2), participation=f(0.5)), fl.Settings(epochs=2, participation=0.5)),
    ):
        assert numpy == python and repr(numpy) == repr(python)
    assert len(fl.run("fedavg", TASK, rounds=i(1))) == 1


def test_classes_show_what_they_are_made_of():
    assert list(inspect.signature(fl.Mean).parameters) == ["by"]
    assert not inspect.signature(fl.parts.Update).parameters
    with pytest.raises(TypeError, match="positional argument"):
        fl.parts.Update(1)
