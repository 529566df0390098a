"""The documentation site builds without a broken link, and every page is in the index."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.timeout(400)  # a busy host
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Targets and anchors of one page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.add(value)
            elif name == "id" and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    """scripts/site_pages.py, as a module."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "out"
    command = [sys.executable, str(ROOT / "scripts" / "site_pages.py"), "--out", str(out)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    return out / "html"


def test_every_document_is_a_page_of_the_site(site: Path) -> None:
    pages = {file.relative_to(site).as_posix() for file in site.rglob("*.html")}
    documents = {f"{file.stem}.html" for file in (ROOT / "docs").glob("*.md")}
    roles = {f"roles/{file.parent.name}.html" for file in (ROOT / "roles").glob("*/README.md")}
    assert (
        documents | roles | {"changelog.html", "contributing.html", "security.html", "cli.html", "api.html"}
        <= pages
    )
    assert (site / "search.json").stat().st_size > 100_000


def test_no_link_of_the_site_is_broken(site: Path) -> None:
    pages = {file: Page(file) for file in site.rglob("*.html") if file.name != "404.html"}
    broken = []
    for file, page in pages.items():
        for target in page.targets:
            if re.match(r"[a-z]+:|//", target):
                continue
            path, _, anchor = target.partition("#")
            there = (file.parent / unquote(path)).resolve() if path else file
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file() or (
                anchor and there in pages and unquote(anchor) not in pages[there].anchors
            ):
                broken.append(f"{file.relative_to(site)}: {target}")
    assert not broken, "\n".join(sorted(broken))


def test_every_page_is_two_clicks_from_the_index(site: Path) -> None:
    reached = {site / "index.html"}
    for _ in range(2):
        targets = [(page, target.partition("#")[0]) for page in reached for target in Page(page).targets]
        local = [(page.parent / target).resolve() for page, target in targets if ":" not in target]
        reached |= {page for page in local if page.suffix == ".html" and page.is_file()}
    assert {page for page in site.rglob("*.html") if page.name != "404.html"} == reached


def test_a_page_reads_nothing_from_another_server(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\"\s>]+)", text)
    assert loaded == []


def test_the_index_names_every_page_of_docs() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", INDEX)
    assert sorted({*listed, "index.md"}) == sorted(file.name for file in (ROOT / "docs").glob("*.md"))
    roles = set(re.findall(r"\]\(\.\./roles/(\w+)/README\.md\)", INDEX))
    assert roles == {file.parent.name for file in (ROOT / "roles").glob("*/README.md")}


def test_each_generated_page_has_a_place_in_the_index(site_pages: ModuleType) -> None:
    assert [name for name in site_pages.GENERATED if f"]({name})" not in site_pages.index(INDEX)] == []


def test_a_link_to_a_file_that_is_no_page_leads_to_the_repository(site_pages: ModuleType) -> None:
    text = "[the code](../provision/cli.py), [a role](../roles/nccl/README.md#removal)\n```\n[a](b)\n```\n"
    known = site_pages.places()
    there = site_pages.with_links(text, "docs/ci.md", known, "https://example.com/g")
    assert "[the code](https://example.com/g/blob/HEAD/provision/cli.py)" in there
    assert "[a role](roles/nccl.md#removal)" in there
    assert "```\n[a](b)\n```" in there
    assert "the code, " in site_pages.with_links(text, "docs/ci.md", known, "")


def test_a_link_that_leads_nowhere_is_refused(site_pages: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"docs/ci\.md: absent\.md leads nowhere"):
        site_pages.with_links("[a](absent.md)", "docs/ci.md", site_pages.places(), "")


def test_the_workflow_publishes_what_the_script_builds(site_pages: ModuleType) -> None:
    file = ROOT / "docs" / "examples" / "publish-site.yml"
    steps = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]["publish"]["steps"]
    (command,) = [shlex.split(step["run"]) for step in steps if "run" in step]
    options = site_pages.options(command[1:])
    assert command[0] == "scripts/site"
    assert options.repository.startswith("https://")
    (published,) = [step["with"]["path"] for step in steps if "upload" in step.get("uses", "")]
    assert ROOT / published == options.out / "html"


@pytest.mark.parametrize(("page", "script"), [("json.md", "json_page.py")])
def test_a_generated_document_is_current(page: str, script: str, tmp_path: Path) -> None:
    copy = tmp_path / page
    copy.write_bytes((ROOT / "docs" / page).read_bytes())
    command = [sys.executable, str(ROOT / "scripts" / script), "--write", str(copy)]
    subprocess.run(command, check=True, timeout=60)
    assert copy.read_bytes() == (ROOT / "docs" / page).read_bytes(), (
        f"python scripts/{script} --write docs/{page}"
    )
