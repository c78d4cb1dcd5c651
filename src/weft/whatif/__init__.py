"""A trace replayed, and replayed with something changed."""

from weft.whatif.replay import Replay, replay

__all__ = ["Replay", "replay"]
