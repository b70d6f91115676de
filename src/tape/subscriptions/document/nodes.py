"""Reading nodes of a document that may be invalid: an invalid value is read as empty; the reader reports it."""

from __future__ import annotations

from tape.documents.document import Node


def block(node: Node, key: str) -> Node:
    """The mapping under a key; an empty one if it is missing or invalid (reported by the reader)."""
    value = node.value.get(key)
    return Node(node.document, value if isinstance(value, dict) else {}, (*node.path, key))


def word(node: Node, key: str, otherwise: str = "") -> str:
    """The text under a key; empty if it is invalid (reported by the reader)."""
    value = node.value.get(key, otherwise)
    return value if isinstance(value, str) else ""


def texts(node: Node, key: str) -> list[Node]:
    """The texts of a list under a key."""
    return [item for item in _listed(node, key) if isinstance(item.value, str)]


def items(node: Node, key: str) -> list[Node]:
    """The mappings of a list under a key."""
    return [item for item in _listed(node, key) if isinstance(item.value, dict)]


def _listed(node: Node, key: str) -> list[Node]:
    value = node.value.get(key)
    found = enumerate(value) if isinstance(value, list) else ()
    return [Node(node.document, item, (*node.path, key, index)) for index, item in found]
