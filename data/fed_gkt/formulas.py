"""Functions of formulas in this chapter's claims."""

from torch import nn

from fedlearn.data.partition import Table
from fedlearn.lab.ledger import network


def resnet(layers: int, classes: int = 10) -> nn.Module:
    """ResNet-56 and its relatives."""
    return network(f"resnet{layers}", classes=classes)


def extractor(net: nn.Module) -> nn.Module:
    """The part of an edge network that stays at clients."""
    return net.extractor


def partition(name: str) -> list:
    """A table of data/partitions: rows are clients, columns classes."""
    return Table(name).counts().tolist()
