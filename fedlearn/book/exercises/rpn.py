"""Exercises of the chapter on RPN."""

from typing import Any

import torch

from ...wire import Pooled
from . import number


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def pooling(answer: Any) -> str | None:
    """(pool, unpool): pool [out, in, k, k] -> [out, in]; unpool (means, k) -> [out, in, k, k], in
    memory of its own."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(callable(f) for f in answer):
        return "two functions are asked for: pass the pair (pool, unpool)"
    pool, unpool = answer
    for k in (3, 5, 1):
        w = noise(4, 2, k, k)
        before, want = w.clone(), w.mean((2, 3))
        means = pool(w)
        if not torch.equal(w, before):
            return "pool changes the tensor that it is given"
        if tuple(means.shape) != (4, 2):
            return (
                f"pool turns {[4, 2, k, k]} into {list(means.shape)}; "
                "the mean runs over the last two axes only"
            )
        if not torch.allclose(means, want, atol=1e-6):
            summed = torch.allclose(means, w.sum((2, 3)), atol=1e-5)
            return (
                "pool returns the sum of a kernel, not its mean"
                if summed
                else "pool does not return each kernel's mean"
            )
        back = unpool(want, k)
        if tuple(back.shape) != (4, 2, k, k):
            return (
                f"unpool returns the shape {list(back.shape)} "
                f"for means of shape {[4, 2]} and k = {k}"
            )
        whole = want[:, :, None, None].expand_as(back)
        if torch.allclose(back * k * k, whole, atol=1e-6) and k > 1:
            return (
                "unpool shares the mean out over the positions; every position gets the whole mean"
            )
        if not torch.allclose(back, whole, atol=1e-6):
            return "unpool does not put the kernel's mean into each of its positions"
        if back.untyped_storage().nbytes() < back.numel() * back.element_size():
            return (
                "the positions of a kernel share one number in memory, "
                "so writing to one writes to all"
            )
    return None


KERNELS, TOTAL = 3 * 64 + 64 * 64, 1_756_426  # the CIFAR network of the FedMMD and FedFusion paper
payload = number(  # the numbers that RPN sends for models.cifar_cnn
    TOTAL - 24 * KERNELS,
    wrong={
        TOTAL: "that is the dense message; the kernels have to be pooled",
        TOTAL - 25 * KERNELS: "each pooled kernel still sends one number, its mean",
        TOTAL - 24 * KERNELS - 128: "the biases of the convolutions are sent, too",
        TOTAL // 25: "only kernels are pooled; the dense layers travel whole",
        24 * KERNELS: "that is what pooling saves; how much is left?",
        4 * (TOTAL - 24 * KERNELS): "that is the number of bytes; the question is for numbers",
    },
)


def scaled(coder: Any) -> str | None:
    """A coder like ``Pooled`` that decodes to k times the mean."""
    if isinstance(coder, type) or not all(
        callable(getattr(coder, m, None)) for m in ("encode", "decode")
    ):
        return (
            "a coder is asked for, an object with encode and decode: pass Scaled(), with brackets"
        )
    for shape in ((4, 2, 3, 3), (2, 3, 5, 5), (3, 2, 1, 1), (6, 5), (6,)):
        w = noise(*shape)
        data, theirs = coder.encode(w), Pooled().encode(w)
        if len(data) != len(theirs):
            return (
                f"it sends {len(data)} bytes for a tensor of shape {list(shape)}, "
                f"RPN sends {len(theirs)}"
            )
        got = coder.decode(data, shape)
        if tuple(got.shape) != shape:
            return f"decode returns the shape {list(got.shape)} for {list(shape)}"
        plain = Pooled().decode(theirs, shape)
        k = shape[-1] if len(shape) > 2 else 1
        if not torch.allclose(got, k * plain, atol=1e-5):
            if k == 1:
                return f"a tensor of shape {list(shape)} has to come back as it was sent"
            for factor, reason in {
                1: "the means are not scaled",
                k * k: "the factor is k * k; the norm asks for k",
            }.items():
                if torch.allclose(got, factor * plain, atol=1e-5):
                    return reason
            return f"decoding a {k} x {k} kernel does not give {k} times its mean"
    return None


EXERCISES = {"rpn-pool": pooling, "rpn-payload": payload, "rpn-scaled": scaled}
