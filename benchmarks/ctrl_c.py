"""Ctrl-C in the first moments of a command: how long does it take until the command can handle it?

A command is started again and again, and gets SIGINT at a random age. It ends in one of three ways: without a
word (Python had no handler yet), with Python's traceback (Python had its own), or with the command's message.
CPU times say how long that takes on a machine without other work.

    python -m benchmarks.ctrl_c
"""

import argparse
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from popart.lab.files import write_table
from popart.lab.machine import cores

COMMAND = "from popart_command import main; main()"
CPU = {"Python's own start": "", "until the command hears signals": "import popart_command"}


def outcome(age: float) -> str:
    """Start a command, send SIGINT when it has this age in seconds, and return how it ended."""
    words = [sys.executable, "-c", COMMAND, "train", "--help"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(age)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    if b"Interrupted." in said:
        return "message"
    if b"Traceback" in said:
        return "traceback"
    return "silent" if process.returncode == -signal.SIGINT else "other"


def cpu(code: str, repetitions: int) -> float:
    """Return the median CPU time in milliseconds until a program has run."""
    words = [sys.executable, "-c", f"{code}\nimport time; print(time.process_time())"]
    times = [float(subprocess.check_output(words)) for _ in range(repetitions)]
    return round(1e3 * statistics.median(times), 1)


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--ages", type=int, nargs="+", default=[0, 10, 20, 40, 80, 160, 320], help="ms")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--path", type=Path, default=Path("results/ctrl_c.csv"))
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have made processes ignore it
    planned = [age for age in options.ages for _ in range(options.repetitions)]
    random.Random(0).shuffle(planned)
    ended = Counter((age, outcome(age / 1e3)) for age in planned)
    rows = [
        {"age_ms": age} | {how: ended[age, how] for how in ("silent", "traceback", "message", "other")}
        for age in options.ages
    ]
    write_table(options.path, rows)
    times = [{"what": what, "cpu_ms": cpu(code, options.repetitions)} for what, code in CPU.items()]
    machine = {
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "machine": f"{cores()} cores, {platform.machine()}, {platform.system()}",
    }
    write_table(options.path.with_name(f"{options.path.stem}_cpu.csv"), [row | machine for row in times])


if __name__ == "__main__":
    main()
