"""The principal of a client certificate: the first row of `tls_clients` whose pattern one of its names matches.

TLS has verified the certificate when this is asked: its signature, its dates, and that its key is the client's.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from tape.base.config import TlsClient
from tape.errors import CertificateRejected, InvalidConfig
from tape.model.entry import check_id
from tape.model.principal import ALL_TENANTS, SCOPES, SYSTEM_SCOPE, Principal, expand_scopes

# The key of a principal that came from a certificate: this and the first 16 hexadecimal digits of its SHA-256.
KEY_ID_PREFIX = "cert:"
KEY_ID_DIGITS = 16
MAX_CACHED = 1_024
# Every call matches the names against the table.
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


class _Row(NamedTuple):
    kind: str
    pattern: re.Pattern[str]
    tenant: str
    scopes: frozenset[str]


class ClientCertificates:
    """Gives the clients of the table `tls_clients` their tenant and scopes. An empty table gives none."""

    def __init__(self, rows: Sequence[TlsClient] = ()) -> None:
        self._rows = [_compile(row) for row in rows]

    def __bool__(self) -> bool:
        return bool(self._rows)

    def principal_of(self, der: bytes, session: str = "") -> Principal:
        """The principal of a verified certificate. CertificateRejected if it matches no row or has expired since."""
        check_id("x-harbor-session", session)
        certificate = read_certificate(der)
        if time.time() >= certificate.expires_at:
            raise CertificateRejected("certificate_expired")
        for row in self._rows:
            for name in certificate.names:
                if name.kind == row.kind and row.pattern.fullmatch(name.text):
                    return Principal(
                        tenant=row.tenant,
                        user=name.text,
                        session=session,
                        scopes=row.scopes,
                        key_id=KEY_ID_PREFIX + certificate.fingerprint[:KEY_ID_DIGITS],
                        expires_at=certificate.expires_at,
                    )
        raise CertificateRejected("certificate_unknown", _shown(certificate))


@lru_cache(MAX_CACHED)
def read_certificate(der: bytes) -> Certificate:
    """Names, fingerprint and expiry of a certificate. CertificateRejected if it cannot be read."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = tuple(islice(_names(certificate), MAX_NAMES + 1))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise CertificateRejected("certificate_malformed") from error
    if len(names) > MAX_NAMES:
        raise CertificateRejected("certificate_malformed", f"it has more than {MAX_NAMES} names")
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return Certificate(names, fingerprint, certificate.not_valid_after_utc.timestamp())


@lru_cache(MAX_CACHED)
def to_der(pem: bytes) -> bytes:
    """A certificate in PEM, as gRPC has it, in DER."""
    return ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))


def _shown(certificate: Certificate) -> str:
    names = ", ".join(name.text[:100] for name in certificate.names[:5]) or "no DNS name, URI or mail address"
    return f"{names}; no row of tls_clients on the server matches it: add one, or send a token"


def _names(certificate: x509.Certificate) -> Iterator[SubjectName]:
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


def _compile(row: TlsClient) -> _Row:
    shown = f"tls_clients has san {row.san!r}"
    kind = "uri" if "://" in row.san else "email" if "@" in row.san else "dns"
    text = row.san.lower() if kind == "dns" else row.san
    if "**" in text or not text.strip("*./:@"):
        raise InvalidConfig(f"{shown}, which would match every name; * stands for one label of a DNS name only.")
    if unknown := set(row.scopes) - SCOPES:
        raise InvalidConfig(f"{shown} with the scope {min(unknown)!r}; there are {', '.join(sorted(SCOPES))}.")
    scopes = expand_scopes(frozenset(row.scopes))
    if not row.tenant and scopes.isdisjoint({ALL_TENANTS, SYSTEM_SCOPE}):
        raise InvalidConfig(f"{shown} without a tenant; name one, or give it the scope {ALL_TENANTS}.")
    if "\0" in row.tenant:
        raise InvalidConfig(f"{shown} with the tenant {row.tenant!r}; a tenant has no NUL.")
    pattern = _WILDCARDS[kind].join(re.escape(part) for part in text.split("*"))
    return _Row(kind, re.compile(pattern), row.tenant, scopes)
