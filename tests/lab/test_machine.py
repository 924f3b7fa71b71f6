"""Memory, devices and priorities of threads of the machine."""

import os
import threading
from pathlib import Path

import jax
import pytest

from popart.lab.checks import LabError
from popart.lab.envs.atari import Atari
from popart.lab.machine import free_memory, gpu_memory, low_priority_threads, use_device

PRIORITY = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
"""Before any test."""


def test_memory_of_a_container_is_its_limit_without_what_files_can_give_back(tmp_path: Path) -> None:
    stat = "anon 1\ninactive_file 700000\nactive_file 200000\n"
    found = {"max": "3000000\n", "current": "2000000\n", "stat": stat}
    assert free_memory(tmp_path) > 2**30  # there is no container
    for name, text in found.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory(tmp_path) == 1_900_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) > 2**30


def test_the_gpus_of_this_machine_are_those_that_jax_finds() -> None:
    found = gpu_memory()
    assert len(found) == sum(device.platform == "gpu" for device in jax.devices())
    assert all(memory > 2**30 for memory in found)


@pytest.mark.parametrize(
    ("devices", "found"), [("[gpu(7), cpu, gpu(8)]", (7, 8)), ("[cpu]", ()), ("1 / 0", ())]
)
def test_another_process_asks_for_the_gpus(
    devices: str, found: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a module that stands for JAX has devices; a JAX that fails has none."""
    (tmp_path / "jax_plugins").mkdir()
    (tmp_path / "jax.py").write_text(
        "from types import SimpleNamespace as Device\n"
        "cpu = Device(platform='cpu', memory_stats=lambda: None)\n"
        "gpu = lambda n: Device(platform='gpu', memory_stats=lambda: {'bytes_limit': n})\n"
        f"devices = lambda: {devices}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gpu_memory.__wrapped__() == found


@pytest.mark.skipif(jax.devices()[0].platform != "cpu", reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(
        LabError, match=r"device is 'gpu', but JAX finds none \(it has: cpu\); give --device cpu"
    ):
        use_device("gpu")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have no priority of their own")
def test_threads_of_emulators_have_a_low_priority_and_no_others_have() -> None:
    done = threading.Event()
    before, within, after = (threading.Thread(target=done.wait, daemon=True) for _ in range(3))
    before.start()
    with low_priority_threads():
        within.start()
    after.start()
    try:
        found = [os.getpriority(os.PRIO_PROCESS, x.native_id or 0) for x in (before, within, after)]
    finally:
        done.set()
    assert found == [PRIORITY, max(PRIORITY, 10), PRIORITY]
    threads = set(os.listdir("/proc/self/task"))
    games = Atari("pong", 2, 2)
    emulators = set(os.listdir("/proc/self/task")) - threads
    assert emulators
    assert {os.getpriority(os.PRIO_PROCESS, int(x)) for x in emulators} == {max(PRIORITY, 10)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == PRIORITY
    games.close()
