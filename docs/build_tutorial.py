"""Execute the tutorial and write its page, with what it prints and draws.

python docs/build_tutorial.py
"""

import base64
import re
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "tutorial"
SOURCE = FOLDER / "dqn.md"
PAGE = FOLDER / "index.md"
FRONT = "---\nhide: [navigation]\n---"
DOWNLOAD = "[Download this page as a notebook](dqn.ipynb){ .md-button }"
STYLE = "%config InlineBackend.print_figure_kwargs = {'dpi': 140, 'facecolor': 'white'}"


def execute(notebook: Any) -> Any:
    """Run all cells and return the notebook with outputs."""
    setup = notebook.cells[0].copy()
    setup.update(cell_type="code", source=STYLE, outputs=[], execution_count=None)
    notebook.cells.insert(0, setup)
    NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True).execute()
    del notebook.cells[0]
    return notebook


def page_of(notebook: Any) -> tuple[str, dict[str, bytes]]:
    """Return the page as Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                raise RuntimeError(f"the tutorial warns: {output.text}")
            if output.output_type == "stream":
                parts.append(f'```text title="Output"\n{output.text.rstrip()}\n```')
            elif "image/png" in output.get("data", {}):
                name = f"picture_{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(output.data["image/png"])
                parts.append(f"![{heading(parts)}]({name})")
    title, *rest = parts
    first, _, text = title.partition("\n\n")
    return "\n\n".join([FRONT, first, DOWNLOAD, text, *rest]).rstrip() + "\n", pictures


def heading(parts: list[str]) -> str:
    """Return the last heading, as the description of a picture."""
    return re.findall(r"^#+ (.*)$", "\n".join(p for p in parts if not p.startswith("```")), re.MULTILINE)[-1]


def main() -> None:
    page, pictures = page_of(execute(jupytext.read(SOURCE)))
    for old in FOLDER.glob("picture_*.png"):
        old.unlink()
    for name, content in pictures.items():
        (FOLDER / name).write_bytes(content)
    PAGE.write_text(page, "utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
