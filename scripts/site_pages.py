"""Build the documentation site with Zensical: lay out its pages, then run the generator in strict mode.

python scripts/site_pages.py --out build/site [--repository URL] [--serve [PORT]]

Pages are the documents of the repository, with links that fit the site, and generated references. The
navigation follows docs/index.md. The site is in OUT/html.
"""

from __future__ import annotations

import argparse
import http.server
import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import references

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "scripts" / "site.toml"
STYLE = ROOT / "scripts" / "site.css"
# Documents outside of docs/, and their pages.
OTHERS = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "lab/README.md": "how-the-lab-works.md",
    "benchmarks/README.md": "benchmarks.md",
}
# Each generated page: its line in the index, and the page whose line it follows there.
GENERATED = {
    "cli.md": ("[Help texts](cli.md): the `--help` of every command", "commands.md"),
    "api.md": ("[Python reference](api.md): every public name of the package `gpuprov`", "python.md"),
    "examples.md": ("[Example files](examples.md): manifests, hooks, a check of your own", "kubernetes.md"),
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^ *(```+)[^`\n]*\n.*?^ *\1 *$", re.DOTALL | re.MULTILINE)
IMAGES = (".png", ".svg")


def places() -> dict[str, str]:
    """Return the path in the site of each document and file of the repository that the site has."""
    docs = [file for file in sorted((ROOT / "docs").iterdir()) if file.suffix in (".md", *IMAGES)]
    roles = sorted((ROOT / "roles").glob("*/README.md"))
    schemas = sorted((ROOT / "provision/data/schemas").glob("*.json"))
    return {
        **OTHERS,
        **{f"docs/{file.name}": file.name for file in docs},
        **{f"roles/{file.parent.name}/README.md": f"roles/{file.parent.name}.md" for file in roles},
        **{file.relative_to(ROOT).as_posix(): f"schemas/{file.name}" for file in schemas},
        **{path: f"examples.md#{anchor}" for path, anchor in references.example_anchors().items()},
    }


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return the text with `change` applied to everything except fenced code."""
    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, change(text[last:])])


def with_links(text: str, source: str, known: Mapping[str, str], repository: str) -> str:
    """Return a document with links that fit the site.

    A link to a file that the site lacks leads to the repository; when its address is unknown, the label stays
    without a link. Raises ValueError for a link that leads nowhere."""
    folder = posixpath.dirname(known[source])

    def link(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, hash_mark, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if place := known.get(path):
            return f"{image}[{label}]({posixpath.relpath(place, folder or '.')}{hash_mark}{anchor})"
        if not (ROOT / path).exists():
            raise ValueError(f"{source}: {target} leads nowhere")
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"[{label}]({repository}/{kind}/HEAD/{path})" if repository else label

    return outside_code(text, lambda prose: LINK.sub(link, prose))


def index(text: str) -> str:
    """Return docs/index.md with a line for each generated page."""
    for line, neighbour in GENERATED.values():
        text = re.sub(rf"^- \[[^\]]*\]\({neighbour}\).*$", rf"\g<0>\n- {line}", text, flags=re.MULTILINE)
    return text


def navigation(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Return (heading, [(label, page)]) of each section of an index, with each page once."""
    seen = set()
    for section in text.split("\n## ")[1:]:
        items = []
        for label, page in re.findall(r"\[([^\]]*)\]\(([^)]+\.md)\)", section):
            if page not in seen:
                items.append((label, page))
                seen.add(page)
        yield section.partition("\n")[0], items


def configuration(text: str, repository: str) -> str:
    """Return the configuration of the generator, with the navigation of the laid out index."""

    def table(label: str, value: str) -> str:
        return f"{{{json.dumps(label, ensure_ascii=False)} = {value}}}"

    sections = [table("Home", '"index.md"')]
    for heading, items in navigation(text):
        pages = ", ".join(table(label, json.dumps(page)) for label, page in items)
        sections.append(table(heading, f"[{pages}]"))
    added = f"nav = [{', '.join(sections)}]\n" + (
        f"repo_url = {json.dumps(repository)}\n" if repository else ""
    )
    return CONFIG.read_text(encoding="utf-8").replace("[project]\n", f"[project]\n{added}", 1)


def lay_out(out: Path, repository: str = "") -> None:
    """Write the pages and the configuration below `out`, and remove what an earlier build left there."""
    shutil.rmtree(out, ignore_errors=True)
    pages = out / "pages"
    known = places()
    for source, place in known.items():
        if "#" in place or source == "README.md":
            continue
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        if not source.endswith(".md"):
            shutil.copyfile(ROOT / source, pages / place)
            continue
        text = with_links((ROOT / source).read_text(encoding="utf-8"), source, known, repository)
        (pages / place).write_text(index(text) if place == "index.md" else text, encoding="utf-8")
    for place, text in references.pages().items():
        (pages / place).write_text(text, encoding="utf-8")
    shutil.copyfile(STYLE, pages / STYLE.name)
    first = (pages / "index.md").read_text(encoding="utf-8")
    (out / "zensical.toml").write_text(configuration(first, repository), encoding="utf-8")


def build(out: Path) -> int:
    """Run the generator; return its exit status, which is not 0 when a page has a broken link."""
    generator = Path(sys.executable).with_name("zensical")
    return subprocess.run([generator, "build", "--strict"], cwd=out, check=False).returncode


def serve(folder: Path, port: int) -> None:
    """Serve the site to this machine until Ctrl-C."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="default: build/site")
    parser.add_argument("--repository", default="", metavar="URL", help="where links to source files lead")
    parser.add_argument(
        "--serve", type=int, nargs="?", const=8000, metavar="PORT", help="serve the site (default: 8000)"
    )
    return parser.parse_args(arguments)


def main() -> int:
    chosen = options()
    lay_out(chosen.out, chosen.repository.rstrip("/"))
    if code := build(chosen.out):
        return code
    print(f"the site is in {chosen.out / 'html'}")
    if chosen.serve is not None:
        serve(chosen.out / "html", chosen.serve)
    return 0


if __name__ == "__main__":
    sys.exit(main())
