"""Check the vocabulary: words that this project does not use, in identifiers, comments, help, messages and pages.

`python scripts/dialect.py [PATH …]` lists every use with the word to write instead, and exits with 1 if there is one.
Without paths it checks `src` and the pages that follow the vocabulary already. `docs/glossary.md` has the words to use.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHECKED = (
    "src",
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/glossary.md",
    "docs/security.md",
    "docs/tutorial.md",
)
# Released migrations are never edited, the wire contract keeps its names, generated code follows it.
EXEMPT_FILES = re.compile(r"store/migrations/|_pb2\.pyi?$|\.proto$")

# (pattern, what to write instead). A pattern is matched against single words of identifiers and against prose.
WORDS: tuple[tuple[str, str], ...] = (
    (r"tell|tells|telling|told|retell|retold|untold", "emit (events), report, return, notify, or show"),
    (
        r"whoever|whomever|somebody|nobody|anybody|everybody|someone|anyone|everyone",
        "the process, the caller, a worker",
    ),
    (r"stir|stirs|stirred|stirring|nudge|nudges|nudged", "notify, wake"),
    (r"doors?", "endpoint, Service, Routes"),
    (r"rooms?|house|houses", "package, layer; capacity"),
    (r"places?|placed|placing", "cursor, offset, position; location, backend; slot"),
    (r"seats?|seated", "dispatcher session"),
    (r"mishaps?", "predicate error"),
    (r"bury|buries|buried", "dead_letter()"),
    (r"letters?", "dead letter"),
    (r"sweeps?|sweeping|swept", "catch-up"),
    (r"rehearsals?|rehearse[sd]?", "simulation"),
    (r"trials?", "dry run"),
    (r"patience|patient|patiently|impatient", "retry limits, deadline, RedeliveryLimits"),
    (r"surely", "retry until acknowledged"),
    (r"stretch|stretches", "range, OffsetRange"),
    (r"homeless|elsewhere", "remote"),
    (r"wish|wishes", "option, request"),
    (r"asides?", "dead letter, quarantine"),
    (r"luck|chance", "random"),
)
# Only in prose: there the words stand side by side.
PHRASES: tuple[tuple[str, str], ...] = (
    (r"(?:is|are|was|were|be|been|being) away\b", "unavailable"),
    (r"com(?:es?|ing) again\b|came again\b", "is redelivered, is a duplicate"),
    (r"turn(?:s|ed)? away\b", "rejected"),
    (r"(?:put|set|puts|sets) (?:it |them |one )?apart\b", "quarantine"),
    (r"how far .{0,20}(?:has|have) come\b|how far .{0,12}(?:is|are)\b", "cursor, position"),
    (r"(?:knows|keeps|lost|loses) (?:its|their) place\b", "resumes from its cursor"),
    (r"works? off\b", "process"),
    (r"(?:gives?|gave|given) up\b", "dead letter, evict, stop retrying"),
)
# Terms of the field, and words that another thing owns.
ALLOWED = re.compile(
    r"dead[ _-]?letter(?:s|ed|ing)?|DeadLetter\w*"
    r"|(?:lower|upper)[ -]?case letters?|(?:capital|small) letters?|letters(?:,| and) digits"
    r"|\bin[- ]place\b|\btak(?:es?|ing) place\b|\bplaceholders?\b|\bdecimal places\b|\bin the first place\b"
    r"|\bletter-spacing\b",
    re.I,
)
# The examples move idle cash, which banks call a sweep.
SWEEPS_OF_CASH = re.compile(r"README\.md$|docs/tutorial\.md$|src/tape/demo/")
# A use that has to stay says why beside it: `# vocabulary: a column of a released migration`.
EXEMPT_LINE = "vocabulary:"

_SPLIT = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_WORDS = [(re.compile(pattern, re.I), instead) for pattern, instead in WORDS]
_PHRASES = [(re.compile(pattern, re.I), instead) for pattern, instead in PHRASES]
_ALL_WORDS = re.compile("|".join(pattern for pattern, _ in WORDS), re.I)


def main(arguments: list[str]) -> int:
    """List the uses in the files named, or in all that are checked."""
    roots = [Path(argument) for argument in arguments] or [ROOT / name for name in CHECKED]
    count = 0
    for path in sorted(file for root in roots for file in files(root)):
        for number, found, instead in uses(path.read_text(encoding="utf-8")):
            if instead == "catch-up" and SWEEPS_OF_CASH.search(path.as_posix()):
                continue
            count += 1
            print(f"{path}:{number}: {found!r}: {instead}")
    if count:
        print(f"{count} uses of words outside of the vocabulary (docs/glossary.md).", file=sys.stderr)
    return 1 if count else 0


def files(root: Path) -> Iterator[Path]:
    """The texts below a folder, or one file."""
    if root.is_file():
        yield root
        return
    for path in root.rglob("*"):
        if path.suffix in (".py", ".pyi", ".md", ".sql", ".css") and not EXEMPT_FILES.search(path.as_posix()):
            yield path


def uses(text: str) -> Iterator[tuple[int, str, str]]:
    """Each use of a word outside of the vocabulary: line, word, what to write instead."""
    for number, line in enumerate(text.splitlines(), 1):
        if EXEMPT_LINE in line:
            continue
        rest = ALLOWED.sub(" ", line)
        for pattern, instead in _PHRASES:
            for found in pattern.finditer(rest):
                yield number, found.group(), instead
        for word in _SPLIT.findall(rest):
            if _ALL_WORDS.fullmatch(word):
                instead = next(instead for pattern, instead in _WORDS if pattern.fullmatch(word))
                yield number, word, instead


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
