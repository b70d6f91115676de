"""What `tape verify` is given to compare the journal with: `--expect SEQ:CHAIN` and `--checkpoint FILE`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tape.base.extras import require_server_libraries
from tape.errors import InvalidInput
from tape.journal.findings import Finding
from tape.journal.proofs import find_other_journal, find_unexpected
from tape.journal.verifier import Check
from tape.model.chain import GENESIS
from tape.model.entry import MAX_SEQ


class Expectation(msgspec.Struct, frozen=True):
    """An entry that must be in the journal with a chain value, and what knows it."""

    global_seq: int
    chain: bytes
    source: str
    journal_id: str = ""
    # What the source proves, if the journal agrees with it.
    meaning: str = ""

    @property
    def checks(self) -> list[Check]:
        """The checks of the journal; an empty journal has nothing to check."""
        checks = [find_other_journal(self.journal_id, self.source)] if self.journal_id else []
        return [*checks, find_unexpected(self.global_seq, self.chain, self.source)] if self.global_seq else checks

    def compare(self, archived: bytes | None) -> list[Finding]:
        """What is wrong with a pruned entry, by the chain value that a verified archive has for it."""
        if archived is None:
            return [Finding(self.global_seq, "missing", f"{self.source} knows it; journal and archive do not have it")]
        if archived == self.chain:
            return []
        said = f"has the chain value {archived.hex()} in the archive, {self.source} says {self.chain.hex()}"
        return [Finding(self.global_seq, "altered", said)]


def parse_expect(text: str) -> Expectation:
    """`SEQ:CHAIN`, the number of an entry and its chain value in hex. Raises InvalidInput."""
    match = re.fullmatch(r"([0-9]{1,19}):([0-9a-fA-F]{64})", text)
    if match is None or not 0 < int(match[1]) <= MAX_SEQ:
        raise InvalidInput(
            f"--expect {text!r:.100} must be SEQ:CHAIN, a global_seq and its chain value of 64 hex digits, for example"
            f" 1042:{GENESIS.hex()[:8]}…; tape checkpoint prints both."
        )
    return Expectation(int(match[1]), bytes.fromhex(match[2]), "--expect")


def load_checkpoint(path: Path, public_key: Path | None) -> Expectation:
    """The entry of a checkpoint whose signature is right. Raises InvalidInput."""
    require_server_libraries("tape verify --checkpoint")
    from tape.journal.checkpoint import check_signature, load, load_public_key, parse_chain

    checkpoint = load(path)
    key = load_public_key(public_key) if public_key is not None else None
    if not 0 <= checkpoint.global_seq <= MAX_SEQ:
        raise InvalidInput(f"--checkpoint {path}: global_seq is {checkpoint.global_seq}; no entry has that number.")
    if not check_signature(checkpoint, key):
        signer = f"the key {public_key}" if public_key is not None else "the key in it"
        raise InvalidInput(
            f"--checkpoint {path} was not signed with {signer}: it was changed, or made with another key. It proves"
            " nothing."
        )
    meaning = f"signed with the key {checkpoint.fingerprint}"
    if key is None:
        meaning += (
            ", which is known from the checkpoint alone: a process that could write both the journal and the checkpoint"
            " could have signed it anew. Give --public-key to exclude that"
        )
    chain = parse_chain(checkpoint.chain, f"chain of --checkpoint {path}")
    return Expectation(checkpoint.global_seq, chain, f"the checkpoint {path}", checkpoint.journal_id, meaning)
