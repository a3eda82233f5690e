"""Functions of formulas in this chapter's claims."""

import copy
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from fedlearn.lab.ledger import network, quotient
from fedlearn.models import NETWORKS, state_of
from fedlearn.models.reparam import blocks, collapse, deploy, unit
from fedlearn.models.repopt import multipliers, target


@cache
def repopt(net: nn.Module) -> nn.Module:
    """What FedRepOpt trains in place of a network in form "csla"; constants count as
    buffers."""
    with next(net.parameters()).device:
        return target(net)


@cache
def repopt_gap(name: str, rule: str) -> float:
    """RepOpt with a ``rule`` for its multipliers against the network with branches: the
    distance of their kernels over the distance learned. "position" is the package's,
    "branches" lacks the 1 of the identity branch, "scalar" is Eq. (1)'s s_3^2 +
    s_1^2."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        csla = NETWORKS[name](form="csla").double()  # type: ignore[call-arg]
        batches = torch.randn(3, 2, 2, 8, 1, 8, 8).double()
        one = target(csla)
        start = _kernels(one)
        M = multipliers(one)
        scaled = [i for i, m in enumerate(M) if torch.is_tensor(m)]
        for i, block in zip(scaled, blocks(one).values(), strict=True):
            constants = [block.constant_s3, block.constant_s1]
            constants = [s[:, None, None, None] for s in constants if s is not None]
            M[i] = {
                "position": M[i],
                "branches": M[i] - unit(M[i]) * block.identity,
                "scalar": sum(s**2 for s in constants),
            }[rule]
        branches = _kernels(_fedavg(csla, [1.0] * 999, batches))
        kernels = _kernels(_fedavg(one, M, batches))
    return float((kernels - branches).norm() / (branches - start).norm())


def _fedavg(net: nn.Module, M: Sequence[float | Tensor], batches: Tensor) -> nn.Module:
    """The network after federated SGD on ``batches`` [rounds, clients, steps, images,
    ...]."""
    for clients in batches:
        states = []
        for steps in clients:
            local = copy.deepcopy(net)
            params = list(local.parameters())
            for x in steps:
                loss = nn.functional.cross_entropy(local(x), torch.arange(len(x)))
                grads = torch.autograd.grad(loss, params)
                for p, g, m in zip(params, grads, M, strict=False):
                    p.data -= 0.05 * m * g
            states.append(state_of(local))
        for name, t in state_of(net).items():
            t.copy_(sum(state[name] for state in states) / len(states))
    return net


def _kernels(net: nn.Module) -> Tensor:
    """The kernels of all blocks as one vector; branches count as the one that they add
    up to."""
    if not any(block.form == "inf" for block in blocks(net).values()):
        net = collapse(net)
    kernels = [block.conv3.weight for block in blocks(net).values()]
    return torch.cat([kernel.detach().flatten() for kernel in kernels])


@cache
def folding_gap(name: str, training: bool = False) -> float:
    """A network with branches against the same folded into one kernel a block, both
    random: the distance of their outputs over their size. ``training``: branches
    normalise by the batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = NETWORKS[name](form="tr").double().eval()  # type: ignore[call-arg]
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                for t in (module.weight.data, module.bias.data, module.running_mean):
                    t.normal_()  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
        x = torch.randn(8, 1, 8, 8).double()
        with torch.no_grad():
            one = deploy(net)(x)
            several = net.train(training)(x)
    return float((several - one).norm() / one.norm())


def repvgg(form: str, classes: int = 200) -> nn.Module:
    """RepVGG-B1 in a form."""
    return network("repvgg_b1", classes=classes, form=form)


def repghost(form: str, classes: int = 200) -> nn.Module:
    """RepGhostNet 0.5x in a form."""
    return network("repghost_05", classes=classes, form=form)


def rise(before: str, after: str) -> tuple[float, ...]:
    """Relative gain in per cent between two printed numbers, with bounds."""
    return tuple(100 * (q - 1) for q in quotient(after, before))
