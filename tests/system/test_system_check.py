"""The machine that the tests run on, checked; and how checks show themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import perfnb
from perfnb.system.system import COLUMNS, SystemCheck
from perfnb.system.view import SIGNS
from tests.telemetry.nvml_stand_in import set_up, stand_in

pytestmark = pytest.mark.usefixtures("nothing_left")


def checks(*rows: tuple[str, str, str]) -> SystemCheck:
    """Checks of name, found and verdict."""
    full = [(name, found, f"{name} expected", verdict, f"{name} why", f"{name} how") for name, found, verdict in rows]
    return SystemCheck(pd.DataFrame(full, columns=list(COLUMNS)))


def test_this_machine_gets_a_row_for_each_check(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 1000)
    check = perfnb.system_check(tmp_path)

    table = check.checks
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 20
    assert set(table["verdict"]) <= set(SIGNS)
    unknown = table[table["verdict"] == "unknown"]
    assert unknown["found"].str.contains("could not be read").all()
    read = table.set_index("check").loc["read test", "found"]
    assert "1 file and a new temporary file" in read
    assert str(tmp_path) in read
    assert os.listdir(tmp_path) == ["data"]
    assert repr(check).startswith("<perfnb.SystemCheck: ")
    table.loc[:, "found"] = "changed"
    assert not (check.checks["found"] == "changed").any()


def test_nothing_is_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    active = [True]

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        if active and event == "open" and isinstance(arguments[2], int) and arguments[2] & writes:
            written.append(str(arguments[0]))
        elif active and event in ("os.mkdir", "os.remove", "os.rename", "os.chmod", "os.utime", "os.truncate"):
            written.append(f"{event} {arguments[0]}")

    sys.addaudithook(audit)  # which stays, but listens no longer
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    perfnb.system_check(tmp_path)
    active.clear()

    assert [path for path in written if str(tmp_path) not in path] == []


def test_data_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no '.*missing': pass the file or folder"):
        perfnb.system_check(tmp_path / "missing")


@pytest.mark.deep
@pytest.mark.slow
def test_gpus_are_checked(tmp_path: Path) -> None:
    environment = {**os.environ, **stand_in(tmp_path)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    set_up(tmp_path, {"count": 3, "1.persistence": 0, "2.error": 15})
    code = "import perfnb; t = perfnb.system_check().checks; print(t[t.check == 'GPU persistence'].found.iloc[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)

    assert done.stdout.strip() == "GPU 0: on; GPU 1: off; GPU 2: could not be read: GPU is lost", done.stderr


def test_what_asks_for_attention_comes_first_with_its_reasons() -> None:
    shown = str(
        checks(("fine", "good", "ok"), ("dark", "could not be read: x", "unknown"), ("bad", "slow", "attention"))
    )

    assert shown.splitlines()[0] == "perfnb · the machine · 1 of 3 checks needs attention, 1 could not be read"
    assert shown.index("▲") < shown.index("bad") < shown.index("bad how") < shown.index("dark") < shown.index("fine")
    assert "fine why" not in shown


def test_checks_that_found_the_same_stand_in_one_line() -> None:
    shown = checks(("one", "no GPU", "info"), ("two", "no GPU", "info"), ("three", "no GPU", "ok"))

    assert "one, two" in str(shown)
    assert str(shown).startswith("perfnb · the machine · none of 3 checks needs attention")
    alike = checks(("GPU driver", "none", "info"), ("GPU ECC", "none", "info"), ("other", "x", "info"))
    assert "GPU driver, ECC  " in str(alike)
    assert "other  " in str(alike)
    assert "one, two" in shown._repr_mimebundle_()["text/html"]
    assert "one, two, three" not in str(shown)


def test_what_was_found_is_shown_safely_and_fits() -> None:
    evil = "<script>alert(1)</script>\x1b[31m\u202e" + "x" * 500
    bundle = checks(("bad", evil, "attention"), ("dark", evil, "unknown"))._repr_mimebundle_()

    assert "<script" not in bundle["text/html"]
    assert "\x1b" not in bundle["text/plain"] + bundle["text/html"]
    assert max(map(len, bundle["text/plain"].splitlines())) <= 100
    assert "bad how" in bundle["text/html"]
    assert "dark how" in bundle["text/html"]
