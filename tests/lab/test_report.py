"""The report, in a real browser."""

import os
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from popart.lab.cli import main
from popart.lab.figures import INK
from popart.lab.manifest import read_manifest
from popart.lab.report.page import inline, powers

pytestmark = pytest.mark.xdist_group("report")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCORES = "The paper's raw and normalised scores"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    main(["paper", "--out", str(folder / "paper")])
    main(["histograms", "--targets", "1000", "--out", str(folder / "histograms")])
    small = ["--methods", "sgd", "art", "popart", "popart-rmsprop", "--samples", "100", "--repetitions", "5"]
    main(["regression", *small, "--out", str(folder / "regression")])
    main(["report", str(folder), "--out", str(folder / "report.html")])
    return folder


@pytest.fixture(scope="module")
def html(runs: Path) -> str:
    return (runs / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is not installed")
        pytest.skip("Chromium is not installed: the page cannot be tested")
    with sync_playwright() as play, play.chromium.launch(executable_path=CHROMIUM, args=FLAGS) as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, runs: Path) -> Iterator[Any]:
    """Open the page; fail if it logs anything or requests another file."""
    logged: list[str] = []
    requested: list[str] = []
    pages: list[Page] = []

    def visit(width: int = 1280, **options: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.on("console", lambda message: logged.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        page.goto((runs / "report.html").as_uri())
        pages.append(page)
        return page

    yield visit
    for page in pages:
        page.close()
    assert logged == []
    assert set(requested) == {(runs / "report.html").as_uri()}


def column(page: Page, table: str, name: str) -> list[str]:
    script = """([heading, name]) => {
      const region = document.querySelector(`div[role=region][aria-label="${heading}"]`);
      const table = region.querySelector("table");
      const i = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent.trim() === name);
      return [...table.tBodies[0].rows].map((r) => r.cells[i].dataset.key ?? r.cells[i].textContent);
    }"""
    return page.evaluate(script, [table, name])


def test_figures_are_visible_and_have_captions(visit: Any, runs: Path) -> None:
    page = visit()
    figures = page.locator("figure svg[role=img]")
    shown = [
        s for p in runs.iterdir() if p.is_dir() for s in read_manifest(p)["shown"] if s["kind"] == "figure"
    ]
    assert figures.count() == len(shown) == 6
    for i in range(figures.count()):
        figure = figures.nth(i)
        figure.scroll_into_view_if_needed()
        assert figure.is_visible()
        box = figure.bounding_box()
        assert box["width"] > 600
        assert box["height"] > 150
        caption = page.locator(f"[id='{figure.get_attribute('aria-labelledby')}']")
        assert len(caption.inner_text()) > 50


def test_figures_are_not_blank(visit: Any) -> None:
    page = visit()
    for name in ("figure_1a", "figure_2", "figure_3"):
        paths = page.locator(f"figure svg[aria-labelledby$='{name}-caption'] path")
        widths = paths.evaluate_all("paths => paths.map((path) => path.getBoundingClientRect().width)")
        assert sum(width > 1 for width in widths) > 10


def test_tables_sort_both_ways(visit: Any) -> None:
    page = visit()
    page.get_by_text("57 rows").click()
    button = page.get_by_role("region", name=SCORES).get_by_role("button", name="human", exact=True)
    button.click()
    values = [float(x) for x in column(page, SCORES, "human")]
    assert values == sorted(values)
    assert values[0] == -4336.9
    assert button.locator("..").get_attribute("aria-sort") == "ascending"
    button.click()
    values = [float(x) for x in column(page, SCORES, "human")]
    assert values == sorted(values, reverse=True)
    assert button.locator("..").get_attribute("aria-sort") == "descending"


def test_tables_sort_percentages_words_and_powers(visit: Any) -> None:
    page = visit()
    page.get_by_text("57 rows").click()
    scores = page.get_by_role("region", name=SCORES)
    scores.get_by_role("button", name="difference").click()
    values = [float(x.rstrip("%")) for x in column(page, SCORES, "difference")]
    assert values == sorted(values)
    scores.get_by_role("button", name="game").click()
    words = column(page, SCORES, "game")
    assert words == sorted(words)
    chosen = "Chosen step sizes, beside the paper's"
    page.get_by_role("region", name=chosen).get_by_role("button", name="alpha", exact=True).click()
    exponents = [float(x.removeprefix("10^")) if "^" in x else 0.0 for x in column(page, chosen, "alpha")]
    assert exponents == sorted(exponents)


def test_tables_sort_with_the_keyboard(visit: Any) -> None:
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    region = page.get_by_role("region", name="Order of median and smoothing")
    region.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert region.locator("th").first.get_attribute("aria-sort") == "ascending"


def test_light_and_dark_follow_the_reader_and_figures_follow_the_page(visit: Any) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = visit(color_scheme=scheme)
        style = "e => getComputedStyle(e)"
        background = page.locator("body").evaluate(f"({style})(document.body).backgroundColor")
        ink = page.locator("figure svg").first.evaluate("e => getComputedStyle(e).color")
        colours[scheme] = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in (background, ink)]
    assert colours["light"][0] > 700 > 200 > colours["light"][1]
    assert colours["dark"][0] < 200 < 600 < colours["dark"][1]


@pytest.mark.parametrize("width", [320, 390, 768, 1920])
def test_nothing_is_wider_than_the_screen(visit: Any, width: int) -> None:
    page = visit(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_prints_black_on_white_with_open_tables(visit: Any, tmp_path: Path) -> None:
    page = visit(color_scheme="dark")
    page.emulate_media(media="print")
    assert page.locator("body").evaluate("e => getComputedStyle(e).color") == "rgb(0, 0, 0)"
    pdf = page.pdf(path=str(tmp_path / "page.pdf"))
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") >= 3


def test_the_structure_suits_screen_readers(visit: Any) -> None:
    page = visit()
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))")
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.locator("main").count() == page.locator("nav").count() == 1
    assert page.locator("table th:not([scope])").count() == 0
    assert page.locator(":is([role=region], [role=img]):not([aria-label], [aria-labelledby])").count() == 0
    for link in page.locator("a[href^='#']").all():
        assert page.locator(link.get_attribute("href")).count() == 1


def test_ids_are_unique(html: str) -> None:
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) > 100
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', html)) | set(re.findall(r"url\(#([^)]*)\)", html)) <= set(ids)


def test_the_page_needs_no_other_file(html: str) -> None:
    assert not re.search(r'(src|href)="(?!#|data:)', html)
    assert "@import" not in html
    assert INK not in html.split("</style>")[1]


def test_each_run_has_its_command_settings_and_findings(html: str, runs: Path) -> None:
    for name in ("paper", "histograms", "regression"):
        manifest = read_manifest(runs / name)
        assert f"<code>{manifest['command']}</code>" in html
        assert manifest["versions"]["jax"] in html
        assert all(finding["claim"].split("'")[0] in html for finding in manifest["findings"])
    assert "✗ no" in html
    assert "✓ yes" in html


def test_an_unfinished_run_is_shown_as_such(tmp_path: Path) -> None:
    main(["paper", "--out", str(tmp_path / "run")])
    path = tmp_path / "run" / "manifest.json"
    path.write_text(re.sub(r'"finished": "[^"]*"', '"finished": null', path.read_text()))
    main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    assert "This run is not finished" in (tmp_path / "page.html").read_text()


def test_text_of_runs_is_escaped() -> None:
    assert powers("<b>10^-3.5 & 10^2") == "&lt;b&gt;10<sup>−3.5</sup> &amp; 10<sup>2</sup>"


def test_a_figure_keeps_embedded_images_and_renames_other_references() -> None:
    svg = '<?xml?><svg width="1pt" height="2pt" viewBox="0 0 1 2">'
    svg += f'<g id="a" style="fill: {INK}; clip-path: url(#b)"/>'
    svg += '<use xlink:href="#a"/><image xlink:href="data:image/png;base64,abc"/></svg>'
    found = inline(svg, "x")
    assert 'id="x-a"' in found
    assert "url(#x-b)" in found
    assert 'xlink:href="#x-a"' in found
    assert 'xlink:href="data:image/png;base64,abc"' in found
    assert "fill: currentColor" in found
    assert "width=" not in found


def refuses(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words)


def test_a_file_that_is_not_a_report_is_not_replaced(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.html").write_text("mine")
    refuses(capsys, [str(runs), "--out", str(tmp_path / "mine.html")], "mine.html", "is not a report")
    assert (tmp_path / "mine.html").read_text() == "mine"
    main(["report", str(runs), "--out", str(tmp_path / "page.html")])
    main(["report", str(runs / "paper"), "--out", str(tmp_path / "page.html")])
    assert "Binary regression" not in (tmp_path / "page.html").read_text()


def test_missing_and_damaged_files_are_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(capsys, [str(tmp_path)], "contains no run")
    shutil.copytree(runs / "paper", tmp_path / "paper")
    (tmp_path / "paper" / "figure_2.svg").unlink()
    refuses(
        capsys,
        [str(tmp_path), "--out", str(tmp_path / "page.html")],
        "figure_2.svg is missing",
        "popart plot",
    )
    (tmp_path / "paper" / "manifest.json").write_text("{")
    refuses(capsys, [str(tmp_path), "--out", str(tmp_path / "page.html")], "manifest.json is damaged")
    assert not (tmp_path / "page.html").exists()
