"""The command `popart`."""

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, Union

import popart
from popart._installation import check_installation
from popart.lab.console import say, tolerate_lost_output
from popart.lab.stops import STATUS, listening, waiting_for

COMMANDS = {
    "reproduce": "popart.lab.reproduce:Reproduce",
    "regression": "popart.lab.experiments.regression.config:Regression",
    "histograms": "popart.lab.experiments.histograms.config:Histograms",
    "scale": "popart.lab.experiments.reward_scale.config:Scale",
    "stream": "popart.lab.experiments.streams.config:Stream",
    "tasks": "popart.lab.experiments.several_games.config:Tasks",
    "train": "popart.lab.train.config:Train",
    "evaluate": "popart.lab.play.config:Evaluate",
    "watch": "popart.lab.play.config:Watch",
    "norms": "popart.lab.experiments.gradient_norms.config:Norms",
    "paper": "popart.lab.experiments.atari_scores.config:Paper",
    "campaign": "popart.lab.campaign.cli:Campaign",
    "plot": "popart.lab.plot:Plot",
    "report": "popart.lab.report:Report",
    "diagnose": "popart.lab.diagnose:Diagnose",
}
NOT_RESUMED = {"evaluate", "watch", "plot", "report", "diagnose"} | {
    f"campaign {name}" for name in ("plan", "status", "report")
}

DESCRIPTION = """The experiments of "Learning values across many orders of magnitude", one command each.

Every command prints its findings and, as the last line, the path of its results. A run is a folder with
settings, tables and figures: a finished run is not repeated, and an interrupted one is resumed.
`popart COMMAND --help` lists the options of a command, `popart --version` prints the version."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit with status 2 for an error that the user can correct, 130 when interrupted."""
    tolerate_lost_output()
    try:
        check_installation()
    except ImportError as error:
        _exit(str(error), 2)
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if arguments == ["--version"]:
        print(f"popart {popart.__version__}")
        return
    over = {arguments[0], " ".join(arguments[:2])} & NOT_RESUMED
    again = "start over" if over else "resume"
    with listening(f"Interrupted. Run the same command again to {again}.", _clean_up):
        try:
            _run(arguments)
        except KeyboardInterrupt:
            say(f"Interrupted. Run the same command again to {again}.")
            os._exit(STATUS)  # threads may be in the middle of a long computation; do not wait for them


def _clean_up() -> None:
    """Remove temporary files, if any module is loaded that makes them."""
    if files := sys.modules.get("popart.lab.files"):
        files.remove_temporaries()


def _run(arguments: list[str]) -> None:
    try:
        import tyro  # noqa: F401
    except ImportError:
        _exit('the laboratory is not installed; install it with: pip install "popart-learn[lab]"', 2)
    from popart.lab.checks import LabError

    for word in arguments:
        if not word.isprintable() and word != word.encode(errors="replace").decode():
            _exit(f"{word!a} is not UTF-8; give a name that is", 2)
    command = _parse("popart", COMMANDS, DESCRIPTION, arguments)
    try:
        _show(command.run())
    except LabError as error:
        _exit(str(error), 2)


def _parse(program: str, commands: Mapping[str, str], description: str, arguments: list[str]) -> Any:
    """Build a command from its arguments, the first of which is its name."""
    import tyro

    from popart.lab.checks import nearest
    from popart.lab.options import NUMBERS

    name, *options = arguments or ["--help"]
    if name.startswith("-"):
        known: Any = Union[tuple(_subcommand(name, load(path)) for name, path in commands.items())]  # noqa: UP007
        tyro.cli(known, prog=program, description=description, args=[name, *options])
    if name not in commands:
        near, names = nearest(name, commands), ", ".join(commands)
        _exit(f"there is no command {name!r}{near} Commands of {program} are {names}", 2)
    os.environ["JAX_ENABLE_X64"] = "0"  # results are those of single precision, on every machine
    waiting_for(f"loading the program of {program} {name}")
    found = load(commands[name])
    if subcommands := getattr(found, "SUBCOMMANDS", None):
        return _parse(f"{program} {name}", subcommands, inspect.getdoc(found) or "", options)
    return tyro.cli(found, prog=f"{program} {name}", args=options, registry=NUMBERS)


def _subcommand(name: str, command: Any) -> Any:
    """Return a command for the list of `popart --help`, with the first paragraph of its description."""
    import tyro

    first = (inspect.getdoc(command) or "").partition("\n\n")[0]
    return Annotated[command, tyro.conf.subcommand(name, description=first)]


def load(path: str) -> Any:
    """Import the class of a command, and nothing of the others."""
    module, attribute = path.split(":")
    return getattr(importlib.import_module(module), attribute)


def _show(paths: Path | tuple[Path, ...]) -> None:
    """Print the findings of runs, each followed by its path."""
    for path in (paths,) if isinstance(paths, Path) else paths:
        if path.is_dir():
            _show_run(path)
        print(path)


def _show_run(folder: Path) -> None:
    from popart.lab.findings import print_findings
    from popart.lab.manifest import MANIFEST

    if (folder / MANIFEST).exists():
        print_findings(folder)


def _exit(message: str, status: int) -> NoReturn:
    print(f"popart: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
