"""RSA: the key of a provider's certificate, and signatures that are made with it."""

from __future__ import annotations

import re
import time

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

MIN_KEY_BITS = 2_048

# Version 1 of SNS signs with SHA-1.
_HASHES: dict[str, type[hashes.HashAlgorithm]] = {"sha1": hashes.SHA1, "sha256": hashes.SHA256}


def read_signing_key(pem: bytes, name_pattern: re.Pattern[str]) -> tuple[rsa.RSAPublicKey, float]:
    """The key of the first certificate of a PEM file and when it expires. ValueError says what is wrong with it."""
    certificate = x509.load_pem_x509_certificates(pem)[0]
    now = time.time()
    expires_at = certificate.not_valid_after_utc.timestamp()
    if not certificate.not_valid_before_utc.timestamp() <= now < expires_at:
        raise ValueError(f"it is valid from {certificate.not_valid_before_utc} to {certificate.not_valid_after_utc}")
    names = _names(certificate)
    if not any(name_pattern.fullmatch(name) for name in names):
        raise ValueError(f"it is for {', '.join(sorted(names))[:200] or 'no name'}")
    key = certificate.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < MIN_KEY_BITS:
        raise ValueError(f"its key is not RSA of {MIN_KEY_BITS} bits or more")
    return key, expires_at


def is_signed(key: rsa.RSAPublicKey, signature: bytes, text: bytes, algorithm: str) -> bool:
    """Whether a signature of a text (PKCS #1 v1.5, with sha1 or sha256) was made with the private key of this one."""
    try:
        key.verify(signature, text, padding.PKCS1v15(), _HASHES[algorithm]())
    except InvalidSignature:
        return False
    return True


def _names(certificate: x509.Certificate) -> set[str]:
    common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    names = {str(each.value).lower() for each in common}
    try:
        other = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return names
    return names | {name.lower() for name in other.get_values_for_type(x509.DNSName)}
