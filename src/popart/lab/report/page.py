"""The report page, from what runs wrote."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

import popart
from popart.lab.figures import INK
from popart.lab.runs import MANIFEST, LabError, read_manifest, read_table, write_atomically

MARK = '<meta name="generator" content="popart report">'
ORDER = ("paper", "regression", "histograms", "scale", "norms", "train", "evaluate")
LONG = 20
"""Tables with more rows are folded."""


def write(folders: Sequence[Path], out: Path) -> Path:
    """Write the page of all runs in these folders."""
    runs = find_runs(folders)
    if out.exists() and MARK.encode() not in out.read_bytes():
        raise LabError(f"{out} is there and is not a report; give another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{out.parent} cannot be made: {error.strerror}; give another --out") from error
    write_atomically(out, page(runs).encode())
    return out


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Run folders among these and one level below, with their evaluations, in the order of the paper."""
    found = []
    for folder in folders:
        here = [folder, *sorted(p for p in folder.iterdir() if p.is_dir())] if folder.is_dir() else []
        here += [path for run in here for path in sorted(run.glob("evaluation-*"))]
        runs = [path for path in here if (path / MANIFEST).exists()]
        if not runs:
            raise LabError(f"{folder} holds no run (no {MANIFEST}); runs are made by: popart reproduce")
        found += [path for path in runs if path not in found]
    place = {name: i for i, name in enumerate(ORDER)}
    return sorted(found, key=lambda path: place.get(read_manifest(path)["experiment"], len(ORDER)))


def page(folders: Iterable[Path]) -> str:
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
        "continued": f"{len(manifest['continued'])} times",
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
            f"{path} is missing from its run: {error.strerror}; run it again in another folder"
        ) from error
    cells = [[_cell(value) for value in row.values()] for row in rows]
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(rows[0]))]
    return {**shown, "header": list(rows[0]), "rows": cells, "numeric": numeric, "folded": len(rows) > LONG}


def inline(svg: str, name: str) -> Markup:
    """An SVG file as part of a page: its own ids, the page's ink, and as wide as there is room."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\b(id|xlink:href|href)="(#?)(?!data:)([^"]*)"', rf'\1="\2{name}-\3"', svg)
    svg = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", svg)
    svg = svg.replace(INK, "currentColor")
    head, body = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    return Markup(f'{head} role="img" aria-labelledby="{name}-caption">{body}')


def powers(text: str) -> Markup:
    """10^-3.5 with a raised exponent, and a minus that is one."""
    return Markup(
        re.sub(r"10\^(-?)([\d.]+)", lambda m: f"10<sup>{'−' * len(m[1])}{m[2]}</sup>", escape(text))
    )


def _cell(text: str) -> str:
    """Numbers that are written in full are shown to five digits."""
    if len(text) > 8 and re.fullmatch(r"-?\d+\.?\d*(e-?\d+)?", text):
        return f"{float(text):.5g}"
    return text


def _is_number(text: str) -> bool:
    return re.match(r"[-+]?\d", text) is not None or text in ("", "inf")


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_setting(x) for x in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
