"""The command `popart`."""

import os
import sys
from typing import NoReturn

DESCRIPTION = """The experiments of "Learning values across many orders of magnitude", one command each.

Every command ends with the path of what it made. A run is a folder with its settings, tables and figures: a
finished one is not run again, and an interrupted one goes on where it was."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; end with status 2 for what the user can mend, 130 when stopped."""
    try:
        import tyro
    except ImportError:
        _exit('the laboratory is not installed; add it with: pip install "popart-learn[lab]"', 2)
    from popart.lab.atari import Evaluate, Norms, Paper, Watch
    from popart.lab.checks import nearest
    from popart.lab.histograms import Histograms
    from popart.lab.regression import Regression
    from popart.lab.report import Report
    from popart.lab.reproduce import Reproduce
    from popart.lab.runs import LabError
    from popart.lab.scale import Scale
    from popart.lab.train import Train

    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    experiments = (Reproduce, Regression, Histograms, Scale, Train, Evaluate, Watch, Norms, Paper, Report)
    commands = {c.__name__.lower(): c for c in experiments}
    if not arguments[0].startswith("-") and arguments[0] not in commands:
        hint = nearest(arguments[0], commands)
        _exit(f"there is no command {arguments[0]!r}{hint} There are {', '.join(commands)}", 2)
    command = tyro.extras.subcommand_cli_from_dict(
        commands, prog="popart", description=DESCRIPTION, args=arguments
    )
    try:
        print(command.run())
    except LabError as error:
        _exit(str(error), 2)
    except KeyboardInterrupt:
        next_time = "begins anew" if isinstance(command, Evaluate | Watch) else "goes on from here"
        print(f"popart: stopped; the same command {next_time}", file=sys.stderr, flush=True)
        os._exit(130)  # threads may be in the middle of a long computation, which nobody waits for


def _exit(message: str, status: int) -> NoReturn:
    print(f"popart: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
