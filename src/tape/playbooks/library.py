"""A cache of playbooks: each document of the catalog is read once."""

from __future__ import annotations

from functools import lru_cache

from tape.documents.document import Document
from tape.errors import Problem
from tape.playbooks.document import Playbook, read_playbook


class LoadedPlaybook:
    """A playbook and its problems in this process, such as an unknown tool."""

    __slots__ = ("playbook", "problems")

    def __init__(self, playbook: Playbook, problems: list[Problem]) -> None:
        self.playbook = playbook
        self.problems = problems


@lru_cache(maxsize=512)
def known_playbook(content: str) -> LoadedPlaybook:
    """The playbook of a document that is in the catalog."""
    document = Document(content)
    playbook = read_playbook(document)
    return LoadedPlaybook(playbook, document.problems)
