"""The folder of a campaign: `campaign.json` with its settings, versions and fleets, and the run folders.

Fleets are planned once. The bits of a run depend on the number of members of its fleet, so that a campaign
that is resumed on other machines keeps its fleets, and ends with the same tables.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from popart.lab.campaign.versions import check_versions, versions
from popart.lab.checks import LabError
from popart.lab.files import write_atomically
from popart.lab.manifest import MANIFEST, now, read_manifest
from popart.lab.train.config import Member, Train, flat

NAME = "campaign.json"
FORMAT = 1
FREE = ("frames", "checkpoint_every", "threads", "device")
"""Settings that may change when a campaign is resumed."""

EXTENDED = ("game", "agent", "seed")
"""Settings that may have more values when a campaign is resumed."""


@dataclass(frozen=True)
class Folder:
    """A campaign, as described by `campaign.json`."""

    path: Path
    id: str
    """Identifier by which machines recognise the campaign."""

    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    fleets: Sequence[Sequence[str]]
    """Names of the members of each fleet."""

    command: str
    started: str
    """Time of the last start; failures before it do not count."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the campaign in a folder."""
        try:
            content = json.loads((path / NAME).read_text(encoding="utf-8"))
        except OSError as error:
            raise LabError(f"{path} is not the folder of a campaign: {NAME}: {error.strerror}") from error
        except ValueError as error:
            raise LabError(
                f"{path / NAME} is damaged ({error}); restore it, or give another --out"
            ) from error
        if content.pop("format", None) != FORMAT:
            raise LabError(f"{path / NAME} was written by another version of popart; use that version")
        return cls(path, **content)

    @classmethod
    def new(cls, train: Train, fleets: Sequence[Sequence[Member]], command: str) -> Self:
        """Describe a campaign that is not on disk yet."""
        assert train.out is not None
        names = [[member.name for member in fleet] for fleet in fleets]
        return cls(train.out, uuid.uuid4().hex, _plain(train), versions(), names, command, now())

    def write(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT} | {k: v for k, v in vars(self).items() if k != "path"}
        write_atomically(self.path / NAME, (json.dumps(content, indent=2) + "\n").encode())

    def members(self) -> dict[str, Member]:
        """Return all members by name."""
        return {member.name: member for member in members_of(Train.of(**self._options()))}

    def fleet(self, number: int) -> list[Member]:
        """Return the members of a fleet, which are numbered from 1."""
        if not 1 <= number <= len(self.fleets):
            raise LabError(f"fleet is {number}; {self.path} has fleets 1 to {len(self.fleets)}")
        members = self.members()
        return [members[name] for name in self.fleets[number - 1]]

    def _options(self) -> dict[str, Any]:
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in self.settings.items()}
        return options | {"out": self.path}

    def check_versions(self, where: str) -> None:
        """Refuse this machine if its versions are not those of the campaign."""
        check_versions(where, versions(), self.versions)

    def restarted(self, new: "Folder", accept_versions: bool) -> Self:
        """Return this campaign with the settings of a new start that may change; refuse other changes."""
        if accept_versions:
            renewed = replace(self, versions=versions())
        else:
            check_versions("this machine", versions(), self.versions)
            renewed = self
        self._check_same(new)
        return replace(renewed, settings=new.settings, command=new.command, started=new.started)

    def _check_same(self, new: "Folder") -> None:
        old = self.settings
        differ = [k for k in old if k not in (*FREE, *EXTENDED) and old[k] != new.settings.get(k)]
        lacking = [k for k in EXTENDED if not set(old[k]) <= set(new.settings[k])]
        if differ or lacking:
            found = "; ".join(_difference(k, old[k], new.settings[k]) for k in differ + lacking)
            raise LabError(
                f"{self.path} is a campaign with other settings ({found}); give another --out, or run its "
                f"own command: {self.command}"
            )

    def extended(self, fleets: Sequence[Sequence[Member]]) -> Self:
        """Return this campaign with further fleets."""
        return replace(self, fleets=[*self.fleets, *([member.name for member in fleet] for fleet in fleets)])


def _difference(name: str, there: Any, here: Any) -> str:
    """Return the difference of a setting, with the name and value of its option."""
    if name == "seed":
        return f"seeds is {len(there)} there, {len(here)} here"
    plural = "s" if name in EXTENDED else ""
    return f"{name}{plural} is {_text(there)} there, {_text(here)} here"


def _text(value: Any) -> str:
    """Return the value of a setting for a message; an option that was not given is None."""
    return "the default" if value is None else repr(value)


def members_of(train: Train) -> list[Member]:
    """Return the members of a campaign. Even a single one has a folder in that of the campaign."""
    assert train.out is not None
    return [replace(member, out=train.out / member.name) for member in train.members()]


def _plain(train: Train) -> dict[str, Any]:
    """Return the settings as JSON has them, with names instead of `all`."""
    settings = flat(train) | {"game": train.games, "agent": train.agents}
    del settings["out"]
    return json.loads(json.dumps(settings))


def is_finished(member: Member) -> bool:
    """Return whether a run has all its frames and results."""
    if not (member.out / MANIFEST).exists():
        return False
    manifest = read_manifest(member.out)
    return manifest["finished"] is not None and manifest["settings"]["frames"] >= member.frames
