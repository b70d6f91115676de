"""Redaction: secrets are removed from payloads before they are stored, so no disk, stream, sink or job has them."""

from tape.engine.security.redaction.engine import Redactor, may_have_secret
from tape.engine.security.redaction.findings import HIDDEN, SecretSpan, replace_spans
from tape.engine.security.redaction.keys import is_secret
from tape.engine.security.redaction.media import MEDIA
from tape.engine.security.redaction.tenants import TenantRedactors

__all__ = [
    "HIDDEN",
    "MEDIA",
    "Redactor",
    "SecretSpan",
    "TenantRedactors",
    "is_secret",
    "may_have_secret",
    "replace_spans",
]
