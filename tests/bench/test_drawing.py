"""The plots of the bench, as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

from bench.drawing import LINE_HEIGHT, Line, draw_lines

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> dict[str, tuple[float, float]]:
    """The positions of all texts."""
    return {
        element.text or "": (float(element.attrib["x"]), float(element.attrib["y"]))
        for element in ElementTree.fromstring(svg).iter(f"{SVG}text")
    }


def test_the_axes_are_named_and_have_short_numbers() -> None:
    line = Line("append", [(10_000, 900), (1_000_000, 800), (10_000_000, 450)])
    shown = texts(draw_lines([line], "entries", "calls/s", "Calls <of> 64 callers"))
    assert {"entries", "calls/s", "Calls <of> 64 callers", "append"} <= shown.keys()
    assert {"10k", "1M", "10M"} <= shown.keys()
    assert {"200", "500", "1k"} <= shown.keys()
    assert "2k" not in shown


def test_labels_of_lines_that_end_together_do_not_overlap() -> None:
    names = [f"line {number}" for number in range(4)]
    shown = texts(draw_lines([Line(name, [(1, 5), (200, 10)]) for name in names], "callers", "ms"))
    heights = sorted(shown[name][1] for name in names)
    assert all(lower - upper >= LINE_HEIGHT for upper, lower in pairwise(heights))
    assert shown["line 0"][0] == shown["line 3"][0]


def test_a_value_of_zero_has_no_point_on_a_logarithmic_axis() -> None:
    svg = draw_lines([Line("CPU", [(1, 0.0), (4, 2.0)]), Line("none", [(1, 0.0)])], "callers", "µs")
    assert len(re.findall("<circle", svg)) == 1
    assert "none" not in texts(svg)
