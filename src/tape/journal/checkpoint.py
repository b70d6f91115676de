"""Checkpoints: the head of a journal, signed with Ed25519, to be kept where the journal is not.

The chain has no key, so a process that may write to the database could rewrite the tail and compute its chain values
anew. A checkpoint that was taken before names the entry and its chain value; without the private key none can be made
that fits the rewritten journal. It proves as much as the public key that it is verified with can be trusted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from tape.base import structs
from tape.base.private_files import FILE_MODE, is_private
from tape.errors import InvalidInput
from tape.journal.appender import Head

KEY_FILE = "tape-checkpoint.key"
PREFIX = b"tape-checkpoint-1\n"
MAX_BYTES = 64 << 10
CHAIN_BYTES = 32


class Claim(msgspec.Struct, frozen=True):
    """What a checkpoint says: the entry with this number has this chain value."""

    journal_id: str
    epoch: int
    global_seq: int
    chain: str
    ts_ms: int

    @property
    def content(self) -> bytes:
        """The bytes that are signed."""
        return PREFIX + msgspec.json.encode(self, order="sorted")


class SignedCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A claim and its signature. Key and signature are base64 of their raw bytes."""

    journal_id: str
    epoch: int
    global_seq: int
    chain: str
    ts_ms: int
    public_key: str
    signature: str

    @property
    def claim(self) -> Claim:
        """What is signed."""
        return Claim(self.journal_id, self.epoch, self.global_seq, self.chain, self.ts_ms)

    @property
    def fingerprint(self) -> str:
        """The first 16 hex digits of the SHA-256 of the public key."""
        return fingerprint(_decode("public_key", self.public_key))


def fingerprint(public_key: bytes) -> str:
    """The name of a key in messages."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def sign(head: Head, ts_ms: int, key: Ed25519PrivateKey) -> SignedCheckpoint:
    """A checkpoint of the newest entry."""
    claim = Claim(head.journal_id, head.epoch, head.global_seq, head.chain.hex(), ts_ms)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    signature = key.sign(claim.content)
    return SignedCheckpoint(**msgspec.structs.asdict(claim), public_key=_encode(public), signature=_encode(signature))


def load(path: Path) -> SignedCheckpoint:
    """The checkpoint in a file. Raises InvalidInput."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
        checkpoint = structs.decode(content, SignedCheckpoint)
    except (OSError, UnicodeError, msgspec.DecodeError) as error:
        raise InvalidInput(f"--checkpoint {path} is no checkpoint of tape checkpoint: {error}.") from error
    parse_chain(checkpoint.chain, f"chain of --checkpoint {path}")
    return checkpoint


def check_signature(checkpoint: SignedCheckpoint, public_key: Ed25519PublicKey | None = None) -> bool:
    """Whether the claim was signed with a key, or else with the one that the checkpoint itself has."""
    try:
        signature = _decode("signature", checkpoint.signature)
        key = public_key or Ed25519PublicKey.from_public_bytes(_decode("public_key", checkpoint.public_key))
        key.verify(signature, checkpoint.claim.content)
    except (InvalidSignature, InvalidInput, ValueError):
        return False
    return True


def load_public_key(path: Path) -> Ed25519PublicKey:
    """A public key in PEM, as tape checkpoint writes it beside the private one. Raises InvalidInput."""
    try:
        key = load_pem_public_key(path.read_bytes()[:MAX_BYTES])
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--public-key {path} is no public key in PEM: {error}.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput(f"--public-key {path} is a key of another kind; checkpoints are signed with Ed25519.")
    return key


def load_or_create_key(path: Path) -> tuple[Ed25519PrivateKey, bool]:
    """The private key in a file, and whether it was made now: the file with mode 0600, the public key in `.pub`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        return _load_key(path), False
    except OSError as error:
        raise InvalidInput(f"The key {path} cannot be made: {error.strerror}. Name another file with --key.") from error
    key = Ed25519PrivateKey.generate()
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.flush()
        os.fsync(file.fileno())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_name(f"{path.name}.pub").write_bytes(public)
    return key, True


def parse_chain(text: str, name: str) -> bytes:
    """A chain value in hex. Raises InvalidInput."""
    try:
        chain = bytes.fromhex(text)
    except ValueError:
        chain = b""
    if len(chain) != CHAIN_BYTES:
        raise InvalidInput(f"{name} is {text!r:.80}; a chain value has {2 * CHAIN_BYTES} hex digits.")
    return chain


def _load_key(path: Path) -> Ed25519PrivateKey:
    if not is_private(path):
        raise InvalidInput(f"The key {path} can be read by others: checkpoints prove nothing. Run: chmod 600 {path}")
    try:
        key = load_pem_private_key(path.read_bytes()[:MAX_BYTES], None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"The key {path} is no private key in PEM: {error}.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"The key {path} is a key of another kind; checkpoints are signed with Ed25519.")
    return key


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decode(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"{name} of the checkpoint is not base64.") from error
