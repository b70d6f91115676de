"""Certificates for development: an authority on this machine, and certificates signed by it."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tape.base.private_files import make_private_folder, open_private
from tape.errors import InvalidConfig, InvalidInput

CA_DAYS = 3_650
# Browsers and some libraries refuse certificates that are valid for longer than 398 days.
CERTIFICATE_DAYS = 397
# A certificate is made anew when less than this is left of it.
RENEW_DAYS = 30
HOSTS = ("localhost", "127.0.0.1", "::1")


class Pair(NamedTuple):
    """A certificate and its key in files, and whether they were made just now."""

    cert: Path
    key: Path
    is_new: bool


class DevAuthority:
    """An authority in a folder: `ca.crt`, and `ca.key`, which only its owner can read. Made if there is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_private_folder(folder)
        self.cert = folder / "ca.crt"
        key = folder / "ca.key"
        found = _read_pair(self.cert, key)
        self.is_new = found is None
        if found is None:
            private = ec.generate_private_key(ec.SECP256R1())
            found = _certificate("Tape development CA", private, None, CA_DAYS), private
            _write_pair(self.cert, key, *found)
        self._certificate, self._key = found

    def server(self, hosts: Sequence[str] = ()) -> Pair:
        """A certificate for `localhost`, its addresses and further names or addresses of this machine."""
        names = [_general_name(host) for host in dict.fromkeys((*HOSTS, *hosts))]
        return self._pair("server", names, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, name: str) -> Pair:
        """A certificate for a client: a DNS name, or a URI such as spiffe://acme/worker."""
        return self._pair(_file_name(name), [_client_name(name)], ExtendedKeyUsageOID.CLIENT_AUTH)

    def _pair(self, file_name: str, names: Sequence[x509.GeneralName], usage: x509.ObjectIdentifier) -> Pair:
        cert, key = self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key"
        found = _read_pair(cert, key)
        if found is not None and self._is_good(found[0], names, usage):
            return Pair(cert, key, is_new=False)
        private = found[1] if found is not None else ec.generate_private_key(ec.SECP256R1())
        made = _certificate(file_name, private, (self._certificate, self._key), CERTIFICATE_DAYS, names, usage)
        _write_pair(cert, key, made, private)
        return Pair(cert, key, is_new=True)

    def _is_good(
        self, found: x509.Certificate, names: Sequence[x509.GeneralName], usage: x509.ObjectIdentifier
    ) -> bool:
        """Whether a certificate was signed by this authority, is for these names and use, and will not expire soon."""
        left = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        try:
            found.verify_directly_issued_by(self._certificate)
            has = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            used_for = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except Exception:  # cryptography has many reasons, and each means the same here
            return False
        return left.days >= RENEW_DAYS and set(names) <= set(has) and usage in used_for


def _certificate(
    name: str,
    private: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    days: int,
    names: Sequence[x509.GeneralName] = (),
    usage: x509.ObjectIdentifier | None = None,
) -> x509.Certificate:
    """A certificate; without an issuer that of an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    is_ca = issuer is None
    signing_name, signing_key = (issuer[0].subject, issuer[1]) if issuer else (subject, private)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signing_name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # for clocks that are behind
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(_key_usage(is_ca=is_ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return builder.sign(signing_key, hashes.SHA256())


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii() or any(character in host for character in " /:@"):
        raise InvalidInput(f"--host {host!r} must be a host name or an address, for example tape.internal.")
    return x509.DNSName(host.lower())


def _client_name(name: str) -> x509.GeneralName:
    if "://" in name and name.isascii() and name.isprintable() and " " not in name:
        return x509.UniformResourceIdentifier(name)
    if not name or not name.isascii() or any(character in name for character in " /:@*"):
        raise InvalidInput(
            f"--client {name!r} must be a DNS name or a URI, for example worker.acme.internal or spiffe://acme/worker."
        )
    return x509.DNSName(name.lower())


def _file_name(name: str) -> str:
    plain = name.partition("://")[2] or name
    found = "".join(character if character.isalnum() or character in ".-_" else "-" for character in plain).strip(".-")
    if not found or found in ("ca", "server"):
        raise InvalidInput(f"--client {name!r} would be the file {found or '.'}.crt; choose another name.")
    return found


def _read_pair(cert: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """What is in the files; None if neither exists."""
    if not cert.exists() and not key.exists():
        return None
    try:
        certificate = x509.load_pem_x509_certificate(cert.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidConfig(
            f"{cert} and {key} are no certificate and its key ({error}); remove both, and `tape certs dev` makes them."
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != certificate.public_key():
        raise InvalidConfig(f"{key} is not the key of {cert}; remove both, and `tape certs dev` makes them.")
    return certificate, private


def _write_pair(cert: Path, key: Path, certificate: x509.Certificate, private: ec.EllipticCurvePrivateKey) -> None:
    """Write both files, each at once, so that a server that watches them never sees half of one."""
    _write(
        key,
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
    _write(cert, certificate.public_bytes(serialization.Encoding.PEM))
    cert.chmod(0o644)


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb", opener=open_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be written: {error.strerror}.") from error
