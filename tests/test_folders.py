"""Files that a command is to write are refused before it begins; folders are written whole."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from octune.errors import ArtifactError, ConfigError
from octune.folders import check_file, complete_or_absent
from octune.scratch import scratch


def test_a_file_that_can_be_written_is_not_made(tmp_path: Path) -> None:
    check_file(tmp_path / "flips.csv", "--flips", ConfigError)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--flips .* is a folder\. Expected the name of a file"):
        check_file(tmp_path, "--flips", ConfigError)


@pytest.mark.parametrize("place", ["nowhere", "file.txt"])
def test_its_folder_must_be_there(tmp_path: Path, place: str) -> None:
    (tmp_path / "file.txt").touch()
    with pytest.raises(ConfigError, match=rf"--flips .* cannot be written: .*{place} does not exist"):
        check_file(tmp_path / place / "flips.csv", "--flips", ConfigError)


def test_where_nothing_can_be_written_another_folder_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ArtifactError, match=r"could not be saved to .*file/model: .*Choose another folder\."),
        complete_or_absent(tmp_path / "file" / "model", "octune.json", overwrite=False),
    ):
        pass


def test_a_folder_in_use_can_be_written_into() -> None:
    """A process that waits for its own lock waits forever."""
    with scratch() as place, complete_or_absent(place / "model", "octune.json") as staging:
        (staging / "octune.json").touch()
        assert staging.is_dir()


def test_what_is_being_written_is_never_taken_for_what_the_dead_left(tmp_path: Path) -> None:
    def save(number: int) -> None:
        for turn in range(40):
            with (
                suppress(KeyboardInterrupt),
                complete_or_absent(tmp_path / "model", "octune.json") as staging,
            ):
                (staging / "octune.json").write_text(f"{number} {turn}")
                time.sleep(0.001)
                assert (staging / "octune.json").read_text() == f"{number} {turn}"
                raise KeyboardInterrupt

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(save, range(6)))
    assert list(tmp_path.iterdir()) == []
