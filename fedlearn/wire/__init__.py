"""What travels: the envelope of a message (``message``) and the coders of its tensors, one file a
family: floats (``coders``), few bits an entry (``quantised``, ``rotated``), few entries
(``sparse``, ``smartidx``), few numbers (``lowrank``) and everything (``lossless``)."""

from .base import Coder, Masks, SharedRandomness, Sparse, Stochastic, Votes
from .coders import Dense, Pooled, Whole
from .lossless import Mask, Zipped
from .lowrank import LowRank
from .message import DOWN, UP, FixedMessage, Message, Schema, assemble, pack, take_apart, unpack
from .quantised import QSGD, Natural, Signs, TernGrad, Uniform
from .rotated import EDEN
from .smartidx import SmartIdx
from .sparse import CountSketch, RandomK, TopK, decode_positions, encode_positions
