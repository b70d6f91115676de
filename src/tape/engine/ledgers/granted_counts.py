"""Counts for callers with read grants: entries outside of the grants do not count.

Sums are kept by type, grants are on subjects. A type whose subjects are all granted is counted from the sums, a type
without a granted subject does not count, and any other type is counted from the entries in the journal, by subject.
"""

from __future__ import annotations

from collections.abc import Sequence

from tape.engine.ledgers.counts import Count, count, count_subjects
from tape.engine.ledgers.window import Window
from tape.errors import InvalidRequest
from tape.journal.identity_filter import IdentityFilter
from tape.journal.key_index import look_up_subjects_below
from tape.model.entry import MAX_SEQ
from tape.model.grants import Grants
from tape.model.pattern import Pattern
from tape.model.subject import ROOT
from tape.store import Reader

# Subjects and buckets that are counted one by one for one answer.
MAX_SUBJECTS = 100_000


def count_granted(
    reader: Reader,
    grants: Grants | None,
    window: Window,
    identity: IdentityFilter,
    types: Sequence[str] = (),
    runs: Sequence[str] = (),
) -> list[Count]:
    """Granted entries by bucket, type and tenant. None as grants is all entries."""
    found = count(reader, window, identity, types, runs)
    if grants is None:
        return found
    patterns = {name: _patterns_of(reader, name) for name in {each.type for each in found}}
    whole = {name for name, possible in patterns.items() if all(map(grants.covers, possible))}
    partly = {name for name, possible in patterns.items() if any(map(grants.overlapping, possible))} - whole
    granted = [each for each in found if each.type in whole]
    return granted + _count_by_subject(reader, grants, window, identity, sorted(partly), runs) if partly else granted


def _count_by_subject(
    reader: Reader,
    grants: Grants,
    window: Window,
    identity: IdentityFilter,
    types: Sequence[str],
    runs: Sequence[str],
) -> list[Count]:
    rows = count_subjects(reader, window, identity, types, runs, MAX_SUBJECTS + 1)
    if len(rows) > MAX_SUBJECTS:
        raise InvalidRequest(
            f"the types {', '.join(types[:5])} are granted in part and have more than {MAX_SUBJECTS} subjects in this"
            " window; count fewer types, runs or a shorter window."
        )
    sums: dict[tuple[int, str, str], int] = {}
    for bucket, kind, tenant, subject, entries in rows:
        if grants.matches(subject):
            key = (int(bucket), kind, tenant)
            sums[key] = sums.get(key, 0) + int(entries)
    return [Count(*key, entries) for key, entries in sums.items()]


def _patterns_of(reader: Reader, name: str) -> list[Pattern]:
    """The subjects that entries of a type have: `order.paid` is the kind `order` and the verb `paid`.

    Kinds may have dots too. Such a kind is considered if the journal has entries of it.
    """
    words = name.split(".")
    splits = [(".".join(words[:length]), ".".join(words[length:])) for length in range(1, len(words) + 1)]
    patterns = [Pattern(f"/{ROOT}/{kind}/{verb}/**" if verb else f"/{ROOT}/{kind}") for kind, verb in splits]
    return [patterns[0], *(pattern for pattern in patterns[1:] if _has_subject(reader, pattern.prefix))]


def _has_subject(reader: Reader, prefix: str) -> bool:
    return bool(look_up_subjects_below(prefix).select(reader, "1", 0, MAX_SEQ, 1))
