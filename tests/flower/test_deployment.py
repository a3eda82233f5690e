"""Flower's own SuperLink and SuperNodes on loopback, with TLS and keys: the app in flower_app/
gives the history of one process, and a node without a key stays out."""

import pytest

import fedlearn as fl

from .deployment import LIMIT, Deployment

pytestmark = pytest.mark.slow  # Flower polls: minutes
SMALL = {"train": 100, "test": 60, "seed": 3}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("deployment"), clients=2) as d:
        yield d


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("name", ["rpn", "fed_gkt"])
def test_history_is_that_of_one_process(name, deployment, record):
    """FedGKT's clients keep their networks between rounds."""
    local = fl.run(name, fl.tasks.classification("digits", 2, **SMALL), 2, threads=1)
    out = deployment.folder / f"{name}.json"
    output = deployment.run(method=name, rounds=2, threads=1, out=str(out), **SMALL)
    assert out.exists(), (
        f"{output}\n{deployment.log('superlink')}\n{deployment.log('client0')}"
    )
    remote = fl.History.from_json(out)
    record(name, local, remote, "deployment")
    assert remote == local
    assert remote.meta["engine"]["name"] == "flower"
    assert not any(row["refused"] or row["unevaluated"] for row in remote.rows)


@pytest.mark.timeout(2 * LIMIT)
def test_a_node_without_a_registered_key_is_refused(deployment):
    deployment.make_key("stranger")
    stranger = deployment.join(1, "stranger")
    assert stranger.wait(LIMIT) != 0
    assert "activate" in deployment.log("stranger")
