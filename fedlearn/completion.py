"""What a shell offers after the Tab key: commands, options, and the names that options take.

shtab makes the script from the parser; the names in it are those of the day it was made.
"""

import argparse
import inspect
from collections.abc import Iterable

from .errors import pick


def names() -> dict[str, Iterable[str]]:
    """The names that an option takes, by the option's field."""
    from .data import partition
    from .data.sources import ANNOTATED, SETS
    from .engines import ENGINES
    from .link import PRESETS
    from .methods import METHODS
    from .models import DETECTORS, NETWORKS, SEGMENTERS
    from .recipes import PAPERS, RECIPES, SCALES
    from .settings import PRECISIONS
    from .tasks import TASKS
    from .tasks.metrics import METRICS
    from .tasks.moves import MOVES

    splits = [example for *_, example in partition.PARTS.values()]
    options = {f"{o}=" for f in METHODS.values() for o in inspect.signature(f).parameters}
    return {
        "method": METHODS,
        "options": options,
        "task": TASKS,
        "dataset": [*SETS, *ANNOTATED],
        "network": [*NETWORKS, *DETECTORS, *SEGMENTERS],
        "partition": splits,
        "split": splits,
        "augment": MOVES,
        "metrics": METRICS,
        "link": PRESETS,
        "engine": ENGINES,
        "precision": PRECISIONS,
        "device": ("auto", "cpu", "cuda"),
        "recipe": [*PAPERS, *RECIPES],
        "paper": PAPERS,
        "scale": SCALES,
    }


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that teaches a shell the commands of ``parser``; ``ValueError`` for another shell
    than bash, zsh, tcsh, fish and powershell."""
    try:
        import shtab
    except ImportError as error:
        raise ImportError("Completion is written by shtab: pip install shtab.") from error

    pick(shell, dict.fromkeys(shtab.SUPPORTED_SHELLS), "shell")
    places = {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY}
    words = {name: shtab.cmd(f"echo {' '.join(sorted(of))}") for name, of in names().items()}
    words["shell"] = shtab.cmd(f"echo {' '.join(shtab.SUPPORTED_SHELLS)}")
    [commands] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for own in commands.choices.values():
        for action in own._actions:
            offered = places.get(str(action.metavar)) or words.get(action.dest)
            if offered:
                action.complete = offered  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))
