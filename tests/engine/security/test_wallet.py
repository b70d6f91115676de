"""The wallet: what goes in comes out to those who may, and shows itself nowhere else."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import subprocess
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tape.engine.security.envelope_encryption import SealedSecret, seal, unseal
from tape.engine.security.keyfile import KeyFile
from tape.engine.security.kms import GoogleKms
from tape.engine.security.wallet import Wallet, master_keys, text_of
from tape.errors import (
    InvalidConfig,
    InvalidInput,
    KeyServiceUnavailable,
    SecretDamaged,
    SecretNotFound,
    TapeError,
    WalletLocked,
)
from tape.store import Database, Transaction, open_database
from tests.forked import tape

SECRET = "whsec_4f2cQm9vdGxlZw"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "wallet.key"
    KeyFile(path).create()
    return path


@pytest.fixture
def wallet(database: Database, key_file: Path) -> Wallet:
    return Wallet(database, KeyFile(key_file))


# ── sealing ──────────────────────────────────────────────────────────────────────────────────────


def test_a_sealed_secret_opens_only_for_its_own_alias_and_version(key_file: Path) -> None:
    keys = KeyFile(key_file)
    sealed = seal(b"secret", "stripe/1", keys)
    assert unseal(sealed, "stripe/1", keys) == b"secret"
    for other in ("stripe/2", "other/1"):
        with pytest.raises(SecretDamaged):
            unseal(sealed, other, keys)


def test_two_seals_of_one_secret_share_nothing(key_file: Path) -> None:
    keys = KeyFile(key_file)
    one, two = seal(b"secret", "a/1", keys), seal(b"secret", "a/1", keys)
    assert one.sealed != two.sealed
    assert one.wrapped_key != two.wrapped_key


@pytest.mark.parametrize("part", ["wrapped_key", "sealed"])
def test_every_changed_bit_is_noticed(key_file: Path, part: str) -> None:
    keys = KeyFile(key_file)
    good = seal(b"s", "a/1", keys)
    content: bytes = getattr(good, part)
    for index in range(len(content)):
        bad = content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :]
        with pytest.raises(SecretDamaged):
            unseal(good._replace(**{part: bad}), "a/1", keys)
    for short in (b"", content[:11], content[:-1]):
        with pytest.raises(SecretDamaged):
            unseal(good._replace(**{part: short}), "a/1", keys)


# ── the wallet ───────────────────────────────────────────────────────────────────────────────────


async def test_a_secret_comes_out_as_it_went_in(wallet: Wallet) -> None:
    secrets: list[Any] = [SECRET, {"url": "nats://x", "token": SECRET}, "ключ\n", "a" * 60_000]
    for secret in secrets:
        await wallet.set("main", secret)
        assert await wallet.reveal("main") == secret


async def test_the_database_holds_nothing_readable(wallet: Wallet, database: Database) -> None:
    await wallet.set("main", SECRET, by="ada")
    rows = await database.read(lambda reader: reader.query("SELECT * FROM tape_secrets"))
    journal = await database.read(lambda reader: reader.query("SELECT payload_json, subject FROM tape_journal"))
    shown = repr([[bytes(cell) if isinstance(cell, memoryview) else cell for cell in row] for row in rows])
    assert SECRET not in shown
    assert [(json.loads(payload), subject) for payload, subject in journal] == [
        ({"alias": "main", "version": 1, "by": "ada"}, "/tape/wallet/set/main")
    ]


async def test_a_new_version_replaces_the_old_one_at_once_or_when_its_time_is_up(wallet: Wallet) -> None:
    await wallet.set("main", "one")
    await wallet.set("main", "two")
    assert await wallet.reveal_all("main") == ["two"]
    await wallet.set("main", "three", keep_previous_s=3600)
    await wallet.set("main", "four", keep_previous_s=60)
    assert await wallet.reveal_all("main") == ["four", "three", "two"]
    # Without a time for those before, none of them is good any more.
    await wallet.set("main", "five")
    assert await wallet.reveal_all("main") == ["five"]
    assert [(each.version, each.retires_at_ms) for each in await wallet.list()] == [(5, 0)]


async def test_versions_whose_time_is_up_are_neither_given_out_nor_kept(wallet: Wallet, database: Database) -> None:
    await wallet.set("main", "one")
    await wallet.set("main", "two", keep_previous_s=3600)
    await database.write(lambda tx: tx.execute("UPDATE tape_secrets SET retires_at_ms = 1 WHERE retires_at_ms > 0"))
    assert await wallet.reveal_all("main") == ["two"]
    await wallet.delete_retired()
    assert [each.version for each in await wallet.list()] == [2]


async def test_many_who_set_at_once_each_get_a_version_of_their_own(wallet: Wallet) -> None:
    held = await asyncio.gather(*(wallet.set("main", f"s{n}", keep_previous_s=60) for n in range(8)))
    assert sorted(each.version for each in held) == list(range(1, 9))
    assert sorted(await wallet.reveal_all("main"), key=str) == [f"s{n}" for n in range(8)]


async def test_a_row_moved_to_another_alias_does_not_open(wallet: Wallet, database: Database) -> None:
    await wallet.set("cheap", "one")
    await wallet.set("dear", "two")

    def swap(tx: Transaction) -> None:
        row = tx.one("SELECT wrapped_key, sealed FROM tape_secrets WHERE alias = 'cheap'")
        assert row is not None
        tx.execute("UPDATE tape_secrets SET wrapped_key = ?, sealed = ? WHERE alias = 'dear'", *row)

    await database.write(swap)
    with pytest.raises(SecretDamaged):
        await wallet.reveal("dear")


async def test_a_missing_secret_is_named_with_its_nearest_neighbour(wallet: Wallet) -> None:
    await wallet.set("stripe_webhook", "x")
    with pytest.raises(SecretNotFound, match=r"'stripe_webhok'.*nearest is 'stripe_webhook'"):
        await wallet.reveal("stripe_webhok")
    with pytest.raises(SecretNotFound):
        await wallet.delete("other")
    await wallet.delete("stripe_webhook", by="ada")
    with pytest.raises(SecretNotFound):
        await wallet.reveal("stripe_webhook")


async def test_an_alias_must_be_a_plain_name(wallet: Wallet) -> None:
    for alias in ("", "a b", "../x", "-x", "a/b", "x" * 129, "é"):
        with pytest.raises(InvalidInput, match="alias"):
            await wallet.set(alias, "x")


async def test_an_empty_or_huge_secret_is_refused_without_being_repeated(wallet: Wallet) -> None:
    for secret in ("", {}, "a" * 70_000):
        with pytest.raises(InvalidInput) as refused:
            await wallet.set("main", secret)  # type: ignore[arg-type]
        assert "aaaa" not in str(refused.value)


def test_the_text_of_a_secret_with_fields_is_its_first_known_field() -> None:
    assert text_of("a", "bare") == "bare"
    assert text_of("a", {"user": "u", "password": "p"}) == "p"
    assert text_of("a", {"password": "p", "token": "t"}) == "t"
    with pytest.raises(InvalidInput, match="'a' has none of the fields"):
        text_of("a", {"user": SECRET})


# ── rotation ─────────────────────────────────────────────────────────────────────────────────────


async def test_rotation_renews_both_keys_and_keeps_every_secret(
    wallet: Wallet, database: Database, key_file: Path
) -> None:
    for n in range(5):
        await wallet.set(f"s{n}", f"secret {n}")
    await wallet.set("s0", "newer", keep_previous_s=3600)
    before = await _rows(database)
    count, master_key = await wallet.rotate(by="ada")
    after = await _rows(database)
    assert count == 6
    assert {row.master_key for row in after} == {master_key} != {row.master_key for row in before}
    assert not {row.wrapped_key for row in after} & {row.wrapped_key for row in before}
    assert not {row.sealed for row in after} & {row.sealed for row in before}
    assert await wallet.reveal_all("s0") == ["newer", "secret 0"]
    assert await wallet.reveal("s4") == "secret 4"
    # The key before the last one has left the file by the next rotation.
    await wallet.rotate()
    await wallet.rotate()
    assert before[0].master_key not in json.loads(key_file.read_text())["keys"]
    assert len(json.loads(key_file.read_text())["keys"]) == 2
    assert key_file.stat().st_mode & 0o777 == 0o600


async def test_only_data_keys_can_be_renewed(wallet: Wallet, database: Database) -> None:
    await wallet.set("main", "x")
    before = await _rows(database)
    await wallet.rotate(new_master_key=False)
    after = await _rows(database)
    assert after[0].master_key == before[0].master_key
    assert after[0].wrapped_key != before[0].wrapped_key


async def test_a_rotation_that_was_cut_off_leaves_everything_readable_and_is_finished_by_the_next(
    wallet: Wallet, database: Database, key_file: Path
) -> None:
    for n in range(4):
        await wallet.set(f"s{n}", f"secret {n}")
    rotating = asyncio.create_task(wallet.rotate())
    while len({row.master_key for row in await _rows(database)}) < 2 and not rotating.done():
        await asyncio.sleep(0)
    rotating.cancel()
    await asyncio.gather(rotating, return_exceptions=True)
    for n in range(4):
        assert await wallet.reveal(f"s{n}") == f"secret {n}"
    _, master_key = await wallet.rotate()
    assert {row.master_key for row in await _rows(database)} == {master_key}
    for n in range(4):
        assert await wallet.reveal(f"s{n}") == f"secret {n}"


async def _rows(database: Database) -> list[SealedSecret]:
    rows = await database.read(
        lambda reader: reader.query("SELECT master_key, wrapped_key, sealed FROM tape_secrets ORDER BY alias, version")
    )
    return [SealedSecret(key, bytes(wrapped), bytes(sealed)) for key, wrapped, sealed in rows]


# ── the key file ─────────────────────────────────────────────────────────────────────────────────


def test_a_key_file_that_others_can_read_is_refused(key_file: Path) -> None:
    sealed = seal(b"x", "a/1", KeyFile(key_file))
    for mode in (0o640, 0o604, 0o620, 0o666):
        key_file.chmod(mode)
        with pytest.raises(WalletLocked, match="chmod 600"):
            unseal(sealed, "a/1", KeyFile(key_file))
    key_file.chmod(0o600)
    assert unseal(sealed, "a/1", KeyFile(key_file)) == b"x"


def test_a_wrong_a_missing_and_a_broken_key_file_say_what_to_do_and_show_no_key(tmp_path: Path, key_file: Path) -> None:
    sealed = seal(b"x", "a/1", KeyFile(key_file))
    other = tmp_path / "other.key"
    KeyFile(other).create()
    with pytest.raises(WalletLocked, match="does not have the key 'k-"):
        unseal(sealed, "a/1", KeyFile(other))
    with pytest.raises(WalletLocked, match="cannot be read: No such file"):
        unseal(sealed, "a/1", KeyFile(tmp_path / "none"))
    key = json.loads(key_file.read_text())["keys"][sealed.master_key]
    broken = tmp_path / "broken"
    for text in (key, '{"primary": "' + key, '{"primary": "x", "keys": {}}', '{"primary": 1, "keys": "' + key + '"}'):
        broken.write_text(text)
        broken.chmod(0o600)
        with pytest.raises(WalletLocked, match="not a key file") as refused:
            unseal(sealed, "a/1", KeyFile(broken))
        assert key not in "".join(traceback.format_exception(refused.value))


def test_the_same_name_with_another_key_does_not_open(key_file: Path) -> None:
    sealed = seal(b"x", "a/1", KeyFile(key_file))
    content = json.loads(key_file.read_text())
    content["keys"][sealed.master_key] = base64.b64encode(os.urandom(32)).decode()
    key_file.write_text(json.dumps(content))
    with pytest.raises(SecretDamaged):
        unseal(sealed, "a/1", KeyFile(key_file))
    content["keys"][sealed.master_key] = "c2hvcnQ="
    key_file.write_text(json.dumps(content))
    with pytest.raises(SecretDamaged, match="not 32 bytes"):
        unseal(sealed, "a/1", KeyFile(key_file))


# ── Google KMS ───────────────────────────────────────────────────────────────────────────────────

RESOURCE = "projects/p/locations/global/keyRings/r/cryptoKeys/k"


class Kms(BaseHTTPRequestHandler):
    """Answers `:encrypt` and `:decrypt` as the REST reference of Cloud KMS describes them."""

    versions: ClassVar[list[bytes]] = [os.urandom(32)]
    failures: ClassVar[list[int]] = []
    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Kms.seen.append(self.path)
        if self.headers["authorization"] != "Bearer good":
            self.answer(403, {"error": {"code": 403, "message": "Permission denied.", "status": "PERMISSION_DENIED"}})
        elif Kms.failures:
            self.answer(Kms.failures.pop(), {"error": {"message": "try later"}})
        else:
            self.work(body)

    def work(self, body: dict[str, str]) -> None:
        bound = base64.b64decode(body["additionalAuthenticatedData"])
        if self.path == f"/v1/{RESOURCE}:encrypt":
            number, nonce = len(Kms.versions), os.urandom(12)
            plain = base64.b64decode(body["plaintext"])
            blob = bytes([number]) + nonce + AESGCM(Kms.versions[-1]).encrypt(nonce, plain, bound)
            name = f"{RESOURCE}/cryptoKeyVersions/{number}"
            self.answer(200, {"name": name, "ciphertext": base64.b64encode(blob).decode()})
        else:
            blob = base64.b64decode(body["ciphertext"])
            try:
                plain = AESGCM(Kms.versions[blob[0] - 1]).decrypt(blob[1:13], blob[13:], bound)
            except Exception:
                self.answer(400, {"error": {"message": "Decryption failed: the ciphertext is invalid."}})
            else:
                self.answer(200, {"plaintext": base64.b64encode(plain).decode(), "usedPrimary": True})

    def answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def kms_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kms)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def kms(kms_url: str) -> Iterator[GoogleKms]:
    Kms.failures.clear()
    keys = GoogleKms(RESOURCE, endpoint=kms_url, token=lambda: "good")
    yield keys
    keys.close()


async def test_kms_wraps_the_data_keys_and_its_new_version_is_taken_by_a_rotation(
    kms: GoogleKms, sqlite_url: str
) -> None:
    async with open_database(sqlite_url) as database:
        wallet = Wallet(database, kms)
        held = await wallet.set("main", SECRET)
        assert held.master_key == f"{RESOURCE}/cryptoKeyVersions/{len(Kms.versions)}"
        Kms.versions.append(os.urandom(32))
        assert await wallet.reveal("main") == SECRET
        count, master_key = await wallet.rotate()
        assert (count, master_key) == (1, f"{RESOURCE}/cryptoKeyVersions/{len(Kms.versions)}")
        assert await wallet.reveal("main") == SECRET


def test_kms_requests_are_retried_and_an_outage_is_reported(kms: GoogleKms) -> None:
    Kms.failures[:] = [503, 429]
    sealed = seal(b"x", "a/1", kms)
    Kms.failures[:] = [503] * 9
    with pytest.raises(KeyServiceUnavailable, match="answered 503 to decrypt: try later"):
        unseal(sealed, "a/1", kms)
    Kms.failures.clear()
    gone = GoogleKms(RESOURCE, endpoint="http://127.0.0.1:9", token=lambda: "good")
    with pytest.raises(KeyServiceUnavailable, match="cannot be reached"):
        unseal(sealed, "a/1", gone)
    gone.close()


def test_kms_rejects_a_secret_of_another_alias_and_a_caller_without_permission(kms: GoogleKms, kms_url: str) -> None:
    sealed = seal(b"x", "a/1", kms)
    with pytest.raises(SecretDamaged):
        unseal(sealed, "b/1", kms)
    stranger = GoogleKms(RESOURCE, endpoint=kms_url, token=lambda: "bad")
    with pytest.raises(WalletLocked, match="403 to decrypt: Permission denied"):
        unseal(sealed, "a/1", stranger)
    stranger.close()
    with pytest.raises(WalletLocked, match="was sealed with k-1"):
        unseal(sealed._replace(master_key="k-1"), "a/1", kms)


def test_the_location_of_the_master_key_says_which_kind_it_is(tmp_path: Path) -> None:
    assert isinstance(master_keys(str(tmp_path / "k"), ""), KeyFile)
    beside = master_keys("", f"sqlite:{tmp_path}/tape.db")
    assert isinstance(beside, KeyFile)
    assert beside.path == tmp_path / "tape-wallet.key"
    with pytest.raises(InvalidConfig, match="must look like projects/"):
        master_keys("gcp-kms://projects/p", "")
    keys = master_keys(f"gcp-kms://{RESOURCE}", "")
    assert isinstance(keys, GoogleKms)
    keys.close()


# ── nothing shows ────────────────────────────────────────────────────────────────────────────────


async def test_no_error_log_traceback_or_repr_shows_a_secret_or_a_key(
    wallet: Wallet, database: Database, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await wallet.set("main", SECRET)
    keys = json.loads(key_file.read_text())["keys"].values()
    seen = [repr(wallet), repr(await wallet.list()), repr(KeyFile(key_file)), repr(KeyFile(key_file)._read())]
    await database.write(lambda tx: tx.execute("UPDATE tape_secrets SET sealed = wrapped_key"))
    for doing in (wallet.reveal("main"), wallet.reveal(f"other-{'x'}"), wallet.set("", SECRET), wallet.rotate()):
        try:
            await doing
        except TapeError as error:
            seen.append("".join(traceback.TracebackException.from_exception(error, capture_locals=False).format()))
    text = "".join(seen) + caplog.text
    assert len(seen) == 8
    for hidden in (SECRET, *keys):
        assert hidden not in text


# ── the command line ─────────────────────────────────────────────────────────────────────────────


def wallet_command(*arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return tape("wallet", *arguments, stdin=stdin, cwd=cwd)


def test_the_command_line_takes_secrets_from_a_pipe_and_never_shows_them(tmp_path: Path) -> None:
    made = wallet_command("set", "stripe", cwd=tmp_path, stdin=SECRET + "\n")
    assert (made.returncode, made.stdout[:26]) == (0, "stripe is set, version 1, ")
    assert "Keep a copy of it" in made.stderr
    assert (tmp_path / "tape-wallet.key").stat().st_mode & 0o777 == 0o600
    fields = json.dumps({"url": "nats://x", "token": SECRET})
    assert wallet_command("set", "nats_main", "--json", cwd=tmp_path, stdin=fields).returncode == 0
    listed = wallet_command("list", cwd=tmp_path)
    assert re.findall(r"^(\w+) +1 ", listed.stdout, re.MULTILINE) == ["nats_main", "stripe"]
    rotated = wallet_command("rotate", cwd=tmp_path)
    assert rotated.stdout.startswith("2 secrets are re-encrypted with k-")
    deleted = wallet_command("delete", "nats_main", "--yes", cwd=tmp_path)
    assert deleted.stdout == "nats_main is removed.\n"
    bad = wallet_command("set", "x", "--json", cwd=tmp_path, stdin=SECRET)
    assert (bad.returncode, "is not a JSON object" in bad.stderr) == (1, True)
    (tmp_path / "tape-wallet.key").unlink()
    lost = wallet_command("set", "y", cwd=tmp_path, stdin=SECRET)
    assert (lost.returncode, "has secrets that were sealed with one" in lost.stderr) == (1, True)
    asked = wallet_command("set", "--help", cwd=tmp_path)
    for done in (made, listed, rotated, deleted, bad, lost, asked):
        assert SECRET not in done.stdout + done.stderr

    async def emitted() -> list[str]:
        async with open_database(f"sqlite:{tmp_path / 'tape.db'}") as database:
            query = "SELECT subject FROM tape_journal ORDER BY global_seq"
            return [row[0] for row in await database.read(lambda reader: reader.query(query))]

    verbs = ["set/stripe", "set/nats_main", "rotated", "deleted/nats_main"]
    assert asyncio.run(emitted()) == [f"/tape/wallet/{verb}" for verb in verbs]
