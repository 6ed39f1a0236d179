"""Critical paths of public traces: those derived by hand, and none with a gap."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.gpu.paths import critical_path
from tests.traces_by_hand import public, public_trace

ALEXNET = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"


@pytest.fixture(scope="module")
def alexnet() -> pd.DataFrame:
    """Return the path of the measured forward pass; times in us after the second 43 of the trace."""
    events = public_trace("a100_alexnet.json.gz")
    begin, length = events.loc[events["name"] == ALEXNET, ["start_ns", "duration_ns"]].iloc[1]
    path = critical_path(events, window=(int(begin), int(begin + length)))
    path["us"] = (path["start_ns"] - events["start_ns"].min()) // 1000 - 43_000_000
    path["duration_us"] = path["duration_ns"] // 1000
    return path


def between(path: pd.DataFrame, begin: int, end: int) -> list[tuple[str, str, int]]:
    part = path[(path["us"] >= begin) & (path["us"] < end)]
    return list(zip(part["kind"], part["name"], part["duration_us"], strict=True))


@public
def test_alexnets_path_adds_up_and_its_parts_are_those_derived_by_hand(alexnet: pd.DataFrame) -> None:
    # The pass is marked from 313,521 to 349,877. It ends with a cudaDeviceSynchronize (348,720 to 349,604) that waits
    # for the last kernel, ended 349,596. From there the GPU works back without waiting for the host, kernel after
    # kernel, to the transform at 345,833, whose launch began at 345,803; before it, all is the host's.
    sums = alexnet.groupby("kind", observed=True)["duration_us"].sum().to_dict()
    host = 345_803 - 313_521
    # The calls that begin in it, mostly cudaMallocs (8,551, 8,275, 11,592 and 3,107), take 31,679; from the end of an
    # operator to the begin of the next one there are 226, and 273 after the synchronisation; the rest is operators'.
    assert sums["call"] == 31_679
    assert sums["host"] == 226 + (349_877 - 349_604)
    assert sums["operator"] == host - 31_679 - 226
    assert sums["launch"] == 345_833 - 345_803
    assert sums["computation"] + sums["delay"] == 349_596 - 345_833
    assert sums["delay"] == 51  # 33 times 1 to 3 us from one kernel to the next
    assert sums["synchronisation"] == 349_604 - 349_596
    assert alexnet["duration_us"].sum() == 36_356


@public
def test_alexnets_chain_through_the_launch_of_the_transform_and_the_event_of_its_stream(alexnet: pd.DataFrame) -> None:
    # Number 5597, on stream 20: launched at 345,803, ran from 345,833 to 345,900. 5604 follows it on its stream: from
    # 345,901 to 346,224, and 5606: from 346,226 to 346,372. 5629, on stream 7, was launched at 345,932 and had to wait
    # for the event recorded on stream 20 after 5606 (5609, awaited by 5610): it ran from 346,373 on.
    chain = [(kind, duration) for kind, _, duration in between(alexnet, 345_803, 346_509)]

    assert chain == [
        ("launch", 30),
        ("computation", 67),
        ("delay", 1),
        ("computation", 323),
        ("delay", 2),
        ("computation", 146),
        ("delay", 1),
        ("computation", 136),
    ]
    assert alexnet.loc[alexnet["us"].isin([345_833, 346_226, 346_373]), "stream"].tolist() == [20, 20, 7]
    assert not alexnet["inferred"].any()
