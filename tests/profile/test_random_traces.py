"""Whatever a readable trace holds, the whole profile of it can be made, shown and saved: no error, no warning."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import perfnb
from perfnb.errors import TraceError
from perfnb.recording.schema import SCHEMA

NAMES = st.sampled_from(
    [
        *(
            "aten::mm",
            "aten::conv2d",
            "aten::item",
            "ProfilerStep#1",
            "ProfilerStep#2",
            "my range",
            "pf#0",
            "pf_step#0",
        ),
        *(
            "cudaLaunchKernel",
            "cudaDeviceSynchronize",
            "cudaStreamWaitEvent",
            "hipMemcpyWithStream",
            "gemm",
            "nccl:all",
        ),
        *("ncclKernel_AllReduce", "Memcpy HtoD (Pageable -> Device)", "nn.Module: Linear_0", "nn.Module: Net_0"),
        *(
            "autograd::engine::evaluate_function: MmBackward0",
            "Optimizer.step#SGD.step",
            "<img src=x>",
            "",
            "\u202e\x07",
        ),
    ]
)
CATEGORIES = st.sampled_from(
    [
        *("cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "python_function"),
        *("gpu_user_annotation", "cuda_sync", "overhead", "", "ac2g", "Trace"),
    ]
)
SMALL = st.integers(-1, 3)
TIMES = st.one_of(st.integers(0, 40), st.floats(0, 40), st.sampled_from([-5, 0, 0, 1e9, 9.1e15, -9.1e15]))
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "correlation": SMALL,
        "stream": SMALL,
        "device": SMALL,
        "External id": SMALL,
        "Sequence number": SMALL,
        "Fwd thread id": SMALL,
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2),
        "Python id": SMALL,
        "Python parent id": st.one_of(st.none(), SMALL),
        "wait_on_stream": SMALL,
        "wait_on_cuda_event_record_corr_id": SMALL,
    },
)
EVENTS = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "X", "i", "M", "s"]),
        "name": NAMES,
        "pid": SMALL,
        "tid": SMALL,
        "ts": TIMES,
    },
    optional={"cat": CATEGORIES, "dur": TIMES, "args": ARGUMENTS},
)
TRACES = st.lists(EVENTS, max_size=14)


def on_gpu(device: int, kind: str, us: float, **more: Any) -> dict[str, Any]:
    return {
        **{"ph": "X", "cat": kind, "name": kind, "pid": device, "tid": 7, "ts": 5, "dur": us},
        **{"args": {"device": device, "stream": 7, "correlation": device + 1}, **more},
    }


def is_whole_or_refused(events: list[dict[str, Any]]) -> None:
    """Load, read every table, show, save and load again."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}))
        try:
            profile = perfnb.load(path)
        except TraceError:
            return
        assert isinstance(profile, perfnb.Profile)
        for table in SCHEMA:
            if (found := getattr(profile, table, None)) is not None:
                assert list(found.columns) == list(SCHEMA[table])
        assert (profile.gpu_time.filter(like="_ms").fillna(0.0) >= 0).all(axis=None)
        assert str(profile)
        assert repr(profile)
        assert profile._repr_mimebundle_()
        profile.to_html(Path(folder) / "page.html")
        again = perfnb.load(profile.save(Path(folder) / "saved"))
        assert isinstance(again, perfnb.Profile)
        assert len(again.events) == len(profile.events)


IN_TIME = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.deep
@pytest.mark.slow
@given(TRACES)
@example([on_gpu(0, "kernel", 3.0), on_gpu(1, "gpu_memset", 0.0)])
@example([on_gpu(0, "kernel", 0.0)])
@example([{"ph": "X", "cat": "user_annotation", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 3}])
@example([])
@settings(IN_TIME, max_examples=20)
def test_a_profile_of_random_events_is_whole(events: list[dict[str, Any]]) -> None:
    is_whole_or_refused(events)


@pytest.mark.simulation
@pytest.mark.timeout(3600)
@given(TRACES)
@settings(IN_TIME, max_examples=3000)
def test_profiles_of_three_thousand_random_lists_of_events_are_whole(events: list[dict[str, Any]]) -> None:
    is_whole_or_refused(events)
