"""Recurrent networks for sequences of tokens."""

from torch import Tensor, nn

EMBEDDING = 8  # numbers a token, as of McMahan et al. (2017) for Shakespeare


class LSTM(nn.Module):
    """Token ids [batch, length] -> scores [batch, length, classes] of what comes next, from the
    tokens up to there."""

    def __init__(self, classes: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.lstm(self.embedding(x))[0])


def char_lstm(in_shape: tuple[int, ...] = (80,), classes: int = 61) -> LSTM:
    """One layer of 64: 23,397 parameters with 61 characters."""
    return LSTM(classes, 64, 1)


def mcmahan_lstm(in_shape: tuple[int, ...] = (80,), classes: int = 61) -> LSTM:
    """Two layers of 256, as McMahan et al. (2017) and LEAF train on Shakespeare: 814,885 parameters
    with 61 characters."""
    return LSTM(classes, 256, 2)
