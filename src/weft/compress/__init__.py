"""Codecs: encode chunks of floating-point numbers in fewer bytes, in frames with a checksum."""

from weft.compress.codec_registry import CODECS, Codec, codec_of, expected_ratio, is_lossless
from weft.compress.delta import Delta, Deltas

__all__ = ["CODECS", "Codec", "Delta", "Deltas", "codec_of", "expected_ratio", "is_lossless"]
