"""The document of a local runtime: its spool is a local folder, whatever backend the document names."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tape.documents.document import Document
from tape.errors import InvalidDocument, InvalidInput
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import KIND, parse_subscription, read_subscription

DEFAULT_FOLDER = Path(".tape-spool")


def read_local(file: Path, folder: Path | None) -> Subscription:
    """The subscription of a file, with its spool in a folder: `folder`, its own `path`, or one by its name.

    A given folder turns the spool on if the document has none. Everything else is validated as on a server.
    """
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error
    try:
        return _in_folder(_parsed(content), folder)
    except InvalidDocument as error:
        raise InvalidInput(
            "\n".join([f"{file} is not a subscription that can run:", *map(str, error.problems)])
        ) from None


def _parsed(content: str) -> Subscription:
    """Parse a subscription. A spool without path or bucket is valid here: it gets a local folder."""
    document = Document(content, "Subscription")
    spec = document.value.get("spec") if document.kind == KIND else None
    spool = spec.get("spool") if isinstance(spec, dict) else None
    if not isinstance(spool, dict) or spool.keys() & {"path", "bucket"} or spool.get("mode", "off") == "off":
        return parse_subscription(content)
    spool |= {"backend": "local_disk", "path": str(DEFAULT_FOLDER)}
    subscription = read_subscription(document)
    return _in_folder(subscription, DEFAULT_FOLDER / slug(subscription.name))


def _in_folder(subscription: Subscription, folder: Path | None) -> Subscription:
    spec = subscription.spec
    if folder is None and spec.spool.mode == "off":
        return subscription
    mode = "buffer_and_ack" if spec.spool.mode == "off" else spec.spool.mode
    path = str(folder or spec.spool.path or DEFAULT_FOLDER / slug(subscription.name))
    spool = msgspec.structs.replace(spec.spool, mode=mode, backend="local_disk", path=path, credential="")
    return msgspec.structs.replace(subscription, spec=msgspec.structs.replace(spec, spool=spool))


def slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "subscription"
