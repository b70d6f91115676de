"""Findings: what a verification reports, as ranges of numbers, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

# altered: the content is not what was written. missing: no entry has the number, and no epoch says why. unreadable: the
# database cannot return it. unproven: nothing is left to check it against. head: the head row is wrong. index: an
# index disagrees with the table. schema: a table or a migration is not what this version made. tail: a witness or a
# checkpoint knows entries that the journal no longer has. prune: the oldest entries were removed, and no entry says so.
# epoch: a range is named as lost, and no entry says so.
Problem = Literal["altered", "missing", "unreadable", "unproven", "head", "index", "schema", "tail", "prune", "epoch"]

# So many ranges are kept; the others are counted.
MAX_FINDINGS = 10_000
MAX_DETAIL = 400


class Finding(msgspec.Struct, frozen=True):
    """A problem of the entries from `global_seq` to `last`; `last` is `global_seq` unless it is given."""

    global_seq: int
    problem: Problem
    detail: str
    last: int = 0

    def __post_init__(self) -> None:
        if self.last < self.global_seq:
            msgspec.structs.force_setattr(self, "last", self.global_seq)
        if len(self.detail) > MAX_DETAIL:
            msgspec.structs.force_setattr(self, "detail", f"{self.detail[:MAX_DETAIL]}…")

    @property
    def numbers(self) -> str:
        """The range as text: `7` or `7..9`."""
        return f"{self.global_seq}" if self.global_seq == self.last else f"{self.global_seq}..{self.last}"


class VerifyReport(msgspec.Struct):
    """The outcome of a walk over the whole journal. `omitted` counts the findings that were not kept."""

    oldest: int
    head: int
    entries: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)
    omitted: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings and not self.omitted

    @property
    def problems(self) -> int:
        """The number of findings, also of those that were not kept."""
        return len(self.findings) + self.omitted

    def add(self, finding: Finding) -> None:
        """Add a finding; one that continues the last one makes that range longer."""
        if self.findings:
            before = self.findings[-1]
            if before.last + 1 == finding.global_seq and _is_same(before, finding):
                self.findings[-1] = msgspec.structs.replace(before, last=finding.last)
                return
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.omitted += 1

    def drop_below(self, oldest: int) -> None:
        """Forget what retention has removed since: it is not missing, and what follows it is proven by the anchor."""
        self.findings = list(_from(oldest, self.findings))


def _is_same(first: Finding, second: Finding) -> bool:
    return first.problem == second.problem and first.detail == second.detail


def _from(oldest: int, findings: list[Finding]) -> Iterator[Finding]:
    for finding in findings:
        if finding.problem in ("head", "schema", "tail", "prune", "epoch"):
            yield finding
        elif finding.last > oldest or (finding.last == oldest and finding.problem != "unproven"):
            first = max(finding.global_seq, oldest)
            yield finding if first == finding.global_seq else msgspec.structs.replace(finding, global_seq=first)
