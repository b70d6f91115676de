"""Drafts and entries of the journal."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tape.errors import InvalidInput, InvalidJson, PayloadTooLarge
from tape.model import subject as subjects
from tape.model.json_depth import MAX_DEPTH, check_depth

DEFAULT_RUN = "log"
# The tenant of what Tape writes for itself, once entries without a tenant belong to one.
SYSTEM_TENANT = "tape-system"
MAX_PAYLOAD_BYTES = 1 << 20
MAX_ID_BYTES = 500
MAX_SCHEMA_VERSION = 32_767

_TRACE = re.compile(r"[0-9a-f]{32}")
_SPAN = re.compile(r"[0-9a-f]{16}")


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An entry before it is appended.

    Without a `run_id` it belongs to the run `log`. `kind` is the subject's and need not be given.
    `schema_version` is the producer's: consumers branch on it when a payload's shape changes. `cause` is the
    reaction whose work writes this; it is kept beside the journal.
    """

    subject: str
    payload_json: str = "{}"
    kind: str = ""
    run_id: str = ""
    schema_version: int = 1
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    tenant: str = ""
    user: str = ""
    session: str = ""
    cause: str = ""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An entry of the journal. `global_seq` is its position in the journal, `seq` its position in its run."""

    global_seq: int
    run_id: str
    seq: int
    kind: str
    subject: str
    payload_json: str
    schema_version: int
    trace_id: str
    span_id: str
    parent_span_id: str
    ts_ms: int
    tenant: str
    user: str
    session: str
    chain: bytes

    @property
    def payload(self) -> Any:
        """The payload, parsed."""
        return msgspec.json.decode(self.payload_json)

    @property
    def type(self) -> str:
        """`<kind>.<verb>`, the name of this sort of event on streams."""
        return type_of(self.kind, self.subject)


def type_of(kind: str, subject: str) -> str:
    """`<kind>.<verb>` of a normal subject, which is /tape/<kind>/<verb>/… or /tape/<kind>."""
    start = len(kind) + 7
    end = subject.find("/", start)
    verb = subject[start:end] if end > 0 else subject[start:]
    return f"{kind}.{verb}" if verb else kind


# The highest number that a database can store.
MAX_SEQ = (1 << 63) - 1
# The columns of tape_journal in the order of Entry's fields.
COLUMNS = tuple('"user"' if name == "user" else name for name in Entry.__struct_fields__)


def checked(draft: Draft, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> Draft:
    """The draft with every field checked and its subject in normal form. Raises InvalidInput."""
    subject = subjects.normalize(draft.subject)
    kind = subjects.kind_of(subject)
    if draft.kind not in ("", kind):
        raise InvalidInput(f"kind {draft.kind!r} differs from the kind of the subject {subject!r}; leave it out.")
    check_payload(draft.payload_json, max_payload_bytes)
    check_id("run_id", draft.run_id)
    check_id("tenant", draft.tenant)
    check_id("user", draft.user)
    check_id("session", draft.session)
    check_id("cause", draft.cause)
    if not 0 <= draft.schema_version <= MAX_SCHEMA_VERSION:
        raise InvalidInput(f"schema_version {draft.schema_version} must lie between 0 and {MAX_SCHEMA_VERSION}.")
    if draft.trace_id or draft.span_id or draft.parent_span_id:
        _check_trace(draft)
    if subject == draft.subject and kind == draft.kind and draft.run_id:
        return draft
    return msgspec.structs.replace(draft, subject=subject, kind=kind, run_id=draft.run_id or DEFAULT_RUN)


def _check_trace(draft: Draft) -> None:
    if draft.trace_id and not _TRACE.fullmatch(draft.trace_id):
        raise InvalidInput(f"trace_id {draft.trace_id!r} must be 32 lower-case hex digits, or empty.")
    for name in ("span_id", "parent_span_id"):
        if (value := getattr(draft, name)) and not _SPAN.fullmatch(value):
            raise InvalidInput(f"{name} {value!r} must be 16 lower-case hex digits, or empty.")


def check_payload(payload_json: str, max_bytes: int) -> None:
    """Raise unless the text is JSON of acceptable size and depth."""
    # A character has at most four bytes in UTF-8: most texts need no encoding to be measured.
    size = len(payload_json)
    if size * 4 > max_bytes and (size := len(payload_json.encode())) > max_bytes:
        raise PayloadTooLarge(
            f"payload_json has {size} bytes; this server takes {max_bytes} at most (max_payload_bytes)."
            " Store the large part in an object store and append a reference to it."
        )
    if payload_json.count("[") + payload_json.count("{") > MAX_DEPTH:
        check_depth(payload_json.encode())
    try:
        msgspec.json.decode(payload_json, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        shown = payload_json if len(payload_json) <= 80 else payload_json[:80] + "…"
        raise InvalidJson(f"payload_json {shown!r} is not JSON: {error}.") from error


def check_id(name: str, value: str) -> None:
    """Raise unless the text can be an identifier in every database."""
    if not value:
        return
    if len(value) * 4 > MAX_ID_BYTES and len(value.encode()) > MAX_ID_BYTES:
        raise InvalidInput(f"{name} {value[:40]!r}… has more than {MAX_ID_BYTES} bytes; use a shorter one.")
    if "\0" in value:
        raise InvalidInput(f"{name} {value!r} has a NUL character, which no database can index; leave it out.")
