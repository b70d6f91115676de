"""`tape certs dev`, and the command line over TLS, in the order in which the documentation shows it."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from tape import ServerBackend, SessionTape, TapeClient, TextChunk
from tape.engine.security import dev_certificates
from tests.forked import Forked, tape
from tests.services import ServerProcess, free_port

PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()
SECTION = PAGE[PAGE.index("\n## TLS\n") :].partition("\n## ")[2].partition("\n## ")[0]


def certs(folder: Path, *arguments: str) -> str:
    done = tape("certs", "dev", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(path: Path) -> list[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return [
        str(name.value) for name in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    ]


def exports_in(text: str) -> dict[str, str]:
    """The variables that a text asks to export."""
    lines = re.findall(r"^\s*export (.*)$", text, re.MULTILINE)
    return dict(assignment.split("=", 1) for line in lines for assignment in line.split())


class Served:
    """A server with TLS, started with the options that `tape certs dev` printed."""

    def __init__(self, folder: Path, store: str, *flags: str) -> None:
        self.folder = folder
        self.shown = certs(folder)
        command = re.search(r"tape serve (--tls-cert \S+ --tls-key \S+)", self.shown)
        assert command is not None
        files = [str(folder / word) if not word.startswith("--") else word for word in command[1].split()]
        self.server = ServerProcess(store, *files, *flags)

    def __enter__(self) -> Served:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.kill()

    @property
    def env(self) -> dict[str, str]:
        """The variables that were printed, with the ports of this server."""
        urls = {"TAPE_URL": self.server.url, "TAPE_SERVER_URL": self.server.http_url}
        return os.environ | exports_in(self.shown) | urls


@pytest.fixture
def served(tmp_path: Path, sqlite_url: str) -> Iterator[Served]:
    with Served(tmp_path, sqlite_url) as served:
        yield served


def test_an_authority_and_a_server_certificate_are_made_once(tmp_path: Path) -> None:
    assert "Created the authority tape-certs/ca.crt" in certs(tmp_path)
    folder = tmp_path / "tape-certs"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"ca.crt", "ca.key", "server.crt", "server.key"}
    assert (mode_of(folder), mode_of(folder / "ca.key"), mode_of(folder / "server.key")) == (0o700, 0o600, 0o600)
    assert names_in(folder / "server.crt") == ["localhost", "127.0.0.1", "::1"]
    again = certs(tmp_path)
    assert "Kept the server certificate" in again
    assert "Created" not in again
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_further_host_makes_a_new_certificate_of_the_same_key_and_authority(tmp_path: Path) -> None:
    certs(tmp_path, "--out", "c")
    authority, key = (tmp_path / "c/ca.crt").read_bytes(), (tmp_path / "c/server.key").read_bytes()
    assert "Created the server certificate" in certs(
        tmp_path, "--out", "c", "--host", "tape.internal", "--host", "10.0.0.5"
    )
    assert names_in(tmp_path / "c/server.crt")[-2:] == ["tape.internal", "10.0.0.5"]
    assert ((tmp_path / "c/ca.crt").read_bytes(), (tmp_path / "c/server.key").read_bytes()) == (authority, key)


def test_a_certificate_that_expires_soon_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dev_certificates, "CERTIFICATE_DAYS", 29)
        old = dev_certificates.DevAuthority(tmp_path).server()
    new = dev_certificates.DevAuthority(tmp_path).server()
    assert (old.is_new, new.is_new) == (True, True)
    assert not dev_certificates.DevAuthority(tmp_path).server().is_new


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--host", "a b"], "--host 'a b' must be a host name"),
        (["--client", "a/b"], "--client 'a/b' must be a DNS name or a URI"),
        (["--client", "server"], "choose another name"),
        (["--client", ".."], "choose another name"),
        (["--client", "spiffe://../../etc"], "Created the client certificate tape-certs/etc.crt"),
    ],
)
def test_names_cannot_lead_out_of_the_folder(tmp_path: Path, arguments: list[str], reason: str) -> None:
    done = tape("certs", "dev", *arguments, cwd=tmp_path)
    assert reason in done.stdout + done.stderr
    assert {path.parent.name for path in tmp_path.rglob("*.*")} <= {"tape-certs"}


def test_damaged_files_are_named_and_left_alone(tmp_path: Path) -> None:
    certs(tmp_path)
    (tmp_path / "tape-certs/server.key").write_text("damaged")
    done = tape("certs", "dev", cwd=tmp_path)
    assert done.returncode == 1
    assert "tape-certs/server.crt and tape-certs/server.key are no certificate and its key" in done.stderr
    assert (tmp_path / "tape-certs/server.key").read_text() == "damaged"


def test_the_commands_that_are_printed_work(served: Served) -> None:
    assert served.server.url.startswith("tapes://")
    assert served.server.http_url.startswith("https://")
    done = tape("append", "/tape/greeting/sent/world", '{"text": "hello"}', env=served.env)
    assert done.returncode == 0, done.stderr
    for source in ([], ["--http", served.server.http_url]):
        shown = tape("tail", "--from", "start", "--count", "1", *source, env=served.env)
        assert "hello" in shown.stdout, shown.stderr
    for command in (["runs", "list"], ["subscriptions", "list"], ["reactions", "list"], ["spool", "list", "none"]):
        shown = tape(*command, env=served.env)
        assert "TAPE-1602" not in shown.stderr, f"{command}: {shown.stderr}"


def test_a_command_without_tape_ca_says_what_to_set(served: Served) -> None:
    env = {name: value for name, value in served.env.items() if name != "TAPE_CA"}
    for command in (["append", "/tape/a/b/c", "{}"], ["subscriptions", "list"]):
        # A process of its own: gRPC decides what it logs when it is loaded.
        done = subprocess.run([sys.executable, "-m", "tape", *command], env=env, capture_output=True, text=True)
        assert done.returncode == 1
        assert "set TAPE_CA to the file" in done.stderr
        assert "Traceback" not in done.stderr
        assert "ssl_transport_security" not in done.stderr


def test_the_sdk_connects_over_tls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_CA", served.env["TAPE_CA"])
    with TapeClient(served.server.url) as client:
        assert client.append("/tape/order/created/1", {"n": 1}) == 1
    with SessionTape(backend=ServerBackend(served.server.url, run_id="r1")) as recorded:
        recorded.record(TextChunk(text="hello"))
    with TapeClient(served.server.url) as client:
        assert client.head().global_seq > 1


def test_the_doctor_shows_when_the_certificate_expires(tmp_path: Path, sqlite_url: str) -> None:
    certs(tmp_path)
    folder = tmp_path / "tape-certs"
    (tmp_path / "tape.toml").write_text(
        f'store = "{sqlite_url}"\ntls_cert = "{folder}/server.crt"\ntls_key = "{folder}/server.key"\n'
    )

    def check() -> dict[str, str]:
        done = tape("doctor", "-o", "json", cwd=tmp_path)
        return next(check for check in json.loads(done.stdout) if check["name"] == "TLS")

    assert check()["verdict"] == "ok"
    assert re.search(r"expires in 39\d\.\d days", check()["found"])
    (folder / "server.key").chmod(0o644)
    assert (check()["verdict"], check()["remedy"]) == ("warning", f"chmod 600 {folder}/server.key")
    (folder / "server.key").write_text("")
    assert check()["verdict"] == "problem"


def test_the_banner_says_what_protects_the_connections(served: Served, tmp_path: Path) -> None:
    insecure = Forked(
        ["serve", "--store", f"sqlite:{tmp_path / 'other.db'}", "--listen", f"0.0.0.0:{free_port()}",
         "--http-listen", "", "--anonymous", "network", "--insecure"],
    )  # fmt: skip
    try:
        assert insecure.stdout is not None
        lines = iter(insecure.stdout.readline, "")
        assert any(
            "TLS    off: tokens and entries cross the network in plain text (--insecure)" in line for line in lines
        )
    finally:
        insecure.kill()


def test_serve_on_another_address_without_tls_names_the_remedies(tmp_path: Path) -> None:
    done = tape("serve", "--listen", "0.0.0.0:0", "--anonymous", "network", cwd=tmp_path)
    assert done.returncode == 1
    for remedy in ("--tls-cert", "tape certs dev", "127.0.0.1", "--insecure", "TAPE_INSECURE=1"):
        assert remedy in done.stderr
    gateway = tape(
        "gateway", "--server", "http://127.0.0.1:1", "--listen", "0.0.0.0:0",
        env=os.environ | {"TAPE_INTERNAL_API_TOKEN": "t"}, cwd=tmp_path,
    )  # fmt: skip
    assert gateway.returncode == 1
    assert "TAPE_INSECURE=1" in gateway.stderr


# ── the documentation ────────────────────────────────────────────────────────────────────────────


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


def test_the_documentation_of_tls_works_as_printed(tmp_path: Path, sqlite_url: str) -> None:
    grpc, http = free_port(), free_port()

    def run(line: str, env: dict[str, str]) -> str:
        words = shlex.split(line, comments=True)
        done = tape(*words[1:], cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    (toml,) = blocks("toml")
    setup, clients = blocks("sh")
    variables = {
        name: value.replace(":7878", f":{grpc}").replace(":7879", f":{http}")
        for name, value in exports_in(clients).items()
    }
    env = os.environ | variables
    commands = setup.strip().splitlines()
    for line in commands[:-1]:
        run(line, dict(os.environ))
    (tmp_path / "tape.toml").write_text(toml)
    assert commands[-1] == "tape serve"
    listen = ["--listen", f"127.0.0.1:{grpc}", "--http-listen", f"127.0.0.1:{http}"]
    server = Forked(["serve", "--store", sqlite_url, *listen], cwd=tmp_path)
    try:
        assert server.stdout is not None
        assert any("Ctrl-C" in line for line in iter(server.stdout.readline, ""))
        shown = [run(line, env) for line in clients.strip().splitlines() if line.startswith("tape ")]
        assert any("hello" in text for text in shown)
    finally:
        server.kill()
