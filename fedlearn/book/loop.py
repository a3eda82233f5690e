"""Local training in plain PyTorch, as the first chapter writes it: later lessons take it from here.
A test holds the chapter's cell equal to this."""

import torch
import torch.nn.functional as F


def train(net, images, labels, lr=0.1, epochs=1, batch=16):
    """One client's night: minibatch SGD, in place."""
    optimizer = torch.optim.SGD(net.parameters(), lr)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch):
            loss = F.cross_entropy(net(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
