"""Proofs beyond the chain: rows that are changed by SQL are named by what is on the chain, or known outside of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tape.journal import retention
from tape.journal.appender import read_head
from tape.journal.epochs import close_cut
from tape.journal.findings import VerifyReport
from tape.journal.journal import Journal
from tape.journal.proofs import OWN_CHECKS, find_lost_tail, find_unexpected
from tape.journal.retention import prune
from tape.journal.verifier import Check, verify
from tape.model.chain import TEXTS, canonical, link
from tape.model.checksum import checksum
from tape.model.entry import COLUMNS, Draft
from tape.store import Transaction
from tape.store.tail import Tail, read_tail


async def fill(journal: Journal, count: int = 50) -> None:
    drafts = [Draft(subject=f"/tape/order/created/{n}", run_id=f"r{n % 3}", payload_json="{}") for n in range(count)]
    await journal.append(drafts)


async def change(journal: Journal, *statements: str) -> None:
    def execute(tx: Transaction) -> None:
        for statement in statements:
            tx.execute(statement)

    await journal.database.write(execute)


async def report_of(journal: Journal, *checks: Check) -> VerifyReport:
    return await journal.database.read(lambda reader: verify(reader, checks=[*OWN_CHECKS, *checks]))


def problems(report: VerifyReport) -> list[tuple[int, str]]:
    return [(finding.global_seq, finding.problem) for finding in report.findings]


async def tail_of(journal: Journal) -> Tail:
    return await journal.database.read(read_tail)


def forge_tail(tx: Transaction, first: int) -> None:
    """Rewrite the entries from one on, with chain values and checksums that fit."""
    row = tx.one("SELECT chain FROM tape_journal WHERE global_seq = ?", first - 1)
    assert row is not None
    chain = bytes(row[0])
    names = ", ".join(f'"{name}"' for name in TEXTS)
    sql = f"SELECT global_seq, seq, ts_ms, schema_version, {names} FROM tape_journal WHERE global_seq >= ?"
    for global_seq, seq, ts_ms, version, *texts in sorted(tx.query(sql, first)):
        texts[TEXTS.index("payload_json")] = '{"forged":true}'
        chain = link(chain, canonical(global_seq, seq, ts_ms, version, texts))
        tx.execute(
            "UPDATE tape_journal SET payload_json = ?, chain = ? WHERE global_seq = ?",
            '{"forged":true}',
            chain,
            global_seq,
        )
        row = tx.one(f"SELECT {','.join(COLUMNS)} FROM tape_journal WHERE global_seq = ?", global_seq)
        assert row is not None
        tx.execute("UPDATE tape_journal SET checksum = ? WHERE global_seq = ?", checksum(row), global_seq)
    tx.execute("UPDATE tape_head SET chain = ? WHERE id = 1", chain)


async def test_a_rewritten_tail_is_named_by_what_a_witness_knows(journal: Journal) -> None:
    await fill(journal)
    known = await tail_of(journal)
    await journal.database.write(lambda tx: forge_tail(tx, 41))
    assert problems(await report_of(journal)) == []  # the chain alone cannot know
    assert problems(await report_of(journal, find_lost_tail(known, "test"))) == [(50, "tail")]
    assert problems(await report_of(journal, find_unexpected(50, known.chain, "test"))) == [(50, "altered")]


async def test_a_head_that_is_moved_back_with_its_entries_is_named(journal: Journal) -> None:
    await fill(journal)
    known = await tail_of(journal)
    await change(
        journal,
        "DELETE FROM tape_journal WHERE global_seq > 45",
        "UPDATE tape_head SET global_seq = 45, chain = (SELECT chain FROM tape_journal WHERE global_seq = 45)",
    )
    report = await report_of(journal, find_lost_tail(known, "test"), find_unexpected(50, known.chain, "test"))
    found = [(each.global_seq, each.last) for each in report.findings if each.problem == "tail"]
    assert found == [(46, 50)] * 2


async def test_an_honest_prune_is_proven(journal: Journal) -> None:
    await fill(journal)
    await prune(journal.database, before_seq=31)
    await fill(journal)
    await prune(journal.database, before_seq=60)
    await prune(journal.database, before_seq=(await tail_of(journal)).global_seq + 1)
    assert problems(await report_of(journal)) == []


async def test_an_interrupted_prune_is_proven_and_can_be_continued(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(journal)
    monkeypatch.setattr(retention, "CHUNK", 7)
    stops = 3

    def stop(done: int, total: int) -> None:
        nonlocal stops
        stops -= 1
        if not stops:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await prune(journal.database, before_seq=41, progress=stop)
    report = await report_of(journal)
    assert report.ok
    assert report.oldest == 22
    assert await prune(journal.database, before_seq=41) == 19
    assert (await report_of(journal)).ok


@pytest.mark.parametrize("oldest", [2, 31, 50])
async def test_a_forged_prune_is_named(journal: Journal, oldest: int) -> None:
    await fill(journal)
    await change(
        journal,
        f"UPDATE tape_head SET oldest = {oldest},"
        f" anchor = (SELECT chain FROM tape_journal WHERE global_seq = {oldest - 1})",
        f"DELETE FROM tape_journal WHERE global_seq < {oldest}",
    )
    assert problems(await report_of(journal)) == [(oldest, "prune")]


async def test_a_forged_prune_after_an_honest_one_is_named(journal: Journal) -> None:
    await fill(journal)
    await prune(journal.database, before_seq=11)
    await change(
        journal,
        "UPDATE tape_head SET oldest = 31, anchor = (SELECT chain FROM tape_journal WHERE global_seq = 30)",
        "DELETE FROM tape_journal WHERE global_seq < 31",
    )
    assert problems(await report_of(journal)) == [(31, "prune")]


async def test_an_honest_epoch_is_proven_also_after_a_prune(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: close_cut(tx, last_known=60, margin=1_000_000, cause="test"))
    await fill(journal)
    assert (await report_of(journal)).ok
    assert await prune(journal.database, before_seq=500_000) == 50  # inside of the hole
    head = await journal.database.read(read_head)
    assert head.oldest == 1_000_061
    assert (await report_of(journal)).ok
    assert await prune(journal.database, before_seq=1_000_070) == 9
    assert (await report_of(journal)).ok


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["INSERT INTO tape_epochs VALUES (2, 10, 20, 15, 'forged', 0)"], [(11, "epoch"), (50, "epoch")]),
        (
            [
                "DELETE FROM tape_journal WHERE global_seq > 10 AND global_seq < 20",
                "INSERT INTO tape_epochs VALUES (2, 10, 20, 15, 'forged', 0)",
                "UPDATE tape_head SET epoch = 2",
            ],
            [(11, "epoch"), (11, "missing"), (20, "unproven")],
        ),
        (["UPDATE tape_head SET epoch = 7"], [(50, "epoch")]),
    ],
)
async def test_a_forged_epoch_is_named(
    journal: Journal, statements: Sequence[str], expected: list[tuple[int, str]]
) -> None:
    await fill(journal)
    await change(journal, *statements)
    assert sorted(problems(await report_of(journal))) == expected


async def test_a_deleted_epoch_is_named(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: close_cut(tx, last_known=60, margin=0, cause="test"))
    await change(journal, "DELETE FROM tape_epochs")
    assert (61, "epoch") in problems(await report_of(journal))


async def test_a_pruned_entry_is_not_proven_by_the_journal_alone(journal: Journal) -> None:
    await fill(journal)
    known = await tail_of(journal)
    await prune(journal.database, before_seq=51)
    assert problems(await report_of(journal, find_unexpected(50, known.chain, "test"))) == []  # the anchor has it
    await fill(journal)
    await prune(journal.database, before_seq=60)
    assert problems(await report_of(journal, find_unexpected(50, known.chain, "test"))) == [(50, "unproven")]
