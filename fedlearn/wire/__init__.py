"""What travels: the envelope of a message and the coders of its tensors."""

from .coders import Dense, Pooled
from .message import DOWN, UP, Message, Schema, pack, unpack

__all__ = ["DOWN", "UP", "Dense", "Message", "Pooled", "Schema", "pack", "unpack"]
