"""``perfnb show``, ``perfnb ranks`` and ``perfnb system`` as processes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

import perfnb as package
from perfnb.command import ranks as ranks_command
from perfnb.command import show
from perfnb.command.output import say_profiles
from perfnb.command.show import _one_rank
from perfnb.command.sub_command import WrongUse
from perfnb.profile.profile import Profile
from perfnb.ranks.ranks import Ranks
from tests.command.processes import called
from tests.experiments.ab_samples import SAME, experiment
from tests.memory.snapshots import dumped, small
from tests.ranks.rank_traces import rank_trace, written
from tests.recordings import ByHand


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return Profile(ByHand().step(0, 1000).op("aten::mm", 10, 900).step(2000, 3000).recording()).save(tmp_path / "p")


def test_the_text_is_that_of_the_object_and_no_wider_than_the_terminal(profile: Path) -> None:
    done = called("show", profile)

    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{package.load(profile)}\n")
    assert max(map(len, called("show", profile, COLUMNS="80").stdout.splitlines())) <= 80


def test_a_folder_of_profiles_lists_them(profile: Path) -> None:
    done = called("show", profile.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"  {profile.name} · Bound by code outside the model" in done.stdout


def test_json_holds_the_tables(profile: Path) -> None:
    done = called("show", profile, "--json")

    value = json.loads(done.stdout)
    assert (value["kind"], value["subject"]) == ("profile", "by hand")
    assert (value["figures"][0]["label"], value["figures"][0]["value"]) == ("step", 1.0)
    sections = {section["key"]: section for tab in value["tabs"] for section in tab["sections"]}
    heads = [column["head"] for column in sections["ops"]["columns"]]
    (row,) = (dict(zip(heads, row, strict=True)) for row in sections["ops"]["rows"])
    assert (row["op"], row["FLOPs"]) == ("aten::mm", None)
    assert sections["timeline"]["data"] is None  # how pictures are drawn is not documented


def test_a_page_is_written_and_may_be_opened_in_a_browser(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = tmp_path / "deep" / "p.html"

    for option in ((), ("--open",)):
        page.unlink(missing_ok=True)
        done = called("show", profile, "--html", page, *option)
        assert done.stdout == f"Written to {page}.\n"
        assert "by hand" in page.read_text("utf-8")
    assert opened == [page.as_uri()]
    done = called("show", profile, "--open", "--json")
    assert json.loads(done.stdout)["kind"] == "profile"
    assert Path(opened[1].removeprefix("file://")).is_file()


@pytest.mark.parametrize(("count", "more"), [(10, []), (11, ["  … 1 more"]), (0, None)])
def test_a_run_names_its_first_profiles(
    count: int, more: list[str] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"step_{number}" for number in range(count)]
    monkeypatch.setattr("perfnb.loop.run.profiles_beside", lambda folder: names if folder == "kept" else None)
    say_profiles("kept", "show")
    head = ["", "Profiles in the same folder, for perfnb show:"]
    said = [] if more is None else [*head, *(f"  {name}" for name in names[:10]), *more]
    assert capsys.readouterr().out.splitlines() == said


def test_the_steps_of_a_trace_are_named(tmp_path: Path, profile: Path) -> None:
    path = tmp_path / "trace.json"
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "dur": 5, "args": {"External id": 1}}
    mark = {**op, "cat": "user_annotation", "dur": 90}
    ranges = [{**mark, "name": f"iteration {number}", "ts": 100 * number} for number in range(3)]
    path.write_text(json.dumps([*ranges, *({**op, "ts": 10 * place} for place in range(30))]))

    done = called("show", path, "--steps", "iteration", "--json")
    assert json.loads(done.stdout)["kind"] == "profile"
    assert "3 steps" in repr(package.load(path, steps="iteration"))
    assert called("show", path, "--steps", "iteration").stdout == f"{package.load(path, steps='iteration')}\n"
    done = called("show", path, "--steps", "epoch")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no range named 'epoch' to mark its steps; it has 'iteration" in done.stderr
    assert "Steps can be named only in traces" in called("show", profile, "--steps", "epoch").stderr
    assert "it must be the name of a range" in called("show", path, "--steps", "").stderr


class Job(Ranks):
    """A job with traces of two of its ranks."""

    ranks = (0, 3)  # type: ignore[assignment]

    def __init__(self) -> None: ...

    def __getitem__(self, rank: int) -> Any:
        return f"rank {rank}"


def test_only_a_rank_that_is_there_is_chosen() -> None:
    options = argparse.Namespace(file="job", rank=3)
    assert _one_rank(Job(), options) == "rank 3"
    options.rank = 1
    with pytest.raises(WrongUse, match=r"^job does not contain rank 1\. It contains 0, 3\.$"):
        _one_rank(Job(), options)
    with pytest.raises(WrongUse, match=r"^job is a Timing and does not contain ranks: omit --rank\.$"):
        _one_rank(package.Timing((1.0,)), options)


@pytest.mark.parametrize("is_text", [True, False])
def test_the_profiles_of_a_whole_run_are_named_below_its_text(
    is_text: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: Any = []
    job = Job()
    monkeypatch.setattr("perfnb.profile.loading.load", lambda path, **_: told.append(path) or job)
    monkeypatch.setattr("perfnb.profile.loading.several_in", lambda path: [])
    for module in (show, ranks_command):
        monkeypatch.setattr(module, "say_result", lambda result, options: told.append(result) or is_text)
        monkeypatch.setattr(module, "say_profiles", lambda folder, name: told.append((folder, name)))
    page = {"html": None, "json": False, "open": False, "steps": None}
    for rank, below in ((None, [("kept", "show")]), (3, [])):
        told.clear()
        assert show._run(argparse.Namespace(file="kept", rank=rank, **page)) == 0
        assert told == ["kept", job if rank is None else "rank 3", *(below if is_text else [])]
    trace = tmp_path / "trace.json"
    trace.touch()
    for paths, loaded in (([tmp_path], tmp_path), ([trace], [trace]), ([tmp_path, trace], [tmp_path, trace])):
        told.clear()
        assert ranks_command._run(argparse.Namespace(paths=paths, **page)) == 0
        assert told == [loaded, job, *([(paths[0], "ranks")] if is_text and len(paths) == 1 else [])]


def test_what_holds_no_ranks_is_refused(profile: Path) -> None:
    done = called("ranks", profile)

    assert (done.returncode, done.stdout) == (2, "")
    assert "is a Profile and does not contain ranks" in done.stderr


def test_the_machine_is_checked() -> None:
    done = called("system")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("perfnb · system check · the machine")
    assert json.loads(called("system", "--json").stdout)["kind"] == "system check"


def ranks(folder: Path) -> list[Path]:
    (folder / "traces").mkdir()
    return written(folder / "traces", [rank_trace(late) for late in (0, 10, 20, 0)])


def kinds(folder: Path) -> dict[str, Path]:
    """Something of each kind that `perfnb.load` reads."""
    traces = ranks(folder)
    snapshot = folder / "snapshot.pickle"
    snapshot.write_bytes(dumped(small()))
    with package.watch(0.05) as watch:
        pass
    return {
        "Profile": traces[0],
        "Timing": package.Timing((1.0,) * 8).save(folder / "timing"),
        "ABTest": package.results.ABTest(**vars(experiment(0.9)), quality=SAME, change="fused").save(folder / "report"),
        "Watch": watch.save(folder / "watch"),
        "MemorySnapshot": snapshot,
        "Ranks": folder / "traces",
    }


@pytest.mark.slow
def test_every_kind_shows_itself(tmp_path: Path) -> None:
    for kind, path in kinds(tmp_path).items():
        text = called("show", path)
        assert (text.returncode, text.stderr) == (0, ""), kind
        assert max(map(len, text.stdout.splitlines())) <= 100, kind
        assert json.loads(called("show", path, "--json").stdout)["kind"], kind
        assert called("show", path, "--html", tmp_path / "page.html").returncode == 0, kind
        assert "<html" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.slow
def test_traces_of_several_ranks_are_shown_as_one_job(tmp_path: Path) -> None:
    paths = ranks(tmp_path)

    text = called("ranks", tmp_path / "traces").stdout
    assert text == f"{package.load(tmp_path / 'traces')}\n"
    assert called("ranks", *paths).stdout == text
    assert "1 rank" in called("ranks", paths[2]).stdout
    assert json.loads(called("ranks", tmp_path / "traces", "--json").stdout)["kind"] == "ranks"
    assert called("ranks", tmp_path / "traces", "--html", tmp_path / "page.html").returncode == 0
    assert "4 ranks" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.slow
def test_one_rank_is_shown_alone(tmp_path: Path, profile: Path) -> None:
    ranks(tmp_path)
    saved = package.load(tmp_path / "traces").save(tmp_path / "job")

    for place in (tmp_path / "traces", saved):
        assert called("show", place, "--rank", 2).stdout == f"{package.load(place)[2]}\n"
    assert json.loads(called("show", saved, "--rank", 2, "--json").stdout)["kind"] == "profile"
    done = called("show", saved, "--rank", 7)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"perfnb show: {saved} does not contain rank 7. It contains 0, 1, 2, 3.\n"
