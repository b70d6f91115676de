"""Master keys in a file of this machine: for development, and wherever there is no key service."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from pathlib import Path

import msgspec

from tape.base import structs
from tape.engine.security.envelope_encryption import KEY_BYTES, decrypt, encrypt
from tape.errors import SecretDamaged, WalletLocked


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    primary: str
    keys: dict[str, str]

    def __repr__(self) -> str:
        return f"_Content({self.primary!r}, {len(self.keys)} keys)"


class KeyFile:
    """Wraps data keys with the newest key of a file that only its owner can read.

    The file is read each time, so that a rotation is seen by processes that run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"the key file {path}"

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.exists()

    def create(self) -> None:
        """Make the file with one key; nothing if there is one."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        except OSError as error:
            raise WalletLocked(f"The key file {self.path} cannot be made: {error.strerror}.") from error
        name, key = _new_key()
        _write(descriptor, _Content(name, {name: key}))
        _sync_folder(self.path.parent)

    def wrap(self, data_key: bytes, associated_data: bytes) -> tuple[str, bytes]:
        """Wrap with the newest key."""
        content = self._read()
        return content.primary, encrypt(self._key(content, content.primary), data_key, associated_data)

    def unwrap(self, master_key: str, wrapped: bytes, associated_data: bytes) -> bytes:
        """Unwrap with the key of that id."""
        content = self._read()
        if master_key not in content.keys:
            raise WalletLocked(
                f"{self.name} does not have the key {master_key!r} that a secret was sealed with, only"
                f" {', '.join(sorted(content.keys))}. Name the file that has it (wallet_key, TAPE_WALLET_KEY)."
            )
        return decrypt(self._key(content, master_key), wrapped, associated_data)

    def renew(self, in_use: frozenset[str]) -> str:
        """Put a new key in front. Keys that no secret needs leave; the one just replaced stays until the next time,
        for processes that are sealing with it right now."""
        content = self._read()
        name, key = _new_key()
        kept = {each: text for each, text in content.keys.items() if each in in_use or each == content.primary}
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        _write(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), _Content(name, {**kept, name: key}))
        draft.replace(self.path)
        _sync_folder(self.path.parent)
        return name

    def close(self) -> None:
        """Nothing: the file is not kept open."""

    def _read(self) -> _Content:
        try:
            if self.path.stat().st_mode & 0o077:
                raise WalletLocked(
                    f"{self.name} can be read by others; it is no secret any more. Run: chmod 600 {self.path}, and"
                    " `tape wallet rotate` if another user may have read it."
                )
            text = self.path.read_bytes()
        except OSError as error:
            raise WalletLocked(
                f"{self.name} cannot be read: {error.strerror}. Name the right one (wallet_key, TAPE_WALLET_KEY);"
                " `tape wallet set` makes one where there are no secrets yet."
            ) from error
        try:
            content = structs.decode(text, _Content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            content = None
        if content is None or content.primary not in content.keys:
            # What the file says is not repeated: it may be a key.
            raise WalletLocked(f"{self.name} is not a key file of the wallet; nothing was changed.")
        return content

    def _key(self, content: _Content, name: str) -> bytes:
        try:
            key = base64.b64decode(content.keys[name], validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise SecretDamaged(f"The key {name!r} in {self.name} is not {KEY_BYTES} bytes in base64.") from None
        return key


def _new_key() -> tuple[str, str]:
    return f"k-{secrets.token_hex(4)}", base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def _write(descriptor: int, content: _Content) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
