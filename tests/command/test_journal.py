"""``perfnb journal``: a folder's history in a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import perfnb as package
from tests.command.processes import called


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(24):
        ms = 10.0 * (1.2 if number >= 12 else 1.0) * (1 + 0.001 * (number % 3))
        package.Timing((ms,) * 8).save(tmp_path / "saved" / f"{number:02d}")
    return tmp_path / "saved"


def test_the_history_and_what_changed(folder: Path) -> None:
    done = called("journal", folder)

    assert (done.returncode, done.stderr) == (0, "")
    assert "20 % more step time since entry 13" in done.stdout
    assert "): 1.20 ×" in done.stdout
    assert "24 entries · 24 timings" in done.stdout
    data = json.loads(called("journal", folder, "--json").stdout)
    assert (data["kind"], len(data["sections"][-1]["rows"])) == ("journal", 24)


def test_the_trend_alone_and_a_page(folder: Path, tmp_path: Path) -> None:
    assert called("journal", folder, "--across", "host", "--across", "name").stdout.startswith("perfnb · trend")
    assert "No trend yet" in called("journal", folder, "--name", "other").stdout
    assert "No trend yet" in called("journal", folder, "--figure", "peak_bytes").stdout
    assert called("journal", folder, "--html", tmp_path / "page.html").stdout.startswith("Written to")
    assert "20 % more step time since entry 13" in (tmp_path / "page.html").read_text("utf-8")


def test_wrong_use(folder: Path) -> None:
    for words, said in (
        ((folder / "nowhere",), f"perfnb journal: {folder / 'nowhere'} is not a folder."),
        ((folder, "--across", "x"), "perfnb journal: across must be one or more of name, kind"),
    ):
        done = called("journal", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
