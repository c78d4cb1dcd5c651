"""Codecs: chunks of floating-point numbers as fewer bytes, framed and checked."""

from weft.compress.codec import CODECS, Codec, codec_of, expected_ratio, is_lossless
from weft.compress.delta import Delta, Deltas

__all__ = ["CODECS", "Codec", "Delta", "Deltas", "codec_of", "expected_ratio", "is_lossless"]
