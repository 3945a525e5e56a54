"""``python -m benchmarks.figures.draw``, in the environment `figures`: the plots of docs/develop/benchmarks.md, from
batching.json.

The same figures give the same bytes: no date, no random ids, text as text.
"""

from __future__ import annotations

import math
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.figures.data import IMAGES, Panel, Plot, digest, load, plots

SIZE: Final = (9.6, 4.0)
"""Inches of one plot."""
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's, which colour-blind people can tell apart."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P")


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "nightshift", "svg.fonttype": "none", "font.size": 10})
    stamp = digest()
    for plot in plots(load()):
        _draw(plot, stamp)


def _draw(plot: Plot, stamp: str) -> None:
    figure = Figure(figsize=SIZE, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(plot.panels)), plot.panels, strict=True):
        _panel(axes, panel)
    # Description: which figures these are. Date and Creator would differ from machine to machine.
    metadata = {"Date": None, "Creator": None, "Description": f"batching.json {stamp}"}
    figure.savefig(IMAGES / plot.file, facecolor="white", metadata=metadata)
    print(f"[figures] {IMAGES / plot.file}")


def _panel(axes: Axes, panel: Panel) -> None:
    for line, colour, marker in zip(panel.lines, COLOURS, MARKERS, strict=False):
        x, y = zip(*line.points, strict=True)
        # gid: the test of the page finds the points by it.
        axes.plot(x, y, color=colour, marker=marker, markersize=4, label=line.label, gid=line.name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    counts = all(math.log2(x).is_integer() for line in panel.lines for x, _ in line.points)
    axes.xaxis.set_major_locator(LogLocator(2) if counts else LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)


if __name__ == "__main__":
    main()
