"""A script or module that runs in this process as it would with ``python``."""

from __future__ import annotations

import sys
import traceback
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from perfnb.command.run import _for_each, _new_folder, _numbers
from perfnb.command.script import _set_first_path, require_program, run_as_main
from perfnb.command.sub_command import WrongUse


@pytest.fixture(autouse=True)
def _this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", ["where perfnb lies", *sys.path])
    monkeypatch.setattr(sys, "argv", ["perfnb"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"import sys\nfrom pathlib import Path\nsay = Path({str(folder / 'out')!r}).write_text\n{text}\n")
    return path


def test_a_script_has_its_own_name_arguments_and_import_path(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    script(tmp_path, "say(f'{__name__} {__file__} {sys.argv} {sys.path[:2]}')", "there/train.py")
    rest = sys.path[1]

    assert run_as_main(["there/train.py", "--lr", "3"]) is None

    path = tmp_path / "there" / "train.py"
    expected = f"__main__ {path} {['there/train.py', '--lr', '3']} {[str(path.parent), rest]}"
    assert (tmp_path / "out").read_text() == expected
    assert sys.modules["__main__"].__file__ == str(path)  # exit functions of the script may need it


def test_a_script_does_not_inherit_the_future_statements_of_perfnb(tmp_path: Path) -> None:
    script(tmp_path, "def f(x: 1 + 1): pass\nsay(str(f.__annotations__))")

    assert run_as_main(["train.py"]) is None

    assert (tmp_path / "out").read_text() == "{'x': 2}"


def test_a_module_has_its_own_name_arguments_and_the_current_folder_as_import_path(tmp_path: Path) -> None:
    text = "say(f'{__name__} {sys.argv[1:]} {sys.path[0]}')"
    script(tmp_path, text, "perfnb_tried_module.py")

    assert run_as_main(["-m", "perfnb_tried_module", "--lr", "3"]) is None

    assert (tmp_path / "out").read_text() == f"__main__ ['--lr', '3'] {tmp_path}"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("raise ValueError", ValueError), ("sys.exit(3)", SystemExit), ("raise KeyboardInterrupt", KeyboardInterrupt)],
)
def test_what_ended_a_script_is_returned(text: str, kind: type[BaseException], tmp_path: Path) -> None:
    script(tmp_path, text)

    assert type(run_as_main(["train.py"])) is kind


def test_the_tracebacks_of_a_script_have_only_its_own_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: shown.append(given))
    text = """
from perfnb.failures import keeps_nothing
def work():
    raise ValueError("broken")
try:
    keeps_nothing(work)()
except ValueError as error:
    raise KeyError("more") from error
"""
    script(tmp_path, text)

    ended = run_as_main(["train.py"])

    assert ended is not None
    sys.excepthook(type(ended), ended, ended.__traceback__)  # as Python does at the end
    ((_, error, trace),) = shown
    assert error is ended
    path = str(tmp_path / "train.py")
    for each, names in ((trace, ["<module>"]), (ended.__cause__.__traceback__, ["<module>", "work"])):  # type: ignore[union-attr]
        frames = traceback.extract_tb(each)
        assert [(frame.filename, frame.name) for frame in frames] == [(path, name) for name in names]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ([], "there is no script to run"),
        (["-m"], "there is no script to run"),
        (["missing.py"], "missing.py does not exist or is not a file"),
        (["folder"], "folder does not exist or is not a file"),
    ],
)
def test_files_that_are_not_programs_are_refused(program: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(WrongUse, match=said):
        require_program(program)


def test_a_script_or_any_module_is_a_program(tmp_path: Path) -> None:
    require_program([str(script(tmp_path, ""))])
    require_program(["-m", "whatever"])


@pytest.mark.parametrize("name", ["perfnb_no_such_module", "perfnb_no_such_module.inside", "json.no_such_module"])
def test_a_module_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(WrongUse, match=f"there is no module {name}"):
        run_as_main(["-m", name])


def test_a_module_whose_package_lacks_another_fails_by_itself(tmp_path: Path) -> None:
    (tmp_path / "perfnb_tried_package").mkdir()
    (tmp_path / "perfnb_tried_package" / "__init__.py").write_text("import perfnb_missing\n")

    ended = run_as_main(["-m", "perfnb_tried_package.inside"])

    assert isinstance(ended, ModuleNotFoundError)
    assert ended.name == "perfnb_missing"


def test_a_module_without_a_specification_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perfnb_odd", ModuleType("perfnb_odd"))
    ended = run_as_main(["-m", "perfnb_odd"])
    assert isinstance(ended, ValueError | ImportError)


@pytest.mark.parametrize(("safe", "path"), [(True, ["first", "second"]), (False, ["new", "second"])])
def test_the_import_path_has_no_folder_of_the_script_in_safe_mode(
    safe: bool, path: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SimpleNamespace(flags=SimpleNamespace(safe_path=safe), path=["first", "second"])
    monkeypatch.setattr("perfnb.command.script.sys", own)
    _set_first_path("new")
    assert own.path == path


def chosen(**changed: Any) -> Namespace:
    values = {"at": [100], "every": None, "save": "there", "log": None, "steps_by": "first", "levers": None}
    return Namespace(**values | {"program": ["/bin/torchrun", "train.py"]} | changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ["--at", "100", "--steps-by", "first"]),
        ({"at": [3, 50], "every": 7}, ["--at", "3,50", "--steps-by", "first", "--every", "7"]),
        ({"levers": []}, ["--at", "100", "--steps-by", "first", "--try=auto"]),
        ({"levers": ["threads", "compile"]}, ["--at", "100", "--steps-by", "first", "--try=threads,compile"]),
        ({"log": "wandb", "steps_by": "last"}, ["--at", "100", "--steps-by", "last", "--log", "wandb"]),
    ],
)
def test_each_process_of_a_launcher_has_the_same_options(
    changed: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    assert _for_each(chosen(**changed)) == [*words, "--save", str(tmp_path / "there")]


def test_the_processes_of_a_launcher_share_a_folder_named_after_it(tmp_path: Path) -> None:
    folder = Path(_for_each(chosen(save=None))[-1])

    assert folder.parent == tmp_path / "runs"
    assert folder.name.startswith("torchrun_2")


def test_a_run_has_a_folder_that_no_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    wanted = tmp_path / "runs" / "train"
    names = [_new_folder(wanted).name for _ in range(3)]

    assert names == ["train", "train_2", "train_3"]
    assert all((tmp_path / "runs" / name).is_dir() for name in names)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert _new_folder(wanted).name == "train_4"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert _new_folder(wanted).name == "train"  # the ranks of a job share it


def test_several_numbers_of_steps_are_separated_by_commas() -> None:
    assert _numbers("100") == [100]
    assert _numbers("100,5000") == [100, 5000]
    with pytest.raises(ValueError, match="x"):
        _numbers("1,x")
