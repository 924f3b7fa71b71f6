"""The report as one HTML page, from the files of runs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

import popart
from popart.lab.analysis import ANALYSES
from popart.lab.checks import LabError
from popart.lab.figures import INK
from popart.lab.files import read_table, write_atomically
from popart.lab.findings import LONG
from popart.lab.manifest import MANIFEST, read_manifest
from popart.lab.tables import print_table, short

MARK = '<meta name="generator" content="popart report">'


def write(folders: Sequence[Path], out: Path) -> Path:
    """Write the page of all runs in these folders, and print a summary of their findings."""
    runs = find_runs(folders)
    if out.exists() and MARK.encode() not in out.read_bytes():
        raise LabError(f"{out} exists and is not a report; give another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{out.parent} cannot be created: {error.strerror}; give another --out") from error
    write_atomically(out, page(runs).encode())
    print_table("Findings that agree with the paper", [_summary(folder) for folder in runs])
    return out


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the runs in these folders and one level below, with their evaluations, in the report's order."""
    found = []
    for folder in folders:
        here = [folder, *sorted(p for p in folder.iterdir() if p.is_dir())] if folder.is_dir() else []
        here += [path for run in here for path in sorted(run.glob("evaluation-*"))]
        runs = [path for path in here if (path / MANIFEST).exists()]
        if not runs:
            raise LabError(f"{folder} contains no run (no {MANIFEST}); create runs with: popart reproduce")
        found += [path for path in runs if path not in found]
    order = {name: i for i, name in enumerate(ANALYSES)}
    return sorted(found, key=lambda path: order.get(read_manifest(path)["experiment"], len(order)))


def _summary(folder: Path) -> dict[str, str]:
    manifest = read_manifest(folder)
    findings = [finding["agrees"] for finding in manifest.get("findings", [])]
    agree = f"{sum(findings)} of {len(findings)}" if findings else ""
    return {"run": manifest["title"], "folder": str(folder), "agree": agree}


def page(folders: Iterable[Path]) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("popart.lab.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["powers"] = powers
    return environment.get_template("page.html").render(
        runs=[_run(i, folder) for i, folder in enumerate(folders)],
        mark=Markup(MARK),
        version=popart.__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def _run(number: int, folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    contents = [_content(f"run{number}", folder, shown) for shown in manifest.get("shown", [])]
    settings = {name: _setting(value) for name, value in manifest["settings"].items()}
    about = {
        "device": manifest.get("device"),
        "commit": manifest.get("commit") or "not a checkout",
        "started": manifest["started"],
        "finished": manifest["finished"],
        "resumed": f"{len(manifest['resumed'])} times",
        **manifest["versions"],
    }
    findings = manifest.get("findings", [])
    shown = {"contents": contents, "settings": settings, "about": about, "findings": findings}
    return {**manifest, **shown, "id": f"run{number}"}


def _content(prefix: str, folder: Path, shown: Mapping[str, str]) -> dict[str, Any]:
    path = folder / f"{shown['name']}.{'svg' if shown['kind'] == 'figure' else 'csv'}"
    try:
        if shown["kind"] == "figure":
            return {**shown, "svg": inline(path.read_text(encoding="utf-8"), f"{prefix}-{shown['name']}")}
        rows = read_table(path)
    except OSError as error:
        raise LabError(
            f"{path} is missing: {error.strerror}; redraw the figures of the run with: popart plot {folder}"
        ) from error
    cells = [[short(value) for value in row.values()] for row in rows]
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(rows[0]))]
    return {**shown, "header": list(rows[0]), "rows": cells, "numeric": numeric, "folded": len(rows) > LONG}


def inline(svg: str, name: str) -> Markup:
    """Return an SVG file as part of a page, with unique ids, the page's text colour and full width."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\b(id|xlink:href|href)="(#?)(?!data:)([^"]*)"', rf'\1="\2{name}-\3"', svg)
    svg = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", svg)
    svg = svg.replace(INK, "currentColor")
    head, body = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    return Markup(f'{head} role="img" aria-labelledby="{name}-caption">{body}')


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
