"""What works with nothing but what `pip install fedlearn` brings, and how the rest says what
it lacks, as a program. Its arguments are modules to hide."""

import sys
from contextlib import redirect_stderr
from io import StringIO

sys.modules |= dict.fromkeys(sys.argv[1:])  # None: an import fails
import fedlearn as fl  # noqa: E402
from fedlearn.lab.cli import main  # noqa: E402

task = fl.tasks.classification("digits", clients=3, train=60, test=30)
history = fl.run(fl.methods.fedavg(), task, rounds=2)
assert "2 rounds" in repr(history)
assert len(fl.results.load("rpn_digits")) == 20

small = "--clients 3 --train 60 --test 30 --rounds 2 --no-progress".split()
for words in (
    ["run", "fedavg", *small],
    [
        "compare",
        "fedavg",
        "rpn",
        "fed_kgf",
        *small,
        "--seed",
        "0",
        "1",
    ],
    ["methods"],
    ["check"],
):
    assert not main(words), words

LACKS = {
    "lab": [
        lambda: main(["compare", "fedavg", "rpn", *small, "--jobs", "2"]),
        lambda: main(["reproduce", "rpn_table1"]),
    ],
    "coding": [
        lambda: fl.run(fl.methods.fedpm(), task, rounds=1),
    ],
    "plot": [
        lambda: fl.plot,
        history.to_pandas,
        lambda: fl.cost("digits_cnn", "1x8x8"),
        fl.Meter().table,
        lambda: fl.summary({"FedAvg": history}),
        fl.results.tables,
        lambda: fl.results.paired({0: 1.0}, {0: 2.0}),
        lambda: main(["compare", "fedavg", "rpn", *small, "--plot", "curves.png"]),
    ],
    "data": [
        lambda: main(["run", "fedavg", "--dataset", "cifar10"]),
    ],
    "seeing": [
        lambda: fl.seeing.detection("digits"),
        lambda: main(["run", "fedavg", "--task", "segmentation"]),
        lambda: main(
            ["run", "fedavg", "--network", "scene_detector", "--task", "detection"]
        ),
    ],
    "lesson": [
        lambda: fl.explore("Explorer 1", "rpn", "", ""),
        lambda: fl.book.playground(),
    ],
}
for extra, calls in LACKS.items():
    for call in calls:
        output = StringIO()
        try:
            with redirect_stderr(output):
                assert call() == 2, f"nothing was lacking: {extra}, {calls.index(call)}"
        except ModuleNotFoundError as error:
            print(error, file=output)
        text = output.getvalue()
        assert f"pip install 'fedlearn[{extra}]'" in text, text
        assert len(text.splitlines()) == 1, text
        print(text, end="")
