"""Counts are recorded in a file that a person can read, each for its environment, and are compared exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfnb.errors import RecordingError
from perfnb.gate.records import differences, file_of, missing, read_records, stable, update_record

COUNTS = {"peak_bytes": 1000, "ops": 20, "kernels": None}


def test_a_record_stands_next_to_its_test_with_a_line_for_each_figure(tmp_path: Path) -> None:
    file = file_of(tmp_path / "test_model.py")
    assert (file.name, read_records(file)) == ("test_model.perf.json", {})
    update_record(file, "test_b", "torch 2, CPU", COUNTS)
    update_record(file, "test_a", "torch 2, CPU", {"ops": 3})
    update_record(file, "test_b", "torch 1, CPU", {"ops": 4})
    assert file.read_text("utf-8") == (
        '{\n  "version": 1,\n  "tests": {\n    "test_a": {\n      "torch 2, CPU": {\n'
        '        "ops": 3\n      }\n    },\n'
        '    "test_b": {\n      "torch 1, CPU": {\n        "ops": 4\n      },\n      "torch 2, CPU": {\n'
        '        "peak_bytes": 1000,\n        "ops": 20,\n        "kernels": null\n      }\n    }\n  }\n}\n'
    )
    assert read_records(file)["test_b"]["torch 2, CPU"] == COUNTS


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 1, "tests": {"a": {"e": {"ops": 1.5}}}}', '{"version": "x"}']
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "test_a.perf.json"
    file.write_text(text)
    with pytest.raises(RecordingError, match=r"test_a\.perf\.json is damaged \(.*\): delete it and run pytest --perf"):
        read_records(file)
    file.write_text('{"version": 2, "tests": {}}')
    with pytest.raises(RecordingError, match=r"newer version of perfnb\.$"):
        read_records(file)


def test_every_difference_is_named_with_both_figures() -> None:
    assert differences(COUNTS, COUNTS) == []
    assert differences(COUNTS, {"peak_bytes": 1050, "ops": 19, "kernels": 3, "new": 1}) == [
        "peak_bytes 1,000 → 1,050 (+5.0%)",
        "ops 20 → 19 (-5.0%)",
        "kernels n/a → 3",
    ]
    assert differences({"synchronisations": 0}, {"synchronisations": 1}) == ["synchronisations 0 → 1"]
    assert differences({"ops": 1}, {}) == ["ops 1 → n/a"]


def test_what_varies_is_left_out_of_the_record() -> None:
    assert stable(COUNTS, {**COUNTS, "ops": 21}) == ({"peak_bytes": 1000, "kernels": None}, ["ops"])


def test_counts_of_another_environment_are_not_compared() -> None:
    records = {"test_a": {"torch 2, CPU": COUNTS}}
    assert missing(records, "test_a", "torch 2, CPU") is None
    assert missing(records, "test_a", "torch 3, CPU") == (
        "its counts are recorded for another environment (torch 2, CPU), but this one is torch 3, CPU"
    )
