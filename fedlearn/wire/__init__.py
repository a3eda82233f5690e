"""What travels: the envelope of a message and the coders of its tensors."""

from .base import Coder, Masks, Sketches, Votes
from .coders import Dense, Pooled
from .drawn import Natural, TernGrad
from .fixed import FixedMessage, Whole
from .lowrank import LowRank
from .masks import Mask
from .message import DOWN, UP, Message, Schema, assemble, open_envelope, pack, take_apart, unpack
from .quantised import QSGD, Signs, Uniform
from .rotated import EDEN
from .sketch import CountSketch
from .smartidx import SmartIdx
from .sparse import RandomK, TopK, decode_positions, encode_positions
from .zipped import Zipped
