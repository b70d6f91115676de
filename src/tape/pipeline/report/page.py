"""Renders the report as one self-contained HTML file that works with screen readers and printers."""

from __future__ import annotations

from importlib import resources

from tape.pipeline.report.elements import (
    COLOURS,
    REST,
    details,
    empty,
    figure,
    legend,
    listed,
    numbers,
    section,
    series_of,
    short,
    sums,
    table,
)
from tape.pipeline.report.facts import Facts, SlowRun
from tape.pipeline.report.formats import duration, moment, percent, size, text
from tape.pipeline.report.plots import Series, Span, bar, duration_lines, stacked_bars, timeline

PERCENTS = (50, 90, 99)


def render(facts: Facts) -> str:
    """Render the page."""
    title = f"{moment(facts.since_ms, seconds=False)} to {moment(facts.until_ms, seconds=False)}"
    style = resources.files("tape.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")
    parts = (_volume, _latency, _failures, _slow_runs, _dead_letters, _lag)
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Tape: {title}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f'<header>\n<h1>{title} <span class="soft">UTC</span></h1>',
            f'<p class="soft">{_source(facts)}</p>\n</header>',
            f"<main>\n{_tiles(facts)}",
            *(part(facts) for part in parts),
            f"</main>\n{_footer(facts)}\n</body>\n</html>\n",
        )
    )


def _source(facts: Facts) -> str:
    archive = f" and its archive <code>{text(facts.lake)}</code>" if facts.lake else ""
    pruned = f" The oldest entry is {facts.oldest:,}; older entries are not in this report." if facts.oldest > 1 else ""
    return f"The journal <code>{text(facts.store)}</code>{archive}, entries up to {facts.head:,}.{pruned}"


# ── at a glance ──────────────────────────────────────────────────────────────────────────────────


def _tiles(facts: Facts) -> str:
    effects, runs = facts.histogram("effect"), facts.histogram("run")
    failed_effects, all_effects = facts.failures("effect")
    failed_runs, all_runs = facts.failures("run")
    failed_tasks = sum(one.dead_letters for one in facts.dead_letters)
    behind = max(facts.readers, key=lambda one: one.behind, default=None)
    seconds = max((facts.until_ms - facts.since_ms) / 1000, 1)
    tiles = [
        ("Entries", f"{facts.entries:,}", f"{facts.entries / seconds:,.2f} a second", False),
        ("Runs ended", f"{all_runs:,}", f"{percent(failed_runs, all_runs)} failed or stuck", False),
        ("Effects settled", f"{all_effects:,}", f"{percent(failed_effects, all_effects)} failed", False),
        (
            "An effect takes",
            duration(effects.percentile(50)),
            f"99 of 100 within {duration(effects.percentile(99))}",
            False,
        ),
        ("A run takes", duration(runs.percentile(50)), f"99 of 100 within {duration(runs.percentile(99))}", False),
        (
            "Dead letters",
            f"{failed_tasks:,}",
            "to be redriven" if failed_tasks else "none in this window",
            failed_tasks > 0,
        ),
    ]
    if behind is not None:
        note = f"{behind.name}, {duration(behind.age_ms)} old" if behind.behind else "all readers are at the head"
        tiles.append(("Furthest behind", f"{behind.behind:,}", note, False))
    return listed(
        "tiles",
        (
            f'<li{" class=bad" if is_bad else ""}><div class="label">{text(label)}</div>'
            f'<div class="value">{text(value)}</div><div class="note">{text(note)}</div></li>'
            for label, value, note, is_bad in tiles
        ),
    )


# ── the sections ─────────────────────────────────────────────────────────────────────────────────


def _volume(facts: Facts) -> str:
    is_cut = facts.since_ms % facts.width_ms or facts.until_ms % facts.width_ms
    about = f"Entries by kind, each bar {duration(facts.width_ms)}"
    about += "; the window cuts the first or the last one short." if is_cut else "."
    if not facts.volume:
        return section("Volume", about, empty("Nothing was written in this window."))
    series = series_of(facts.starts, [(one.start_ms, one.kind, one.entries) for one in facts.volume])
    span = Span(facts.starts, facts.width_ms)
    plot = stacked_bars("volume", f"Entries over time by kind: {facts.entries:,} in all", "entries", span, series)
    by_tenant = sums((one.tenant, one.entries, one.bytes) for one in facts.volume)
    most = max(entries for entries, _ in by_tenant.values())
    tenants = table(
        "Entries by tenant",
        ("Tenant", "", "#Entries", "#Share", "#Payloads"),
        (
            (
                text(name or "–"),
                bar(entries / most, "c0"),
                f"{entries:,}",
                percent(entries, facts.entries),
                size(bytes_),
            )
            for name, (entries, bytes_) in sorted(by_tenant.items(), key=lambda item: -item[1][0])
        ),
    )
    return section("Volume", about, figure(plot, series), numbers(facts.starts, series, lambda v: f"{v:,.0f}"), tenants)


def _latency(facts: Facts) -> str:
    about = "How long effects took from pending to settled, by the time at which they settled. The axis is logarithmic."
    if not facts.histogram("effect").entries:
        return section("Latency", about, empty("No effect whose beginning is known was settled in this window."))
    bars = [facts.histogram("effect", start_ms=start) for start in facts.starts]
    series = [
        Series(f"{percents} of 100 within", f"p{percents}", [bar_.percentile(percents) for bar_ in bars])
        for percents in PERCENTS
    ]
    span = Span(facts.starts, facts.width_ms)
    plot = duration_lines("latency", "Durations of effects over time: 50th, 90th and 99th percentile", span, series)
    rows = []
    for tool in facts.tools:
        histogram, (failed, ended) = facts.histogram("effect", tool), facts.failures("effect", tool)
        times = (*(histogram.percentile(percents) for percents in PERCENTS), histogram.most_ms if ended else None)
        rows.append((text(tool), f"{ended:,}", percent(failed, ended), *map(duration, times)))
    tools = table(
        "By tool",
        ("Tool", "#Settled", "#Failed", *(f"#{percents} of 100" for percents in PERCENTS), "#Longest"),
        rows,
    )
    return section("Latency", about, figure(plot, series), numbers(facts.starts, series, duration), tools)


def _failures(facts: Facts) -> str:
    about = "Effects that failed, by tool; the share is of all effects of the tool that were settled."
    found = {tool: facts.failures("effect", tool) for tool in facts.tools}
    failed = {tool: counts for tool, counts in found.items() if counts[0]}
    if not failed:
        said = "No effect failed in this window." if found else "No effect was settled in this window."
        return section("Failures by tool", about, empty(said))
    points = [(start, tool, facts.failures("effect", tool, start)[0]) for tool in failed for start in facts.starts]
    series = series_of(facts.starts, points)
    total = sum(count for count, _ in failed.values())
    span = Span(facts.starts, facts.width_ms)
    plot = stacked_bars("failures", f"Failed effects over time by tool: {total:,} in all", "failed", span, series)
    most = max(count / ended for count, ended in failed.values())
    tools = table(
        "Share of effects that failed",
        ("Tool", "", "#Failed", "#Settled", "#Share"),
        (
            (text(tool), bar(count / ended / most, "cbad"), f"{count:,}", f"{ended:,}", percent(count, ended))
            for tool, (count, ended) in sorted(failed.items(), key=lambda item: -item[1][0] / item[1][1])
        ),
    )
    return section(
        "Failures by tool", about, figure(plot, series), numbers(facts.starts, series, lambda v: f"{v:,.0f}"), tools
    )


def _slow_runs(facts: Facts) -> str:
    about = (
        "The runs that took longest of those that ended in this window."
        " Boxes are effects; between them a run decides or waits."
    )
    if not facts.slow:
        return section("Slowest runs", about, empty("No run whose beginning is known ended in this window."))
    tools = sorted({step.tool for run in facts.slow for step in run.steps})
    colours = {tool: COLOURS[number] if number < len(COLOURS) else REST for number, tool in enumerate(tools)}
    total = max(run.took_ms for run in facts.slow)
    shown = table(
        f"On a scale of {duration(total)}",
        ("Run", "Tenant", "Ended", "Outcome", "#Took", ""),
        (
            (
                f'<span class="mono" title="{text(run.run_id)}">{text(short(run.run_id))}</span>',
                text(run.tenant or "–"),
                moment(run.ended_ms),
                text(run.outcome),
                duration(run.took_ms),
                _timeline(run, total, colours),
            )
            for run in facts.slow
        ),
        wide=True,
    )
    others = [("other tools", REST)] if len(tools) > len(COLOURS) else []
    names = legend([*((tool, colours[tool]) for tool in tools[: len(COLOURS)]), *others])
    steps = table(
        "The effects of these runs, the longest first",
        ("Run", "Tool", "Outcome", "#After", "#Took"),
        (
            (
                f'<span class="mono">{text(short(run.run_id))}</span>',
                text(step.tool),
                text(step.outcome or "under way"),
                duration(step.began_ms - run.began_ms),
                duration(None if step.ended_ms is None else step.ended_ms - step.began_ms),
            )
            for run, step in sorted(
                ((run, step) for run in facts.slow for step in run.steps),
                key=lambda pair: pair[1].began_ms - (pair[1].ended_ms or facts.until_ms),
            )
        ),
    )
    return section(
        "Slowest runs", about, f'<div class="scroll">{shown}</div>', names, details("Effects", steps), _under_way(facts)
    )


def _timeline(run: SlowRun, total_ms: int, colours: dict[str, str]) -> str:
    steps = []
    for step in run.steps:
        end = step.ended_ms if step.ended_ms is not None else run.ended_ms
        said = f"{step.tool}: {duration(end - step.began_ms)}, {step.outcome or 'under way'}"
        steps.append((step.began_ms - run.began_ms, end - run.began_ms, colours[step.tool], said))
    title = f"{short(run.run_id)} took {duration(run.took_ms)} with {len(run.steps)} effects"
    return timeline(title, total_ms, run.took_ms, steps)


def _under_way(facts: Facts) -> str:
    if not facts.open:
        return ""
    names = {"effect": "Effects", "run": "Runs"}
    return "<h3>Under way at the end of the window</h3>" + table(
        f"Begun within {duration(facts.looked_back_ms)} before the window or in it, and not ended by its end",
        ("What", "Tool", "#Number", "#The oldest for"),
        (
            (names[one.measure], text(one.tool or "–"), f"{one.entries:,}", duration(facts.until_ms - one.oldest_ms))
            for one in facts.open
        ),
    )


def _dead_letters(facts: Facts) -> str:
    about = (
        "Tasks of entries in this window that failed their last attempt."
        " To run them again: <code>tape tasks redrive</code>."
    )
    if not facts.dead_letters:
        return section("Dead letters", about, empty("None."))
    shown = table(
        "By reaction",
        ("Reaction", "#Dead letters", "From", "To", "Last error"),
        (
            (
                text(one.reaction_id),
                f"{one.dead_letters:,}",
                moment(one.first_ms),
                moment(one.last_ms),
                text(one.last_error or "–"),
            )
            for one in facts.dead_letters
        ),
    )
    return section("Dead letters", about, f'<div class="scroll">{shown}</div>')


def _lag(facts: Facts) -> str:
    about = f"The distance of each reader from the journal's head ({facts.head:,}), at {moment(facts.made_ms)}."
    if not facts.readers:
        return section("Lag", about, empty("No reader has a position in this store."))
    most = max((one.behind for one in facts.readers), default=0) or 1
    shown = table(
        "Entries still to be read",
        ("Reader", "", "#Behind", "#Position", "#The next one waits for"),
        (
            (
                text(one.name),
                bar(one.behind / most, "c1"),
                f"{one.behind:,}",
                f"{one.position:,}",
                duration(one.age_ms) if one.behind else "–",
            )
            for one in sorted(facts.readers, key=lambda one: -one.behind)
        ),
    )
    return section("Lag", about, shown)


def _footer(facts: Facts) -> str:
    unpaired = (
        f"{facts.unpaired:,} ends have no duration: they were settled before, or began more than"
        f" {duration(facts.looked_back_ms)} before the window, or before the oldest entry. They count as ended."
        if facts.unpaired
        else "Everything that ended in this window has its duration."
    )
    return (
        f"<footer>\n<p>Percentiles are exact below 128 ms and within 0.8 % above. {unpaired}</p>\n"
        f"<p>All times are UTC. Made {moment(facts.made_ms)} by <code>tape pipeline run report</code>;"
        " this file needs no network.</p>\n</footer>"
    )
