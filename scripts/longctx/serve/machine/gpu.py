"""One GPU of any vendor."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this host. Sizes are in bytes; None is what the vendor's interface does not report."""

    index: int
    name: str | None
    used_bytes: int | None
    total_bytes: int | None
    driver: str | None
