"""How a run trains its clients: one after another, or several stacked in one step."""

from .choice import ENGINES, Engine, choose
from .loop import Loop, Stacked
