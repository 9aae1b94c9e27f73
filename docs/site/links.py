"""Files outside ``docs/`` that its pages link to are pages of the site (a MkDocs hook, see ``mkdocs.yml``).

A repository host shows ``../examples/judge_llm.py`` as it is. The site has no repository to link to, so every file and folder that is
linked becomes a page below ``source/``: Markdown and notebooks as text, a folder as a list, anything else as a block of code.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
SOURCE = "source/"
EXAMPLES = "examples"
LINK = re.compile(r"(\]\()(?![a-z]+:|/)([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```|^~~~~.*?^~~~~|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".json": "json", ".toml": "toml"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for the examples, and for every file outside ``docs/`` that a page, or such a page, links to."""
    waiting = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    waiting.append(("docs/index.md", f"[examples](../{EXAMPLES})"))
    known: set[str] = set()
    while waiting:
        origin, text = waiting.pop()
        for path in {resolved(origin, found[2]) for part in CODE.split(text)[::2] for found in LINK.finditer(part)} - known:
            known.add(path)
            if not path.startswith(("docs/", "..")) and (ROOT / path).exists():
                content = content_of(ROOT / path)
                files.append(File.generated(config, page_of(path), content=content))
                waiting.append((path, content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the signature of MkDocs
    """Point the links at those pages."""
    place = page.file.src_uri
    origin = ORIGINS.get(place, f"docs/{place}")

    def pointed(found: re.Match[str]) -> str:
        path = resolved(origin, found[2])
        target = path.removeprefix("docs/") if path.startswith("docs/") else page_of(path)
        if files.get_file_from_path(target) is None:
            return found[0]  # MkDocs says which link is broken
        return f"{found[1]}{posixpath.relpath(target, posixpath.dirname(place) or '.')}{found[3] or ''})"

    return "".join(part if number % 2 else LINK.sub(pointed, part) for number, part in enumerate(CODE.split(markdown)))


ORIGINS: dict[str, str] = {}
"""Page -> the file that it shows."""


def resolved(origin: str, link: str) -> str:
    """The file that a link leads to, from the root of the repository. Links of a folder's page are relative to the folder."""
    folder = origin if (ROOT / origin).is_dir() else posixpath.dirname(origin)
    return posixpath.normpath(posixpath.join(folder, link))


def page_of(path: str) -> str:
    """The page that shows a file or folder."""
    if (ROOT / path).is_dir():
        page = f"{SOURCE}{path}/index.md"
    elif path.endswith(".md"):  # MkDocs would make README.md the index of its folder
        page = SOURCE + path.replace("README.md", "readme.md")
    else:
        page = f"{SOURCE}{path}.md"
    ORIGINS[page] = path
    return page


def content_of(file: Path) -> str:
    """The page of a file or folder, as Markdown."""
    title = f"# {file.relative_to(ROOT).as_posix()}\n\n"
    if file.is_dir():
        return (f"# {file.name.capitalize()}\n\n" if file.parent == ROOT else title) + listing(file)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return title + "\n\n".join(block(source, "python") if kind == "code" else source for kind, source in cells)
    return title + block(text, LANGUAGES.get(file.suffix, "text"))


def block(text: str, language: str) -> str:
    return f"~~~~{language}\n{text.rstrip()}\n~~~~\n"


def listing(folder: Path) -> str:
    """The files of a folder, each with the first sentence of its docstring."""
    rows = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.name.startswith((".", "_")) or path.suffix == ".pyc":
            continue
        words = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") if path.suffix == ".py" else ""
        rows.append(f"| [{path.name}]({path.name}) | {words.partition(chr(10) * 2)[0].replace(chr(10), ' ').replace('|', '&#124;')} |")
    return "\n".join(["| file | what it shows |", "| --- | --- |", *rows]) + "\n"
