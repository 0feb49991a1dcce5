"""The documents say what is there: snippets work, commands and links exist, no key is forgotten, nothing is
promised that is missing.
"""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from octune import Result, errors
from octune.cli import app
from octune.config import Config, parse_config
from octune.config.dialects import DIALECTS
from octune.errors import ConfigError
from octune.evaluation.metrics import metric_names
from octune.search import STRATEGIES
from octune.tasks import task_names
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SOURCES = sorted(
    path
    for folder in ("src", "examples", "benchmarks", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".yaml")
)
# Hosts that documents and code may point to: public ones, known to everybody.
HOSTS = {
    "127.0.0.1",  # the machine that one is at
    "pypi.org",
    "download.pytorch.org",
    "gluebenchmark.com",
    "keepachangelog.com",
    "semver.org",
    "github.com",
    "huggingface.co",
}
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def snippets(page: Path, kind: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text()) if name.strip() == kind]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def code_spans(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def commands(page: Path) -> list[str]:
    """Every command line in a document: in code spans, and in blocks without a language."""
    lines = [line.partition(" #")[0].strip() for block in snippets(page, "") for line in block.splitlines()]
    return [*lines, *code_spans(page)]


def test_there_are_documents() -> None:
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"} <= {page.name for page in PAGES}
    assert snippets(ROOT / "README.md", "python")
    assert snippets(ROOT / "README.md", "yaml")


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES for number in range(len(snippets(page, "python")))],
    ids=lambda value: str(value)[-30:],
)
def test_python_snippets_compile(page: Path, number: int) -> None:
    compile(snippets(page, "python")[number], f"{page.name}, snippet {number}", "exec")


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES for number in range(len(snippets(page, "yaml")))],
    ids=lambda value: str(value)[-30:],
)
def test_yaml_snippets_load(page: Path, number: int) -> None:
    assert isinstance(parse_config(snippets(page, "yaml")[number]), Config)


def test_errors_are_shown_as_they_are_printed() -> None:
    shown = re.findall(
        r"^```yaml error\n(.*?)^```\n\n```text\n(.*?)^```$",
        (ROOT / "docs/configuration.md").read_text(),
        re.M | re.S,
    )
    assert len(shown) == len(snippets(ROOT / "docs/configuration.md", "yaml error")) >= 4
    for text, message in shown:
        with pytest.raises(ConfigError) as caught:
            parse_config(text, source="conf.yaml")
        assert str(caught.value) == message.rstrip("\n")


# -- commands ------------------------------------------------------------------------------------------------


def cli() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


@pages
def test_octune_commands_and_their_options_exist(page: Path) -> None:
    for line in commands(page):
        words = shlex.split(line) if line.startswith("octune ") else []
        if not words or words[1].startswith("--"):
            continue
        assert words[1] in cli(), f"{page.name}: {line}"
        known = {option for parameter in cli()[words[1]].params for option in parameter.opts} | {"--help"}
        assert {word for word in words[2:] if word.startswith("-")} <= known, f"{page.name}: {line}"


def test_the_readme_names_every_command() -> None:
    named = {line.split()[1] for line in commands(ROOT / "README.md") if line.startswith("octune ")}
    assert {name for name in named if not name.startswith("--")} == set(cli())


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / "README.md").read_text()
    for name in set(extras) - {"dev", "docs"}:  # those two are for contributors
        assert f"`{name}`" in text or f"[{name}]" in text, name


@pages
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {line.split()[1] for line in commands(page) if re.match(r"make \w", line)} <= targets


@pages
def test_scripts_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"\b(?:benchmarks|examples|docs|tests)/[\w/]+\.\w+", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


# -- links and names -----------------------------------------------------------------------------------------


@pages
def test_relative_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


@pages
def test_tests_that_are_named_exist(page: Path) -> None:
    everything = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in code_spans(page):
        if name.startswith("test_"):
            assert f"def {name}(" in everything, f"{page.name} names {name}"


def test_the_fields_of_a_result_are_real() -> None:
    text = (ROOT / "docs/python.md").read_text()
    table = text.partition("| `result.` | is |")[2].partition("\n\n")[0]
    names = re.findall(
        r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if row.count("|") > 2)
    )
    assert {"met", "model", "plan", "baseline", "best", "trials", "front", "stopped_because"} <= set(names)
    fields = {*Result.__dataclass_fields__, *vars(Result)}
    assert set(names) <= fields


def test_the_tree_of_errors_is_complete() -> None:
    tree = snippets(ROOT / "docs/errors.md", "text")[0]
    assert set(re.findall(r"[A-Z]\w*(?:Error|Timeout|Dependency)\b", tree)) == set(errors.__all__)


def test_every_strategy_is_there_and_described() -> None:
    assert set(Config.model_json_schema()["$defs"]["Tuning"]["properties"]["strategy"]["enum"]) == set(
        STRATEGIES
    )
    rows = re.findall(
        r"^\| `(\w+)`.* \|$", (ROOT / "docs/strategies.md").read_text().partition("## ")[0], re.MULTILINE
    )
    assert set(rows) == set(STRATEGIES)


# -- configuration -------------------------------------------------------------------------------------------


def make_configuration() -> Any:
    return load_script("docs/make_configuration.py")


def test_the_tables_of_keys_are_up_to_date() -> None:
    module = make_configuration()
    text = module.PAGE.read_text()
    assert text == module.page(text), "run: python docs/make_configuration.py"


def test_every_key_of_the_schema_is_described() -> None:
    schema = Config.model_json_schema()
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE))
    sections = {name for name in schema["properties"] if name != "device"}
    keys = {key for section in schema["$defs"].values() for key in section["properties"]}
    assert keys | {"device"} <= rows
    headings = re.findall(r"^### (.*)$", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE)
    assert sections <= set(re.findall(r"`(\w+)`", " ".join(headings)))


def expanded(pattern: str) -> list[str]:
    """``a.{b,c}`` is a.b and a.c."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


@pytest.mark.parametrize(("name", "heading"), [("ilit", "### iLiT"), ("lpot", "### LPOT")])
def test_every_key_of_a_dialect_is_in_its_table(name: str, heading: str) -> None:
    section = (ROOT / "docs/configuration.md").read_text().partition(heading)[2].partition("```")[0]
    named = {
        key
        for row in section.splitlines()
        if row.startswith("|")
        for span in re.findall(r"`([^`]+)`", row.split("|")[1])
        for key in expanded(span)
    }
    known = {row.old for row in DIALECTS[name].rows}
    unnamed = {
        key
        for key in known
        if not any(key == one or (one[0] == "…" and key.endswith(one[1:])) for one in named)
    }
    assert not unnamed
    assert {one for one in named if one[0] != "…"} <= known


def test_metrics_and_tasks_are_listed() -> None:
    named = set(code_spans(ROOT / "docs/configuration.md"))
    assert set(metric_names()) <= named
    assert set(task_names()) <= named


# -- what has no place in the project ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [*PAGES, *SOURCES, ROOT / "Makefile", ROOT / "pyproject.toml"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_no_path_or_host_of_one_machine_is_left_behind(path: Path) -> None:
    text = path.read_text()
    # A path from the root of a file system is one machine's, but for those that every Linux has.
    assert not re.findall(r"(?<![\w.:/~*<>)}'-])/(?!proc/|sys/|dev/|usr/|etc/|tmp/)[a-z]\w*/[\w.]+", text)
    hosts = {host.partition(":")[0] for host in re.findall(r"https?://(?:[^/\s@]*@)?([\w.-]+)", text)}
    assert hosts <= HOSTS
