"""Pages of the site that live elsewhere in the repository or are made from the code, and diagrams, drawn here."""

import os
import re
from pathlib import Path

import mermaidx
from generated_pages import GENERATED
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
GALLERY = sorted((ROOT / "src" / "stateroom" / "gallery").glob("*/README.md"))
ELSEWHERE = {
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "benchmarks" / "RESULTS.md": "benchmark-results.md",
    **{page: f"gallery/{page.parent.name}.md" for page in GALLERY},
}
LOOKED_UP = re.compile(r"reference/|(map|benchmark-results|changelog)\.md")
"""Pages for those who know the name: a search shows the others first, as these have every word somewhere."""

DIAGRAM = re.compile(r"^```mermaid\n(.+?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+\.md)(?=[)#])")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for source, uri in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(source)))
    for uri, make in GENERATED.items():
        files.append(File.generated(config, uri, content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead from where a page stands in the repository to where a page stands on the site, and diagrams are drawn.

    Diagrams are drawn here, because a browser would have to fetch the library for it from elsewhere.
    """
    if LOOKED_UP.match(page.file.src_uri):
        page.meta["search"] = {"boost": 0.3}
    docs = Path(config.docs_dir)
    source = Path(page.file.abs_src_path or docs / page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link["path"]).resolve()
        uri = ELSEWHERE.get(target) or ("index.md" if target == ROOT / "README.md" else os.path.relpath(target, docs))
        return os.path.relpath(uri, Path(page.file.src_uri).parent)

    def drawn(diagram: re.Match[str]) -> str:
        return f'<div class="diagram">{mermaidx.render(diagram[1], theme="neutral").svg()}</div>'

    return DIAGRAM.sub(drawn, LINK.sub(moved, markdown))
