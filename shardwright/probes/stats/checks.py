"""Refusals of counts and rates that cannot be."""

from __future__ import annotations


def check_counts(failures: int, n: int) -> None:
    """Raises ValueError for counts that cannot be."""
    if not 0 <= failures <= n:
        raise ValueError(f"{failures} failures of {n} trials cannot be")


def check_confidence(confidence: float) -> None:
    """Raises ValueError for a confidence, as one in percent would be."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not {confidence}")


def check_rate(rate: float) -> None:
    """Raises ValueError for a rate, as one in percent would be."""
    if not 0 <= rate <= 1:
        raise ValueError(f"a rate lies between 0 and 1, not {rate}")
