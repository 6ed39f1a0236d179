"""Where an object is made in the user's files, and the line with an argument changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfnb.profile.places import rewritten, users_files, users_place

TRAIN = """\
from torch.utils.data import DataLoader

train = DataLoader(data, batch_size=4,
                   num_workers=0)
valid = DataLoader(held_out)
self.opt = torch.optim.AdamW(
    model.parameters(), lr=1e-3, foreach=False)
def made(data):
    return Loader(data)
print(Other(1))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


TWO = {"num_workers": 2}


@pytest.mark.parametrize(
    ("kind", "name", "changed", "line"),
    [
        ("DataLoader", "train", TWO, "train = DataLoader(data, batch_size=4, num_workers=2)  # train.py:3"),
        ("DataLoader", "job.valid", TWO, "valid = DataLoader(held_out, num_workers=2)  # train.py:5"),
        ("DataLoader", "another", TWO, ""),
        ("DataLoader", None, TWO, ""),
        (
            *("AdamW", "optimizer", {"fused": True, "foreach": None}),
            "self.opt = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)  # train.py:6",
        ),
        ("Loader", None, {"num_workers": 1}, "return Loader(data, num_workers=1)  # train.py:9"),
        ("Other", None, {"num_workers": 1}, ""),
        ("SGD", "opt", {"fused": True}, ""),
    ],
)
def test_the_line_that_makes_an_object(
    kind: str, name: str | None, changed: dict[str, int | None], line: str, file: str
) -> None:
    assert rewritten([file], kind, name, **changed) == line


def test_a_long_line_is_named_by_what_changes(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text(f"opt = torch.optim.SGD({', '.join(f'a{number}=1' for number in range(50))})\n")
    assert rewritten([str(path)], "SGD", "opt", fused=1) == "# torch.optim.SGD(..., fused=1)  # long.py:1"


@pytest.mark.parametrize("text", ["SGD(", "SGD\0", "(" * 500 + "SGD" + ")" * 500])
def test_a_file_that_is_not_python_is_passed_over(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    assert rewritten([str(path), str(tmp_path / "missing.py")], "SGD", "opt", fused=1) == ""


def test_the_users_code_is_what_is_not_installed() -> None:
    assert users_place().startswith("test_places.py:")
    files = users_files()
    assert files[0] == __file__
    assert not any("site-packages" in file or "/perfnb/profile/" in file for file in files)
    code = compile("place = users_place()", "<ipython-input-7>", "exec")
    variables = {"users_place": users_place}
    exec(code, variables)
    assert variables["place"] == "line 1 of a cell"
