"""Following of the hash chain over entries, and naming of what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tape.journal.epochs import Epoch
from tape.journal.findings import Finding, Problem, VerifyReport
from tape.journal.salvage import DamagedRow
from tape.model import subject
from tape.model.chain import CHAIN_BYTES, TEXTS, canonical, link

_SUBJECT = 4 + TEXTS.index("subject")
_PAYLOAD = 4 + TEXTS.index("payload_json")
_FACTS = ("epoch", "cut_after", "resumes_at", "last_known")


class ChainWalk:
    """The chain as far as it was followed.

    After an altered entry either its stored or its recomputed chain value may be the true one:
    the next entry is accepted if it fits one of them, so one change is reported once.
    """

    def __init__(self, report: VerifyReport, anchor: bytes, epochs: Sequence[Epoch] = ()) -> None:
        self._report = report
        self._previous: tuple[bytes, ...] = (anchor,) if len(anchor) == CHAIN_BYTES else ()
        self._next = report.oldest
        self._epochs: Mapping[int, Epoch] = {epoch.resumes_at: epoch for epoch in epochs}

    def check(self, row: Sequence[object]) -> bool:
        """Follow the chain over one entry; whether it is proven to be what was written."""
        global_seq, seq, ts_ms, schema_version, *texts, chain = row
        if not isinstance(global_seq, int):
            self._add(self._next, "altered", f"a number is {type(global_seq).__name__}")
            return False
        if global_seq != self._next:
            if global_seq < self._next:
                self._add(global_seq, "altered", "comes after an entry with a higher number")
                return False
            if not self._is_named_hole(global_seq, row):
                self.skip_to(global_seq)
        self._next = global_seq + 1
        self._report.entries += 1
        try:
            sealed = canonical(global_seq, seq, ts_ms, schema_version, texts)  # type: ignore[arg-type]  # packing checks
        except Exception as error:
            self._add(global_seq, "altered", f"a field has a value that was never written: {error}")
            self._previous = _usable(chain)
            return False
        if len(self._previous) == 1 and link(self._previous[0], sealed) == chain:
            self._previous = (chain,)
            return True
        return self._check_alternatives(global_seq, sealed, chain)

    def _check_alternatives(self, global_seq: int, sealed: bytes, chain: object) -> bool:
        expected = [link(previous, sealed) for previous in self._previous]
        if chain in expected:
            self._previous = _usable(chain)
            return True
        if expected:
            stored = chain.hex() if isinstance(chain, bytes) else repr(chain)
            self._add(global_seq, "altered", f"its content gives the chain value {expected[0].hex()}, not {stored}")
            self._previous = (*_usable(chain), *expected)[:4]
        else:
            self._add(global_seq, "unproven", "follows a hole: nothing is left to check it against")
            self._previous = _usable(chain)
        return False

    def pass_over(self, damaged: DamagedRow) -> None:
        """Name an entry, or a range, that cannot be read; with its chain value the next one can be proven."""
        self.skip_to(damaged.global_seq)
        last = max(damaged.last, damaged.global_seq)
        self._report.add(Finding(damaged.global_seq, damaged.problem, damaged.detail, last))
        self._next = max(self._next, last + 1)
        self._previous = _usable(damaged.chain)

    def skip_to(self, global_seq: int) -> None:
        """Everything between the last entry and this one is gone."""
        if self._next < global_seq:
            self._report.add(Finding(self._next, "missing", "there is no such entry", global_seq - 1))
            self._previous = ()
            self._next = global_seq

    def finish(self, head: int, chain: bytes) -> None:
        """The newest entry must be the one the head row speaks of; without a chain value nothing is compared."""
        self.skip_to(head + 1)
        if chain and self._previous and chain not in self._previous:
            self._add(head, "head", "the head row holds another chain value than the newest entry")

    @property
    def chain(self) -> bytes:
        """The chain value of the entry that was followed last."""
        return self._previous[0] if self._previous else b""

    @property
    def next_seq(self) -> int:
        """The number that is expected next."""
        return self._next

    def _is_named_hole(self, global_seq: int, row: Sequence[object]) -> bool:
        """Whether an epoch names the numbers before this entry, and the entry says the same."""
        epoch = self._epochs.get(global_seq)
        if epoch is None or not (epoch.cut_after < self._next == max(epoch.cut_after + 1, self._report.oldest)):
            return False
        payload = row[_PAYLOAD]
        try:
            facts = msgspec.json.decode(payload if isinstance(payload, str) else "", type=dict[str, object])
        except msgspec.DecodeError:
            return False
        return row[_SUBJECT] == subject.journal_diverged() and all(
            facts.get(name) == getattr(epoch, name) for name in _FACTS
        )

    def _add(self, global_seq: int, problem: Problem, detail: str) -> None:
        self._report.add(Finding(global_seq, problem, detail))


def _usable(chain: object) -> tuple[bytes, ...]:
    """A stored chain value, unless it cannot be one."""
    return (chain,) if isinstance(chain, bytes) and len(chain) == CHAIN_BYTES else ()
