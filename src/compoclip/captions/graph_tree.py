"""A scene graph drawn as text."""

from __future__ import annotations

from compoclip.captions.types import GraphObject, SceneGraph


def graph_tree(graph: SceneGraph) -> list[str]:
    """The lines of a tree: objects with their attributes, below each what it is related to.

    Objects come in caption order and are numbered where two have the same name; attributes stand in
    one column, and so do the relations and their objects.
    """
    if not graph.objects:
        return ["(no objects)"]
    labels = _labels(graph.objects)
    lines: list[str] = []
    wide = max(map(len, labels))
    names = [r.words or r.name for r in graph.relations]
    long = max(map(len, names), default=0)
    for index, node in enumerate(graph.objects):
        attributes = ", ".join(attribute.name for attribute in node.attributes)
        lines.append(f"{labels[index].ljust(wide)}  {attributes}".rstrip())
        own = [
            (name, labels[relation.object])
            for name, relation in zip(names, graph.relations, strict=True)
            if relation.subject == index
        ]
        for number, (name, target) in enumerate(own, 1):
            branch = "└─" if number == len(own) else "├─"
            lines.append(f"{branch} {name.ljust(long)} ─▶ {target}")
    return lines


def _labels(objects: tuple[GraphObject, ...]) -> list[str]:
    """Names, numbered from 1 where they are not unique."""
    names = [node.name for node in objects]
    labels = []
    for index, name in enumerate(names):
        number = names[: index + 1].count(name)
        labels.append(f"{name} {number}" if names.count(name) > 1 else name)
    return labels
