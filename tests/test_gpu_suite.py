"""The suite for GPUs is complete where none is at hand: every test of it has a stand-in, or a reason why not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.on_gpu.twins import TWINS

TESTS = Path(__file__).parent


def names_in(file: Path) -> set[str]:
    """Return the names of a file's tests."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_on_a_gpu_has_a_twin_or_a_reason() -> None:
    suite = set().union(*map(names_in, (TESTS / "on_gpu").glob("test_*.py")))
    assert suite == TWINS.keys()


@pytest.mark.parametrize("twin", sorted(twin for twin in TWINS.values() if " " not in twin))
def test_a_twin_exists(twin: str) -> None:
    file, _, name = twin.partition("::")
    assert not name or name in names_in(TESTS / file)
    assert (TESTS / file).exists()
