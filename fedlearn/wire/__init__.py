"""The envelope of a message (``message``), and the coders of its tensors, one file a family.

Floats (``dense``), few bits an entry (``quantised``, ``masks``, ``rotated``), few entries
(``sparse``, ``smartidx``).
"""

from .base import Coder, Masks, SharedRandomness, Sparse, Stochastic, Votes
from .dense import Dense, Pooled, Whole
from .masks import Mask
from .message import (
    DOWN,
    UP,
    FixedMessage,
    Message,
    Schema,
    assemble,
    pack,
    same_body,
    unpack,
)
from .quantised import QSGD, Signs, TernGrad, Uniform
from .rotated import EDEN
from .smartidx import SmartIdx
from .sparse import TopK, decode_positions, encode_positions
