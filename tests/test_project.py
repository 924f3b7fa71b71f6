"""The files around the code: workflows, templates and metadata of the package agree with each other."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def jobs_of(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8"))["jobs"]


def supported() -> list[str]:
    return [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]


def test_tests_run_on_every_supported_python() -> None:
    assert supported() == ["3.11", "3.12", "3.13", "3.14"]
    assert jobs_of("tests")["test"]["strategy"]["matrix"]["python"] == supported()
    assert PROJECT["requires-python"] == f">={supported()[0]}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_make_targets_that_exist_and_have_few_permissions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            called = re.match(r"make (\w+)", step.get("run", ""))
            assert called is None or called[1] in targets
            assert re.search(r"@(v\d+|release/v\d+)$", step.get("uses", "@v1"))


def test_a_change_is_checked_with_the_documentation_and_slow_tests() -> None:
    commands = [step.get("run") for step in jobs_of("tests")["check"]["steps"]]
    assert "make check SLOW=1" in commands
    (check,) = re.findall(r"^check: ([\w ]+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {"lint", "types", "docs", "test"} <= set(check.split())


def test_known_vulnerabilities_are_looked_for_every_week() -> None:
    text = (ROOT / ".github" / "workflows" / "audit.yml").read_text("utf-8")
    assert yaml.safe_load(text)[True]["schedule"]  # YAML 1.1 reads `on` as true
    for path in ("constraints.txt", "requirements/lab.txt", "requirements/dev.txt"):
        assert re.search(rf"pip-audit .*--requirement {path}", text)
        assert (ROOT / path).exists()


def test_publishing_needs_a_tag_and_no_secret() -> None:
    text = (ROOT / ".github" / "workflows" / "publish.yml").read_text("utf-8")
    assert yaml.safe_load(text)[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert "secrets." not in text
    assert jobs_of("publish")["publish"]["permissions"] == {"id-token": "write"}
    assert PROJECT["name"].replace("-", "_") in text


def test_issue_forms_have_fields_with_unique_names() -> None:
    forms = [p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"]
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text("utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        names = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(names) == len(set(names)) > 0


def test_addresses_are_those_of_one_repository() -> None:
    urls = PROJECT["urls"]
    assert {"Source", "Documentation", "Issues", "Changelog"} <= urls.keys()
    assert urls["Issues"].startswith(urls["Source"])
    assert urls["Changelog"].startswith(urls["Source"])
    owner, name = urls["Source"].split("/")[-2:]
    assert urls["Documentation"] == f"https://{owner}.github.io/{name}"
