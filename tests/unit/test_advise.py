"""The stored runs nearest to a question, and what is said of them."""

import re
import shlex

import numpy as np
import pytest

import fedlearn as fl
from fedlearn import advice, cli, evidence, link, nearest

LINK = {"up": 1e3, "down": 2e3, "latency": 0.5}


def question(network="mlp", clients=4, partition="iid", its=None, loss=0.02, dataset="digits"):
    name, parameters = nearest.size_of(network, dataset)
    return nearest.Question(name, parameters, clients, partition, dataset, its or dict(LINK), loss)


def group(method, accuracies, up=1000, down=1000, seconds=4.0, options=None, **task):
    """Two seeds of a method on digits, 4 clients, the mlp; bytes are of all clients a round."""
    its = {"dataset": "digits", "clients": 4, "partition": "Iid()", "network": "mlp"}
    its |= {"train": 1347, "augment": []} | task
    runs = []
    for seed in (0, 1):
        rows = [
            {"round": t + 1, "accuracy": a, "loss": 1.0, "bytes_up": up, "bytes_down": down}
            | {"seconds": seconds, "clients": list(range(its["clients"])), "refused": {}}
            for t, a in enumerate(accuracies)
        ]
        meta = {"task": its | {"seed": seed}, "settings": {"batch_size": 16}}
        runs.append(fl.History(method, meta, rows))
    return evidence.Group(method, method, options or {}, tuple(runs), (f"x/{method}.json",), "")


RISES = (0.5, 0.8, 0.9, 0.9, 0.9)
SLOW = (0.2, 0.5, 0.7, 0.89, 0.89)
NEVER = (0.2, 0.5, 0.6, 0.6, 0.6)


def judge(groups, **asked):
    q = question(**asked)
    return q, advice.candidates(q, nearest.blocks(q, groups))


def test_time_and_bytes_are_those_until_a_method_is_near_fedavg():
    slow = group("stc", SLOW, up=100, down=200)
    q, found = judge([group("fedavg", RISES), slow, group("rpn", NEVER, up=10, down=10)])
    assert [(c.group.method, c.rounds) for c in found] == [("stc", 4), ("fedavg", 3), ("rpn", None)]
    first = found[0]
    assert first.seconds == pytest.approx(np.mean([link.time(h, **LINK)[3] for h in slow.runs]))
    assert first.seconds == pytest.approx(4 * (0.5 + 1 + 8 * 25 / 1e3 + 8 * 50 / 2e3))
    assert (first.up, first.down) == (pytest.approx(400e-6), pytest.approx(800e-6))
    assert first.loss == pytest.approx([0.01, 0.01]) and first.block.distance == 0
    assert "as measured" in first.how
    fedavg = 3 * (0.5 + 1 + 8 * 250 / 1e3 + 8 * 250 / 2e3)
    assert first.ratio == pytest.approx(first.seconds / fedavg)


def test_a_fast_link_turns_the_order_round():
    groups = [group("fedavg", RISES), group("stc", SLOW, up=100, down=200)]
    q, found = judge(groups, its=link.preset("fibre").asdict())
    assert [c.group.method for c in found] == ["fedavg", "stc"]


def test_more_loss_allowed_is_reached_earlier():
    q, found = judge([group("fedavg", RISES), group("rpn", NEVER)], loss=0.35)
    assert {c.group.method: c.rounds for c in found} == {"rpn": 3, "fedavg": 2}


def test_what_falls_below_again_is_said():
    wavers = (0.5, 0.89, 0.7, 0.89, 0.9)
    ends = (0.5, 0.7, 0.89, 0.89, 0.87)
    q, found = judge([group("fedavg", RISES), group("stc", wavers), group("rpn", ends)])
    by = {c.group.method: c for c in found}
    assert {m: (c.rounds, c.again) for m, c in by.items()} == {
        "stc": (2, 3),
        "rpn": (3, 5),
        "fedavg": (3, None),
    }
    said = "round 3 (further below again, the last time in round 5 of 5); FedAvg there"
    assert said in by["rpn"].lines[0] and "again" not in by["fedavg"].lines[0]
    html = advice.Advice(q, tuple(found))._repr_html_()
    assert "<td>3 (further below in 5)</td>" in html and "<td>3</td>" in html


def test_evidence_that_cannot_be_split_as_asked_is_none():
    near = [group(m, RISES, clients=1000) for m in ("fedavg", "stc")]
    far = [group(m, RISES, dataset="mnist", train=60000, clients=4) for m in ("fedavg", "rpn")]
    q, found = judge([*near, *far], clients=1400, dataset=None)
    assert {c.group.method for c in found} == {"rpn", "fedavg"}
    for c in found:  # 1,347 images of digits are too few
        assert "--dataset mnist --clients 1400" in c.command
    with pytest.raises(ValueError, match="1400 clients cannot share 1347 samples"):
        judge(near, clients=1400, dataset=None)


def test_the_reason_is_that_of_the_data_that_most_clients_can_share():
    sets = {"mnist": 60000, "cifar100": 50000}
    both = [group(m, RISES, dataset=d, train=n) for d, n in sets.items() for m in ("fedavg", "stc")]
    q, found = judge(both, clients=100, partition="classes", dataset=None)
    assert {c.block.average.task["dataset"] for c in found} == {"cifar100"}
    with pytest.raises(ValueError, match="101 clients cannot each own one of 100 classes"):
        judge(both, clients=101, partition="classes", dataset=None)
    with pytest.raises(ValueError, match="70000 clients cannot share 60000 samples"):
        judge(both, clients=70000, dataset=None)


def test_many_clients_are_counted_not_listed():
    (h,) = group("stc", RISES).runs[:1]
    many = advice._scaled(h, 1.0, 1.0, 1.0, 10**12)
    assert link.shares(many)["up"] == pytest.approx(link.shares(h)["up"])


def test_bytes_of_another_network_are_counted_in_real_messages():
    groups = [group("fedavg", RISES), group("stc", RISES)]
    q, found = judge(groups, network="digits_cnn", clients=8)
    for c in found:
        assert "counted in real messages" in c.how
        e = fl.Experiment(method=c.group.method, clients=8, network="digits_cnn", batch_size=16)
        h = fl.run(e.make_method(), e.make_task(), 2, batch_size=16, progress=False)
        # the evidence's rounds are alike, and so are these; few images change few bits
        assert c.up == pytest.approx(c.rounds * h.bytes_up[1] / 1e6, rel=0.02)
        assert c.down == pytest.approx(c.rounds * h.bytes_down[1] / 1e6, rel=0.02)
    assert len({c.down for c in found}) == 2


def test_bytes_of_an_unknown_network_are_scaled_and_that_is_said():
    size = evidence.network_sizes("mlp", "digits")[0]
    q, (c,) = judge([group("fedavg", RISES), group("fed_gkt", RISES)], network=10 * size)
    # FedGKT's messages do not go with the size of a network: nothing is said of it
    assert c.group.method == "fedavg" and "scaled by 10" in c.how
    assert c.up == pytest.approx(10 * 3 * 1000 / 1e6) and "mine.py:network" in c.command
    assert "computing scaled by 10" in c.how


def test_computing_goes_with_the_images_of_a_client():
    q, (c, *_) = judge([group("fedavg", RISES), group("stc", NEVER)], clients=8)
    assert "computing scaled by 0.5" in c.how
    # four clients took 4 s, so one takes 1 s; eight have half the images each
    assert c.seconds == pytest.approx(3 * (0.5 + 0.5 + 8 * 250 / 1e3 + 8 * 250 / 2e3))
    assert c.up == pytest.approx(3 * 2 * 1000 / 1e6)


@pytest.mark.parametrize(
    ("change", "words", "far"),
    [
        ({}, "the same split, the same number of clients, the same number of parameters", 0),
        ({"clients": 16}, "4 times as many clients", 2),
        ({"partition": "Dirichlet(alpha=0.5, min_samples=1)"}, "dirichlet:0.5, not iid", 6),
        ({"train": 1347 // 2}, "673 of the 1,347 images", 1),
        ({"dataset": "mnist", "train": 60000}, "data mnist, not digits", None),
        ({"network": "digits_cnn"}, "network digits_cnn, not mlp", None),
    ],
)
def test_how_far_the_evidence_is(change, words, far):
    distance, said = nearest.distance(question(), group("fedavg", RISES, **change))
    assert words in said and f"(distance {distance:.1f})" in said
    assert distance == pytest.approx(far, abs=0.01) if far is not None else distance > 1


def test_splits_of_a_kind_are_nearer_than_others():
    far = [
        nearest.distance(question(partition="dirichlet:0.1"), group("fedavg", RISES, partition=p))[
            0
        ]
        for p in (
            "Dirichlet(alpha=0.1, min_samples=1)",
            "Dirichlet(alpha=0.2, min_samples=1)",
            "MainClass(share=0.8)",
            "Iid()",
        )
    ]
    assert far == [0, pytest.approx(1), nearest.KIND, nearest.UNLIKE]


def test_every_method_is_judged_in_its_nearest_evidence():
    near = [group("fedavg", RISES), group("stc", NEVER)]
    far = [group(m, RISES, up=1, clients=8) for m in ("fedavg", "stc", "qsgd", "rpn")]
    q, found = judge([*far, *near])
    by = {c.group.method: c for c in found}
    assert by["stc"].rounds is None and by["stc"].block.distance == 0
    assert by["qsgd"].block.distance == pytest.approx(1) and by["qsgd"].rounds == 3


def test_evidence_without_fedavg_or_that_still_climbs_is_none():
    climbing = (0.1, 0.2, 0.3, 0.4, 0.5)
    q = question()
    assert nearest.blocks(q, [group("stc", RISES), group("rpn", RISES)]) == []
    assert nearest.blocks(q, [group("fedavg", climbing), group("rpn", RISES)]) == []
    unknown = evidence.Group("x", "x", None, group("x", RISES).runs, ("x",), "")
    assert nearest.blocks(q, [group("fedavg", RISES), unknown]) == []


@pytest.fixture(scope="module")
def answer():
    return fl.advise("digits_cnn", clients=10, link="3G", partition="main_class:0.8")


def test_the_books_evidence_answers(answer):
    assert len(answer.candidates) == 3
    text, html = str(answer), answer._repr_html_()
    assert len({c.group.method for c in answer.candidates}) == 3
    for c in answer.candidates:
        assert c.group.label in text and c.command in text and c.how in text
        assert c.command.replace("'", "&#x27;") in html
        (e,) = cli.experiments(cli.parser().parse_args(shlex.split(c.command)[1:]))
        assert (e.clients, e.partition, e.network) == (10, "main_class:0.8", "digits_cnn")
        e.make_method()
    assert "main_class:0.8" in str(answer.blocks[0]) and "distance" in text
    assert "try the commands" in text and "try the commands" in html


def test_every_number_of_a_loss_is_in_the_evidence(answer):
    for c in answer.candidates:
        stored = [h.final["accuracy"] for h in c.group.runs]
        plain = [h.final["accuracy"] for h in c.block.average.runs]
        assert list(c.loss) == pytest.approx([p - a for p, a in zip(plain, stored, strict=True)])


def test_the_command_line_prints_it(answer, capsys):
    words = ["digits_cnn", "--partition", "main_class:0.8", "--link", "3G"]
    assert not cli.main(["advise", *words])
    printed = capsys.readouterr().out
    assert re.findall("^[123]. .*", printed, re.M) == re.findall("^[123]. .*", str(answer), re.M)


def test_ones_own_runs_are_evidence(tmp_path):
    for c, up in (("fedavg", 9_000_000), ("fedmmd", 7)):
        history = group(c, RISES, up, up, clients=7, network="digits_cnn").runs[0]
        history.meta |= {"options": {"method": c}, "label": c}
        history.to_json(tmp_path / f"{c}.json")
    found = fl.advise("digits_cnn", clients=7, link="2G", dataset="digits", results=str(tmp_path))
    first = found.candidates[0]
    assert (first.group.method, first.block.distance) == ("fedmmd", 0)
    assert str(tmp_path) in str(found)


def test_a_foreign_file_is_one_sentence(tmp_path, capsys):
    history = group("fedavg", RISES, partition=None).runs[0]
    history.to_json(path := tmp_path / "a.json")
    assert cli.main(["advise", "mlp", "--link", "3G", "--results", str(path)]) == 2
    error = capsys.readouterr().err
    assert "another version of fedlearn: partition is None in task." in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "parameters"),
    [("1.2M", 1_200_000), ("90k", 90_000), ("1,000", 1000), (7, 7), ("2e6", 2_000_000)],
)
def test_a_network_may_be_a_number(text, parameters):
    assert nearest.size_of(text, None) == ("", parameters)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits_cn", "--link", "3G"], "There is no network 'digits_cn'. Did you mean"),
        (["-5", "--link", "3G"], "such as 1.2M, not '-5'."),
        (["0", "--link", "3G"], "A network has a number of parameters such as 1.2M, not '0'."),
        (["1.2.3M", "--link", "3G"], "such as 1.2M, not '1.2.3M'."),
        (["mlp"], "Advice needs a link: --link 3G, or --uplink and --downlink."),
        (["mlp", "--slower", "2"], "--waits-for need a link: --link LTE, or --uplink"),
        (["mlp", "--link", "5G"], "There is no link '5G'. Did you mean"),
        (["mlp", "--link", "lte"], "There is no link 'lte'. Did you mean 'LTE'"),
        (["mlp", "--uplink", "1Mbit"], "A link has two speeds: give --uplink and --downlink"),
        (["mlp", "--uplink", "0kbit", "--downlink", "1Mbit"], "above 0 and finite, not '0kbit'."),
        (["mlp", "--uplink=-1Mbit", "--downlink", "1Mbit"], "above 0 and finite, not '-1Mbit'."),
        (["mlp", "--uplink", "1furlong", "--downlink", "1Mbit"], "Units: bit, B, kbit"),
        (["mlp", "--link", "3G", "--latency=-1s"], "A latency cannot be below 0"),
        (["mlp", "--link", "3G", "--clients", "0"], "clients must be a whole number of at least 1"),
        (
            ["mlp", "--link", "3G", "--clients", "1000000000"],
            "tiny_imagenet has 100,000 training images, too few for 1000000000 clients",
        ),
        (
            ["mlp", "--link", "3G", "--clients", f"1{'0' * 400}"],
            "clients must be a whole number below 10^38",
        ),
        (
            ["mlp", "--link", "3G", "--clients", "2000", "--dataset", "digits"],
            "digits has 1,347 training images, too few for 2000 clients: use fewer clients.",
        ),
        (["mlp", "--link", "3G", "--clients", "80000"], "80000 clients cannot share 60000"),
        (
            "mlp --link 3G --clients 1001 --partition classes".split(),
            "1001 clients cannot each own one of ",  # most classes in what is stored by now
        ),
        (["mlp", "--link", "3G", "--partition", "objects"], "by the objects in an image, and "),
        (["mlp", "--link", "3G", "--partition", "iidd"], "There is no partition 'iidd'."),
        (["mlp", "--link", "3G", "--dataset", "digit"], "There is no data set 'digit'."),
        (["mlp", "--link", "3G", "--loss", "1"], "loss is an accuracy from 0 to below 1"),
        (
            "mlp --link 3G --clients 100 --partition classes --dataset digits".split(),
            "100 clients cannot each own one of 10 classes: use fewer clients.",
        ),
        (["mlp", "--link", "3G", "--results", "nowhere"], "There is no file or folder nowhere."),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(words, sentence, capsys):
    assert cli.main(["advise", *words]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_bad_input_in_python():
    with pytest.raises(ValueError, match="clients of advise must be a whole number"):
        fl.advise("mlp", clients="ten")
    with pytest.raises(ValueError, match="must be above 0"):
        fl.advise("mlp", link={"up": -1, "down": 1e6})
    with pytest.raises(ValueError, match="must be a whole number, not a number too long to show"):
        fl.advise("mlp", clients=10**5000)
    for its in ({}, {"up": "1Mbit"}, {"up": "1Mbit", "down": "1Mbit", "foo": 1}):
        with pytest.raises(ValueError, match="A link has up and down, and may have latency, slo"):
            fl.advise("mlp", link=its)
