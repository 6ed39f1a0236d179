"""A saved folder that somebody altered is refused when it is loaded, with the file and the place, or works whole."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import perfnb
from perfnb.errors import PerfnbError, RecordingError
from perfnb.recording import frame_files
from perfnb.recording.store import SavedFolder
from perfnb.watching.saved import WATCH
from tests.recording.altered import VALUES, Harm, columns_altered, keys_altered, outcome, trace
from tests.step.models import three_linears, training_step


def live(folder: Path) -> Path:
    step = training_step(three_linears(), torch.ones(4, 8))
    return perfnb.profile_step(step, warmup=1, steps=6, traced=1, watch=True).save(folder / "live")


def traced(folder: Path) -> Path:
    return perfnb.load(trace(folder / "trace.json")).save(folder / "traced")


def ranks(folder: Path) -> Path:
    return perfnb.load([trace(folder / f"rank{rank}.json", rank) for rank in range(2)]).save(folder / "ranks")


def watch(folder: Path) -> Path:
    with perfnb.watch(0.05) as watched, watched.mark("work"):
        pass
    return watched.save(folder / "watch")


def timing(folder: Path) -> Path:
    return perfnb.Timing((1.0, 1.1, 1.2) * 3, warmup_ms=(2.0,)).save(folder / "timing")


def report(folder: Path, profile: bool = False) -> Path:
    step = training_step(three_linears(), torch.ones(4, 8))
    made = perfnb.ab_test(step, step, quality=lambda: {"loss": 0.0}, change="none", profile=profile, budget_s=0.3)
    return made.save(folder / "report")


ALL: dict[str, Callable[[Path], Path]] = {
    **{"traced": traced, "ranks": ranks, "timing": timing, "live": live, "watch": watch, "report": report},
    "report with profiles": lambda folder: report(folder, profile=True),
}
#: How many columns, and how many keys, of each kind are altered.
MORE = {
    **{"traced": (20, 20), "ranks": (6, 6), "timing": (28, 80), "live": (8, 16), "watch": (20, 40)},
    **{"report": (15, 30), "report with profiles": (4, 6)},
}


def spread(harms: Iterable[Harm], count: int) -> list[Harm]:
    """So many of the ways to alter a folder: of columns or keys that lie far apart, of each another one."""
    of_place: dict[tuple[str, str], list[Harm]] = {}
    for harm in harms:
        of_place.setdefault((harm.file, harm.what.split(" ")[0]), []).append(harm)
    places = list(of_place.values())
    chosen = [((2 * turn + 1) * len(places) // (2 * count), turn) for turn in range(count)]
    # 5 has no factor in common with the number of ways, so that all of them have their turn.
    return [places[place][(5 * turn + turn // len(places) + 1) % len(places[place])] for place, turn in chosen]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "counts"), [("traced", (3, 4)), *(pytest.param(*each, marks=pytest.mark.deep) for each in MORE.items())]
)
def test_altered_columns_and_keys_are_refused_or_work(tmp_path: Path, kind: str, counts: tuple[int, int]) -> None:
    saved, (columns, keys) = ALL[kind](tmp_path), counts
    harms = spread(columns_altered(saved), columns) + spread(keys_altered(saved, VALUES), keys)
    assert [said for harm in harms if (said := outcome(saved, harm, tmp_path))] == []


#: A wrong value for each fact of which perfnb once found out only when it was shown.
FOUND = {
    "timing": ("timing.json", {"block": [[], 0, True, "x", None, 10**39]}),
    "watch": (
        "watch.json",
        {
            "devices.host.cpus": [[1], {"x": 1}, "x"],
            "devices.host.memory_bytes": [[], "", 10**39],
            "devices.cgroup": [{"cpu_limit": "x"}, {"memory_limit_bytes": ["x"]}],
            "devices.gpu0": [{"power_limit_w": "x"}, {"name": {}}],
        },
    ),
    "traced": (
        "profile.json",
        {
            "optimizer_steps": [[], {}, {"optimizer": "SGD", "times": "x"}],
            "compilations": ["x", [[0]], [[0, "f", "line", "guard", "x"]], [[-1, "f", "line", "guard", 1.0]]],
            "recompiled": [5, [5]],
            "compiler_lacks": [5, {}],
            "loop": [{"trainer": 5}],
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOUND)
def test_facts_that_are_only_shown_are_checked_when_they_are_loaded(tmp_path: Path, kind: str) -> None:
    saved = ALL[kind](tmp_path)
    file, wrong = FOUND[kind]
    content = json.loads((saved / file).read_text("utf-8"))
    for key, values in wrong.items():
        for value in values:
            changed = deepcopy(content)
            *above, last = key.split(".")
            reduce(dict.__getitem__, above, changed["meta"])[last] = value
            (saved / file).write_text(json.dumps(changed))

            with pytest.raises(RecordingError, match=rf"{file} is damaged: .*`meta\."):
                perfnb.load(saved)


@pytest.fixture(scope="module")
def traced_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced(tmp_path_factory.mktemp("once"))


@pytest.fixture
def saved(traced_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(traced_once, tmp_path / "traced"))


def edited(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(content | changes))


@pytest.mark.parametrize("version", [1e400, "1", None, [1], 1.0, True])
def test_a_version_that_is_none_is_damage(tmp_path: Path, version: Any) -> None:
    saved = timing(tmp_path)
    edited(saved / "timing.json", version=version)

    with pytest.raises(RecordingError, match=r"timing\.json is damaged: .*version"):
        perfnb.load(saved)


@pytest.mark.parametrize("value", [None, "absent"])
@pytest.mark.parametrize("key", ["max", "integral", "known_s", "readings"])
def test_figures_of_a_watch_that_are_not_whole_are_damage(tmp_path: Path, key: str, value: Any) -> None:
    figures = {"max": 1.0, "integral": 2e20, "known_s": 1.0, "readings": 3}
    facts = {"interval_s": 0.1, "devices": {}, "absent": {}, "notes": [], "ticks": 1, "missed": 0}

    def written(figures: dict[str, Any]) -> Path:
        content = facts | {"exact": {"host": {"network_send_bytes_per_s": figures}}}
        text = json.dumps({"format": "perfnb", "version": 1, "meta": content})
        (tmp_path / "watch.json").write_text(text)
        return tmp_path

    assert SavedFolder(WATCH, written(figures)).facts
    damaged = {name: figure for name, figure in figures.items() if name != key}
    damaged |= {key: None} if value is None else {}
    with pytest.raises(RecordingError, match=rf"watch\.json is damaged: .*{key}"):
        SavedFolder(WATCH, written(damaged))


@pytest.mark.parametrize("ranks", [5, [5.5], ["../x"], [-1], [None], {"0": 0}])
def test_ranks_that_are_none_are_damage(tmp_path: Path, ranks: Any) -> None:
    saved = tmp_path / "ranks"
    saved.mkdir()
    (saved / "ranks.json").write_text(json.dumps({"format": "perfnb", "version": 1, "meta": {"ranks": ranks}}))

    with pytest.raises(RecordingError, match=r"ranks\.json is damaged: .*meta\.ranks"):
        perfnb.load(saved)


def test_the_message_names_the_file_the_key_and_what_it_should_be(saved: Path) -> None:
    content = json.loads((saved / "profile.json").read_text("utf-8"))
    content["meta"]["trace"]["events"] = "many"
    (saved / "profile.json").write_text(json.dumps(content))

    with pytest.raises(RecordingError, match=r"profile\.json .*: Expected `int`, got `str` - at `meta.trace.events`"):
        perfnb.load(saved)


def test_marks_of_steps_without_the_facts_of_a_trace_are_no_error(saved: Path) -> None:
    content = json.loads((saved / "profile.json").read_text("utf-8"))
    expected = perfnb.load(saved).events["step"].dropna().tolist()
    for name in ("trace", "tables_made_by"):
        del content["meta"][name]
    content["meta"]["options"] = {"warmup": 1, "budget_s": 1.0}
    (saved / "profile.json").write_text(json.dumps(content))

    assert perfnb.load(saved).events["step"].dropna().tolist() == expected


def with_column(file: Path, name: str, column: pa.Array) -> None:
    """Put a column into a saved frame, with as many rows as it has, written as small as can be."""
    table = pq.read_table(file)
    table = table.take(pa.array(np.zeros(len(column), dtype=np.int64)))
    if name in table.column_names:
        table = table.drop_columns([name])
    pq.write_table(table.append_column(name, column), file, store_schema=False, compression="zstd")


@pytest.mark.parametrize("column", ["name", "module"])
def test_a_text_that_the_file_holds_once_is_not_repeated_in_memory(
    saved: Path, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = pa.DictionaryArray.from_arrays(pa.array(np.zeros(500, dtype=np.int32)), pa.array(["x" * 100_000]))
    with_column(saved / "modules.parquet", column, once)
    assert (saved / "modules.parquet").stat().st_size < 20_000
    monkeypatch.setattr(frame_files, "_MOST_TEXT", 2**20)
    before = pa.default_memory_pool().max_memory()

    with pytest.raises(RecordingError, match=rf"modules\.parquet is damaged: its column '{column}' has 50,000,000 by"):
        perfnb.load(saved)

    assert pa.default_memory_pool().max_memory() < max(before, 30_000_000)


def test_a_column_that_perfnb_does_not_know_is_not_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved / "steps.parquet"
    table = pq.read_table(file)
    pq.write_table(table.append_column("other", pa.array(["x"] * len(table))), file)
    asked: list[str] = []
    read = pq.ParquetFile.read
    monkeypatch.setattr(
        pq.ParquetFile, "read", lambda self, columns, **more: asked.extend(columns) or read(self, columns, **more)
    )

    loaded = perfnb.load(saved)

    assert len(loaded.steps) == len(table)
    assert "wall_ms" in asked
    assert "other" not in asked


@pytest.mark.parametrize("frame", ["steps", "table_layers"])
def test_lists_are_refused_before_they_are_read(saved: Path, frame: str) -> None:
    """The number of rows does not tell how many values lists hold."""
    file = saved / f"{frame}.parquet"
    table = pq.read_table(file)
    lists = pa.array([[0] * 1000] * len(table), pa.list_(pa.int64()))
    pq.write_table(table.append_column("other", lists), file)

    if frame == "table_layers":  # it is computed again
        assert len(perfnb.load(saved).layers)
        return
    with pytest.raises(RecordingError, match=r"steps\.parquet is damaged: its column 'other' contains lists"):
        perfnb.load(saved)


def test_a_file_is_read_in_no_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    saved = timing(tmp_path)
    perfnb.load(saved)
    tracemalloc.start()
    try:
        perfnb.load(saved)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("[" + "[]," * 1_000_000 + "[]]", "it contains more values than a file that perfnb writes"),
        ("[" + "{}," * 1_000_000 + "{}]", "it contains more values than a file that perfnb writes"),
        ('"' + "x" * 17_000_000 + '"', "it is larger than 16,777,216 bytes"),
    ],
    ids=["lists", "mappings", "text"],
)
def test_facts_that_perfnb_does_not_know_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, said: str
) -> None:
    saved = timing(tmp_path)
    file = saved / "timing.json"
    text = file.read_text("utf-8").rstrip().removesuffix("}")
    file.write_text(f'{text}, "zz": {key}}}')
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("it was read"))

    with pytest.raises(RecordingError, match=f"{file.name} is damaged: .*{said}"):
        perfnb.load(saved)


@pytest.mark.slow
def test_ranks_that_are_not_those_of_their_folders_are_damage(tmp_path: Path) -> None:
    saved = ranks(tmp_path)
    (saved / "rank_1").rename(saved / "rank_2")
    for named, said in (
        ([], r"ranks\.json is damaged: .*meta\.ranks"),
        ([0] * 100_000, r"ranks\.json is damaged: meta\.ranks contains a rank twice"),
        ([0, 2], r"rank_2.profile\.json is damaged: its meta\.rank is 1, not 2"),
    ):
        edited(saved / "ranks.json", meta={"ranks": named})
        with pytest.raises(RecordingError, match=said):
            perfnb.load(saved)


@pytest.mark.parametrize("name", ["events.parquet", "profile.json"])
def test_a_pipe_or_a_device_in_a_saved_folder_is_refused(saved: Path, name: str) -> None:
    file = saved / name
    for put in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        file.unlink()
        put(file)
        with pytest.raises(RecordingError, match=name.replace(".", r"\.")):
            perfnb.load(saved)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("device", ["pipe", "/dev/zero"])
def test_a_pipe_or_a_device_is_not_a_trace(tmp_path: Path, as_list: bool, device: str) -> None:
    path = tmp_path / "trace.json"
    if device == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(device)

    with pytest.raises(PerfnbError, match=r"trace\.json"):
        perfnb.load([path] if as_list else path)
