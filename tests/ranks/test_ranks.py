"""Traces of several ranks, loaded together: their tables, their clocks, and who waited for whom."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import perfnb
from perfnb.errors import RecordingError, TraceError
from tests.ranks.rank_traces import TABLES, rank_trace, written
from tests.trace.test_public_traces import FOLDER
from tests.written_traces import Written


def test_the_last_to_come_is_the_straggler_whatever_its_clock_says(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(150, clock=2_500_000.25), rank_trace(20, clock=-777)])

    ranks = perfnb.load(paths)

    assert isinstance(ranks, perfnb.results.Ranks)
    assert ranks.ranks == [0, 1, 2]
    assert ranks.clocks["ahead_us"].tolist() == pytest.approx([0, 2_500_000.25, -777])
    assert ranks.clocks["collectives"].tolist() == [12, 12, 12]
    assert ranks.straggler == 1
    times = ranks.times
    assert times["waiting_ms"].tolist() == pytest.approx([0.6] * 3 + [0] * 3 + [0.52] * 3)
    assert times["communication_ms"].tolist() == pytest.approx([0.8] * 3 + [0.2] * 3 + [0.72] * 3)
    assert times["exposed_ms"].tolist() == pytest.approx([0.8] * 3 + [0.2] * 3 + [0.72] * 3)
    assert times["computation_ms"].tolist() == pytest.approx([0] * 3 + [0.6] * 3 + [0.08] * 3)
    assert times["copying_ms"].tolist() == [0.0] * 9
    assert times["wall_ms"].tolist() == [5.0] * 9
    assert list(times.columns[5:8]) == ["overlap_ms", "exposed_ms", "memcpy_ms"]
    assert ranks._document().verdict.sentence.startswith("Held up by rank 1: making it as fast as the others could")


def test_without_collectives_nothing_is_claimed(tmp_path: Path) -> None:
    only_here = rank_trace(0, lost=tuple(range(12)))

    ranks = perfnb.load(written(tmp_path, [only_here, rank_trace(0), only_here]))

    assert ranks.straggler is None
    assert ranks.times["waiting_ms"].isna().all()
    assert ranks.clocks["ahead_us"].isna().tolist() == [False, True, True]
    assert "No collective could be matched" in " ".join(str(ranks).split())


def test_a_value_that_is_not_a_list_of_ranks_is_refused(tmp_path: Path) -> None:
    paths = written(tmp_path, [Written().step(0, 0, 10).op("aten::mm", 1, 2)] * 2)
    ranks = perfnb.load(paths)
    saved = [profile.save(tmp_path / f"saved-{rank}") for rank, profile in enumerate(ranks)]

    assert ranks.meta == {rank: ranks[rank].meta for rank in (0, 1)}
    with pytest.raises(TypeError, match=r"a\[0\]\.compare\(b\[0\]\)"):
        ranks.compare(ranks)
    with pytest.raises(TraceError, match="the list of files is empty"):
        perfnb.load([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordingError, match=r"empty contains neither a saved profile .* nor traces"):
        perfnb.load(tmp_path / "empty")
    with pytest.raises(RecordingError, match=r"nowhere\.json does not exist"):
        perfnb.load([paths[0], tmp_path / "nowhere.json"])
    with pytest.raises(TraceError, match=r"steps only applies to traces, but .*saved-0 is a saved profile"):
        perfnb.load(saved, steps="step")


def test_tables_are_those_of_the_ranks_one_after_another(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(50), rank_trace(60)], "r_rank{}.json.gz")

    ranks = perfnb.load(tmp_path)

    assert [profile.meta["name"] for profile in ranks] == [path.name for path in paths]
    for table in ("events", "steps", "gpu_time", "kernels", "ops"):
        whole = getattr(ranks, table)
        assert sorted(set(whole["rank"])) == [0, 1, 2]
        assert len(whole) == sum(len(getattr(ranks[rank], table)) for rank in range(3))
    assert isinstance(perfnb.load(paths[1]), perfnb.Profile)
    assert perfnb.load(paths[2]).events["rank"].unique().tolist() == [2]


@pytest.mark.slow
def test_they_are_saved_and_come_back(tmp_path: Path) -> None:
    ranks = perfnb.load(written(tmp_path, [rank_trace(0), rank_trace(50, clock=10)]))
    alone = [profile.save(tmp_path / f"saved-{9 - rank}") for rank, profile in enumerate(ranks)]

    ranks.save(tmp_path / "saved")
    again, joined = perfnb.load(ranks.save(tmp_path / "saved")), perfnb.load(alone[::-1])
    for found in (again, joined):
        assert isinstance(found, perfnb.results.Ranks)
        for table in TABLES:
            pd.testing.assert_frame_equal(getattr(found, table), getattr(ranks, table))
    assert str(again) == str(ranks)
    (tmp_path / "saved" / "rank_0" / "mine.txt").write_text("mine")
    with pytest.raises(RecordingError, match="is not just a perfnb ranks"):
        ranks.save(tmp_path / "saved")
    with pytest.raises(RecordingError, match="is not just"):
        ranks.save(tmp_path)


def test_ranks_of_separate_groups_are_compared_within_their_group(tmp_path: Path) -> None:
    lates, clocks = (0, 0, 0, 200), (0, 70, 5_000_000, 5_000_123.5)
    paths = written(
        tmp_path,
        [
            rank_trace(late, clock, **{"Process Group Ranks": "[0, 1]" if rank < 2 else "[2, 3]"})
            for rank, (late, clock) in enumerate(zip(lates, clocks, strict=True))
        ],
    )

    ranks = perfnb.load(paths)

    assert ranks.clocks["reference"].tolist() == [0, 0, 2, 2]
    assert ranks.clocks["ahead_us"].tolist() == pytest.approx([0, 70, 0, 123.5])
    assert ranks.clocks["collectives"].tolist() == [12] * 4
    waited = ranks.times.groupby("rank")["waiting_ms"].mean()
    assert waited.tolist() == pytest.approx([0, 0, 0.8, 0])
    assert ranks.straggler == 3
    assert "matched between these groups: ranks 0, 1; ranks 2, 3." in str(ranks)


def test_clocks_are_aligned_through_other_ranks(tmp_path: Path) -> None:
    """Ranks 0 and 2 share nothing, but both share with rank 1."""
    traces = []
    for clock, groups in ((0, (0,)), (-500, (0, 1)), (40_000, (1,))):
        trace = Written()
        trace.step(0, clock, clock + 90_000)
        for place in range(10):
            for group in groups:
                begin = clock + 5_000 * place + 137 * place * place + 2_000 * group
                told = {"Process Group Ranks": f"[{group}, {group + 1}]"}
                late = 100 if clock == 40_000 else 0
                trace.kernel("ncclDevKernel_AllReduce_Sum_f32", begin, begin + late, begin + 300, **told)
        traces.append(trace)

    ranks = perfnb.load(written(tmp_path, traces))

    assert ranks.clocks["ahead_us"].tolist() == pytest.approx([0, -500, 40_000])
    assert ranks.clocks["reference"].tolist() == [0, 0, 0]
    assert ranks.clocks["collectives"].tolist() == [10, 20, 10]
    assert ranks.times["waiting_ms"].tolist() == pytest.approx([0, 1.0, 0])
    assert ranks.straggler == 2


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no folder of public traces at {FOLDER}; set PERFNB_TRACES")
def test_two_ranks_of_a_public_job() -> None:
    """Of 10 collectives in each, of which a sample was kept, 5 are the same: their ends are at most 0.4 ms apart."""
    paths = [FOLDER / "kineto" / f"sampled_rank_{rank}.json.gz" for rank in (0, 1)]

    ranks = perfnb.load(paths)

    assert ranks.ranks == [0, 1]
    assert ranks.clocks["collectives"].tolist() == [5, 5]
    assert ranks.clocks["ahead_us"].tolist() == [0, 0]
    # Rank 0 came to the three of step 551 at 45.760, 216.370 and 506.029 ms, rank 1 at 50.619, 219.672 and 506.113.
    waited = ranks.times.set_index(["rank", "step"])["waiting_ms"]
    assert waited[0, 551] == pytest.approx(4.859 + 3.302 + 0.084)
    assert waited[1, 551] == 0
    assert ranks.straggler == 1
