"""A hook of mkdocs: links that leave docs/ for the sources work in a checkout and on a code host, but the
site has no such files.

With ``repo_url`` in mkdocs.yml they lead there; without it only their text stays. Either way a link to a file
that does not exist is a warning, and warnings are errors.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

log = logging.getLogger("mkdocs.hooks.site_links")
LINK = re.compile(r"\[([^\]\n]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with its links to the sources resolved, and with code blocks of languages only."""
    docs = Path(config["docs_dir"])
    here = (docs / page.file.src_uri).parent

    def resolved(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = (here / target.partition("#")[0]).resolve()
        if path.is_relative_to(docs):
            return link.group()
        if not path.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        if not config["repo_url"]:
            return text
        return f"[{text}]({config['repo_url'].rstrip('/')}/blob/main/{path.relative_to(docs.parent)})"

    # "yaml error" marks a block that tests expect to be refused; a highlighter knows no such language.
    return LINK.sub(resolved, markdown).replace("```yaml error", "```yaml")
