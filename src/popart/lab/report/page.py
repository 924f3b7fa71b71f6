"""The report as one HTML page, from the files of runs."""

import base64
import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

import popart
from popart.lab.analysis import ANALYSES
from popart.lab.checks import LabError
from popart.lab.console import say
from popart.lab.files import printable, read_file, read_table, write_atomically
from popart.lab.findings import LONG, verdict
from popart.lab.manifest import MANIFEST, own_command, read_manifest
from popart.lab.tables import print_table, short

MARK = '<meta name="generator" content="popart report">'

MOST_ROWS = 1000
"""Largest number of rows of a table on the page; its file has all."""

MOST_CHARACTERS = 300
"""Largest number of characters of a cell on the page."""

MOST_SVG, MOST_PNG = 2**18, 2**22
"""Largest figures, in bytes. A larger SVG has more points than a screen shows; its PNG is used instead."""


def write(folders: Sequence[Path], out: Path) -> Path:
    """Write the page of all runs in these folders, and print a summary of their findings."""
    _check_out(out)
    found = find_runs(folders)
    runs, problems = _read(found)
    for problem in problems:
        say(f"not in the report: {problem}")
    write_atomically(out, page(runs, problems).encode())
    print_table("Findings that agree with the paper", [_summary(run) for run in runs])
    return out


def page_of(folder: Path) -> str:
    """Return the page of one run."""
    return page(*_read([folder]))


def _check_out(out: Path) -> None:
    """Check that the page can be written, and replaces nothing but a report."""
    try:
        if out.is_dir():
            raise LabError(f"{out} is a folder; give --out the name of a file, such as {out / 'report.html'}")
        if out.suffix != ".html":
            raise LabError(f"out is '{out}'; it must end in .html")
        if out.exists():
            with out.open("rb") as file:
                if MARK.encode() not in file.read(4096):
                    raise LabError(f"{out} exists and is not a report; give another --out")
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{out} cannot be written: {error.strerror}; give another --out") from error


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the runs in these folders and one level below, with their evaluations, each once."""
    found: list[Path] = []
    for folder in folders:
        try:
            here = [folder, *sorted(p for p in folder.iterdir() if p.is_dir())] if folder.is_dir() else []
        except OSError as error:
            raise LabError(f"{folder} cannot be read: {error.strerror}") from error
        here += [path for run in here for path in sorted(run.glob("evaluation-*")) if not path.is_symlink()]
        runs = [path for path in here if os.path.lexists(path / MANIFEST)]
        if not runs:
            raise LabError(f"{folder} contains no run (no {MANIFEST}); create runs with: popart reproduce")
        found += runs
    return list(dict.fromkeys(found))


def _read(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Read runs in the report's order, and say which cannot be read; an error if none can."""
    runs, problems = list[dict[str, Any]](), list[str]()
    for folder in folders:
        try:
            runs.append(_run(folder))
        except LabError as error:
            problems.append(str(error))
    if not runs:
        raise LabError(problems[0])
    order = {name: i for i, name in enumerate(ANALYSES)}
    runs.sort(key=lambda run: order.get(run["experiment"], len(order)))
    titles = Counter(run["title"] for run in runs)
    for i, run in enumerate(runs):
        name = "" if titles[run["title"]] == 1 else f" ({_name(run['folder'])})"
        run |= {"id": f"run{i}", "title": f"{run['title']}{name}"}
    return runs, problems


def _name(folder: Path) -> str:
    parts = folder.absolute().parts
    return printable("/".join(parts[-2:]) if parts[-1].startswith("evaluation-") else parts[-1])


def _summary(run: Mapping[str, Any]) -> dict[str, str]:
    findings = [finding["agrees"] for finding in run["findings"] if finding["paper"]]
    agree = f"{sum(findings)} of {len(findings)}" if findings else ""
    return {"run": run["title"], "folder": printable(str(run["folder"])), "agree": agree}


def page(runs: Sequence[Mapping[str, Any]], problems: Sequence[str] = ()) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("popart.lab.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"powers": powers, "verdict": verdict}
    html = environment.get_template("page.html").render(
        runs=runs,
        problems=problems,
        mark=Markup(MARK),
        policy=Markup("POLICY"),
        version=popart.__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    return html.replace("POLICY", _policy(html), 1)


def _policy(html: str) -> str:
    """Return a Content-Security-Policy that allows the page's own style and script, and embedded images."""

    def hash_of(tag: str) -> str:
        content = html.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"

    own = f"style-src {hash_of('style')}; script-src {hash_of('script')}"
    return f"default-src 'none'; img-src data:; {own}; base-uri 'none'; form-action 'none'"


def _run(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    contents = [_content(folder, shown) for shown in manifest.get("shown", [])]
    settings = {name: _setting(value) for name, value in manifest["settings"].items()}
    about = {
        "device": manifest.get("device"),
        "commit": manifest.get("commit") or "not a checkout",
        "started": manifest["started"],
        "finished": manifest["finished"],
        "resumed": f"{len(manifest['resumed'])} times",
        **manifest["versions"],
    }
    shown = {"contents": contents, "settings": settings, "about": about, "folder": folder}
    more = {"findings": manifest.get("findings", []), "diverged": manifest.get("diverged")}
    return {**manifest, **shown, **more, "again": own_command(folder, manifest)}


def _content(folder: Path, shown: Mapping[str, str]) -> dict[str, Any]:
    if shown["kind"] == "figure":
        return {**shown, "image": image(folder, shown["name"])}
    path = folder / f"{shown['name']}.csv"
    _check_there(folder, path)
    rows = read_table(path)
    if not rows:
        raise LabError(f"{path} has no rows; {_redraw(folder)}")
    cells = [[_cut(short(value)) for value in row.values()] for row in rows[:MOST_ROWS]]
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(rows[0]))]
    header = [_cut(name) for name in rows[0]]
    hidden = len(rows) - len(cells)
    table = {"header": header, "rows": cells, "numeric": numeric, "hidden": hidden}
    return {**shown, **table, "folded": len(rows) > LONG}


def image(folder: Path, name: str) -> str:
    """Return a figure as a data URL: an image executes and loads nothing."""
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    _check_there(folder, svg)
    if svg.is_file() and svg.stat().st_size > MOST_SVG and png.is_file():
        return f"data:image/png;base64,{base64.b64encode(read_file(png, MOST_PNG)).decode()}"
    return f"data:image/svg+xml;base64,{base64.b64encode(read_file(svg, MOST_PNG)).decode()}"


def _check_there(folder: Path, path: Path) -> None:
    if not os.path.lexists(path):
        raise LabError(f"{path} is missing; {_redraw(folder)}")


def _redraw(folder: Path) -> str:
    return f"redraw the figures and tables of the run with: popart plot {folder}"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def powers(text: str) -> Markup:
    """Return text as HTML with exponents raised: 10^-3.5 has a superscript and a minus sign."""
    return Markup(
        re.sub(r"10\^(-?)([\d.]+)", lambda m: f"10<sup>{'−' * len(m[1])}{m[2]}</sup>", escape(text))
    )


def _is_number(text: str) -> bool:
    return re.match(r"[-+]?\d", text) is not None or text in ("", "inf")


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_setting(x) for x in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
