"""The names in a certificate, and patterns for them, as `tls_clients` and `verify.certificates` have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tape.errors import CertificateRejected

if TYPE_CHECKING:
    from cryptography import x509

MAX_CACHED = 1_024
# Every call matches the names against a table.
MAX_NAMES = 100

# What `*` stands for in a pattern: one label of a DNS name, one segment of a URI, the local part of a mail address.
_WILDCARDS = {"dns": r"[^.]+", "uri": r"[^/]+", "email": r"[^@]+"}


class SubjectName(NamedTuple):
    """A name in the subjectAltName of a certificate, with its kind: dns, uri or email."""

    kind: str
    text: str


class Certificate(NamedTuple):
    """What is of interest in a certificate."""

    names: tuple[SubjectName, ...]
    fingerprint: str
    expires_at: float


class NamePattern(NamedTuple):
    """A pattern for names of one kind."""

    kind: str
    pattern: re.Pattern[str]

    def matches(self, name: SubjectName) -> bool:
        """Whether a name is of that kind and fits."""
        return name.kind == self.kind and self.pattern.fullmatch(name.text) is not None


def is_too_wide(text: str) -> bool:
    """Whether a pattern would match every name."""
    return "**" in text or not text.strip("*./:@")


@lru_cache(MAX_CACHED)
def compile_pattern(text: str) -> NamePattern:
    """The pattern of a text: a URI with `://`, a mail address with `@`, else a DNS name, in any case."""
    kind = "uri" if "://" in text else "email" if "@" in text else "dns"
    parts = (text.lower() if kind == "dns" else text).split("*")
    return NamePattern(kind, re.compile(_WILDCARDS[kind].join(re.escape(part) for part in parts)))


@lru_cache(MAX_CACHED)
def read_certificate(der: bytes) -> Certificate:
    """Names, fingerprint and expiry of a certificate. CertificateRejected if it cannot be read."""
    from cryptography import x509  # loaded by the first certificate: most processes see none
    from cryptography.hazmat.primitives import hashes

    try:
        certificate = x509.load_der_x509_certificate(der)
        names = tuple(islice(_names(certificate), MAX_NAMES + 1))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise CertificateRejected("certificate_malformed") from error
    if len(names) > MAX_NAMES:
        raise CertificateRejected("certificate_malformed", f"it has more than {MAX_NAMES} names")
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return Certificate(names, fingerprint, certificate.not_valid_after_utc.timestamp())


def _names(certificate: x509.Certificate) -> Iterator[SubjectName]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    for each in found:
        match each:
            case x509.DNSName():
                yield SubjectName("dns", each.value.lower())
            case x509.UniformResourceIdentifier():
                yield SubjectName("uri", each.value)
            case x509.RFC822Name():
                yield SubjectName("email", each.value)
            case _:
                pass  # addresses and directory names are not matched
