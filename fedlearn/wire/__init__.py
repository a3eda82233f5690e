"""What travels: the envelope of a message and the coders of its tensors."""

from .coders import Dense, Pooled
from .message import DOWN, UP, Message, Schema, assemble, open_envelope, pack, take_apart, unpack

__all__ = ["DOWN", "UP", "Dense", "Message", "Pooled", "Schema", "assemble", "open_envelope", "pack", "take_apart", "unpack"]
