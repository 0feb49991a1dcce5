"""Code is found in a markdown file whatever surrounds it, and a document without it is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.documents import block

TEXT = """\
Install with `pip`, or:

  ```Shell
  pip install something
  ```

```
key: value
```
Then
```python
    import ilit
    import ilitter
    from lpot.deep.inside import one  # import ilit
    if one:
        print("import ilit")
```
and twice
```
key: other
```
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    (tmp_path / "page.md").write_text(TEXT)
    return tmp_path / "page.md"


def test_a_block_is_moved_to_the_margin_and_imports_octune(document: Path) -> None:
    assert block(document, "pip install") == "pip install something\n"
    assert block(document, "value") == "key: value\n"
    lines = block(document, "print(").splitlines()
    assert lines[:2] == ["from octune.compat import ilit", "import ilitter"]
    assert lines[2:] == [
        "from octune.compat.lpot import one  # import ilit",
        "if one:",
        '    print("import ilit")',
    ]


@pytest.mark.parametrize(("mark", "count"), [("Install with", 0), ("gone", 0), ("key", 2)])
def test_a_block_that_is_not_there_once_is_an_error(document: Path, mark: str, count: int) -> None:
    with pytest.raises(
        pytest.fail.Exception, match=rf"page\.md has {count} code blocks with '{mark}'\. Expected one"
    ):
        block(document, mark)
