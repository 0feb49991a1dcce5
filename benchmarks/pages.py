"""What a command writes into a page stands between two markers; the rest of the page is left alone.

<!-- speed: begin (and who writes it) -->
<!-- speed: end -->

write(Path("page.md"), "speed", lines)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["between", "parts", "updated", "write"]


def parts(text: str, name: str) -> tuple[str, str, str] | None:
    """A page up to the first marker of that name, what is between the two, and the rest from the second one
    on; None if it does not have them.
    """
    begin, end = rf"<!-- {re.escape(name)}: begin[^\n]*? -->", f"<!-- {re.escape(name)}: end -->"
    found = re.fullmatch(f"(.*?{begin})(.*?)({end}.*)", text, re.DOTALL)
    return None if found is None else (found[1], found[2], found[3])


def between(text: str, name: str, lines: Iterable[str]) -> str:
    """The page with these lines between its markers of that name."""
    found = parts(text, name)
    if found is None:
        raise SystemExit(f"The page needs the markers <!-- {name}: begin --> and <!-- {name}: end -->.")
    body = "\n".join(lines).strip("\n")
    return f"{found[0]}\n\n{body}\n\n{found[2]}"


def write(page: Path, name: str, lines: Iterable[str]) -> None:
    """Put the lines there."""
    page.write_text(between(page.read_text(), name, lines))


def updated(page: Path, made: Callable[[str], str]) -> int:
    """All that a script does which makes a page anew from its text; with ``--check`` the exit code says
    whether it would change.
    """
    old = page.read_text()
    new = made(old)
    if "--check" in sys.argv[1:]:
        return int(old != new)
    page.write_text(new)
    return 0
