"""What a chapter's set-up does in one call: checks the parameters, and makes tasks
and runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import seeing
from ..core import Method, run
from ..errors import check_whole, pick
from ..history import History
from ..tasks import TASKS, Task
from .show import Shown

SCALES = dict.fromkeys(("quick", "full"))


def styles() -> Shown:
    """The styles of figures and tables, for pages that are no chapter."""
    text = Path(__file__).with_name("book.css").read_text(encoding="utf-8")
    return Shown(f"<style>{text}</style>", "")


class Chapter:
    """A chapter's parameters, checked; ``task`` and ``run`` use them unless told
    otherwise.

    ``chapter = fl.book.chapter(scale, device, seed, rounds, dataset=dataset,
    clients=clients)``: ``task`` are arguments of ``fl.tasks.classification``, or of the
    kind that ``task="detection"`` names, and ``how`` those of ``fl.run``, such as
    ``{"epochs": 2}``, of all runs or of one. With ``scale="full"`` there are five seeds
    instead of three. Shown, it brings the styles of figures and tables into the page.
    """

    def __init__(
        self,
        scale: str = "quick",
        device: str = "auto",
        seed: int = 0,
        rounds: int = 10,
        how: dict[str, Any] | None = None,
        **task: Any,
    ) -> None:
        pick(scale, SCALES, "scale")
        check_whole("rounds", rounds)
        check_whole("seed", seed, minimum=0)  # papermill -r hands over a text
        if isinstance(task.get("clients"), int) and task["clients"] < 2:
            raise ValueError(
                f"A federation has at least 2 clients, not {task['clients']}."
            )
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(
                f'There is no GPU here for device "{device}"; "auto" takes the CPU.'
            )
        self.scale = scale
        self.device = device
        self.seed = seed
        self.rounds = rounds
        self.seeds = [seed + k for k in range(5 if scale == "full" else 3)]
        self.options: dict[str, Any] = {"device": device, **task}
        if scale == "quick" and task.get("dataset", "digits") != "digits":
            # a chapter takes a minute: a part of the larger data sets is enough for that
            self.options = {"train": 600, "test": 500} | self.options
        self.how: dict[str, Any] = {
            "batch_size": 16,
            "engine": "stacked",
            "progress": False,
            **(how or {}),
        }
        torch.set_num_threads(1)  # for networks this small, one CPU thread is fastest
        # on a GPU a chapter's own loops compute as the package does, always the same
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        self.task()  # an absent data set is reported here

    def task(self, **changes: Any) -> Task:
        """The task with the chapter's parameters, or others in their place. ``task``
        names its kind, "classification" unless the chapter says otherwise."""
        options = {"task": "classification", "seed": self.seed} | self.options | changes
        return pick(options.pop("task"), TASKS | seeing.TASKS, "task")(**options)

    def run(
        self,
        method: Method,
        rounds: int | None = None,
        how: dict[str, Any] | None = None,
        **changes: Any,
    ) -> History:
        """One run; ``changes`` are those of its task."""
        options = self.how | (how or {})
        return run(method, self.task(**changes), rounds or self.rounds, **options)

    def runs(
        self, methods: Mapping[str, Method], rounds: int | None = None, **changes: Any
    ) -> dict[str, list[History]]:
        """For each label a list of runs, one a seed."""
        return {
            label: [self.run(m, rounds, **changes | {"seed": s}) for s in self.seeds]
            for label, m in methods.items()
        }

    def _repr_html_(self) -> str:
        return f'{styles().content}<p class="fl fl-small">{self!r}</p>'

    def __repr__(self) -> str:
        options = ", ".join(
            f"{k} {v}" for k, v in self.options.items() if v not in (None, "")
        )
        return f"{options}; seeds {', '.join(map(str, self.seeds))}."


chapter = Chapter
