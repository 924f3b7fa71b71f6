"""Fleets as tasks of an existing Ray cluster.

Ray retries a task whose process or node dies, on any node; it resumes from the run folders, which all nodes
share. Functions for nodes are defined inside of other functions, so that Ray sends their code and not only
their names: a node with another version of popart can report it, even if that version has no campaigns.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from popart.lab.campaign.config import Start
from popart.lab.campaign.folder import NAME, Folder
from popart.lab.campaign.versions import check_versions
from popart.lab.campaign.work import Result
from popart.lab.checks import LabError
from popart.lab.console import say

PATIENCE = 300.0
"""Seconds in which interrupted tasks may save."""

UNEXPLAINED = 10.0
"""Seconds after which a driver says that no node has the resources of its fleets."""

ANSWERED = 5.0
"""Seconds in which the port of a cluster must accept a connection; Ray itself waits for minutes."""

PROBED = 120.0
"""Seconds in which a node must say which versions it has."""


class RayEngine:
    """Submits fleets to a cluster, and refuses nodes with other versions or without the campaign's folder."""

    def __init__(self, campaign: Folder, command: Start, cores: int) -> None:
        self._ray: Any = connect(str(command.ray))
        self._path, self._tries = campaign.path.absolute(), command.tries
        self._nodes = self._checked(campaign)
        gpus = 1 if command.gpus else 0
        self._needs = {"CPU": cores, "GPU": gpus}
        self._task = self._ray.remote(
            num_cpus=cores,
            num_gpus=gpus,
            max_retries=-1,  # for lost processes and nodes; a failure of the task itself is a result
            max_calls=1,  # a process for each fleet: its memory is free afterwards
        )(_task())
        self._fleets: dict[Any, int] = {}
        self._without = Absence(self._needs)

    def _checked(self, campaign: Folder) -> list[str]:
        """Ask each node for its versions, and whether it sees the campaign; return the nodes' identifiers."""
        probe = self._ray.remote(num_cpus=0, max_retries=0)(_probe())
        asked = {}
        for node in self._alive():
            there = probe.options(scheduling_strategy=self._affinity(node, soft=False))
            asked[node] = there.remote(str(self._path / NAME))
        return [node for node, answer in asked.items() if self._check(node, answer, campaign)]

    def _check(self, node: str, answer: Any, campaign: Folder) -> bool:
        """Return whether a node is alive; refuse it if versions differ or it does not see the campaign."""
        found = next(each for each in self._ray.nodes() if each["NodeID"] == node)
        name = f"the node {found['NodeManagerHostname']} ({found['NodeManagerAddress']}, {node[:8]})"
        try:
            versions, seen = self._ray.get(answer, timeout=PROBED)
        except self._ray.exceptions.TaskUnschedulableError:  # it died a moment ago
            return False
        except self._ray.exceptions.RayError as error:
            if node not in self._alive():
                return False
            raise LabError(f"{name} does not answer: {_first_line(error)}") from error
        check_versions(name, versions, campaign.versions)
        if seen != campaign.id:
            raise LabError(
                f"{name} does not see this campaign in {self._path}; give an --out that all nodes share at "
                "the same path"
            )
        return True

    def _affinity(self, node: str, *, soft: bool) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=soft)

    def room(self) -> bool:
        """Return True: Ray has a queue of its own, which it also uses for autoscaling."""
        return True

    def submit(self, fleet: int, avoid: str | None) -> None:
        others = [node for node in self._alive(self._needs) if node in self._nodes and node != avoid]
        task = self._task
        if avoid is not None and others:
            node = others[fleet % len(others)]
            task = task.options(scheduling_strategy=self._affinity(node, soft=True))
        self._fleets[task.remote(str(self._path), fleet, self._tries)] = fleet

    def _alive(self, needs: Mapping[str, int] | None = None) -> list[str]:
        """Return the nodes that are alive and, busy or not, have the resources that a task needs."""
        return [node["NodeID"] for node in self._ray.nodes() if node["Alive"] and _has(node, needs or {})]

    def wait(self, seconds: float) -> Iterable[tuple[int, Result]]:
        if not self._fleets:
            time.sleep(seconds)
            return []
        self._without.look(self._ray.nodes())
        ready, _ = self._ray.wait(list(self._fleets), num_returns=1, timeout=seconds)
        return [(self._fleets.pop(task), self._result(task)) for task in ready]

    def _result(self, task: Any) -> Result:
        try:
            return Result(*self._ray.get(task))
        except self._ray.exceptions.RayError as error:
            return Result("again", f"a task of Ray failed: {_first_line(error)}", "")

    def close(self) -> None:
        """Interrupt the tasks, which then save, and disconnect."""
        tasks = list(self._fleets)
        for task in tasks:
            self._ray.cancel(task, force=False, recursive=False)
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE)
        self._ray.shutdown()


class Absence:
    """Says once, after some seconds, that no node has the resources of a task. One may still join."""

    def __init__(self, needs: Mapping[str, int]) -> None:
        self._needs, self._since, self._told = needs, time.monotonic(), False

    def look(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        alive = [node for node in nodes if node["Alive"]]
        if any(_has(node, self._needs) for node in alive):
            self._since, self._told = time.monotonic(), False
        elif not self._told and time.monotonic() - self._since > UNEXPLAINED:
            there = "; ".join(f"{node['NodeManagerHostname']}: {self._of(node)}" for node in alive)
            needed = self._of({"Resources": self._needs})
            say(f"no node of the cluster has {needed}, which a fleet needs; there are {there}. Waiting ...")
            self._told = True

    def _of(self, node: Mapping[str, Any]) -> str:
        return ", ".join(f"{node['Resources'].get(name, 0):g} {name}" for name, n in self._needs.items() if n)


def _has(node: Mapping[str, Any], needs: Mapping[str, int]) -> bool:
    """Return whether a node, busy or not, has resources."""
    return all(node["Resources"].get(name, 0) >= number for name, number in needs.items())


def connect(address: str) -> Any:
    """Connect to a cluster."""
    try:
        import ray
    except ImportError:
        raise LabError('Ray is not installed; install it with: pip install "popart-learn[ray]"') from None
    set_elsewhere = os.environ.get("RAY_ADDRESS") if address == "auto" else None
    check_answers("RAY_ADDRESS" if set_elsewhere else "ray", set_elsewhere or address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise LabError(f"there is no Ray cluster at {address!r}: {_first_line(error)}") from error
    return ray


def check_answers(name: str, address: str) -> None:
    """Check that something answers at HOST:PORT or ray://HOST:PORT; auto has no port, and Ray finds it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERED).close()
    except (OSError, OverflowError) as error:
        raise LabError(
            f"{name} is {address!r}, but nothing answers there ({error}); give the HOST:PORT of a running "
            "Ray cluster, or auto on one of its machines"
        ) from error


def _task() -> Callable[[str, int, int], tuple[str, str, str]]:
    def fleet(path: str, number: int, tries: int) -> tuple[str, str, str]:
        from pathlib import Path

        import ray

        from popart.lab.campaign.work import attempt

        result = attempt(Path(path), number, tries)
        return result.status, result.message, ray.get_runtime_context().get_node_id()

    return fleet


def _probe() -> Callable[[str], tuple[dict[str, str], str]]:
    def probe(path: str) -> tuple[dict[str, str], str]:
        import json
        from pathlib import Path

        try:
            from popart.lab.campaign.versions import versions

            found = versions()
        except ImportError:
            try:
                import popart

                found = {"popart-learn": popart.__version__}
            except ImportError:
                found = {"popart-learn": "not installed"}
        try:
            return found, json.loads(Path(path).read_text(encoding="utf-8"))["id"]
        except (OSError, ValueError, KeyError):
            return found, ""

    return probe


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).strip().splitlines() if line), type(error).__name__)[:300]
