"""Training logs to curves: thinned by means, runs joined, drawn as valid SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tiny_h3_curves import curves, svg

LINES = [
    *({"stage": "turbo", "at": 1.0, "step": n, "share": n / 100, "loss": 200.0 - n, "graph": True} for n in range(100)),
    {"stage": "run", "at": 2.0, "done": "pools"},
    *({"stage": "veda", "at": 3.0, "step": n, "task": "t2va", "a": 1.0, "b": 0.0} for n in (50, 100)),
    *({"stage": "veda", "at": 4.0, "step": n, "task": "t2va", "a": 0.5, "b": 0.0} for n in (50, 100)),
]


def test_curves_are_means_of_neighbours() -> None:
    """At most so many points; words, switches and clocks are no curves; lines without a step are left out."""
    found = curves(LINES, points=10)
    assert found.keys() == {"turbo", "veda"}
    assert found["turbo"].keys() == {"step", "loss"}
    assert found["turbo"]["step"] == pytest.approx([4.5 + 10 * n for n in range(10)])
    assert found["turbo"]["loss"][0] == pytest.approx(195.5)


def test_a_second_run_goes_on_from_the_first() -> None:
    """Steps that begin again are counted on."""
    assert curves(LINES)["veda"]["step"] == [50, 100, 150, 200]


def test_the_picture_is_svg() -> None:
    """A panel for each stage, a line for each curve that a logarithm can show."""
    root = ElementTree.fromstring(svg(curves(LINES)))
    names = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"turbo", "veda", "loss", "a"} <= set(names)
    assert "b" not in names
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2
