"""The page in a real browser, if there is one: what it asks the network for, what it complains about, what it shows."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ampcheck.report.formats import render

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps", "--enable-logging=stderr", "--v=0",
]  # fmt: skip
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
HOSTILE = "<script>document.title='taken'</script><img src='/beacon.png' onerror=\"document.title='taken'\">&lt;b&gt;\"'><style>*{display:none}</style>"
Build = Callable[..., dict[str, Any]]


class Site(http.server.SimpleHTTPRequestHandler):
    """Serves one page and remembers what it was asked for."""

    page = b""
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        found = self.path == "/report.html"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.page if found else b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[type[Site], str]]:
    handler = type("OneSite", (Site,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}/report.html"
    server.shutdown()
    thread.join()
    server.server_close()


def browse(profile: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    return subprocess.run(
        [BROWSER, *QUIET, f"--user-data-dir={profile}", *arguments, url],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def complaints(run: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in run.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_asks_for_nothing_and_shows_foreign_text_as_text(
    document: Build, outline: Any, site: Any, scheme: str, tmp_path: Path
) -> None:
    handler, url = site
    handler.page = render(document(lambda n: f"{HOSTILE}{n}"), "html").encode()
    dark = [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    run = browse(tmp_path / "profile", url, "--dump-dom", *dark)
    assert complaints(run) == []
    assert [path for path in handler.asked if path != "/favicon.ico"] == ["/report.html"]
    before, after = outline(handler.page.decode()), outline(run.stdout)
    # The browser's own parser made of it what we wrote: no element more, and none in another place.
    skipped = {("tbody",), ("path",), ("g",), ("defs",)}
    assert [tag for tag in after.tags if tag not in skipped] == [tag for tag in before.tags if tag not in skipped]
    assert f"{HOSTILE}11" in after.text
    assert "<title>ampcheck: Blocked" in run.stdout


def test_the_browser_would_be_caught(site: Any, tmp_path: Path) -> None:
    handler, url = site
    handler.page = b"<!DOCTYPE html><title>x</title><body><img src='/beacon.png'><script>console.error('no')</script>"
    run = browse(tmp_path / "profile", url, "--dump-dom")
    assert "/beacon.png" in handler.asked
    assert complaints(run)


def test_its_policy_stops_what_slips_through(document: Build, site: Any, tmp_path: Path) -> None:
    handler, url = site
    page = render(document(), "html")
    slipped = "<script>document.title='taken'</script><img src='/beacon.png'><style>@import '/beacon.css';</style>"
    handler.page = page.replace("<main>", f"<main>{slipped}").encode()
    run = browse(tmp_path / "profile", url, "--dump-dom")
    assert complaints(run)
    assert [path for path in handler.asked if path != "/favicon.ico"] == ["/report.html"]
    assert "<title>ampcheck: Blocked" in run.stdout


def test_a_link_to_a_contract_opens_it(document: Build, site: Any, tmp_path: Path) -> None:
    handler, url = site
    handler.page = render(document(), "html").encode()
    folds = [
        browse(tmp_path / "profile", target, "--dump-dom").stdout.count('<details class="contract" open')
        for target in (url, f"{url}#c2")
    ]
    assert folds == [1, 2]


def test_it_prints_what_is_folded_away(document: Build, site: Any, tmp_path: Path) -> None:
    handler, url = site
    handler.page = render(document(), "html").encode()
    paper = tmp_path / "report.pdf"
    run = browse(tmp_path / "profile", url, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert complaints(run) == []
    assert paper.read_bytes().startswith(b"%PDF")
    folded, opened = len(paper.read_bytes()), tmp_path / "opened.pdf"
    handler.page = handler.page.replace(b"<details", b"<details open")
    browse(tmp_path / "profile", url, f"--print-to-pdf={opened}", "--no-pdf-header-footer")
    # The same ink, but for marks beside the folds.
    assert folded > 0.9 * len(opened.read_bytes())


@pytest.mark.parametrize("width", [320, 1280])
def test_it_fits_narrow_and_wide_screens(document: Build, site: Any, width: int, tmp_path: Path) -> None:
    handler, url = site
    # Only the page measures: the policy is taken off so that this test's own script may run.
    page = render(document(lambda n: f"{'long' * 60}{n}"), "html").replace("default-src 'none'; ", "")
    measure = "<script>document.title = 'wide ' + (document.documentElement.scrollWidth - window.innerWidth)</script>"
    handler.page = page.replace("</body>", f"{measure}</body>").encode()
    run = browse(
        tmp_path / "profile",
        url,
        "--dump-dom",
        f"--window-size={max(width, 500)},900",
        f"--force-device-scale-factor={500 / width if width < 500 else 1}",
    )
    assert "<title>wide 0</title>" in run.stdout or "<title>wide -" in run.stdout
