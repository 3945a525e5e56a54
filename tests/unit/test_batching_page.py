"""docs/develop/benchmarks.md and its plots show of batching what benchmarks/figures/batching.json holds, and nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.figures.data import CONTINUOUS, FILE, IMAGES, Figures, Panel, digest, load, plots, save
from benchmarks.figures.measure import percentiles
from benchmarks.figures.page import PAGE, Untrue, render, with_part

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"
HUNDREDTH = 0.01
"""Of a point of the plot."""
Points = list[tuple[float, float]]


@pytest.fixture(scope="module")
def figures() -> Figures:
    return load()


def drawn(file: Path) -> dict[str, Points]:
    """The points of each line in a plot, where they are on the page."""
    groups = {group.get("id"): group for group in ElementTree.parse(file).iter(f"{SVG}g")}
    found = {}
    for name, group in groups.items():
        path = group.find(f"{SVG}path")
        if name and path is not None:
            numbers = [float(word) for word in re.findall(r"-?[\d.]+", path.get("d") or "")]
            found[name] = list(zip(numbers[::2], numbers[1::2], strict=True))
    return found


def off(panel: Panel, lines: dict[str, Points]) -> float:
    """How far the worst point is from where its figure belongs, on logarithmic axes of which nothing else is known."""
    worst = 0.0
    for axis in (0, 1):
        pairs = [
            (math.log(point[axis]), place[axis])
            for line in panel.lines
            for point, place in zip(line.points, lines[line.name], strict=True)
        ]
        (least, start), (most, end) = min(pairs), max(pairs)
        scale = (end - start) / (most - least)
        worst = max(worst, *(abs(start + (value - least) * scale - place) for value, place in pairs))
    return worst


def test_the_page_is_what_the_figures_make() -> None:
    assert with_part(PAGE.read_text(), render(load())) == PAGE.read_text()


def test_every_point_of_the_plots_is_a_figure(figures: Figures) -> None:
    for plot in plots(figures):
        lines = drawn(IMAGES / plot.file)
        for panel in plot.panels:
            assert off(panel, lines) < HUNDREDTH, (plot.file, panel.title)
        assert f"batching.json {digest()}" in (IMAGES / plot.file).read_text()
        assert f"images/{plot.file}" in PAGE.read_text()


def test_the_check_of_the_points_bites(figures: Figures) -> None:
    plot = plots(figures)[0]
    lines = drawn(IMAGES / plot.file)
    panel = plot.panels[0]
    first = panel.lines[0]
    moved = tuple((x, y * (1.01 if x == 8 else 1)) for x, y in first.points)

    assert off(replace(panel, lines=(replace(first, points=moved), *panel.lines[1:])), lines) > HUNDREDTH


def test_words_that_the_figures_do_not_show_are_refused(figures: Figures) -> None:
    slow = tuple(replace(run, seconds=100 * run.seconds) if run.way == CONTINUOUS else run for run in figures.generated)

    with pytest.raises(Untrue, match="continuous batching is faster"):
        render(replace(figures, generated=slow))


def test_figures_come_back_as_they_were_saved(figures: Figures, tmp_path: Path) -> None:
    save(figures, tmp_path / "again.json")

    assert (tmp_path / "again.json").read_bytes() == FILE.read_bytes()


def test_every_cell_was_measured_as_often(figures: Figures) -> None:
    chat = [(run.way, run.in_flight) for run in figures.generated]
    vectors = [(run.rows_per_request, run.in_flight) for run in figures.embedded]

    assert {chat.count(cell) for cell in chat} == {vectors.count(cell) for cell in vectors} == {figures.about["times"]}
    assert len(set(chat)) == 2 * len(figures.sizes)
    assert len(set(vectors)) == len(figures.rows_per_request) * len(figures.in_flight)


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentiles([3.0, 1.0, 2.0]) == (2.0, 3.0)
    assert percentiles([float(n) for n in range(1, 201)]) == (100.0, 198.0)
