"""Every command and every program shown in README and docs works as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tape.pipeline.session import QUICK_JVM
from tests.services import ServerProcess, free_port

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK_OF_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GRPC, HTTP = "127.0.0.1:7878", "127.0.0.1:7879"
# Pages that show outputs in full; the others may leave lines out.
COMPLETE = ("README.md", "tutorial.md")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page that a reader would use, in order."""
    return [found for found in BLOCK.findall(page.read_text()) if found[0] in ("console", "python", "json", "yaml")]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A reader who follows a page from the top: an empty folder, a server, `tape` on the path."""
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = os.environ | {"PATH": path, "COLUMNS": "200", "TAPE_URL": server.url, "JDK_JAVA_OPTIONS": QUICK_JVM}
        env |= {"TAPE_SERVER_URL": server.http_url}
        yield env | {"GRPC": server.url.removeprefix("tape://"), "HTTP": server.http_url.removeprefix("http://")}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_what_a_page_shows_works_as_printed(page: Path, reader: dict[str, str], tmp_path: Path) -> None:
    for language, text in blocks(page):
        text = text.replace(GRPC, reader["GRPC"]).replace(HTTP, reader["HTTP"])
        if language == "json":
            (tmp_path / "entry.json").write_text(text)  # what the commands below it read
        elif language in ("python", "yaml") and (name := re.match(r"# ([\w-]+\.(?:py|yaml))\n", text)):
            (tmp_path / name[1]).write_text(text)  # a file that the page asks to save and runs below
        elif language == "yaml":
            pass  # a part of a document, to be read
        elif language == "python":
            run([sys.executable, "-c", text], reader, tmp_path)
        else:
            for command, expected in steps(text):
                shown = run(["bash", "-euo", "pipefail", "-c", command], reader, tmp_path)
                assert is_as_printed(page, expected, shown), f"{page.name}: {command}\nshows: {shown}"


def steps(session: str) -> list[tuple[str, list[str]]]:
    """The commands of a console session, each with the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def is_as_printed(page: Path, expected: list[str], shown: str) -> bool:
    """Whether the output has the lines that the page shows: exactly those where the page is complete."""
    if page.name in COMPLETE:
        lines = [blurred(line) for line in shown.splitlines() if line.strip()]
        return lines == [blurred(line) for line in expected]
    return all(blurred(line) in blurred(shown) for line in expected)


def blurred(text: str) -> str:
    """Without what differs each time: dates, times, durations, ids, and the width of columns."""
    text = re.sub(r"\d{4}-\d\d-\d\d ", "", text)
    text = re.sub(r"\d\d:\d\d:\d\d\.\d{3}", "HH:MM:SS.mmm", text)
    text = re.sub(r"\b\d+(?:ms|s|m)\b", "<duration>", text)
    text = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>", text)
    return re.sub(r" +", " ", text).strip()


def run(command: list[str], env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", page.read_text()):
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), f"{page.name} links to {target}"
            if anchor:
                titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
                assert anchor[1:] in slugs, f"{page.name} links to {target}{anchor}"


def test_the_five_lines_for_tls_and_keys_give_a_server_that_demands_both(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().split("## TLS and keys", 1)[1]
    ports = {"7878": str(free_port()), "7879": str(free_port())}
    text = re.sub("7878|7879", lambda found: ports[found[0]], BLOCK_OF_SHELL.findall(section)[0])
    certs, keys, serve, export, append = text.splitlines()
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run(["bash", "-euc", f"{certs}\n{keys}"], env, tmp_path)
    serving = ["bash", "-c", f"exec {serve}"]
    with subprocess.Popen(serving, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            greeting = "".join(iter(server.stdout.readline, "Ctrl-C stops it.\n"))
            assert f"tapes://0.0.0.0:{ports['7878']}" in greeting
            assert run(["bash", "-euc", f"{export}\n{append}"], env, tmp_path).strip().isdecimal()
            for missing in ("TAPE_TOKEN", "TAPE_CA"):
                command = ["bash", "-euc", f"{export}\nunset {missing}\n{append}"]
                refused = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240)
                assert refused.returncode != 0
        finally:
            server.kill()


def test_make_serve_starts_a_server_and_says_what_to_try(tmp_path: Path) -> None:
    arguments = f"--store sqlite:{tmp_path / 'tape.db'} --listen 127.0.0.1:0 --http-listen 127.0.0.1:0"
    process = subprocess.Popen(
        ["make", "--no-print-directory", "serve", f"ARGS={arguments}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert process.stdout is not None
        seen = ""
        while "Ctrl-C" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        assert "tape://127.0.0.1:" in seen
        assert "append" in seen
    finally:
        os.killpg(process.pid, 15)
        process.communicate(timeout=120)


def test_make_alone_explains_itself() -> None:
    text = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("serve", "test", "lint", "proof", "bench"):
        assert f"make {target}" in text


def test_the_outage_demo_plays_to_its_end() -> None:
    command = [sys.executable, str(ROOT / "scripts/outage_demo.py"), "--rate", "10", "--outage-s", "3"]
    output = " ".join(run(command, dict(os.environ), ROOT).split())
    assert re.search(r"received (\d+) of \1 messages: each once, in order for each of the 5 keys", output)
    assert re.search(r"(\d+) spooled = \1 replayed \+ 0 dead-lettered \+ 0 quarantined \+ 0 waiting", output)
