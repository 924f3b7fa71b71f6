"""The report, in a real browser."""

import io
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from popart.lab.cli import main
from popart.lab.manifest import read_manifest
from popart.lab.report.page import find_runs, powers

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
    assert {url for url in requested if not url.startswith("data:")} == {(runs / "report.html").as_uri()}


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
    figures = page.locator("figure img")
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
        caption = page.locator(f"[id='{figure.get_attribute('aria-describedby')}']")
        assert len(caption.inner_text()) > 50


def test_figures_are_not_blank(visit: Any) -> None:
    page = visit()
    for name in ("figure_1a", "figure_2", "figure_3"):
        figure = page.locator(f"figure img[aria-describedby$='{name}-caption']")
        shown = Image.open(io.BytesIO(figure.screenshot())).convert("RGB")
        colours = shown.getcolors(shown.width * shown.height) or []
        assert len(colours) > 50
        assert max(number for number, _ in colours) < 0.99 * shown.width * shown.height


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
        figure = Image.open(io.BytesIO(page.locator("figure img").first.screenshot())).convert("L")
        found = [sum(map(int, re.findall(r"\d+", background)[:3])) / 3, *figure.getextrema()]
        colours[scheme] = found
    assert colours["light"][0] > 230
    assert colours["light"][1] < 60  # the axes are dark
    assert colours["dark"][0] < 60
    assert colours["dark"][2] > 200  # the axes are bright


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
    assert len(ids) > 8
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', html)) | set(re.findall(r"url\(#([^)]*)\)", html)) <= set(ids)


def test_the_page_needs_no_other_file(html: str) -> None:
    assert not re.search(r'(src|href)="(?!#|data:)', html)
    assert "@import" not in html


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


ATTACK = """'"><script>window.hurt=1</script><img src=x onerror="hurt=1"> javascript:hurt=1 {{ 7*7 }}"""


def hostile(runs: Path, out: Path, address: str) -> Path:
    """Copy a run, with attacks in every text and in its figure."""
    shutil.copytree(runs / "paper", out)
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    texts = {"title": ATTACK, "command": f"popart {ATTACK} \x1b]0;owned\x07", "device": ATTACK}
    shown = [{**x, "heading": ATTACK, "caption": ATTACK} for x in manifest["shown"]]
    findings = [
        {**x, "claim": ATTACK, "paper": ATTACK, "here": f"10^2{ATTACK}"} for x in manifest["findings"]
    ]
    about = {
        "settings": {ATTACK: ATTACK},
        "versions": {ATTACK: ATTACK},
        "started": ATTACK,
        "diverged": ATTACK,
    }
    manifest |= texts | about | {"shown": shown, "findings": findings, "finished": None}
    (out / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    script = f"<script>window.hurt = 1; fetch('{address}/script')</script>"
    picture = (
        f'<image href="{address}/image" width="9" height="9"/><rect width="9" height="9" onload="hurt=1"/>'
    )
    foreign = (
        '<foreignObject><iframe xmlns="http://www.w3.org/1999/xhtml" srcdoc="&lt;script&gt;parent.hurt=1'
    )
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" onload="window.hurt = 1">{script}{picture}{foreign}">'
    (out / "figure_2.svg").write_text(f"{svg}</iframe></foreignObject></svg>")
    rows = (out / "scores.csv").read_text("utf-8").splitlines()
    cell = ATTACK.replace('"', '""')
    (out / "scores.csv").write_text("\n".join([rows[0], re.sub("^[^,]*", f'"{cell}"', rows[1])]) + "\n")
    return out


def test_a_page_of_a_hostile_run_executes_and_loads_nothing(
    browser: Browser, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chromium opens the page, and a server logs every request."""
    heard: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Write nothing."""

    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    hostile(runs, tmp_path / "run", address)
    main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_load_state("networkidle")
    for name in page.get_by_role("button").all():
        name.click(force=True, timeout=1000) if name.is_visible() else None
    assert page.evaluate("window.hurt") is None
    assert page.locator("script").count() == 1
    assert page.locator("main img").count() == 1
    assert page.locator("iframe, object, embed, main a[href^='javascript']").count() == 0
    assert page.evaluate("fetch('data:,x').then(() => 'loaded', () => 'refused')") == "refused"
    page.close()
    server.shutdown()
    server.server_close()
    assert heard == []
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err + (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/b", "..", "", "x\n", 'x" onload="'])
def test_figures_and_tables_are_files_inside_of_the_folder(
    runs: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "paper", tmp_path / "a" / "run")
    for suffix in ("svg", "csv"):
        (tmp_path / f"secret.{suffix}").write_text("secret,1\nsecret,2\n")
    path = tmp_path / "a" / "run" / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    for i in range(2):
        shown = [x | {"name": name} if j == i else x for j, x in enumerate(manifest["shown"])]
        path.write_text(json.dumps(manifest | {"shown": shown}), "utf-8")
        refuses(
            capsys, [str(path.parent), "--out", str(tmp_path / "page.html")], f"shown[{i}].name", "damaged"
        )
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["figure_2.svg", "scores.csv", "manifest.json"])
def test_links_are_not_followed(
    runs: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs / "paper", tmp_path / "run")
    (run / name).rename(tmp_path / name)
    (run / name).symlink_to(tmp_path / name)
    refuses(capsys, [str(run), "--out", str(tmp_path / "page.html")], name, "is a symbolic link")


@pytest.mark.parametrize("name", ["figure_2.svg", "scores.csv", "manifest.json"])
def test_a_pipe_is_not_waited_for(
    runs: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs / "paper", tmp_path / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    refuses(capsys, [str(run), "--out", str(tmp_path / "page.html")], name, "is not a regular file")


def test_a_long_number_in_a_cell_takes_no_time(runs: Path, tmp_path: Path) -> None:
    """A pattern that tries every split of the digits would take a minute for each."""
    run = shutil.copytree(runs / "paper", tmp_path / "run")
    rows = (run / "scores.csv").read_text("utf-8").splitlines()
    cells = rows[1].split(",")
    long = [",".join([cells[0], "9" * 100_000 + "x", *cells[2:]]) for _ in range(20)]
    (run / "scores.csv").write_text("\n".join([rows[0], *long]) + "\n")
    main(["report", str(run), "--out", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").stat().st_size < 2**20


def test_a_damaged_run_does_not_prevent_the_page_of_others(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("good", "bad"):
        shutil.copytree(runs / "paper", tmp_path / name)
    (tmp_path / "bad" / "manifest.json").write_text("{")
    main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")])
    html = (tmp_path / "page.html").read_text("utf-8")
    assert f"Not in this report: {tmp_path / 'bad' / 'manifest.json'} is damaged" in html
    assert html.count("<section") == 1
    assert "not in the report" in capsys.readouterr().err


def test_an_evaluation_is_found_once_if_its_run_is_named(tmp_path: Path) -> None:
    run, evaluation = tmp_path / "run", tmp_path / "run" / "evaluation-best-1"
    evaluation.mkdir(parents=True)
    for folder in (run, evaluation):
        (folder / "manifest.json").touch()
    assert find_runs([run]) == find_runs([tmp_path]) == find_runs([run, tmp_path]) == [run, evaluation]


def test_runs_with_the_same_title_are_told_apart(runs: Path, tmp_path: Path) -> None:
    for name in ("seed-0", "seed-1"):
        shutil.copytree(runs / "paper", tmp_path / name)
    main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")])
    html = (tmp_path / "page.html").read_text("utf-8")
    assert all(f"({name})</h2>" in html for name in ("seed-0", "seed-1"))


def test_large_figures_and_tables_are_shortened(runs: Path, tmp_path: Path) -> None:
    """A figure with very many points is shown as PNG; a table has its first thousand rows."""
    run = shutil.copytree(runs / "paper", tmp_path / "run")
    with (run / "figure_2.svg").open("a") as file:
        file.write("<!-- " + "x" * 20_000_000 + " -->")
    rows = (run / "scores.csv").read_text("utf-8").splitlines()
    (run / "scores.csv").write_text("\n".join([rows[0], *rows[1:] * 200]) + "\n")
    main(["report", str(run), "--out", str(tmp_path / "page.html")])
    html = (tmp_path / "page.html").read_text("utf-8")
    assert "data:image/png;base64," in html
    assert len(html) < 2**20
    assert "10400 more rows are in scores.csv" in html


def test_a_folder_as_the_name_of_the_page_is_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(capsys, [str(runs), "--out", str(tmp_path)], "is a folder", "report.html")


def test_an_unfinished_run_that_was_moved_is_resumed_where_it_is(runs: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runs / "paper", tmp_path / "moved")
    path = run / "manifest.json"
    path.write_text(re.sub(r'"finished": "[^"]*"', '"finished": null', path.read_text()))
    main(["report", str(run), "--out", str(tmp_path / "page.html")])
    assert f"Resume it with: <code>popart paper --out {run}</code>" in (tmp_path / "page.html").read_text()
