"""What travels: the envelope of a message (``message``) and the coders of its tensors, one file a
family: floats (``coders``), few bits an entry (``quantised``, ``rotated``), few numbers
(``sparse``, ``smartidx``)."""

from .base import Coder, Masks, SharedRandomness, Sparse, Stochastic, Votes
from .coders import Dense, Pooled, Whole
from .message import (
    DOWN,
    UP,
    FixedMessage,
    Message,
    Schema,
    assemble,
    pack,
    same_body,
    take_apart,
    unpack,
)
from .quantised import QSGD, Mask, Natural, Signs, TernGrad, Uniform, Zipped
from .rotated import EDEN
from .smartidx import SmartIdx
from .sparse import CountSketch, LowRank, RandomK, TopK, decode_positions, encode_positions
