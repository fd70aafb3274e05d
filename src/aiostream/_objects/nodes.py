"""The nodes of graphs, and how one depends on another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiostream._base import checks, driver
from aiostream.enums import GraphDependencyType, GraphNodeType

if TYPE_CHECKING:
    from aiostream.graph import Graph

__all__ = ["GraphDependency", "GraphEdgeData", "GraphNode"]


class GraphNode:
    """A node of a graph, as `Graph.nodes` and `Stream.capture_info` return it.

    A node keeps its `Graph` object alive. You can use it until you close the graph or destroy the
    node.

    Nodes compare equal by handle. So you find the nodes of `capture_info` among those of the
    finished graph. Do not look up the nodes of a graph that was destroyed, because the driver may
    have given their handles to other nodes.
    """

    __slots__ = ("_graph", "_handle")

    def __init__(self, graph: Graph, handle: int) -> None:
        self._graph = graph
        self._handle = handle

    @property
    def graph(self) -> Graph:
        """The graph to which it belongs."""
        return self._graph

    @property
    def handle(self) -> int:
        """The driver's `CUgraphNode`, as an int.

        Raises:
            StreamClosedError: The graph is closed.
        """
        self._graph._require_open()
        return self._handle

    @property
    def type(self) -> GraphNodeType:
        """What the node does (`cuGraphNodeGetType`)."""
        return GraphNodeType(int(self._graph._call("cuGraphNodeGetType", node=self._handle)))

    @property
    def dependencies(self) -> tuple[GraphDependency, ...]:
        """The nodes that come directly before it (`cuGraphNodeGetDependencies`)."""
        return self._neighbours("cuGraphNodeGetDependencies")

    @property
    def dependents(self) -> tuple[GraphDependency, ...]:
        """The nodes that come directly after it (`cuGraphNodeGetDependentNodes`)."""
        return self._neighbours("cuGraphNodeGetDependentNodes")

    def _neighbours(self, name: str) -> tuple[GraphDependency, ...]:
        name = driver.annotated(name)
        *_, count = self._graph._call(name, node=self._handle)
        if not count:
            return ()
        nodes, edges, _ = self._graph._call(name, count, node=self._handle)
        return dependencies_of(self._graph, nodes, edges)

    def __int__(self) -> int:
        return self.handle

    def __eq__(self, other: object) -> bool:
        return self._handle == other._handle if isinstance(other, GraphNode) else NotImplemented

    def __hash__(self) -> int:
        return hash(("aiostream.GraphNode", self._handle))

    def __repr__(self) -> str:
        return f"<aiostream.GraphNode {self._handle:#x} of {self._graph._name}>"


@dataclass(frozen=True, slots=True)
class GraphEdgeData:
    """How one node depends on another (`CUgraphEdgeData`).

    By default the later node waits until the earlier one has ended.

    Args:
        from_port: Which port of the earlier node is waited for. 0 is its end, and only kernels have
            others.
        to_port: Which port of the later node waits. 0 is the whole node, and no node has others
            yet.
        type: Whether it is a programmatic dependency.
    """

    from_port: int = 0
    to_port: int = 0
    type: GraphDependencyType = GraphDependencyType.DEFAULT

    def __post_init__(self) -> None:
        """Refuses what no driver takes.

        Raises:
            TypeError: A port is not an int.
            ValueError: A port is not from 0 to 255, or there is no such type.
        """
        checks.byte("from_port", self.from_port)
        checks.byte("to_port", self.to_port)
        checks.member(GraphDependencyType, self.type, "type")


@dataclass(frozen=True, slots=True)
class GraphDependency:
    """A node on which something depends, and how it depends on it."""

    node: GraphNode
    edge_data: GraphEdgeData = GraphEdgeData()


def dependencies_of(
    graph: Graph, nodes: Iterable[Any], edges: Iterable[Any]
) -> tuple[GraphDependency, ...]:
    """The driver's nodes and edges as objects. Edges that it does not give are default ones."""
    found = [GraphNode(graph, int(node)) for node in nodes]
    data = [
        GraphEdgeData(edge.from_port, edge.to_port, GraphDependencyType(edge.type))
        for edge in edges or ()
    ]
    if len(data) != len(found):
        data = [GraphEdgeData()] * len(found)
    return tuple(GraphDependency(node, edge) for node, edge in zip(found, data, strict=True))


def as_driver_dependencies(dependencies: Iterable[Any]) -> tuple[list[Any], list[Any] | None]:
    """Nodes and dependencies as the bindings take them, also other libraries' nodes and handles.

    Returns:
        The nodes, and the edges. If all edges have default data it is `None` in place of them,
        because old drivers know no other edges.
    """
    given = checks.several("dependencies", dependencies)
    known = [each if isinstance(each, GraphDependency) else GraphDependency(each) for each in given]
    nodes = [driver.bindings().CUgraphNode(_node_handle(each.node)) for each in known]
    if all(each.edge_data == GraphEdgeData() for each in known):
        return nodes, None
    return nodes, [_as_driver_edge(each.edge_data) for each in known]


def _node_handle(node: Any) -> int:
    handle = getattr(node, "handle", node)  # this library's nodes and cuda.core's have it
    of_bindings = type(handle).__name__ in ("CUgraphNode", "cudaGraphNode_t")
    if of_bindings or checks.is_integer(handle):
        return checks.handle(int(handle), "a node")
    raise TypeError(f"a dependency is a GraphNode or a GraphDependency, not {type(node).__name__}")


def _as_driver_edge(edge: GraphEdgeData) -> Any:
    raw = driver.bindings().CUgraphEdgeData()
    raw.from_port, raw.to_port, raw.type = edge.from_port, edge.to_port, int(edge.type)
    return raw
