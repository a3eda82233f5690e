"""The data: ``makers`` make what a task takes of one's own data, ``images`` finds and
loads a set by its name, ``partition`` deals samples out to clients."""

from .images import Source, data_path
from .makers import arrays, clients, dataset, table

__all__ = ["Source", "arrays", "clients", "data_path", "dataset", "table"]
