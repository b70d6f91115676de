"""The tool `http`: what is sent, what comes back, and which answers are worth another attempt."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tape.errors import StepRefused, ToolFailed
from tape.playbooks.answers import recording_answers
from tape.playbooks.host import LocalHost, RunInfo
from tape.playbooks.library import known_playbook
from tape.playbooks.runner import run_playbook
from tape.playbooks.tools import TOOLS, ToolCall

pytestmark = pytest.mark.usefixtures("loopback_allowed")

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


class Site(BaseHTTPRequestHandler):
    """Answers with what it was sent; `/status/N` with that status."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        status = int(self.path.rpartition("/")[2]) if self.path.startswith("/status/") else 200
        seen = {"path": self.path, "body": body, "method": self.command}
        seen |= {name: self.headers.get(name, "") for name in ("idempotency-key", "traceparent", "content-type", "x-a")}
        answer = b"x" * 600_000 if self.path == "/large" else json.dumps(seen).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if self.path == "/text" else "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST  # noqa: N815 - the name is the library's
    do_DELETE = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def send(**config: Any) -> Any:
    call = ToolCall(config, RunInfo(id="7", path="x", trace=TRACE), "a", "7/a", LocalHost())
    return await TOOLS["http"].call(call)


async def test_a_request_carries_its_key_and_trace_and_the_answer_is_parsed(site: str) -> None:
    answer = await send(url=f"{site}/x?a=1", method="post", json={"n": 1}, params={"b": [2, "ü"]}, headers={"X-A": 5})
    assert (answer["status"], answer["headers"]["content-type"]) == (200, "application/json")
    assert answer["body"] == {
        "path": "/x?a=1&b=2&b=%C3%BC",
        "body": '{"n":1}',
        "method": "POST",
        "idempotency-key": "7/a",
        "traceparent": TRACE["traceparent"],
        "content-type": "application/json",
        "x-a": "5",
    }
    assert (await send(url=f"{site}/text", method="DELETE"))["body"].startswith('{"path"')
    assert (await send(url=f"{site}/x", method="POST", body="plain"))["body"]["body"] == "plain"


@pytest.mark.parametrize(
    ("status", "error"), [(503, ToolFailed), (429, ToolFailed), (404, StepRefused), (400, StepRefused)]
)
async def test_a_status_of_400_or_more_is_a_failure_unless_it_is_expected(
    site: str, status: int, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"GET {site}/status/{status}: status {status}"):
        await send(url=f"{site}/status/{status}")
    assert (await send(url=f"{site}/status/{status}", expect=[status]))["status"] == status


async def test_who_is_away_is_tried_again_and_what_is_too_large_is_not(site: str) -> None:
    with pytest.raises(ToolFailed, match=r"http://127\.0\.0\.1:1/"):
        await send(url="http://127.0.0.1:1/")
    with pytest.raises(StepRefused, match="more than 524288 bytes"):
        await send(url=f"{site}/large")


@pytest.mark.parametrize(
    "url",
    ["{site}/x", "http://localhost:1/", "http://[::1]/", "http://169.254.169.254/latest/meta-data", "http://127.1/"],
)
async def test_an_address_outside_the_public_internet_is_refused_and_the_setting_is_named(
    site: str, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.delenv("TAPE_HTTP_ALLOW")
    with pytest.raises(StepRefused, match="TAPE_HTTP_ALLOW="):
        await send(url=url.format(site=site))


@pytest.mark.parametrize(
    ("step", "answered"),
    [
        ({"tool": {"kind": "http", "url": "{site}/status/200"}}, {"orders"}),
        ({"tool": {"kind": "http", "url": "{site}/status/404"}, "on_error": "continue"}, {"orders"}),
        ({"tool": {"kind": "http", "url": "{site}/status/503"}, "on_error": "continue"}, set()),
        ({"tool": {"kind": "http", "url": "{site}/x"}, "downstream": "payments"}, {"payments"}),
        ({"tool": {"kind": "value", "value": 1}}, set()),
        ({"tool": {"kind": "value", "value": 1}, "downstream": "payments"}, {"payments"}),
    ],
)
async def test_a_step_reports_which_downstream_answered_it(site: str, step: dict[str, Any], answered: set[str]) -> None:
    text = json.dumps({"kind": "Playbook", "metadata": {"path": "x"}, "workflow": [{"step": "a", **step}]})
    playbook = known_playbook(text.replace("{site}", site)).playbook
    found: set[str] = set()
    with recording_answers(found.add):
        await run_playbook(playbook, {}, RunInfo(id="7", path="x", downstream="orders"), LocalHost())
    assert found == answered
