"""``perfnb run`` in front of a launcher, which then starts the script under ``perfnb run`` in each process."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfnb as package
from perfnb.command.launchers import is_launched, launched
from perfnb.command.sub_command import WrongUse
from tests.command.processes import perfnb

OPTIONS = ["--at", "5"]
UNDER_PERFNB = ["-m", "perfnb", "run", *OPTIONS]


@pytest.mark.parametrize(
    ("given", "own", "script"),
    [
        ("torchrun train.py --lr 3", [], ["train.py", "--lr", "3"]),
        ("torchrun --nproc-per-node 2 train.py -m x", ["--nproc-per-node", "2"], ["train.py", "-m", "x"]),
        ("torchrun --nnodes=2 -m package.train --to 1", ["--nnodes=2"], ["-m", "package.train", "--to", "1"]),
        ("torchrun --standalone train.py -- -m x", ["--standalone"], ["train.py", "-m", "x"]),
        ("torchrun --standalone train.py -- x", ["--standalone"], ["train.py", "x"]),
        ("torchrun --nproc-per-node 2 train.py -- 3 4", ["--nproc-per-node", "2"], ["train.py", "3", "4"]),
        ("torchrun train.py", [], ["train.py"]),
        ("/usr/bin/torchrun --module --standalone a.b", ["--standalone"], ["-m", "a.b"]),
    ],
)
def test_the_line_of_a_launcher_runs_the_script_under_perfnb(given: str, own: list[str], script: list[str]) -> None:
    assert is_launched(given.split())
    assert launched(given.split(), OPTIONS) == ["-m", "torch.distributed.run", *own, *UNDER_PERFNB, *script]


def test_the_line_of_accelerate_runs_the_script_under_perfnb() -> None:
    pytest.importorskip("accelerate")
    found = launched(["accelerate", "launch", "--num_processes", "2", "-m", "a.b", "--x"], OPTIONS)
    own = ["launch", "--num_processes", "2"]
    assert found == ["-m", "accelerate.commands.accelerate_cli", *own, *UNDER_PERFNB, "-m", "a.b", "--x"]


@pytest.mark.parametrize("given", ["train.py torchrun", "-m torchrun", "torchrun.py", "./accelerate.py launch"])
def test_a_script_is_not_taken_for_a_launcher(given: str) -> None:
    assert not is_launched(given.split())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("torchrun --no-python train", "omit --no-python"),
        ("torchrun --run-path /train.py", "omit --run-path"),
        ("accelerate config", "requires a script after accelerate launch"),
        ("accelerate", "requires a script after accelerate launch"),
    ],
)
def test_what_cannot_be_profiled_is_refused(given: str, said: str) -> None:
    with pytest.raises(WrongUse, match=said):
        launched(given.split(), OPTIONS)


def test_a_launcher_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name}")

    monkeypatch.setattr("perfnb.command.launchers.importlib.import_module", fails)
    with pytest.raises(WrongUse, match=r"^torchrun is not installed .*: No module named torch.distributed.run\.$"):
        launched(["torchrun", "train.py"], OPTIONS)


@pytest.mark.deep
@pytest.mark.slow
def test_a_launched_script_leaves_the_profile_of_its_rank(tmp_path: Path) -> None:
    script = Path(__file__).parent / "scripts" / "mnist.py"
    done = perfnb("run", "--at", 10, "torchrun", "--nproc-per-node", 1, script, cwd=tmp_path)
    assert done.returncode == 1, done.stderr  # of torchrun, where a script exits with another code than 0
    assert "perfnb · profile · mnist · CPU" in done.stderr
    [folder] = (tmp_path / "runs").glob("torchrun_*")
    assert isinstance(package.load(folder / "step_000010"), package.Profile)
