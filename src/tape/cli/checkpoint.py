"""`tape checkpoint`: a signed record of the newest entry, to be kept where the journal is not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tape.base.clock import now_ms
from tape.base.extras import require_server_libraries
from tape.base.url_mask import mask_urls
from tape.cli.options import DEFAULT_STORE, StoreOption, run
from tape.errors import StoreDamaged
from tape.journal.appender import Head, read_head
from tape.model.chain import GENESIS
from tape.store import Database, Reader, open_database


def checkpoint(
    store: StoreOption = DEFAULT_STORE,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Private Ed25519 key in PEM (mode 0600), made on first use. [default: tape-checkpoint.key beside the"
            " database]"
        ),
    ] = None,
) -> None:
    """Print a signed checkpoint of the newest entry as JSON. Keep it, and the public key, on another machine.

    tape verify --checkpoint FILE --public-key FILE later proves that the journal still has that entry, unchanged.
    """
    require_server_libraries("tape checkpoint")
    from tape.journal.checkpoint import fingerprint, load_or_create_key, sign

    head = run(_head(open_database(store, migrate=False, create=False)))
    path = key or default_key(store)
    private, is_new = load_or_create_key(path)
    if is_new:
        name = fingerprint(private.public_key().public_bytes_raw())
        typer.echo(f"Made the key {path} (fingerprint {name}); copy {path}.pub to where you verify.", err=True)
    typer.echo(msgspec.json.encode(sign(head, now_ms(), private)).decode())


def default_key(store: str) -> Path:
    """The key beside the database file, as the key of the wallet; in the working directory with PostgreSQL."""
    from tape.journal.checkpoint import KEY_FILE

    scheme, _, path = store.partition(":")
    return Path(path).with_name(KEY_FILE) if scheme == "sqlite" and path else Path(KEY_FILE)


async def _head(database: Database) -> Head:
    async with database:
        return await database.read(lambda reader: _checked_head(reader, database))


def _checked_head(reader: Reader, database: Database) -> Head:
    """The head, unless the witness knows more, or it is not that of the newest entry: that is not to be signed."""
    if (loss := database.witness.find_loss(reader)) is not None:
        raise loss.error(mask_urls(database.url), database.witness.name)
    while True:
        head = read_head(reader)
        row = reader.one("SELECT max(global_seq) FROM tape_journal")
        newest = (row[0] if row else None) or 0
        row = reader.one("SELECT chain FROM tape_journal WHERE global_seq = ?", head.global_seq)
        chain = row[0] if row is not None else head.anchor if head.global_seq == head.oldest - 1 else GENESIS
        if newest <= head.global_seq or read_head(reader) == head:
            break
    if chain != head.chain or newest > head.global_seq:
        raise StoreDamaged(
            f"The head row of {mask_urls(database.url)} is not that of the newest entry. Run: tape verify"
            f" --store {mask_urls(database.url)}"
        )
    return head
