"""The report says what the journal says, on one page that needs nothing else."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Error, sync_playwright
from pyspark.sql import SparkSession

from tape.archive.table import ArchiveTable
from tape.demo.pipeline import fill, run_jobs
from tape.engine.ledgers.histogram import histogram_of
from tape.engine.ledgers.rollups import DurationRollup
from tape.errors import PipelineInput
from tape.pipeline.archive_verifier import verify_archive
from tape.pipeline.jobs.report import moment_of, report
from tape.pipeline.journal_reader import query_store_once
from tape.pipeline.report.facts import (
    DeadLetterGroup,
    EffectSpan,
    Facts,
    OpenSpans,
    ReaderLag,
    SlowRun,
    Volume,
    width_for,
)
from tape.pipeline.report.formats import count_marks, duration, duration_marks, percent, time_marks
from tape.pipeline.report.page import render
from tape.pipeline.report.queries import find_facts
from tests.pipeline.test_journal_source import entries_in
from tests.pipeline.test_rollups import append_timed, by_hand, generate_runs
from tests.system.test_browser import BROWSERS

HOUR = 3_600_000
NOON = 1_780_000_000_000 // HOUR * HOUR


def nothing() -> Facts:
    return Facts("sqlite:tape.db", "", NOON, NOON + HOUR, 60_000, NOON + HOUR, 0, 1, HOUR, [], [], [], [], [], [])


def something() -> Facts:
    """A page with everything on it, in names that would break a careless one."""
    bad = "<script>alert('&')</script>"
    steps = [EffectSpan("pay", NOON, NOON + 900, "confirmed"), EffectSpan(bad, NOON + 1000, None, "")]
    return Facts(
        store="postgres://u:…@h/db",
        lake="s3://bucket/lake",
        since_ms=NOON,
        until_ms=NOON + HOUR,
        width_ms=60_000,
        made_ms=NOON + HOUR,
        head=1_234_567,
        oldest=1000,
        looked_back_ms=7 * 24 * HOUR,
        volume=[Volume(NOON + n % 50 * 60_000, bad, f"kind-{n % 9}", n + 1, 100 * n) for n in range(300)],
        durations=[
            DurationRollup(NOON, bad, "effect", "pay", "confirmed", histogram_of([10, 20, 70_000]), 2),
            DurationRollup(NOON + 120_000, bad, "effect", bad, "failed", histogram_of([5])),
            DurationRollup(NOON, bad, "run", "", "stuck", histogram_of([4_000_000])),
        ],
        slow=[SlowRun("run-" + "0" * 30, bad, NOON, NOON + 90_000, "terminal", steps)],
        open=[OpenSpans("effect", "pay", 3, NOON)],
        dead_letters=[DeadLetterGroup(bad, 4, NOON, NOON + 1, bad)],
        readers=[ReaderLag("rollup", 1_000_000, 234_567, 5_000_000)],
    )


class Checked(HTMLParser):
    """Follows the tags of a page: all that are opened are closed, every plot has a title."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        if tag == "svg":
            assert {"aria-label", "aria-labelledby"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("facts", [nothing(), something()], ids=["empty", "full"])
def test_a_page_is_whole_needs_no_network_and_has_no_markup_of_others(facts: Facts) -> None:
    page = render(facts)
    seen = Checked(page).seen
    assert seen["section"] == 6
    assert seen["script"] == seen["link"] == seen["img"] == 0
    assert not re.search(r"https?://|@import|url\(", page)
    assert "alert" not in re.sub(r"&lt;script&gt;alert", "", page)
    if not facts.volume:
        assert "Nothing was written in this window." in page
        assert page.count('class="empty"') == 6
        assert seen["svg"] == 0
    else:
        assert seen["svg"] == 4  # and behind each plot are its numbers
        assert page.count("The numbers of this plot") == 3
        assert "all others" in page
        assert "The oldest entry is 1,000; older entries are not in this report." in page
        assert "2 ends have no duration" in page


def test_a_browser_shows_it_in_light_and_dark_without_asking_for_anything(tmp_path: Path) -> None:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium on this machine: the page was not checked")
    (tmp_path / "page.html").write_text(render(something()))
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        except Error as error:
            pytest.skip(f"{program} does not start here: the page was not checked ({error.message[:200]})")
        asked, complaints, papers = [], [], set()
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 800, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: complaints.append(message.text))
            page.goto(f"file://{tmp_path / 'page.html'}")
            papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.locator("svg.plot").first.bounding_box()["width"] > 500  # type: ignore[index]
            page.locator("summary").first.click()
            assert page.locator("details[open] table").is_visible()
        browser.close()
    assert (len(asked), complaints, len(papers)) == (2, [], 2)


def test_the_demonstration_ends_in_a_report_that_says_what_its_journal_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress: list[tuple[int, int]] = []
    store = fill(tmp_path, 5000, 1.0, lambda done, total: progress.append((done, total)))
    entries = entries_in(store)
    assert progress[-1] == (len(entries), len(entries))
    said: list[str] = []
    page = run_jobs(spark, tmp_path, store, 1.0, said.append)
    progress = capsys.readouterr().err
    assert all(f"{job}: {len(entries):,} entries" in progress for job in ("archive", "rollup"))
    assert verify_archive(ArchiveTable.open(str(tmp_path / "lake")), store).ok
    orders = [entry for entry in entries if entry.type == "order.created" and entry.payload["total"] > 500.0]
    assert f"  {len(orders):,} times" in said[3]
    Checked(page.read_text())

    until = entries[-1].ts_ms + 1
    facts = find_facts(spark, store, "", entries[0].ts_ms, until)
    by_kind = Counter(entry.kind for entry in entries)
    assert Counter({kind: sum(one.entries for one in facts.volume if one.kind == kind) for kind in by_kind}) == by_kind
    for tool in facts.tools:
        ends = Counter(
            entry.type for entry in entries if entry.subject.split("/")[4] == tool and entry.kind == "effect"
        )
        assert facts.failures("effect", tool)[0] == ends["effect.failed"]
        assert facts.failures("effect", tool)[1] == sum(
            ends[f"effect.{verb}"] for verb in ("failed", "confirmed", "reconciled")
        )
    began = {entry.run_id: entry.ts_ms for entry in entries if entry.type == "run.running"}
    durations_in = {entry.run_id: entry.ts_ms - began[entry.run_id] for entry in entries if entry.type in RUN_ENDS}
    assert [run.took_ms for run in facts.slow] == sorted(durations_in.values(), reverse=True)[:12]
    assert [durations_in[run.run_id] for run in facts.slow] == [run.took_ms for run in facts.slow]
    assert facts.histogram("run") == histogram_of(durations_in.values())
    assert sum(one.entries for one in facts.open if one.measure == "run") == len(began) - len(durations_in)
    counted = query_store_once(store, lambda reader: reader.one("SELECT count(*) FROM tape_tasks WHERE status = 5"))
    assert counted is not None
    assert [one.dead_letters for one in facts.dead_letters] == [counted[0]]
    assert {one.name: one.behind for one in facts.readers} == {"rollup": 0, "reaction notify-payments-desk": 0}
    with pytest.raises(PipelineInput, match="There is a journal at"):
        fill(tmp_path, 100, 1.0, lambda done, total: None)
    with pytest.raises(PipelineInput, match="the window would be empty"):
        report(spark, store, tmp_path / "page.html", since="2026-01-02", until="2026-01-01")
    with pytest.raises(PipelineInput, match="there is no folder"):
        report(spark, store, tmp_path / "nowhere" / "page.html")


def test_a_report_has_the_numbers_of_the_journal_on_each_database(spark: SparkSession, store_url: str) -> None:
    entries = generate_runs(5, 40)
    append_timed(entries, store_url)
    middle = entries[len(entries) // 2].ts_ms // HOUR * HOUR
    facts = find_facts(spark, store_url, "", middle, middle + HOUR)
    within = [one for one in entries if middle <= one.ts_ms < middle + HOUR]
    assert facts.entries == len(within)
    assert sum(one.bytes for one in facts.volume) == sum(len(one.payload_json) for one in within)
    before_end = [one for one in entries if one.ts_ms < middle + HOUR]
    expected = {key: value for key, value in by_hand(before_end, facts.width_ms).items() if key[0] >= middle}
    assert {
        (one.start_ms, one.tenant, one.measure, one.tool, one.outcome): (one.histogram, one.unpaired)
        for one in facts.durations
    } == {key: (histogram_of(durations), unpaired) for key, (durations, unpaired) in expected.items()}
    Checked(render(facts))
    later = find_facts(spark, store_url, "", middle + 1000 * HOUR, middle + 1001 * HOUR)
    assert (later.entries, later.durations, later.slow, later.open) == (0, [], [], [])


RUN_ENDS = ("run.terminal", "run.failed", "run.cancelled", "run.stuck")


def test_windows_and_axes_are_in_round_numbers() -> None:
    assert moment_of("--since", "90m", 10_000_000) == 4_600_000
    assert moment_of("--since", "2026-01-31T12:00", 0) == moment_of("--since", "2026-01-31T12:00Z", 0)
    with pytest.raises(PipelineInput, match="--since is 'soon'; use now, an age"):
        moment_of("--since", "soon", 0)
    assert [width_for(span) for span in (HOUR, 24 * HOUR, 7 * 24 * HOUR)] == [60_000, 900_000, 3 * HOUR]
    assert count_marks(0) == [0, 1]
    assert count_marks(6543) == [0, 2000, 4000, 6000, 8000]
    assert duration_marks(45, 70_000) == [10, 100, 1000, 10_000, 60_000, 600_000]
    assert [label for _, label in time_marks(NOON, NOON + HOUR)][1:3] != []
    assert [duration(ms) for ms in (0, 999, 1000, 1500, 61_000, 3_600_000, 90_000_000, 400_000_000, None)] == [
        *("0 ms", "999 ms", "1 s", "1.50 s", "1 min 1 s", "1 h", "25 h", "4.6 days", "–"),
    ]
    assert [percent(1, 3), percent(1, 1000), percent(0, 5), percent(0, 0)] == ["33.3 %", "0.10 %", "0.0 %", "–"]
