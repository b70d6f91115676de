"""Asks an advisory source whether locked releases have known vulnerabilities: `make audit`.

The source is an OSV server, https://api.osv.dev unless TAPE_ADVISORIES names another. The exit status is 0 if none is
known and 1 if there are some. If the source cannot be reached, nothing is checked: the command prints that and exits
with 0, or with 2 if it was called with --required.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import urllib3

from locks import Release, read_lock

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "deploy/requirements.lock", "requirements-dev.lock")
SOURCE = "https://api.osv.dev"
# Releases of one request; the source takes 1,000 at most.
BATCH = 500
TIMEOUT_S = 20.0

Query = dict[str, Any]


class SourceUnavailable(Exception):
    """The advisory source cannot be reached, or does not answer as one."""


def main() -> int:
    """Print what is known about the locked releases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--required", action="store_true", help="fail if the advisory source cannot be reached")
    parser.add_argument("locks", nargs="*", type=Path, help="lock files (default: all of the project)")
    given = parser.parse_args()
    source = os.environ.get("TAPE_ADVISORIES", SOURCE).rstrip("/")
    releases = sorted({each for path in given.locks or [ROOT / lock for lock in LOCKS] for each in read_lock(path)})
    pins = sorted({(each.name, each.version): each for each in releases}.values())
    try:
        found = find_advisories(source, pins)
    except SourceUnavailable as error:
        print(f"not checked: no advisory source. {error}")
        return 2 if given.required else 0
    for release, advisories in found:
        print(f"{release.name} {release.version}: {', '.join(advisories)}")
    print(f"{len(pins)} releases checked, {len(found)} with known vulnerabilities")
    return 1 if found else 0


def find_advisories(source: str, releases: list[Release]) -> list[tuple[Release, list[str]]]:
    """The releases with advisories, and the ids of these."""
    found: list[tuple[Release, list[str]]] = []
    for start in range(0, len(releases), BATCH):
        part = releases[start : start + BATCH]
        for release, ids in zip(part, _ask(source, [_query(each) for each in part]), strict=True):
            if ids:
                found.append((release, sorted(ids)))
    return found


def _query(release: Release) -> Query:
    return {"package": {"ecosystem": "PyPI", "name": release.name}, "version": release.version}


def _ask(source: str, queries: list[Query]) -> list[set[str]]:
    """The ids of the advisories of each query, from all pages."""
    ids: list[set[str]] = [set() for _ in queries]
    pending = dict(enumerate(queries))
    while pending:
        results = _post(f"{source}/v1/querybatch", {"queries": list(pending.values())})
        if len(results) != len(pending):
            raise SourceUnavailable(f"{source} gave {len(results)} results for {len(pending)} queries.")
        following = {}
        for (index, query), result in zip(pending.items(), results, strict=True):
            ids[index] |= {str(each["id"]) for each in result.get("vulns", [])}
            if token := result.get("next_page_token"):
                following[index] = query | {"page_token": token}
        pending = following
    return ids


def _post(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        answer = urllib3.request(
            "POST", url, json=body, timeout=TIMEOUT_S, retries=urllib3.Retry(2, backoff_factor=0.5)
        )
        if answer.status != 200:
            raise SourceUnavailable(f"{url} answered {answer.status}.")
        return list(json.loads(answer.data)["results"])
    except urllib3.exceptions.HTTPError as error:
        raise SourceUnavailable(f"{url} cannot be reached: {type(error).__name__}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SourceUnavailable(f"{url} does not answer like an advisory source.") from error


if __name__ == "__main__":
    sys.exit(main())
