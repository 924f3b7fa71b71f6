"""A replay that does not fit is refused before it is taken, with one that would."""

from pathlib import Path

import pytest

from popart.lab.checks import LabError
from popart.lab.machine import free_memory
from popart.lab.train import Train
from popart.lab.train.room import check_replay, fit


@pytest.mark.parametrize(
    ("saved", "on_device", "in_memory", "words"),
    [
        (False, None, 10, None),
        (True, None, 10, "14.1 GB of memory, and 8.9 GB are free for it; --replay 631000 would fit, or more"),
        (True, 10, 10, None),
        (True, 6, 10, "7.1 GB of the GPU's memory, and 4.9 GB are free for it; --replay 697000 would fit$"),
        (True, 10, 6, "7.1 GB of memory, and 4.9 GB are free for it; --replay 697000 would fit, or more"),
        (False, 10, 1, None),
    ],
)
def test_a_replay_has_room_where_it_is_and_where_it_is_saved(
    saved: bool, on_device: int | None, in_memory: int, words: str | None
) -> None:
    """In 10⁹ bytes."""
    free = None if on_device is None else on_device * 10**9, in_memory * 10**9
    if words is None:
        fit(1_000_000, saved, *free)
    else:
        with pytest.raises(LabError, match=words):
            fit(1_000_000, saved, *free)


def test_the_memory_of_a_container_is_what_files_do_not_need(tmp_path: Path) -> None:
    stat = "anon 1\ninactive_file 700000\nactive_file 200000\n"
    found = {"max": "3000000\n", "current": "2000000\n", "stat": stat}
    assert free_memory(tmp_path) > 2**30  # it is no container's
    for name, text in found.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory(tmp_path) == 1_900_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) > 2**30


def test_the_replay_that_would_fit_does(tmp_path: Path) -> None:
    with pytest.raises(LabError) as refused:
        check_replay(Train(replay=10**12))
    most = int(str(refused.value).split("--replay ")[1].split()[0])
    check_replay(Train(replay=most * 9 // 10))  # others may have taken some meanwhile
    with pytest.raises(LabError):
        Train("boxing", replay=10**12, device="cpu", out=tmp_path / "run").run()
    assert not (tmp_path / "run").exists()  # so that the figure can be given in its place
