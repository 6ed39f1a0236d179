"""The data of the exercises. Notebooks quote it and recorded answers depend on it, so it changes only on purpose."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb import labs
from perfnb.labs.made_job import write_job
from perfnb.labs.made_service import monday
from perfnb.labs.made_traces import TRACES


def _plain(value: Any) -> bool:
    """Check whether a value consists of numbers, possibly with names."""
    if isinstance(value, Mapping):
        return bool(value) and all(_plain(each) for each in value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return bool(value) and all(_is_name(each) or _plain(each) for each in value)
    return isinstance(value, (int, float, np.ndarray))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 30


def _constants() -> Iterator[str]:
    for name in sorted(each.name for each in pkgutil.iter_modules(labs.__path__)):
        module = importlib.import_module(f"perfnb.labs.{name}")
        for label, value in vars(module).items():
            if isinstance(value, pd.DataFrame):
                yield f"{name}.{label} = {value.to_csv().strip()}"
            if _plain(value) and not label.startswith("__"):
                shown = sorted(value) if isinstance(value, (set, frozenset)) else value
                yield f"{name}.{label} = {shown!r}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def test_constants(golden: Callable[[str, str], None]) -> None:
    golden("constants.txt", "\n".join(_constants()) + "\n")


def test_files(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    files = {name: make() for name, make in TRACES.items()}
    files |= {path.name: gzip.decompress(path.read_bytes()) for path in write_job(tmp_path)}
    files |= {f"monday {times}": monday(times).to_csv(float_format="%.6f").encode() for times in (1, 3)}
    golden("files.txt", "".join(f"{name} {_digest(content)}\n" for name, content in files.items()))
