"""The command line explains itself, and names errors in settings."""

import subprocess
import sys

import pytest
import tyro

from popart.lab.cli import COMMANDS, main
from popart.lab.options import NUMBERS
from popart.lab.train.config import Train


def says(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
    out, err = capsys.readouterr()
    return " ".join((out + err).replace("│", " ").split())


def test_without_arguments_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    said = says(capsys, [], 0)
    for command in COMMANDS:
        assert command in said
    assert "Fig. 1a" in said


def test_the_list_of_commands_has_only_the_first_sentence_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    said = says(capsys, ["--help"], 0)
    assert "Train one network on several small games" in said
    assert "multi-task Pop-Art" not in said
    assert "multi-task Pop-Art" in says(capsys, ["tasks", "--help"], 0)


def test_help_names_every_setting_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    said = says(capsys, ["regression", "--help"], 0)
    for word in (
        "--methods",
        "popart-percentiles",
        "--alphas",
        "10^-5, 10^-4.5, ..., 1",
        "(default: 5000)",
        "--out",
    ):
        assert word in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["regresion"], ["'regresion'", "did you mean 'regression'?", "histograms"]),
        (["xyz"], ["there is no command 'xyz'.", "Commands of popart are reproduce"]),
        (["regression", "--sed", "1"], ["--sed", "--seed"]),
        (
            ["regression", "--methods", "popat"],
            ["methods has 'popat'; did you mean 'popart'?", "art-extremes"],
        ),
        (["regression", "--methods", "popart-percentile"], ["did you mean 'popart-percentiles'?"]),
        (["regression", "--methods"], ["methods is empty; give at least one of sgd"]),
        (["regression", "--methods", "sgd", "sgd"], ["methods has 'sgd' more than once"]),
        (["regression", "--alphas"], ["alphas is empty; give at least one value in (0, inf)"]),
        (["regression", "--alphas", "0"], ["alphas has 0.0; values must be in (0, inf)"]),
        (["regression", "--alphas", "nan"], ["alphas has nan"]),
        (["regression", "--alphas", "0.1", "0.1"], ["alphas has 0.1 more than once"]),
        (["regression", "--betas", "1.5"], ["betas has 1.5; values must be in (0, 1]"]),
        (["regression", "--samples", "15"], ["samples is 15; it must be a multiple of 10, 10 or more"]),
        (["regression", "--repetitions", "0"], ["repetitions is 0; it must be 1 or more"]),
        (["regression", "--seed", "-1"], ["seed is -1; it must be from 0 to 4294967295"]),
        (["regression", "--seed", "one"], ["one", "--seed"]),
        (["histograms", "--targets", "10"], ["targets is 10; it must be 1000 or more"]),
        (["regression", "--seed", "1e5"], ["'1e5' was given; it must be a whole number, such as 100_000"]),
        (["train", "--frames", "1e5"], ["--frames: '1e5' was given; it must be a whole number, such as"]),
        (["train", "--seed", "0", "x"], ["--seed: 'x' was given; it must be a whole number"]),
        (["train", "--beta", "x"], ["--beta: 'x' was given; it must be a number, such as 0.01"]),
        (["regression", "--alphas", "1", "x"], ["--alphas: 'x' was given; it must be a number"]),
        (["report", "runs", "--out", "x.pdf"], ["out is 'x.pdf'; it must end in .html"]),
        (["report", "nowhere"], ["nowhere contains no run", "popart reproduce"]),
        (["plot"], ["no run was given; give at least one run folder, as in: popart plot runs/scale"]),
        (["plot", "nowhere"], ["nowhere is not a run folder"]),
        (["norms", "--games", "cartpole"], ["games has 'cartpole'"]),
        (
            ["train", "--num-envs", "6", "--groups", "4"],
            ["num_envs is 6; it must be a multiple of groups, 4"],
        ),
    ],
)
def test_errors_in_settings_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    said = says(capsys, arguments, 2)
    for word in words:
        assert word in said


def test_numbers_are_read_as_python_writes_them() -> None:
    words = "--frames 100_000 --seed 0 3 --beta 1e-3 --learning-rate None --discount 1"
    found = tyro.cli(Train, args=words.split(), registry=NUMBERS)
    assert (found.frames, found.seed, found.learning.beta) == (100_000, (0, 3), 1e-3)
    assert (found.learning.learning_rate, found.learning.discount) == (None, 1.0)


def test_help_needs_no_jax() -> None:
    code = (
        "import sys\nfrom popart.lab.cli import main\n"
        "for command in ('regression', 'histograms', 'paper', 'plot', 'report'):\n"
        "    try: main([command, '--help'])\n    except SystemExit: pass\n"
        "assert 'jax' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_without_the_laboratory_it_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['tyro'] = None; from popart.lab.cli import main; main([])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert 'pip install "popart-learn[lab]"' in ended.stderr
