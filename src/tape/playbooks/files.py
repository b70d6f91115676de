"""Playbooks in files: to validate them, and to run them without a server."""

from __future__ import annotations

from pathlib import Path

from tape.documents.document import Document, checked_document
from tape.errors import InvalidDocument, InvalidInput, PlaybookNotFound
from tape.playbooks.document import Playbook, read_playbook
from tape.playbooks.functions import declared_playbooks
from tape.playbooks.host import Load

KINDS = {"playbook": read_playbook}


def read_file(file: Path) -> str:
    """The text of a file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error


def load_file(file: Path) -> Playbook:
    """The playbook of a file. Raises InvalidDocument with all problems."""
    return read_playbook(checked_document(read_file(file), KINDS))


def from_folder(folder: Path) -> Load:
    """A loader by path: Python functions of this process, then the `*.yaml` files of a folder."""

    def load(path: str) -> Playbook:
        if declared := declared_playbooks().get(path):
            return read_playbook(Document(declared.document))
        for file in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
            try:
                document = Document(read_file(file))
            except (InvalidDocument, InvalidInput):
                continue  # an invalid file is skipped
            if document.kind == "playbook" and document.path == path:
                return load_file(file)
        raise PlaybookNotFound(f"Playbook not found: {path} (no YAML file in {folder} has that metadata.path)")

    return load
