"""The script that runs a step in another process: which modules count as code of the other revision."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

import perfnb.gate.child
from perfnb.gate.child import Served


@pytest.mark.parametrize("name", ["package", "child"])
def test_the_gate_itself_is_not_code_of_the_other_revision(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The gate's script comes from the working tree if that is perfnb's own repository, whatever its module's name."""
    file = tmp_path / "working" / f"{name}.py"
    same = tmp_path / "revision" / f"{name}.py"
    same.parent.mkdir()
    same.touch()
    monkeypatch.setenv("PERFNB_TREE", str(same.parent))
    monkeypatch.setattr(perfnb.gate.child, "__file__", str(tmp_path / "working" / "child.py"))
    module = SimpleNamespace(__file__=str(file))
    monkeypatch.setattr(perfnb.gate.child, "sys", SimpleNamespace(modules={"__main__": module, "__mp_main__": module}))
    channel = io.StringIO()
    with pytest.raises(pytest.exit.Exception):  # no turns are requested
        Served("", channel, str(file.parent)).step(lambda: None)
    assert f'"foreign": {"null" if name == "child" else chr(34) + "__main__" + chr(34)}' in channel.getvalue()
