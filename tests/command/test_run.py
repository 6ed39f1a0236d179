"""``perfnb run``: scripts in the style of PyTorch's examples run as they would without, and leave a report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import perfnb as package
from tests.command.processes import command, environment, perfnb
from tests.tracebacks import frames_of_perfnb

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"


def python(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Return what Python alone does with a script."""
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=environment(), check=False
    )


def test_an_unmodified_script_leaves_a_report(tmp_path: Path) -> None:
    path = SCRIPTS / "mnist.py"
    alone = python(path, cwd=tmp_path)
    assert alone.stderr == ""

    done = perfnb("run", "--at", 10, "--save", "kept", path, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)  # the losses among it
    assert "perfnb · whole run · mnist" in done.stderr
    assert "perfnb · profile · mnist · CPU" in done.stderr
    assert done.stderr.rstrip().endswith("The profile above was saved to kept/step_000010.")
    assert max(map(len, done.stderr.splitlines())) <= 100
    profile, run = package.load(tmp_path / "kept" / "step_000010"), package.load(tmp_path / "kept" / "run")
    assert isinstance(profile, package.Profile)
    assert isinstance(run, package.results.RunSummary)
    phases = {"data", "forward", "loss", "backward", "optimizer"}
    assert phases <= set(profile.phases[profile.phases["ms"] > 0].index)
    assert {"model", "model.conv1", "model.fc"} <= set(profile.layers.index)
    assert run.steps["steps"].sum() == 60


ODD = """
import atexit, sys, __main__
atexit.register(lambda: print("at exit", file=sys.stderr))
print(__name__, __file__, sys.argv[1:], sys.path[0], __spec__ is None, __main__.__dict__ is globals(), __package__)
class Kept: pass
import pickle; print(type(pickle.loads(pickle.dumps(Kept()))) is Kept)
"""

ENDS = {
    "words": "sys.exit('no such data')",
    "error": "def f():\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError as error:\n    raise KeyError(1) from error",
    "own error": "import perfnb\nperfnb.load('nothing')",
    "interrupt": "raise KeyboardInterrupt",
    "syntax": "eval('1 +')",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_it_does_without_perfnb(end: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(f"{ODD}\n{ENDS[end]}\n")
    alone = python("odd.py", "--at", "a b", cwd=tmp_path)

    done = perfnb("run", "odd.py", "--at", "a b", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    own, _, report = done.stderr.partition("\nperfnb run: ")
    assert report == "there are no steps: the main thread used neither a torch optimizer nor a DataLoader.\n"
    if end != "own error":
        assert own == alone.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["odd.py"]


LOOP = """
import os, signal, sys, time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for i in range(10_000_000):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if i == 40:
            print("ready", flush=True)
train()
"""


def test_ctrl_c_ends_a_script_as_it_does_without_perfnb(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    words = command("run", "--at", "10", "--save", "kept", "loop.py")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (-signal.SIGINT, "")

    traceback, _, report = err.partition("\nperfnb ·")
    begins = ["Traceback (most recent call last):", f'  File "{tmp_path / "loop.py"}", line 12, in <module>']
    assert traceback.splitlines()[:2] == begins
    assert traceback.rstrip().endswith("KeyboardInterrupt")
    assert frames_of_perfnb(traceback) == []
    assert report.startswith(" whole run · loop")
    assert (tmp_path / "kept" / "step_000010").is_dir()


def test_a_module_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import missing_too")
    for name in ("nosuch.mod", "nosuch"):
        done = perfnb("run", "-m", name, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"perfnb run: there is no module {name}" in done.stderr
    assert perfnb("run", "-m", "package.mod", cwd=tmp_path).returncode == 1, "its own error"
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


def test_a_script_without_torch_does_not_pay_for_it(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import atexit, sys\natexit.register(lambda: print({'torch', 'pandas'} & set(sys.modules)))\n")
    done = perfnb("run", script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "set()\n")
    assert "there are no steps" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a working folder cannot be removed there")
def test_a_script_that_deletes_its_working_folder_ends_normally(tmp_path: Path) -> None:
    script = tmp_path / "gone.py"
    script.write_text("import os, tempfile\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())\n")
    done = perfnb("run", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a working folder cannot be removed there")
def test_a_missing_working_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    words = ["-m", "perfnb", "run", str(tmp_path / "script.py")]
    start = f"import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, [sys.executable, *{words!r}])"
    (tmp_path / "inner").mkdir()
    done = python("-c", start, cwd=tmp_path / "inner")
    assert done.returncode == 2
    assert "the working folder is gone" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.deep
def test_levers_are_tried_on_the_steps_of_a_script(tmp_path: Path) -> None:
    """What is faster depends on the machine here; that each was tried, and that all samples came once, does not."""
    script = SCRIPTS / "planted.py"
    options = ("--at", 10, "--save", "kept", "--try=loader_workers,fused_optimizer")

    done = perfnb("run", *options, script, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (0, "samples 2400 of each {240}\n")
    assert "perfnb: in the next " in done.stderr
    assert "levers are switched on and off at random: loader_workers, fused_optimizer." in done.stderr
    tried = package.load(tmp_path / "kept" / "run").tried
    assert [one["lever"] for one in tried] == ["loader_workers", "fused_optimizer"]
    assert all(one["left"] for one in tried)
    assert tried[0]["code"][0].startswith("loader = DataLoader(Images(), batch_size=4, shuffle=True, num_workers=")
    made = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)  # planted.py:"
    assert tried[1]["code"][0].startswith(made)
    assert "Tried during the run: time of a step with each lever" in perfnb("show", "kept", cwd=tmp_path).stdout


def test_an_error_in_the_loop_has_a_traceback_of_its_own(tmp_path: Path) -> None:
    script = """
from torch.utils.data import DataLoader, Dataset
class Damaged(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        raise OSError("damaged file")
for batch in DataLoader(Damaged()):
    pass
"""
    (tmp_path / "train.py").write_text(script)
    alone = python("train.py", cwd=tmp_path)

    done = perfnb("run", "train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.partition("\nperfnb")[0] == alone.stderr
