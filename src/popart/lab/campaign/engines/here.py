"""Fleets in processes of this machine: each has its own cores and, if there are GPUs, its own GPU."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from popart.lab.campaign.config import AGAIN, BUSY, REFUSED, Start
from popart.lab.campaign.folder import Folder
from popart.lab.campaign.work import Result, Status, pin

PATIENCE = 300.0
"""Seconds in which an interrupted process may save."""

STATUS: dict[int, Status] = {0: "finished", 2: "failed", BUSY: "busy", REFUSED: "refused"}


@dataclass
class _Slot:
    """The cores and the GPU of one worker, on which one fleet at a time trains."""

    cores: set[int]
    gpu: str | None
    fleet: int = 0
    process: subprocess.Popen[bytes] | None = None


class Here:
    """An engine that starts a process for each fleet, as many at a time as there are workers."""

    def __init__(self, campaign: Folder, command: Start) -> None:
        self._path, self._tries = campaign.path, command.tries
        self._all = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
        at_once = command.at_once
        gpus = _gpus(command.gpus)
        self._slots = [
            _Slot(_share(sorted(self._all), at_once, i, command.machines.cores), _gpu(gpus, i))
            for i in range(at_once)
        ]
        (self._path / "logs").mkdir(exist_ok=True)

    def room(self) -> bool:
        return any(slot.process is None for slot in self._slots)

    def submit(self, fleet: int, avoid: str | None) -> None:
        """Start a process. All fleets are on this machine: there is no node to avoid."""
        slot = next(slot for slot in self._slots if slot.process is None)
        command = [sys.executable, "-m", "popart", "campaign", "work", str(self._path)]
        command += ["--fleet", str(fleet), "--tries", str(self._tries), "--parent", str(os.getpid())]
        environment = os.environ | ({} if slot.gpu is None else {"CUDA_VISIBLE_DEVICES": slot.gpu})
        pin(slot.cores)  # which the new process inherits
        try:
            with self._log(fleet).open("ab") as log:
                slot.process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is passed on by this process
                )
        finally:
            pin(self._all)
        slot.fleet = fleet

    def _log(self, fleet: int) -> Path:
        return self._path / "logs" / f"fleet-{fleet}.log"

    def wait(self, seconds: float) -> Iterable[tuple[int, Result]]:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._ended():
            time.sleep(0.1)
        return [(slot.fleet, self._result(slot)) for slot in self._ended()]

    def _ended(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.process and slot.process.poll() is not None]

    def _result(self, slot: _Slot) -> Result:
        assert slot.process is not None
        code, slot.process = slot.process.returncode, None
        status = STATUS.get(code, "again")
        reason = self._reason(slot.fleet, code)
        return Result(status, reason if status == "refused" else f"fleet {slot.fleet}: {reason}", "")

    def _reason(self, fleet: int, code: int) -> str:
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        lines = self._log(fleet).read_text(encoding="utf-8", errors="replace").splitlines()
        if code in (2, BUSY, AGAIN, REFUSED) and lines:
            return lines[-1].removeprefix("popart: ").removeprefix(f"fleet {fleet}: ")
        return f"its process ended with status {code}; see {self._log(fleet)}"

    def close(self) -> None:
        """Interrupt the processes, wait until they have saved, and end those that take too long."""
        running = [slot.process for slot in self._slots if slot.process is not None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def _share(cores: list[int], parts: int, i: int, most: int | None) -> set[int]:
    """Return the cores of one of several workers; with more workers than cores, they take turns."""
    if parts >= len(cores):
        return {cores[i % len(cores)]}
    return set(cores[i * len(cores) // parts : (i + 1) * len(cores) // parts][:most])


def _gpu(gpus: list[str], i: int) -> str | None:
    return gpus[i % len(gpus)] if gpus else None


def _gpus(number: int) -> list[str]:
    """Return the names of GPUs for CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (visible.split(",") if visible else [str(i) for i in range(number)])[:number]
