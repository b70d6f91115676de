"""`tape ingress`: which check of a saved request fails and why, a signed request that a listener accepts, resends."""

from __future__ import annotations

import hashlib
import hmac
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tape.cli.ingress import app
from tape.errors import TapeError
from tests.forked import tape
from tests.services import ServerProcess

SECRET = "very-s3cret"
BODY = b'{"order_id": 7}'
DOCUMENT = """\
kind: Subscription
metadata: {{path: subscriptions/{name}}}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/{name}
    verify: {verify}
  dispatch: {{playbook: domain/ingest_order}}
  dedup: {{enabled: true}}
"""
PLAYBOOK = """\
kind: Playbook
metadata: {path: domain/ingest_order}
workflow:
  - step: say
    tool: {kind: value, value: done}
"""
SLACK = "{type: signature, preset: slack, secret: slack}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doc.yaml").write_text(DOCUMENT.format(name="shop", verify=SLACK))
    (tmp_path / "secret").write_text(SECRET + "\n")
    return tmp_path


def slack(body: bytes = BODY, at: int = 0, secret: str = SECRET) -> dict[str, str]:
    moment = str(at or int(time.time()))
    made = hmac.new(secret.encode(), f"v0:{moment}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": moment, "X-Slack-Signature": f"v0={made}"}


def saved(headers: dict[str, str], body: bytes = BODY, line: str = "POST /ingress/shop HTTP/1.1\r\n") -> bytes:
    return (line + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode() + body


def ingress(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`tape ingress …` in this process, with errors as the command line prints them."""
    done = CliRunner().invoke(app, arguments)
    if isinstance(done.exception, TapeError):
        return subprocess.CompletedProcess(arguments, 1, "", f"error {done.exception.code}: {done.exception}")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, "")


def check(folder: Path, sample: bytes, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "sample").write_bytes(sample)
    files = ("--sample", str(folder / "sample"), "--secret-file", str(folder / "secret"))
    return ingress("test", str(folder / "doc.yaml"), *files, *more)


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_signed_request_passes_every_check(folder: Path) -> None:
    (folder / "sample").write_bytes(saved(slack()))
    command = ("ingress", "test", str(folder / "doc.yaml"), "--sample", str(folder / "sample"))
    done = tape(*command, env={"TAPE_INGRESS_SECRET": SECRET})
    assert done.returncode == 0, done.stderr
    assert "verified: message" in done.stdout
    assert "v0:" in done.stdout
    assert '{"order_id": 7}' in done.stdout
    assert "runs domain/ingest_order" in done.stdout
    assert "fail" not in done.stdout
    assert SECRET not in done.stdout + done.stderr


def test_a_request_as_json_is_read_too(folder: Path) -> None:
    sample = {"headers": slack(), "body": BODY.decode(), "url": "https://x.example/ingress/shop?a=1"}
    assert check(folder, json.dumps(sample).encode()).returncode == 0


def test_the_failing_check_is_named_with_what_was_expected_and_received(folder: Path) -> None:
    headers = slack(secret="wrong")
    done = check(folder, saved(headers), "-o", "json")
    found = checks(done)
    assert (done.returncode, found["verified"], found["reason"]) == (1, False, "bad_signature")
    (failed,) = [each for each in found["checks"] if not each["passed"]]
    assert failed["check"] == "signature"
    assert headers["X-Slack-Signature"][3:11] in failed["found"]
    assert slack()["X-Slack-Signature"][3:] not in done.stdout
    assert SECRET not in done.stdout


@pytest.mark.parametrize(
    ("headers", "check_name", "reason"),
    [
        ({}, "signature header", "missing_signature"),
        ({"X-Slack-Signature": "v0=00"}, "timestamp", "missing_timestamp"),
        ({"X-Slack-Signature": "v1=00", "X-Slack-Request-Timestamp": "1"}, "signatures", "malformed_signature"),
        (slack(at=1_531_420_618), "replay window", "stale_signature"),
    ],
)
def test_each_check_can_fail(folder: Path, headers: dict[str, str], check_name: str, reason: str) -> None:
    found = checks(check(folder, saved(headers), "-o", "json"))
    assert found["reason"] == reason
    assert [each["check"] for each in found["checks"] if not each["passed"]] == [check_name]


def test_an_old_sample_is_judged_by_the_time_it_was_received(folder: Path) -> None:
    sample = saved(slack(at=1_531_420_618))
    for moment in ("1531420618", "2018-07-12T18:36:58Z"):
        assert check(folder, sample, "--at", moment).returncode == 0
    assert check(folder, sample, "--at", "tomorrow").returncode == 1


def test_a_line_end_that_an_editor_added_is_left_out(folder: Path) -> None:
    headers = slack() | {"Content-Length": str(len(BODY))}
    done = check(folder, saved(headers, BODY + b"\n"))
    assert done.returncode == 0, done.stdout
    assert "line ends after Content-Length were left out" in done.stdout


@pytest.mark.parametrize("sample", [b"no header\r\n\r\n{}", b'{"body": "x"}', b'{"headers": {}, "body_base64": "!"}'])
def test_what_is_no_request_is_said(folder: Path, sample: bytes) -> None:
    done = check(folder, sample)
    assert done.returncode == 1
    assert "TAPE-2253" in done.stderr


def test_a_handshake_is_recognized(folder: Path) -> None:
    body = b'{"type": "url_verification", "challenge": "c"}'
    done = check(folder, saved(slack(body), body))
    assert "verified: the handshake url_verification, no message" in done.stdout


def test_only_a_provider_can_sign_with_its_private_key(folder: Path) -> None:
    for verify in ("{type: signature, preset: discord, secret: d}", "{type: mtls, certificates: [a.example.com]}"):
        (folder / "doc.yaml").write_text(DOCUMENT.format(name="shop", verify=verify))
        done = check(folder, saved({}), "--sign")
        assert done.returncode == 1
        assert "TAPE-2253" in done.stderr


# ── with a server ────────────────────────────────────────────────────────────────────────────────

VERIFY = {
    "slack": SLACK,
    "stripe": "{type: signature, preset: stripe, secret: slack}",
    "standard": "{type: signature, preset: standard_webhooks, secret: standard}",
    "github": "{type: signature, preset: github, secret: slack}",
    "gitlab": "{type: signature, preset: gitlab, secret: slack}",
    "twilio": "{type: signature, preset: twilio, secret: slack}\n    public_url: https://hooks.example.com",
    "own": "{type: signature, algorithm: hmac_sha512, encoding: base64url, header: X-Sig, prefix: 'p=', secret: slack,"
    " signed: [id, timestamp, method, path, body_sha512], join: '|', timestamp_header: X-At, id_header: X-Id}",
    "plain": "{type: hmac_sha256, header: X-Sig, secret: slack}",
    "bearer": "{type: bearer, secret: slack}",
    "basic": "{type: basic, user: shop, secret: slack}",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    path = tmp_path_factory.mktemp("ingress")
    store = f"sqlite:{path / 'tape.db'}"
    for alias, secret in (("slack", SECRET), ("standard", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")):
        done = tape("wallet", "set", alias, "--store", store, stdin=secret)
        assert done.returncode == 0, done.stderr
    with ServerProcess(store) as server:
        for name, verify in VERIFY.items():
            (path / f"{name}.yaml").write_text(DOCUMENT.format(name=name, verify=verify))

        def api(call: str, body: dict[str, Any]) -> Any:
            url, headers = f"{server.http_url}{call}", {"Content-Type": "application/json"}
            return json.loads(
                urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
            )

        api("/api/catalog/register", {"content": PLAYBOOK})
        for name in VERIFY:
            api("/api/catalog/register", {"content": (path / f"{name}.yaml").read_text()})
            status = api("/api/subscriptions/register", {"path": f"subscriptions/{name}"})
            api(f"/api/subscriptions/{status['subscription_id']}/activate", {})
        yield server, path


@pytest.mark.parametrize("name", VERIFY)
def test_a_listener_accepts_the_command_that_was_signed(
    server: tuple[ServerProcess, Path], tmp_path: Path, name: str
) -> None:
    serving, path = server
    headers = {"Content-Type": "application/x-www-form-urlencoded"} if name == "twilio" else {}
    body = b"From=%2B1&Body=it's" if name == "twilio" else b'{"it\'s": "\xc3\xbc", "name": "%b"}' % name.encode()
    (tmp_path / "sample").write_bytes(saved(headers, body))
    done = ingress(
        *("test", str(path / f"{name}.yaml"), "--sample", str(tmp_path / "sample"), "--sign"),
        *("--to", serving.http_url, "--store", f"sqlite:{path / 'tape.db'}"),
    )
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout
    environment = {"TAPE_INGRESS_SECRET": SECRET, "PATH": "/usr/bin:/bin:/usr/local/bin"}
    answer = subprocess.run(["sh", "-c", done.stdout], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["status"] == "accepted", answer.stdout


def test_a_delivery_is_listed_and_sent_again(server: tuple[ServerProcess, Path]) -> None:
    serving, _ = server
    signature = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
    request = urllib.request.Request(f"{serving.http_url}/ingress/plain", BODY, {"X-Sig": signature})
    original = json.loads(urllib.request.urlopen(request).read())["execution_id"]
    done = ingress("resend", original, "--server", serving.http_url)
    assert done.stdout.startswith(f"{original} was sent again as "), done.stderr
    same = ingress("resend", original, "--dedup", "same", "--server", serving.http_url)
    assert f"within the deduplication window it is {original}" in same.stdout
    listed = ingress("deliveries", "subscriptions/plain", "--server", serving.http_url, "-o", "json")
    found = [each["execution_id"] for each in json.loads(listed.stdout)["deliveries"] if each["outcome"] == "accepted"]
    assert done.stdout.split()[-1].rstrip(".") in found
    assert original in found
    shown = ingress("deliveries", "subscriptions/plain", "--server", serving.http_url)
    assert original in shown.stdout
    unknown = ingress("resend", "1", "--server", serving.http_url)
    assert (unknown.returncode, "TAPE-" in unknown.stderr) == (1, True)
