"""Collect the tables of a report from run folders, analyse them, and write the page."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from popart.lab.campaign.report import Report
from popart.lab.campaign.report.reading import SCORES, LeftOut, read
from popart.lab.campaign.report.selection import Compared, Selection, select
from popart.lab.checks import LabError
from popart.lab.files import read_table, write_atomically
from popart.lab.report.page import page_of
from popart.lab.runs import Run

PAPER_FRAMES = 200_000_000


def run(command: Report) -> Path:
    found, unread = read(command.runs)
    if not found:
        said = "; ".join(f"{folder}: {reason}" for folder, reason in unread[:3])
        raise LabError(
            f"no run of `popart train` in {', '.join(map(str, command.runs))}{f' ({said})' if said else ''}; "
            "give folders that contain run folders"
        )
    selection = select(found, command.frames, command.score)
    tables = tables_of(selection, [*unread, *selection.left_out])
    settings = {
        "runs": [str(folder) for folder in command.runs],
        "frames": command.frames,
        "score": command.score,
        "large_rewards": command.large_rewards,
        "out": command.out,
    }
    with Run("campaign-report", _title(tables), settings, tuple(settings), _command_line(command)) as run:
        if run.finished:
            run.reopen()
        for file in (path for path in run.folder.iterdir() if path.suffix in (".csv", ".png", ".svg")):
            file.unlink()  # of an earlier report, which may have had other tables
        for name, rows in tables.items():
            if rows:
                run.write_table(name, rows)
        run.finish()
        write_atomically(run.folder / "report.html", page_of(run.folder).encode())
    return run.folder


def tables_of(selection: Selection, left_out: list[LeftOut]) -> dict[str, list[dict[str, Any]]]:
    """Return everything that the analysis needs."""
    compared = selection.compared
    return {
        "about": [_about(selection, len(left_out))],
        "runs": [_row(each, selection.frames) for each in compared],
        "gradients": [row for each in compared for row in _gradients(each, selection.frames)],
        "rewards": [row for each in compared for row in _rewards(each, selection)],
        "left_out": [{"run": str(folder), "reason": reason} for folder, reason in left_out],
    }


def _about(selection: Selection, left_out: int) -> dict[str, Any]:
    members = [each.run.member for each in selection.compared]
    seeds = sorted({sum(x.game == y.game and x.agent == y.agent for y in members) for x in members})
    kind = SCORES[selection.kind]
    if selection.protocol:
        which, episodes, epsilon = selection.protocol
        kind += f": {which} agent, {episodes} episodes, epsilon {epsilon:g}"
    atari = all(member.is_atari for member in members)
    return {
        "games": len({member.game for member in members}),
        "agents": ", ".join(dict.fromkeys(member.agent.agent for member in members)),
        "seeds": " to ".join(str(x) for x in dict.fromkeys((seeds[0], seeds[-1]))),
        "frames": f"{selection.frames:,}",
        "of the paper's frames": f"{100 * selection.frames / PAPER_FRAMES:.3g} %" if atari else None,
        "score": kind,
        "runs compared": len(members),
        "runs left out": left_out,
    }


def _row(each: Compared, frames: int) -> dict[str, Any]:
    member, last = each.run.member, each.run.until(frames)[-1]
    return {
        "run": str(each.run.folder),
        "game": member.game,
        "agent": member.agent.agent,
        "seed": member.seed,
        "frames": last["frames"],
        "updates": last["updates"],
        "score": each.score,
        "scored": any(float(row["score_100"] or 0) for row in each.run.until(frames)),
    }


def _about_run(each: Compared) -> dict[str, Any]:
    member = each.run.member
    return {"game": member.game, "agent": member.agent.agent, "seed": member.seed}


def _gradients(each: Compared, frames: int) -> Iterator[dict[str, Any]]:
    for row in each.run.until(frames):
        if row["gradient_norm"]:
            yield _about_run(each) | {name: row[name] for name in ("updates", "gradient_norm")}


def _rewards(each: Compared, selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield the rewards that the evaluation of a run recorded."""
    found = each.run.evaluation(selection.frames, selection.protocol)
    if found and (found.folder / "rewards.csv").exists():
        for row in read_table(found.folder / "rewards.csv"):
            yield _about_run(each) | {name: row[name] for name in ("reward", "times")}


def _title(tables: dict[str, list[dict[str, Any]]]) -> str:
    (about,) = tables["about"]
    part = about["of the paper's frames"]
    paper = f", {part} of the paper's training" if part else ""
    return (
        f"Campaign: {_counted(about['games'], 'game')}, {_counted(about['seeds'], 'seed')}, "
        f"{about['frames']} frames{paper}"
    )


def _counted(number: int | str, noun: str) -> str:
    return f"{number} {noun}" + ("" if str(number) == "1" else "s")


def _command_line(command: Report) -> str:
    words = ["popart", "campaign", "report", *map(str, command.runs)]
    words += ["--frames", str(command.frames)] if command.frames else []
    words += ["--score", command.score] if command.score != "auto" else []
    words += ["--large-rewards", f"{command.large_rewards:g}"] if command.large_rewards != 200 else []
    return shlex.join([*words, "--out", str(command.out)])
