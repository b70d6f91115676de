"""A real browser's EventSource: receives, comes back after the server was killed, and misses nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Error, Page, sync_playwright

from tape.client import TapeClient
from tape.engine.security.tokens import jwks_path, load_key
from tests.services import ServerProcess, wait_for

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
PAGE = """<!doctype html><title>stream</title><script>
window.seen = []; window.opened = 0;
function listen(url) {
  const source = new EventSource(url);
  source.onopen = () => { window.opened += 1; };
  source.addEventListener("order.created", event => {
    window.seen.push([Number(event.lastEventId), JSON.parse(event.data).sequence]);
  });
}
</script>"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    """A web page of another origin."""
    (tmp_path / "index.html").write_text(PAGE)
    site = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{site.server_port}"
    site.shutdown()
    site.server_close()


@pytest.fixture
def page() -> Iterator[Page]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium on this machine: a real EventSource was not tested")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-gpu"], timeout=180_000
            )
        except Error as error:
            pytest.skip(f"{program} does not start here: a real EventSource was not tested ({error.message[:200]})")
        page = browser.new_page()
        page.set_default_timeout(180_000)
        yield page
        browser.close()


def test_a_browser_resumes_after_a_killed_server_and_misses_nothing(page: Page, origin: str, tmp_path: Path) -> None:
    key, _ = load_key(tmp_path / "dev.key")
    token = key.mint(tenant="shop", user="ada", session="s1")
    flags = ["--auth-jwks", str(jwks_path(tmp_path / "dev.key")), "--cors-origins", origin]
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}", *flags) as server:
        http, grpc = server.http_url.removeprefix("http://"), server.url.removeprefix("tape://")

        def append(count: int, last: int) -> None:
            with TapeClient(server.url, id_token=token) as client:
                for _ in range(count):
                    client.append("/tape/order/created/1")

            def arrived() -> bool:
                return bool(page.evaluate("window.seen.length") >= last)

            wait_for(arrived, f"{last} events in the browser")

        page.goto(f"{origin}/index.html")
        page.evaluate(f"listen('{server.http_url}/v1/events?access_token={token}')")
        wait_for(lambda: page.evaluate("window.opened") == 1, "the stream to open")
        append(20, 20)
        server.kill()
        server.start(grpc, http)
        append(20, 40)  # some of them before the browser is back: those are replayed
        assert page.evaluate("window.opened") == 2
        assert page.evaluate("window.seen") == [[number, number] for number in range(1, 41)]
