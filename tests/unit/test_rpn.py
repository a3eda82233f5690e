"""RPN: its integers, its linearity, its late joiners, and what it can never change."""

import numpy as np
import torch

import fedlearn as fl
from fedlearn.models import state_of


def test_payload_of_the_papers_network():
    """Of MNIST only the size of its images is looked at."""
    data = fl.data.arrays(np.zeros((40, 28, 28), np.uint8), np.arange(40) % 10)
    task = fl.tasks.classification(data, clients=1, network="rpn_cnn")
    server = fl.methods.rpn().server_side(task)
    state = server.start()
    assert sum(t.numel() for t in state.weights.values()) == 1_199_882
    envelope = 26 + 1 + 4 * len(state.weights) + 4
    assert len(server.send(1, 0, state)[0]) - envelope == 4 * 1_183_242


def shape_within(w):
    return w - w.mean((2, 3), keepdim=True)


def test_kernel_shapes_of_the_global_model_never_change(task):
    initial = state_of(fl.initial_network(fl.methods.rpn(), task))
    pooled = fl.run(fl.methods.rpn(), task, 3, participation=0.5).state
    kernels = [n for n, t in initial.items() if t.dim() == 4]
    assert len(kernels) == 3
    for n in kernels:
        assert (shape_within(pooled[n]) - shape_within(initial[n])).abs().max() < 1e-6
        assert (
            pooled[n] - initial[n]
        ).abs().max() > 1e-3  # the means have learned something


def test_share_zero_is_fedavg_and_bytes_shrink_with_the_share(task):
    shares = [
        fl.run(fl.methods.rpn(share=s, by="samples"), task, 1)
        for s in (0, 1 / 3, 2 / 3, 1)
    ]
    ups = [h.bytes_up[0] for h in shares]
    assert ups == sorted(ups, reverse=True)
    assert len(set(ups)) == 4
    average = fl.run(fl.methods.fedavg(), task, 1)
    for name, w in average.state.items():
        torch.testing.assert_close(shares[0].state[name], w, rtol=1e-5, atol=1e-6)


def test_threshold_and_half_precision_send_less(task):
    plain, partial, none = (
        fl.run(fl.methods.rpn(threshold=h), task, 1) for h in (0, 0.3, 1e9)
    )
    assert none.bytes_up[0] < partial.bytes_up[0] < plain.bytes_up[0]
    initial = state_of(fl.initial_network(fl.methods.rpn(), task))
    assert torch.equal(none.state["extractor.0.weight"], initial["extractor.0.weight"])
    half = fl.run(fl.methods.rpn(bits=16), task, 1)
    assert half.bytes_up[0] < 0.6 * plain.bytes_up[0]
    assert not half.rows[0]["refused"]
