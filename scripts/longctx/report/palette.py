"""Colours and markers of all figures; nothing here imports matplotlib, so that modes may say how they look."""

from dataclasses import dataclass
from typing import Any

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d9dee3", "#ffffff"
# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/) without black, which is the ink; yellow last: it is pale.
BLUE, VERMILLION, GREEN, ORANGE = "#0072b2", "#d55e00", "#009e73", "#e69f00"
PURPLE, SKY, YELLOW = "#cc79a7", "#56b4e9", "#f0e442"
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW)
MARKERS = ("o", "s", "D", "^", "v", "P", "X")


@dataclass(frozen=True, slots=True)
class Look:
    """How a series is drawn; series that may coincide differ in shape and size, the later drawn inside the earlier."""

    label: str
    colour: str
    marker: str
    size: float = 6.0
    hollow: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What matplotlib's plot and errorbar take."""
        face = "none" if self.hollow else self.colour
        colours = {"color": self.colour, "markerfacecolor": face, "markeredgecolor": self.colour}
        return {**colours, "marker": self.marker, "markersize": self.size, "markeredgewidth": 1.4, "linewidth": 1.2}
