"""The documentation, as it is built, in a real browser."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Error, Page, Request, sync_playwright

from tests.test_docs import public_names

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

IS_DARK = """() => {
  const colour = getComputedStyle(document.body).backgroundColor;
  return colour.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) < 200;
}"""

FOUND = """() => {
  const main = document.querySelector("article").cloneNode(true);
  main.querySelectorAll("pre, code, .katex").forEach((part) => part.remove());
  const formulas = [...document.querySelectorAll(".arithmatex")];
  return {
    text: main.textContent,
    formulas: formulas.length,
    rendered: formulas.filter((one) => one.querySelector(".katex .katex-html")).length,
    failed: document.querySelectorAll(".katex-error").length,
    broken: [...document.images].filter((one) => !one.complete || !one.naturalWidth).map((one) => one.src),
    links: [...document.links].map((one) => one.href),
    ids: [...document.querySelectorAll("[id]")].map((one) => one.id),
    headings: document.querySelectorAll("h1").length,
    width: document.documentElement.scrollWidth,
    colour: getComputedStyle(document.body).backgroundColor,
  };
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Write nothing: the tests listen to the browser."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is not installed")
        pytest.skip("Chromium is not installed: the site cannot be looked at")
    with sync_playwright() as play, play.chromium.launch(executable_path=CHROMIUM, args=FLAGS) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(site: Path, address: str, browser: Browser) -> dict[str, dict[str, Any]]:
    """Each page: what it logged and requested, and what it shows on a desk and on a phone, light and dark."""
    page = browser.new_page(viewport=DESK, color_scheme="light")  # pyright: ignore[reportArgumentType]
    logged: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: logged.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.on(
        "requestfailed", lambda request: logged.append(f"failed: {request.url}") if lost(request) else None
    )
    page.on("response", lambda answer: logged.append(answer.url) if answer.status >= 400 else None)
    page.on("request", lambda request: requested.append(request.url))
    found = {}
    for file in sorted(site.rglob("index.html")):
        name = file.parent.relative_to(site).as_posix().removeprefix(".")
        logged.clear()
        requested.clear()
        found[name] = look(page, f"{address}/{name}/".replace("//", "/").replace(":/", "://"))
        found[name] |= {"logged": list(logged), "requested": list(requested)}
    page.close()
    return found


def lost(request: Request) -> bool:
    """Return whether a request failed otherwise than by going on to the next page."""
    return request.failure != "net::ERR_ABORTED"


def look(page: Page, url: str) -> dict[str, Any]:
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESK)  # pyright: ignore[reportArgumentType]
    page.goto(url, wait_until="load")
    found = page.evaluate(FOUND)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)  # pyright: ignore[reportArgumentType]
    with contextlib.suppress(Error):  # what is wrong is said by the test of the colours
        page.wait_for_function(IS_DARK, timeout=20_000)
    return found | {"dark phone": page.evaluate(FOUND)}


def test_every_page_of_the_docs_is_built(site: Path) -> None:
    sources = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    sources -= {Path("tutorial/dqn")}
    built = {path.parent.relative_to(site) for path in site.rglob("index.html")}
    assert {path.parent if path.name == "index" else path for path in sources} <= built
    assert (site / "tutorial" / "dqn.ipynb").exists()


def test_pages_log_nothing_and_nothing_is_missing(pages: dict[str, dict[str, Any]]) -> None:
    assert {name: found["logged"] for name, found in pages.items() if found["logged"]} == {}


def test_pages_request_nothing_from_another_host(pages: dict[str, dict[str, Any]], address: str) -> None:
    for name, found in pages.items():
        assert [url for url in found["requested"] if not url.startswith((address, "data:"))] == [], name


def test_formulas_are_rendered(pages: dict[str, dict[str, Any]]) -> None:
    assert sum(found["formulas"] for found in pages.values()) > 40
    for name, found in pages.items():
        assert found["rendered"] == found["formulas"], name
        assert found["failed"] == 0, name
        for raw in ("\\(", "\\)", "\\[", "$$", "\\frac", "\\Sigma", "<!--", ":::"):
            assert raw not in found["text"], (name, raw)


def test_images_are_shown(pages: dict[str, dict[str, Any]]) -> None:
    assert {name: found["broken"] for name, found in pages.items() if found["broken"]} == {}


def test_internal_links_lead_to_pages_and_places_that_exist(
    pages: dict[str, dict[str, Any]], site: Path, address: str
) -> None:
    broken = set()
    for name, found in pages.items():
        for link in found["links"]:
            if not link.startswith(address):
                continue
            parts = urlsplit(link)
            path, place = unquote(parts.path).strip("/"), unquote(parts.fragment)
            if path in pages:
                if place and place not in pages[path]["ids"]:
                    broken.add((name, link))
            elif not (site / path).is_file():
                broken.add((name, link))
    assert broken == set()


def test_pages_follow_the_reader_to_light_and_dark(pages: dict[str, dict[str, Any]]) -> None:
    def brightness(colour: str) -> int:
        return sum(map(int, colour.strip("rgba()").split(",")[:3]))

    for name, found in pages.items():
        assert brightness(found["colour"]) > 700, name
        assert brightness(found["dark phone"]["colour"]) < 200, name


def test_no_page_is_wider_than_the_screen(pages: dict[str, dict[str, Any]]) -> None:
    for name, found in pages.items():
        assert found["width"] <= DESK["width"], name
        assert found["dark phone"]["width"] <= PHONE["width"], name


def test_every_page_has_one_title(pages: dict[str, dict[str, Any]]) -> None:
    assert {name for name, found in pages.items() if found["headings"] != 1} == set()


def test_the_algorithms_are_shown(site: Path, address: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{address}/explanation/algorithms/")
    code = "\n".join(page.locator("pre").all_inner_texts())
    page.close()
    for line in ("def pop_art_sgd(", "def normalized_sgd(", "theta = theta - alpha * J @ W.T @ delta"):
        assert line in code


def test_the_inventory_has_every_public_name(site: Path) -> None:
    """Other projects link to the inventory with intersphinx."""
    head, _, body = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert b"popart" in head
    listed = {line.split()[0] for line in zlib.decompress(body).decode().splitlines() if line}
    assert public_names() <= listed


def test_search_finds_names_and_words(address: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(address)
    box = page.get_by_role("textbox", name="Search")
    box.click()
    page.get_by_text("Type to start searching").wait_for(timeout=60_000)
    box.press_sequentially("polyak")  # results follow keys
    page.wait_for_selector(".md-search-result__item")
    assert "reference/torch/" in "".join(
        str(link.get_attribute("href")) for link in page.locator(".md-search-result__link").all()
    )
    page.close()
