"""Writes a software bill of materials (CycloneDX 1.6) of the locked runtime dependencies: `make sbom`.

The same lock file gives the same bytes: there is no time, no machine and no random number in it. Licenses come from the
installed packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tomllib
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from locks import Release, normalized, read_lock

ROOT = Path(__file__).parent.parent
# A text longer than this is the text of a license, not its name.
MAX_NAME = 80


def main() -> int:
    """Write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path, default=ROOT / "deploy" / "requirements.lock", help="the lock file")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "sbom.cdx.json", help="where to write it")
    given = parser.parse_args()
    document = bill_of_materials(read_lock(given.lock))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    print(f"{given.output.name}: {len(document['components'])} components")
    return 0


def bill_of_materials(releases: list[Release]) -> dict[str, Any]:
    """The document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    purls = {release.name: f"pkg:pypi/{release.name}@{release.version}" for release in releases}
    needs: dict[str, list[str]] = {own: [], **{purl: [] for purl in purls.values()}}
    for release in releases:
        for parent in release.needed_by:
            needs[own if parent == normalized(project["name"]) else purls[parent]].append(purls[release.name])
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "purl": own,
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [_component(release, purls[release.name]) for release in releases],
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(parts))} for ref, parts in sorted(needs.items())],
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
    document["serialNumber"] = f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"
    return document


def _component(release: Release, purl: str) -> dict[str, Any]:
    component = {
        "type": "library",
        "bom-ref": purl,
        "purl": purl,
        "name": release.name,
        "version": release.version,
        "hashes": [{"alg": "SHA-256", "content": each} for each in release.hashes],
    }
    licenses = _licenses(release.name)
    return component | ({"licenses": licenses} if licenses else {})


def _licenses(name: str) -> list[dict[str, Any]]:
    """The licenses that the installed package declares; none if it is not installed here, as one for another system."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    classifiers = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier", []) if each.startswith("License")]
    declared = (about.get("License") or "").strip()
    names = sorted({*classifiers} - {"OSI Approved"}) or ([declared] if 0 < len(declared) <= MAX_NAME else [])
    return [{"license": {"name": each}} for each in names]


if __name__ == "__main__":
    sys.exit(main())
