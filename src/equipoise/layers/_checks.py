"""Checks of options that several layers have."""

from __future__ import annotations


def check_size(**sizes: int) -> None:
    """Refuse sizes below 1.

    Raises:
        ValueError: Naming the size and its value.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1; got {size}.")


def check_weight_of_example(example_weight: float) -> None:
    """Refuse weights outside [0, 1].

    Raises:
        ValueError: Naming the weight.
    """
    if not 0 <= example_weight <= 1:
        raise ValueError(
            f"example_weight must lie in [0, 1]; got {example_weight}. 0 ignores the example."
        )
