"""What travels: the envelope of a message (``message``, ``fixed``) and the coders of its tensors,
one file a family: floats (``coders``), few bits an entry (``quantised``, ``rotated``), few entries
(``sparse``, ``smartidx``), few numbers (``lowrank``, ``sketch``) and everything (``lossless``)."""

from .base import Coder, Masks, SharedRandomness, Sparse, Stochastic, Votes
from .coders import Dense, Pooled
from .fixed import FixedMessage, Whole
from .lossless import Mask, Zipped
from .lowrank import LowRank
from .message import DOWN, UP, Message, Schema, assemble, pack, take_apart, unpack
from .quantised import QSGD, Natural, Signs, TernGrad, Uniform
from .rotated import EDEN
from .sketch import CountSketch
from .smartidx import SmartIdx
from .sparse import RandomK, TopK, decode_positions, encode_positions
