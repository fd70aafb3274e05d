"""Draws the documents' `mermaid` blocks as SVG while the site is built.

A flowchart of names and arrows is all that they hold, so a layout of layers is enough. A page of
the site then needs no script from another host, and prints as it is.
"""

from __future__ import annotations

import itertools
import re
from html import escape
from typing import Any

from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout
from grandalf.routing import route_with_lines

_HEIGHT, _CHARACTER, _PADDING = 26, 6.7, 14  # pixels
_NODE = r'(?:(\w+)(?:\["([^"]+)"\])?)'


class Box:
    """The place of a node. grandalf reads its size, and writes its centre to `xy`."""

    def __init__(self, width: float) -> None:
        self.w, self.h = width, _HEIGHT
        self.xy = (0.0, 0.0)


class Line:
    """The way of an arrow, which grandalf sets."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def setpath(self, points: list[tuple[float, float]]) -> None:
        """Takes the corners, from the one box to the other."""
        self.points = points


def fence(source: str, *_: Any, **__: Any) -> str:
    """What superfences calls for each block: gives its SVG, or raises `ValueError`."""
    return svg(*parsed(source))


def parsed(source: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The labels of the nodes by their names, and the arrows."""
    head, *lines = [line.strip() for line in source.strip().splitlines()]
    if head != "flowchart TD":
        raise ValueError(f"The site draws `flowchart TD` only, not {head!r}")
    labels: dict[str, str] = {}
    arrows: list[tuple[str, str]] = []
    for line in lines:
        sides = []
        for side in line.split("-->"):
            nodes = [re.fullmatch(_NODE, node.strip()) for node in side.split("&")]
            for node in nodes:
                if node is None:
                    raise ValueError(f"The site cannot draw the line {line!r}")
                labels.setdefault(node[1], node[1])
                if node[2]:
                    labels[node[1]] = node[2]
            sides.append([node[1] for node in nodes if node])
        for left, right in itertools.pairwise(sides):
            arrows += [(one, other) for one in left for other in right]
    return labels, arrows


def svg(labels: dict[str, str], arrows: list[tuple[str, str]]) -> str:
    """The drawing, whose colours are the page's."""
    nodes = {name: Vertex(name) for name in labels}
    for name, node in nodes.items():
        node.view = Box(len(labels[name]) * _CHARACTER + _PADDING)
    edges = [Edge(nodes[one], nodes[other]) for one, other in arrows]
    for edge in edges:
        edge.view = Line()
    graph = Graph(list(nodes.values()), edges)
    left, shapes = 0.0, []
    bottom = 0.0
    for component in graph.C:
        layout = SugiyamaLayout(component)
        layout.xspace, layout.yspace = 14, 44
        layout.route_edge = route_with_lines
        layout.init_all()
        layout.draw(8)
        centres = [node.view for node in component.sV]
        shift = left - min(box.xy[0] - box.w / 2 for box in centres)
        top = min(box.xy[1] - box.h / 2 for box in centres)
        for edge in component.sE:
            shapes.append(arrow(edge, shift, top))
        for node in component.sV:
            shapes.append(box_of(labels[node.data], node.view, shift, top))
        left = max(box.xy[0] + box.w / 2 for box in centres) + shift + 24
        bottom = max(bottom, *(box.xy[1] + box.h / 2 - top for box in centres))
    return (
        f'<div class="drawing"><svg viewBox="-4 -4 {left - 16:.0f} {bottom + 8:.0f}"'
        f' width="{left - 16:.0f}" role="img">'
        '<defs><marker id="drawing-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(shapes)}</svg></div>"
    )


def arrow(edge: Edge, shift: float, top: float) -> str:
    """The line of an edge, through the places that the layout keeps free for it."""
    points = [(x + shift, y - top) for x, y in edge.view.points]
    path = " ".join(f"{x:.0f} {y:.0f}" for x, y in points)
    return f'<path class="arrow" marker-end="url(#drawing-head)" d="M{path}"/>'


def box_of(label: str, box: Box, shift: float, top: float) -> str:
    """A node: its frame and its name."""
    x, y = box.xy[0] + shift, box.xy[1] - top
    return (
        f'<rect x="{x - box.w / 2:.0f}" y="{y - box.h / 2:.0f}" width="{box.w:.0f}"'
        f' height="{box.h}" rx="4"/><text x="{x:.0f}" y="{y + 4:.0f}">{escape(label)}</text>'
    )
