"""Define how `perfnb.load` opens a saved A/B test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfnb.experiments.report_files import REPORT
from perfnb.recording.loadable import Loadable


def _load(path: Path, *_: object) -> Any:
    from perfnb.experiments.ab_test import load_ab_test

    return load_ab_test(path)


LOADABLE = Loadable(REPORT.is_at, _load)
