"""Campaigns on a real Ray cluster of several nodes, and its faults.

The head has no cores; fleets train on nodes with one core each. The tables of every campaign are those of
an undisturbed one, which was trained without Ray.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import popart
from popart.lab.campaign import records
from popart.lab.campaign.engines.ray import connect
from popart.lab.checks import LabError
from tests.backends import sharing_what_is_compiled
from tests.lab.campaign.examples import (
    DIVERGING,
    LIMIT,
    OFTEN,
    RUNS,
    assert_same,
    assert_unclipped_diverged,
    attempts,
    failures,
    finished,
    is_finished,
    resumed,
    said,
    saved,
    started,
    wait_until,
)

pytestmark = [
    pytest.mark.xdist_group("campaign"),
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called"),  # by Ray, before it runs another program
]

SMALL = {"object_store_memory": 80 * 2**20}


class Machines:
    """A cluster whose nodes can be added and killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, **SMALL}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def two(self) -> None:
        """Have two nodes, whatever happened before."""
        while len(self.nodes) < 2:
            self.nodes.append(self.add())

    def add(self, **environment: str) -> Any:
        return self.cluster.add_node(True, num_cpus=1, env_vars=environment or None, **SMALL)

    def kill(self, node: Any) -> None:
        """Kill all processes of a node at once, as if its machine lost power."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in (*raylet.children(recursive=True), raylet):
            process.send_signal(signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)

    @contextmanager
    def further(self, **environment: str) -> Iterator[Any]:
        """Have a further node for a while."""
        node = self.add(**environment)
        try:
            yield node
        finally:
            self.cluster.remove_node(node)

    def trains(self, node: Any, run: Path) -> bool:
        """Return whether a run is trained by a process of a node."""
        record = records.read(run)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return record is not None and record.pid in {child.pid for child in raylet.children(recursive=True)}


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    patch = pytest.MonkeyPatch()
    for name, value in sharing_what_is_compiled().items():
        patch.setenv(name, value)
    patch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(Path(popart.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    )
    patch.setenv("RAY_worker_niceness", "0")  # at Ray's own priority, 15, they wait for all other tests
    found = Machines()
    yield found
    found.cluster.shutdown()
    patch.undo()


@pytest.mark.parametrize("kind", ["{}", "ray://{}", "auto"])
def test_an_address_at_which_nothing_answers_is_named_before_ray_waits_for_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)  # what auto stands for
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray waits for minutes"))
    asked = kind.format(address)
    named = f"RAY_ADDRESS is '{address}'" if asked == "auto" else f"ray is '{asked}'"
    with pytest.raises(LabError, match=rf"{named}, but nothing answers there .*refused.*; give the HOST"):
        connect(asked)


@pytest.mark.slow
def test_a_cluster_is_found_at_its_address_and_automatically(machines: Machines) -> None:
    for address in (machines.address, "auto"):
        code = f"from popart.lab.campaign.engines.ray import connect; connect({address!r}).shutdown()"
        subprocess.run([sys.executable, "-c", code], timeout=LIMIT, check=True)


@pytest.mark.slow
def test_two_drivers_at_once_train_each_run_once(
    machines: Machines, undisturbed: Path, tmp_path: Path
) -> None:
    machines.two()
    out = tmp_path / "runs"
    ray = ["--ray", machines.address]
    with started(out, *ray, name="one") as one, started(out, *ray, name="two") as two:
        for name, driver in (("one", one), ("two", two)):
            assert finished(driver, out, name=name).splitlines()[-1] == str(out)
    assert attempts(out) == dict.fromkeys(RUNS, 1)
    assert resumed(out) == dict.fromkeys(RUNS, 0)
    assert_same(out, undisturbed)


@pytest.mark.slow
def test_a_killed_node_loses_nothing_but_what_follows_its_last_checkpoint(
    machines: Machines, undisturbed: Path, tmp_path: Path
) -> None:
    machines.two()
    out = tmp_path / "runs"
    with started(out, *OFTEN, "--ray", machines.address) as driver:
        wait_until(lambda: saved(out / RUNS[0]), driver)
        node = next(node for node in machines.nodes if machines.trains(node, out / RUNS[0]))
        machines.kill(node)
        before = records.turns(out / RUNS[0])
        assert not is_finished(out / RUNS[0])
        finished(driver, out)
    assert before > 0
    assert attempts(out) == {RUNS[0]: 2, RUNS[1]: 2, RUNS[2]: 1}
    assert resumed(out) == {RUNS[0]: 1, RUNS[1]: 1, RUNS[2]: 0}
    assert "killed" in failures(out)[RUNS[0]][0]
    assert_same(out, undisturbed)


@pytest.mark.slow
def test_a_run_whose_agent_diverges_fails_alone_and_is_not_tried_again(
    machines: Machines, tmp_path: Path
) -> None:
    """Not on another node either."""
    machines.two()
    out = tmp_path / "runs"
    with started(out, *DIVERGING, "--ray", machines.address) as driver:
        text = finished(driver, out, 2)
    assert_unclipped_diverged(out, text)


@pytest.mark.slow
def test_a_driver_that_is_interrupted_and_then_killed_continues_when_started_again(
    machines: Machines, undisturbed: Path, tmp_path: Path
) -> None:
    """Ctrl-C saves without any checkpoint before it; SIGKILL leaves the last checkpoint."""
    machines.two()
    out = tmp_path / "runs"
    with started(out, "--ray", machines.address) as driver:
        wait_until(lambda: all((out / run / "metrics.csv").exists() for run in RUNS), driver)
        driver.send_signal(signal.SIGINT)
        assert "Interrupted. Run the same command again to resume." in finished(driver, out, 130)
    interrupted = {run: records.turns(out / run) for run in RUNS}
    assert min(interrupted.values()) > 0
    assert not any(failures(out).values())
    with started(out, *OFTEN, "--ray", machines.address) as driver:
        wait_until(lambda: records.turns(out / RUNS[2]) > interrupted[RUNS[2]], driver)
        driver.kill()
    before = {run: records.turns(out / run) for run in RUNS}
    with started(out, "--ray", machines.address) as driver:
        finished(driver, out)
    assert all(records.turns(out / run) >= before[run] >= interrupted[run] for run in RUNS)
    assert all(number <= 2 for number in resumed(out).values())
    assert_same(out, undisturbed)


@pytest.mark.slow
def test_a_full_disk_on_one_node_is_named_and_the_fleet_trains_elsewhere(
    machines: Machines, undisturbed: Path, tmp_path: Path
) -> None:
    """Processes of the node may not write more than 32 kB: tables are smaller, checkpoints larger."""
    (tmp_path / "full").mkdir()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**15, 2**15))"
    (tmp_path / "full" / "sitecustomize.py").write_text(limit, "utf-8")
    machines.two()
    machines.kill(machines.nodes[0])
    out = tmp_path / "runs"
    path = os.pathsep.join([str(tmp_path / "full"), os.environ["PYTHONPATH"]])
    with machines.further(PYTHONPATH=path), started(out, *OFTEN, "--ray", machines.address) as driver:
        text = finished(driver, out)
    assert "could not be written" in text
    assert sorted(attempts(out).values()) in ([1, 1, 2], [1, 2, 2])
    assert any("could not be written" in reason for reasons in failures(out).values() for reason in reasons)
    assert_same(out, undisturbed)


@pytest.mark.slow
def test_a_driver_says_once_what_no_node_has_and_continues_when_one_comes(
    machines: Machines, undisturbed: Path, tmp_path: Path
) -> None:
    for node in list(machines.nodes):
        machines.kill(node)
    out = tmp_path / "runs"
    with started(out, "--ray", machines.address) as driver:
        wait_until(lambda: "no node of the cluster" in said(out).read_text("utf-8"), driver)
        with machines.further():
            text = " ".join(finished(driver, out).split())
    assert text.count("no node of the cluster") == 1
    host = os.uname().nodename
    assert f"no node of the cluster has 1 CPU, which a fleet needs; there are {host}: 0 CPU." in text
    assert_same(out, undisturbed)


@pytest.mark.slow
def test_a_node_with_another_version_is_refused(machines: Machines, tmp_path: Path) -> None:
    other = shutil.copytree(Path(popart.__file__).parent, tmp_path / "other" / "popart")
    file = other / "__init__.py"
    file.write_text(file.read_text("utf-8").replace(popart.__version__, "9.9.9"), "utf-8")
    machines.two()
    out = tmp_path / "runs"
    with machines.further(PYTHONPATH=str(other.parent)), started(out, "--ray", machines.address) as driver:
        text = " ".join(finished(driver, out, status=2).split())
    assert f"popart-learn 9.9.9 instead of {popart.__version__}" in text
    assert not any((out / run).exists() for run in RUNS)
