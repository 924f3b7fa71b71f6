"""`popart diagnose` reads real files, prints findings, draws a figure, and refuses bad files in one line."""

import io
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorboardX
from tensorboardX.proto import event_pb2
from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.proto.tensor_pb2 import TensorProto  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.record_writer import RecordWriter

import popart
from popart.lab import targets as reading
from popart.lab.cli import main
from popart.lab.targets import read_targets

Y = np.random.default_rng(0).normal(0, 50, 400)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a command says before it ends with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *arguments])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def write_csv(path: Path, rows: int = 400) -> Path:
    lines = [f"{i},{y!r},agent,{i % 50 == 49}" for i, y in enumerate(Y[:rows].tolist())]
    path.write_text("\n".join(["step,reward,name,done", *lines]) + "\n")
    return path


def write_log(folder: Path, **tags: np.ndarray) -> Path:
    with tensorboardX.SummaryWriter(str(folder)) as writer:
        for tag, values in tags.items():
            for step, value in enumerate(values):
                writer.add_scalar(tag, value, step)
    (path,) = folder.iterdir()
    return path


def test_a_column_is_diagnosed_and_the_last_line_is_the_figure(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["diagnose", str(write_csv(here / "run.csv")), "--column", "reward"])
    *said, last = capsys.readouterr().out.splitlines()
    assert last == "run-diagnosis.png"
    assert (here / last).read_bytes().startswith(b"\x89PNG")
    found = popart.diagnose(Y)
    text = " ".join(" ".join(said).split())
    assert found.answer in text
    for finding in found.findings():
        assert finding.name in text
        assert finding.value in text
    for sentence in (*found.reasons, *found.advice):
        assert sentence in text


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " "])
@pytest.mark.parametrize("header", [True, False])
def test_tables_are_read_with_any_delimiter_with_and_without_a_header(
    here: Path, delimiter: str, header: bool
) -> None:
    path = here / "table.txt"
    np.savetxt(path, np.stack((np.arange(400), Y), 1), delimiter=delimiter, fmt="%.17g")
    if header:
        path.write_text(f"\ufeffstep{delimiter}reward\n{path.read_text()}", "utf-8")
    stream = read_targets(path, "reward" if header else "1", None, None)
    np.testing.assert_array_equal(stream.targets, Y)


def test_the_only_column_of_numbers_needs_no_name_and_empty_cells_are_left_out(here: Path) -> None:
    path = here / "metrics.csv"
    path.write_text("name,loss\na,1.5\nb,\n\nc,nan\nd,-2e3\n")
    np.testing.assert_array_equal(read_targets(path, None, None, None).targets, [1.5, np.nan, -2e3])


def test_arrays_are_read_from_npy(here: Path) -> None:
    for i, y in enumerate((Y, Y.astype("f4").reshape(100, 4), np.arange(5), np.array([True, False]))):
        np.save(here / f"{i}.npy", y)
        np.testing.assert_array_equal(read_targets(here / f"{i}.npy", None, None, None).targets, y)


@pytest.mark.parametrize("kind", ["csv", "npy"])
def test_standard_input_is_read(here: Path, kind: str) -> None:
    np.save(here / "y.npy", Y)
    write_csv(here / "y.csv")
    options = ["--column", "reward"] if kind == "csv" else []
    command = [sys.executable, "-m", "popart", "diagnose", "-", *options, "--out", "figure.svg"]
    with (here / f"y.{kind}").open("rb") as file:
        ended = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True, cwd=here)
    assert ended.stdout.splitlines()[-1] == "figure.svg"
    assert popart.diagnose(Y).answer.split(".")[0] in ended.stdout


def test_logs_of_tensorboard_are_read_as_a_file_and_as_a_folder(here: Path) -> None:
    path = write_log(here / "log" / "run", reward=Y, loss=Y[:3])
    for given in (path, here / "log" / "run", here / "log"):
        np.testing.assert_array_equal(read_targets(given, None, "reward", None).targets, np.float32(Y))


def test_a_resumed_run_has_several_files(here: Path) -> None:
    first = write_log(here / "a", reward=Y[:5])
    second = write_log(here / "b", reward=Y[5:9])
    folder = here / "log"
    folder.mkdir()
    first.rename(folder / "events.out.tfevents.1.host")
    second.rename(folder / "events.out.tfevents.2.host")
    np.testing.assert_array_equal(read_targets(folder, None, None, None).targets, np.float32(Y[:9]))


def test_scalars_of_tensorflow_2_are_read(here: Path) -> None:
    path = here / "events.out.tfevents.1.host"
    writer = RecordWriter(str(path))
    tensors = [
        TensorProto(dtype=1, float_val=[1.5]),
        TensorProto(dtype=1, tensor_content=struct.pack("<f", 2.5)),
        TensorProto(dtype=2, tensor_content=struct.pack("<d", 1e300)),
    ]
    for tensor in tensors:
        summary = Summary(value=[Summary.Value(tag="reward", tensor=tensor)])
        writer.write(event_pb2.Event(summary=summary).SerializeToString())  # pyright: ignore[reportAttributeAccessIssue]
    writer.close()
    assert read_targets(path, None, None, None).targets.tolist() == [1.5, 2.5, 1e300]


def test_returns_of_episodes_are_diagnosed_with_a_discount(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(here / "run.csv")
    main(["diagnose", str(path), "--column", "reward", "--discount", "0.9", "--ends", "done"])
    expected = popart.diagnose(Y, discount=0.9, ends=np.arange(400) % 50 == 49)
    assert expected.answer in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (b"", [], "is empty"),
        (b"\n\n", [], "has no rows"),
        (b"a,b\nx,y\n", [], "has no column of numbers; columns are a, b"),
        (b"a,b\n1,2\n", [], "has several columns; choose one with --column: a, b"),
        (b"a,b\n1,2\n", ["--column", "c"], "column is 'c', which"),
        (
            b"reward,b\n1,2\n",
            ["--column", "rewrad"],
            "did you mean 'reward'? Columns of numbers are",
        ),
        (b"a\n1\n2\nx\n", ["--column", "a"], "has 'x' in row 4, column 'a': not a number"),
        (b"a\n" + b"1\n" * 2000 + b"x\n", [], "has 'x' in row 2002"),
        (b"a,b\n,2\n", ["--column", "a"], "has no numbers in column 'a'"),
        (b"a\nnan\n", [], "targets has no finite number"),
        (
            b"a,e\n1,0\n2,\n",
            ["--column", "a", "--discount", "1", "--ends", "e"],
            "has '' in row 3, column 'e'",
        ),
        (b"\xff\xfe\x00\x81", [], "is neither text nor a NPY or TensorBoard file"),
        (b"a\n" + b"1" * 2_000_000, [], "has a line 2 of more than 1 MiB"),
        (b'a\n"' + b"1" * 200_000, [], "is not a CSV file: field larger"),
        (b"PK\x03\x04rest", [], "is an archive"),
        (b"\x93NUMPY", [], "is not a NPY file of numbers"),
        (b"\x93NUMPY\x01\x00", ["--column", "a"], "column is 'a', but"),
        (b"a\n1\n", ["--tag", "a"], "tag is 'a', but"),
    ],
)
def test_bad_files_are_refused_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], content: bytes, options: list[str], words: str
) -> None:
    (here / "file").write_bytes(content)
    assert words in refused(capsys, "file", *options)
    assert not list(here.glob("*.png"))


def test_arrays_that_are_no_numbers_or_truncated_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(here / "objects.npy", np.array([{}, None]), allow_pickle=True)
    assert "is not a NPY file of numbers" in refused(capsys, "objects.npy")
    np.save(here / "text.npy", np.array(["a"]))
    assert "has elements of type <U1; they must be real numbers" in refused(capsys, "text.npy")
    whole = io.BytesIO()
    np.save(whole, Y)
    (here / "half.npy").write_bytes(whole.getvalue()[:1000])
    assert "is not a NPY file of numbers" in refused(capsys, "half.npy")


@pytest.mark.parametrize("left", [1, 20, -1, -5])
def test_truncated_logs_are_refused(here: Path, capsys: pytest.CaptureFixture[str], left: int) -> None:
    path = write_log(here / "log", reward=Y[:4])
    path.write_bytes(path.read_bytes()[:left])
    assert "it is truncated, or still being written" in refused(capsys, str(path))


@pytest.mark.parametrize("at", [0, 9, 14, -1])
def test_damaged_logs_fail_their_checksum(here: Path, capsys: pytest.CaptureFixture[str], at: int) -> None:
    path = write_log(here / "log", reward=Y[:4])
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert "fails its checksum" in refused(capsys, str(path))


def test_logs_without_a_choice_are_refused_with_what_there_is(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(here / "log" / "a", reward=Y[:2], loss=Y[:2])
    assert "choose one with --tag: loss, reward" in refused(capsys, "log")
    assert "did you mean 'reward'? Tags are loss, reward" in refused(capsys, "log", "--tag", "rewards")
    write_log(here / "log" / "b", reward=Y[:2])
    assert "of several runs; give the folder of one: a, b" in refused(capsys, "log")
    (here / "empty").mkdir()
    assert "is a folder without TensorBoard event files" in refused(capsys, "empty")
    write_log(here / "nothing")
    assert "has no scalars" in refused(capsys, "nothing")
    assert "does not exist" in refused(capsys, "events.tfevents.1")


def test_files_that_do_not_exist_or_are_too_large_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nowhere.csv cannot be read: No such file" in refused(capsys, "nowhere.csv")
    assert "cannot be read: File name too long" in refused(capsys, "x" * 5000)
    write_csv(here / "run.csv")
    write_log(here / "log", reward=Y)
    monkeypatch.setattr(reading, "MOST_BYTES", 1000)
    assert "run.csv has more than 0 MiB" in refused(capsys, "run.csv")
    assert "log has more than 0 MiB of events" in refused(capsys, "log")


def test_a_figure_that_cannot_be_written_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "run.csv")
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "run.csv", "--column", "reward", "--out", "missing/figure.png"])
    assert ended.value.code == 2
    assert "missing/figure.png cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", "0"], "batch is 0; it must be 1 or more"),
        (["--discount", "2"], "discount is 2.0; it must be between 0 and 1"),
        (["--ends", "done"], "ends is 'done', which needs discount"),
        (["--out", "figure.gif"], "out is 'figure.gif'; it must end in .png, .svg, .pdf"),
    ],
)
def test_mistakes_in_options_are_named(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "run.csv", *options])
    assert ended.value.code == 2
    said = "".join(capsys.readouterr())
    assert words in " ".join(said.replace("│", " ").split())


def test_only_what_is_needed_is_loaded() -> None:
    """Not JAX, PyTorch or tensorboardX; matplotlib only for the figure."""
    code = (
        "import sys, numpy as np\nfrom popart.lab.cli import main\n"
        "try: main(['diagnose', '--help'])\nexcept SystemExit: pass\n"
        "assert 'matplotlib' not in sys.modules\n"
        "np.save('y.npy', np.arange(50.0)); main(['diagnose', 'y.npy'])\n"
        "loaded = {'jax', 'torch', 'tensorboardX', 'scipy', 'gymnasium', 'psutil'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
