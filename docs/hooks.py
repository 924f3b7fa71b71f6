"""Hooks of the site: pages and tables that are made from the code, so that they cannot differ from it.

The page of commands is made from the help that each command prints. A public module (one that defines
`__all__`) that no page of the reference describes gets a page of its own. The notebook is made from its
source.
"""

import ast
import contextlib
import functools
import io
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "popart"
REFERENCE = ROOT / "docs" / "reference"
COMMANDS = "<!-- commands -->"
MODULES = "<!-- modules -->"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation, and the link to the repository."""
    assert config.nav is not None
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    reference[4:4] = [{module: page_of(module)} for module in undescribed()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    config.extra["social"] = [
        {"icon": "fontawesome/brands/github", "link": project["urls"]["Source"], "name": "Source"}
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of modules and the notebook."""
    for module in undescribed():
        files.append(File.generated(config, page_of(module), content=reference_of(module)))
    source = ROOT / "docs" / "tutorial" / "dqn.md"
    files.append(File.generated(config, "tutorial/dqn.ipynb", content=notebook(source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the markers of commands, of modules and of source code."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands())
    markdown = markdown.replace(MODULES, "\n".join(map(row_of, undescribed())))
    return re.sub(
        r"<!-- source: (\S+) (.*?) -->", lambda match: source_of(match[1], match[2].split()), markdown
    )


def notebook(source: Path) -> str:
    """Return a Markdown notebook as a notebook file without outputs."""
    import jupytext

    return jupytext.writes(jupytext.read(source), fmt="ipynb")


# Public names


def public_modules() -> dict[str, list[str]]:
    """Return the public names of each module that defines `__all__`, outside of the laboratory."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if parts[1] == "lab" or any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        names = names_of(ast.parse(path.read_text("utf-8")))
        if names:
            found[".".join(parts).removesuffix(".__init__")] = names
    return found


def names_of(tree: ast.Module) -> list[str]:
    """Return the names in the `__all__` of a module, or none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets):
            return ast.literal_eval(node.value)
    return []


def described() -> set[str]:
    """Return the names that pages of the reference written by hand describe."""
    pages = (path.read_text("utf-8") for path in REFERENCE.glob("*.md"))
    return {name for page in pages for name in re.findall(r"^::: (\S+)", page, re.MULTILINE)}


def undescribed() -> list[str]:
    """Return the public modules of which no page written by hand describes a name."""
    known = described()
    return [
        module for module, names in public_modules().items() if not known & {f"{module}.{n}" for n in names}
    ]


def page_of(module: str) -> str:
    """Return the path of the generated page of a module."""
    return f"reference/{module.removeprefix('popart.').replace('.', '-')}.md"


def reference_of(module: str) -> str:
    """Return the generated page of a module: its docstring, then each public name."""
    names = "\n\n".join(f"::: {module}.{name}" for name in public_modules()[module])
    return f"# `{module}`\n\n{docstring_of(module)}\n\n{names}\n"


def row_of(module: str) -> str:
    """Return the row of a module in the table of contents of the reference."""
    first = docstring_of(module).partition("\n\n")[0].replace("\n", " ")
    return f"| [`{module}`]({Path(page_of(module)).name}) | {cell(first)} |"


def docstring_of(module: str) -> str:
    path = SOURCE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""


def source_of(module: str, names: list[str]) -> str:
    """Return the code of functions and classes of a module, as Markdown."""
    text = SOURCE.parent.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")
    kinds = ast.FunctionDef, ast.ClassDef
    defined = {node.name: node for node in ast.parse(text).body if isinstance(node, kinds)}
    code = "\n\n\n".join(str(ast.get_source_segment(text, defined[name])) for name in names)
    return f"```python\n{code}\n```"


# Commands


class Option(NamedTuple):
    """An argument of a command, as its help has it."""

    name: str
    text: str
    default: str


@functools.cache
def commands() -> str:
    """Return the description and the options of each command and subcommand, as Markdown."""
    from popart.lab.cli import COMMANDS, load

    parts = []
    for name, path in COMMANDS.items():
        parts.append(command(name))
        parts += [command(f"{name} {each}", "###") for each in getattr(load(path), "SUBCOMMANDS", ())]
    return "\n\n".join(parts)


def command(name: str, level: str = "##") -> str:
    """Return the section of one command; a subcommand has two words."""
    usage, description, sections = parse_help(help_of(name))
    parts = [f"{level} `popart {name}` {{#{name.replace(' ', '-')}}}", f"```text\n{usage}\n```", description]
    for title, (about, options) in sections.items():
        if len(sections) > 1:
            parts.append(f"**{title.capitalize()}.** {about}".strip())
        rows = [f"| `{option.name}` | {cell(option.text)} | {cell(option.default)} |" for option in options]
        parts.append("\n".join(["| option | meaning | default |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def cell(text: str) -> str:
    """Return text as the cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def help_of(name: str) -> str:
    """Return what `popart NAME --help` prints, without colours and in one column."""
    from popart.lab.cli import main

    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with wide_terminal(), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*name.split(), "--help"])
    printed.seek(0)
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.read())


@contextlib.contextmanager
def wide_terminal() -> Iterator[None]:
    """As wide as possible; from 130 on, boxes of a long help would stand side by side."""
    before = dict(os.environ)
    os.environ |= {"COLUMNS": "129", "NO_COLOR": "1"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def parse_help(text: str) -> tuple[str, str, dict[str, tuple[str, list[Option]]]]:
    """Return usage, description, and for each box of the help its title, description and options."""
    head, *boxes = re.split(r"^╭─ ", text, flags=re.MULTILINE)
    usage, _, description = head.partition("\n\n")
    sections = {}
    for box in boxes:
        title, *lines = box.splitlines()
        if title.startswith("subcommands"):  # have sections of their own
            continue
        inside = [line.strip("│").rstrip()[1:] for line in lines if line.startswith("│")]
        about, options = [], []
        for line in inside:
            parse_line(line, about, options)
        options = [finished(option) for option in options if option.name != "-h, --help"]
        if options:
            sections[title.split(" ─")[0]] = (" ".join(about), options)
    return usage.removeprefix("usage: ").strip(), description.strip(), sections


def parse_line(line: str, about: list[str], options: list[Option]) -> None:
    """Add a line of a box to its description, to its last option, or as a new option."""
    if not line.strip("─ "):
        return
    name, text = [*re.split(r"\s{2,}", line, maxsplit=1), ""][:2]
    if not name:
        options[-1] = options[-1]._replace(text=f"{options[-1].text} {text}".strip())
    elif line.startswith("-") or re.match(r"[A-Z\[{]+( |$|\])", line):
        options.append(Option(name, text, ""))
    else:
        about.append(line.strip())


def finished(option: Option) -> Option:
    """Return the option with its default apart from its text."""
    text, default, rest = option.text.rpartition("(default: ")
    if default:
        return Option(option.name, text.strip(), rest.removesuffix(")"))
    required = "(required)"
    if option.text.endswith(required):
        return Option(option.name, option.text.removesuffix(required).strip(), "required")
    return option
