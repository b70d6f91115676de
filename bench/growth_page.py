"""The page of `growth`: its plots in one HTML file that needs nothing else, and each of them as an SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

STYLE = """\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 84rem; padding: 0 1rem; }
.plots { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
figure { margin: 0; border: 1px solid #8884; border-radius: 6px; padding: .5rem; }
svg { display: block; width: 100%; }
svg .axis { fill: CanvasText; opacity: .8; }
ul { opacity: .8; }
"""


@dataclass(frozen=True)
class Section:
    """Plots below one heading, as SVG by the names of their files."""

    title: str
    plots: Mapping[str, str]
    notes: Sequence[str]


def write_page(folder: Path, title: str, facts: Mapping[str, str], sections: Sequence[Section]) -> Path:
    """Write `growth.html` and the SVG files; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for name, svg in section.plots.items():
            (folder / f"{name}.svg").write_text(svg)
    page = folder / "growth.html"
    page.write_text(
        "\n".join(
            [
                '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
                f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n<h1>{escape(title)}</h1>",
                _list([f"{name}: {fact}" for name, fact in facts.items()]),
                *map(_section, sections),
                "</html>\n",
            ]
        )
    )
    return page


def _section(section: Section) -> str:
    figures = "\n".join(f"<figure>{svg}</figure>" for svg in section.plots.values())
    return f'<h2>{escape(section.title)}</h2>\n<div class="plots">\n{figures}\n</div>\n{_list(section.notes)}'


def _list(texts: Sequence[str]) -> str:
    return "<ul>\n" + "".join(f"<li>{escape(text)}</li>\n" for text in texts) + "</ul>"
