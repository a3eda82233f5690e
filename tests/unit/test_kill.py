"""A run that was killed goes on from its checkpoint, to the history of a run in one go."""

import subprocess
import sys
import time

import fedlearn as fl

ROUNDS = 20
RUN = f"""
import sys
import fedlearn as fl
task = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=240, test=100)
fl.run(fl.methods.dgc(), task, {ROUNDS}, checkpoint=sys.argv[1], progress=False)
"""


def test_a_killed_run_goes_on(tmp_path, task):
    path = tmp_path / "run.checkpoint"
    process = subprocess.Popen([sys.executable, "-c", RUN, str(path)])
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() != 0, "it was done before it was killed"
    options = {"progress": False}
    history = fl.run(fl.methods.dgc(), task, ROUNDS, checkpoint=path, **options)
    assert history == fl.run(fl.methods.dgc(), task, ROUNDS, **options)
