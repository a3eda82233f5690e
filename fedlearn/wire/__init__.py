"""What travels: the envelope of a message and the coders of its tensors."""

from .base import Coder
from .coders import Dense, Pooled
from .letters import Letter, Whole
from .masks import Mask
from .message import DOWN, UP, Message, Schema, assemble, open_envelope, pack, take_apart, unpack
from .quantised import QSGD, Signs, Uniform
from .smartidx import SmartIdx
from .sparse import TopK, decode_positions, encode_positions
