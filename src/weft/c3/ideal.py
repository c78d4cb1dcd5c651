"""What a pair is judged by: how much of the possible gain was realised, which side is longer."""

from weft.errors import UsageError

_EQUAL = 1.15  # times as long, up to which two sides count as equally long


def percent_of_ideal(serial: float, ideal: float, seconds: float) -> float:
    """Return the share of the possible gain that is realised (arXiv 2412.14335), in percent.

    >>> percent_of_ideal(3.0, 2.0, 2.0), percent_of_ideal(3.0, 2.0, 3.0)
    (100.0, 0.0)
    """
    gain = serial / ideal - 1 if ideal > 0 else 0.0
    if not (gain > 0 and seconds > 0):
        raise UsageError(
            f"no gain to compare with: both take {serial:g} s one after the other and {ideal:g} s "
            f"at best, together {seconds:g} s",
            "Use a GEMM and a collective that take comparable time.",
        )
    return 100 * (serial / seconds - 1) / gain


def class_of(compute: float, comm: float) -> str:
    """Return which of the two is longer: G-long, C-long, or GC-equal."""
    if compute > _EQUAL * comm:
        return "G-long"
    return "C-long" if comm > _EQUAL * compute else "GC-equal"
