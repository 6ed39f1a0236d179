"""``perfnb run``: scripts in the style of PyTorch's examples run as they would without, and leave a report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import perfnb as package
from tests.command.processes import ROOT, called, command, environment, perfnb
from tests.tracebacks import frames_of_perfnb

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"


def python(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Return what Python alone does with a script."""
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=environment(), check=False
    )


@pytest.mark.parametrize(
    ("script", "options", "phases", "layers"),
    [
        ("mnist", (), ("data", "forward", "loss", "backward", "optimizer"), {"model", "conv1", "fc"}),
        pytest.param(
            *("gpt", (), ("forward", "backward", "optimizer"), {"model", "h.0.attn", "lm_head"}),
            marks=pytest.mark.deep,
        ),
        pytest.param(
            *("gan", ("--steps-by", "last"), ("data", "forward", "loss", "backward", "optimizer"), {"netD", "netG"}),
            marks=pytest.mark.deep,
        ),
    ],
)
def test_an_unmodified_script_leaves_a_report(
    script: str, options: tuple[str, ...], phases: tuple[str, ...], layers: set[str], tmp_path: Path
) -> None:
    path = SCRIPTS / f"{script}.py"
    alone = python(path, cwd=tmp_path)
    assert alone.stderr == ""

    done = perfnb("run", "--at", 10, "--save", "kept", *options, path, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)  # the losses among it
    assert f"perfnb · whole run · {script}" in done.stderr
    assert f"perfnb · profile · {script} · CPU" in done.stderr
    assert done.stderr.rstrip().endswith("The profile above was saved to kept/step_000010.")
    assert max(map(len, done.stderr.splitlines())) <= 100
    profile, run = package.load(tmp_path / "kept" / "step_000010"), package.load(tmp_path / "kept" / "run")
    assert isinstance(profile, package.Profile)
    assert isinstance(run, package.results.RunSummary)
    assert set(profile.phases[profile.phases["ms"] > 0].index) >= set(phases)
    assert layers <= {str(name).removeprefix("model.") for name in profile.layers.index}
    assert run.steps["steps"].sum() == 60 - ("data" not in phases)  # the first has no known start without a loader
    assert ("data" in phases) == bool(pd.notna(run.phases.loc["data", "ms"]))


@pytest.mark.deep
def test_optimizers_that_step_outside_of_steps_are_pointed_out(tmp_path: Path) -> None:
    done = perfnb("run", "--at", 10, "--save", "kept", SCRIPTS / "gan.py", cwd=tmp_path)

    assert "2 optimizers stepped, and each step ends with the first of them." in done.stderr
    assert (tmp_path / "kept" / "step_000010").is_dir()


ODD = """
import atexit, sys, __main__
atexit.register(lambda: print("at exit", file=sys.stderr))
print(__name__, __file__, sys.argv[1:], sys.path[0], __spec__ is None, __main__.__dict__ is globals(), __package__)
class Kept: pass
import pickle; print(type(pickle.loads(pickle.dumps(Kept()))) is Kept)
"""

ENDS = {
    "nothing": "",
    "exit": "sys.exit()",
    "code": "sys.exit(4)",
    "words": "sys.exit('no such data')",
    "error": "def f():\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError as error:\n    raise KeyError(1) from error",
    "own error": "import perfnb\nperfnb.load('nothing')",
    "interrupt": "raise KeyboardInterrupt",
    "syntax": "eval('1 +')",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_it_would(end: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(f"{ODD}\n{ENDS[end]}\n")
    alone = python("odd.py", "--at", "a b", cwd=tmp_path)

    done = perfnb("run", "odd.py", "--at", "a b", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    own, _, report = done.stderr.partition("\nperfnb run: ")
    assert report == "there are no steps: the main thread used neither a torch optimizer nor a DataLoader.\n"
    if end != "own error":
        assert own == alone.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["odd.py"]


def test_a_module_runs_as_it_would(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "train.py").write_text(ODD)
    alone = python("-m", "pkg.train", "-m", "x", cwd=tmp_path)

    done = perfnb("run", "-m", "pkg.train", "-m", "x", cwd=tmp_path)
    assert alone.returncode == 0
    assert (done.returncode, done.stdout) == (0, alone.stdout)


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


def test_ctrl_c_ends_a_script_as_it_would(tmp_path: Path) -> None:
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


def test_a_short_run_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP.replace("10_000_000", "50"))

    done = perfnb("run", "--save", "kept", "loop.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "no profile, because the script had 49 steps" in done.stderr
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["run"]


@pytest.mark.slow
def test_a_loop_without_an_optimizer_is_told_what_ends_its_steps(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "from torch.utils.data import DataLoader\nfor batch in DataLoader(range(9)):\n    pass\n"
    )

    done = perfnb("run", "loop.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "--steps-by batch" in done.stderr
    assert "--at" not in done.stderr


@pytest.mark.deep
@pytest.mark.slow
def test_a_run_is_logged_to_the_tracker_that_the_script_uses(tmp_path: Path) -> None:
    (tmp_path / "mlflow.py").write_text(
        "class Run:\n"
        "    run_id = 'abc'\n"
        "run = Run()\n"
        "run.info = run\n"
        "active_run, last_active_run = (lambda: None), (lambda: run)\n"
        "def log(*words, **more):\n"
        "    print('logged', *words, *more.values(), file=open('logged.txt', 'a'))\n"
        "class MlflowClient:\n"
        "    log_metric = log_table = log_artifact = set_tag = staticmethod(log)\n"
    )
    (tmp_path / "train.py").write_text(
        "import sys, torch, mlflow\n"
        "x = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(x.parameters(), 0.1)\n"
        "for _ in range(60):\n"
        "    x(torch.ones(2)).sum().backward()\n"
        "    optimizer.step()\n"
    )

    done = perfnb("run", "--at", "5", "--log", "mlflow", "train.py", cwd=tmp_path, PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert done.returncode == 0, done.stderr
    logged = (tmp_path / "logged.txt").read_text()
    assert re.search(r"^logged abc perfnb/profile/step_ms \S+ 5$", logged, re.MULTILINE)
    assert re.search(r"^logged abc perfnb/run/step_ms \S+ 0$", logged, re.MULTILINE)


@pytest.mark.deep
def test_two_runs_are_compared(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP.replace("10_000_000", "400"))
    for name in "ab":
        assert perfnb("run", "--at", 5, "--save", name, "loop.py", cwd=tmp_path).returncode == 0

    done = called("compare", "a/run", "b/run", "--fail-if-slower", 900_000, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("perfnb · two runs · loop\n")
    assert "Passed: not shown to be slower by more than 900000 %" in done.stdout
    value = json.loads(called("compare", "a/run", "b/run", "--json", cwd=tmp_path).stdout)
    assert value["kind"]
    assert json.loads(called("show", "a/run", "--json", cwd=tmp_path).stdout)["kind"]


@pytest.mark.deep
def test_the_folder_of_a_run_shows_it_and_names_the_profiles(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP.replace("10_000_000", "60"))
    assert perfnb("run", "--at", 5, "--save", "kept", "loop.py", cwd=tmp_path).returncode == 0
    done = called("show", "kept", cwd=tmp_path)
    assert done.stdout.startswith("perfnb · whole run · loop")
    assert done.stdout.endswith("\nProfiles in the same folder, for perfnb show:\n  kept/step_000005\n")


def test_a_module_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import missing_too")
    for name in ("nosuch.mod", "nosuch"):
        done = perfnb("run", "-m", name, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"perfnb run: there is no module {name}" in done.stderr
    assert perfnb("run", "-m", "package.mod", cwd=tmp_path).returncode == 1, "its own error"
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


@pytest.mark.deep
def test_each_rank_keeps_its_own_run(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP.replace("10_000_000", "60"))
    for rank in (0, 1):
        done = perfnb("run", "--at", 5, "--save", "kept", "loop.py", cwd=tmp_path, RANK=str(rank), WORLD_SIZE="2")
        assert ("perfnb · whole run" in done.stderr) == (rank == 0)

    assert {"rank_0", "rank_1"} <= set(os.listdir(tmp_path / "kept" / "run"))
    assert isinstance(package.load(tmp_path / "kept"), package.RankRuns)


def test_a_script_without_torch_does_not_pay_for_it(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import atexit, sys\natexit.register(lambda: print({'torch', 'pandas'} & set(sys.modules)))\n")
    done = perfnb("run", script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "set()\n")
    assert "there are no steps" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a working folder cannot be removed there")
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_a_script_whose_working_folder_is_gone_ends_as_it_would(trains: bool, tmp_path: Path) -> None:
    script = tmp_path / "gone.py"
    training = f"import runpy\nrunpy.run_path({str(SCRIPTS / 'mnist.py')!r}, run_name='mnist')\n" if trains else ""
    script.write_text(f"{training}import os, tempfile\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())\n")
    done = perfnb("run", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a working folder cannot be removed there")
def test_a_working_folder_that_was_gone_before_is_told(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("levers", ["autocast", "threads,no_such", "", "float32_precision"])
def test_a_lever_that_a_script_does_not_allow_is_refused_before_it_starts(levers: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')\n")
    done = perfnb("run", f"--try={levers}", "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("perfnb run: --try: a running loop allows only these levers: threads, compile, ")


def test_the_option_to_try_levers_leaves_the_script_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print(sys.argv[1:], 'torch' in sys.modules)\n")
    done = perfnb("run", "--try", "script.py", "--try", "--at", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['--try', '--at'] False\n")
