"""`tape schema`: JSON Schemas of documents, for editors."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from tape.playbooks.schema import playbook_schema
from tape.subscriptions.document.json_schema import subscription_schema


class DocumentKind(StrEnum):
    """Kinds of documents that have a schema."""

    playbook = "playbook"
    subscription = "subscription"


def schema(kind: Annotated[DocumentKind, typer.Argument(help="Kind of document.")]) -> None:
    """Print the JSON Schema of a kind of document, for validation and completion in an editor."""
    match kind:
        case DocumentKind.playbook:
            made = playbook_schema()
        case DocumentKind.subscription:
            made = subscription_schema()
    typer.echo(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
