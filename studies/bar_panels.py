"""Lays out rows of bar charts that share their names, one row a load, in one PNG file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
}


@contextmanager
def bar_panels(
    names: Sequence[str], columns: int, width_in: float, height_in: float, path: Path
) -> Iterator[Sequence[Sequence[Axes]]]:
    """Give the axes of each named row to draw on, then write the picture.

    ``width_in`` is that of the picture in inches, ``height_in`` that of one row.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(
            len(names), columns, figsize=(width_in, height_in * len(names)), squeeze=False
        )
        yield axes.tolist()
        for row, name in zip(axes, names, strict=True):
            row[0].set_ylabel(name, fontweight="bold")
            for axis in row[1:]:
                axis.set_yticklabels([])
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=90)
        plt.close(figure)
