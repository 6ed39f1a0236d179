"""What `log_to` hands to each experiment tracker: stand-ins that record calls."""

from __future__ import annotations

import re
import sys

import pytest
import torch

import perfnb
from perfnb.errors import PerfnbError
from perfnb.experiments.ab_test import ABTest
from perfnb.profile.trackers import Logged, log_at_once, log_result, open_runs, require_log
from perfnb.recording.outcome import make_outcome
from tests.experiments.ab_samples import ENVIRONMENT, SAME, experiment
from tests.loop.planted_runs import run, usual
from tests.profile import tracker_standins as standins
from tests.step.models import three_linears, training_step

FIGURES = {"step_ms", "step_ms_low", "step_ms_high", "data_share", "samples_per_s", "peak_bytes"}


@pytest.fixture(scope="module")
def profile() -> perfnb.Profile:
    step = training_step(three_linears(), torch.ones(4, 8))
    return perfnb.profile_step(
        lambda batch: step(), [torch.ones(4)] * 4, warmup=1, steps=8, traced=1, stacks=False, name="mine"
    )


def names(profile: perfnb.Profile) -> dict[str, float]:
    summary = profile._summary
    more = {"samples_per_s": summary.timing.throughput_per_s, "flops_utilisation": summary.mfu}
    return Logged("profile", profile, profile._outcome(), more).scalars


def test_names_are_valid_in_every_tracker_and_figures_those_of_the_profile(profile: perfnb.Profile) -> None:
    found = names(profile)
    assert {f"perfnb/profile/{what}" for what in FIGURES} <= found.keys()
    assert all(re.fullmatch(r"[a-z/_]{1,40}", name) for name in found)
    low, high = profile.timing.ci_ms or (0.0, 0.0)
    assert found["perfnb/profile/step_ms"] == profile.timing.median_ms
    assert (found["perfnb/profile/step_ms_low"], found["perfnb/profile/step_ms_high"]) == (low, high)
    assert found["perfnb/profile/samples_per_s"] == pytest.approx(4e3 / found["perfnb/profile/step_ms"])


def test_what_is_unknown_is_never_logged(profile: perfnb.Profile) -> None:
    writer, calls = standins.tensorboard()
    unknown = Logged("profile", profile, make_outcome("x", {}, step_ms=2.0, data_share=float("nan")), {"a": None})
    log_result(unknown, writer)
    assert calls == [("add_scalar", {"tag": "perfnb/profile/step_ms", "scalar_value": 2.0, "global_step": None})]


@pytest.mark.parametrize("given", ["module", "run"])
def test_mlflow_takes_everything(profile: perfnb.Profile, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, open_run, calls = standins.mlflow(monkeypatch)
    assert profile.log_to(module if given == "module" else open_run, step=7) == []

    logged = {one["key"]: one["value"] for one in calls.of("log_metric")}
    assert logged == names(profile)
    assert all((one["run_id"], one["step"]) == ("abc", 7) for one in calls.of("log_metric"))
    (table,), (page,), (tag,) = calls.of("log_table"), calls.of("log_artifact"), calls.of("set_tag")
    assert (table["artifact_file"], table["data"]["layer"].tolist()) == (
        "perfnb/profile_step_7_layers.json",
        profile.layers.index.tolist(),
    )
    assert (page["local_path"][0], page["artifact_path"]) == ("profile_step_7.html", "perfnb")
    assert page["local_path"][1].lstrip().startswith("<!")
    assert (tag["key"], tag["value"]) == ("perfnb/profile/verdict", profile._outcome().verdict)


def test_wandb_takes_everything_and_is_warned_of_steps_in_the_past(
    profile: perfnb.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, open_run, calls = standins.wandb(monkeypatch, at=50)
    assert profile.log_to(open_run, step=50) == profile.log_to(module) == []
    late = profile.log_to(open_run, step=49)
    assert late == [
        "The tracker did not accept step 49 for the figures: W&B does not accept earlier steps and is already at 50, "
        "where everything else was logged."
    ]
    assert [one["step"] for one in calls.of("log")] == [50, None, None]
    first = calls.of("log")[0]["data"]
    frame = first.pop("perfnb/profile/layers").frame
    assert first == names(profile)
    assert frame["layer"].tolist() == profile.layers.index.tolist()
    unknown = profile.layers.isna().to_numpy()
    assert unknown.any()
    assert all(value is None for value in frame.drop(columns="layer").to_numpy()[unknown])
    page = calls.of("log_artifact")[0]
    assert (page["artifact_or_path"][0], page["name"], page["type"]) == (
        "profile_step_50.html",
        "perfnb-profile_step_50",
        "profile",
    )
    assert calls.of("summary")[0] == {"d": {"perfnb/profile/verdict": profile._outcome().verdict}}


def test_tensorboard_has_no_place_for_the_report(profile: perfnb.Profile) -> None:
    writer, calls = standins.tensorboard()
    notes = profile.log_to(writer, 3)
    assert notes == [
        "The tracker did not accept the report: TensorBoard cannot display HTML, so write it with to_html."
    ]
    assert {one["tag"]: one["scalar_value"] for one in calls.of("add_scalar")} == names(profile)
    layers, verdict = calls.of("add_text")
    assert layers["tag"] == "perfnb/profile/layers"
    assert len(layers["text_string"].splitlines()) == len(profile.layers) + 2
    assert "NaN" not in layers["text_string"]
    assert "<NA>" not in layers["text_string"]
    assert verdict == {"tag": "perfnb/profile/verdict", "text_string": profile._outcome().verdict, "global_step": 3}


def test_aim_takes_the_report_if_it_has_a_place_for_files(
    profile: perfnb.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    aim_run, calls = standins.aim(monkeypatch)
    assert profile.log_to(aim_run) == [
        "The tracker did not accept the report: Aim can store files only after you call run.set_artifacts_uri(...)."
    ]
    tracked = {one["name"]: one["value"] for one in calls.of("track")}
    assert "| layer |" in tracked.pop("perfnb/profile/layers").text
    assert tracked == names(profile)
    assert calls.of("set") == [{"key": "perfnb/profile/verdict", "value": profile._outcome().verdict}]

    def fails(_: object) -> None:
        raise TypeError

    monkeypatch.setattr(type(aim_run), "artifacts_uri", property(fails), raising=False)  # as in some versions
    assert len(profile.log_to(aim_run)) == 1

    aim_run, calls = standins.aim(monkeypatch, "file:///somewhere")
    assert profile.log_to(aim_run) == []
    (page,) = calls.of("log_artifact")
    assert (page["name"], page["block"], page["path"][0]) == ("profile.html", True, "profile.html")


def test_a_part_that_fails_is_reported_and_costs_no_other(
    profile: perfnb.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, calls = standins.mlflow(monkeypatch, fails="no\x1b space.")
    assert profile.log_to(module) == ["The tracker did not accept the report: ValueError: no\\x1b space."]
    assert calls.of("set_tag")


def test_runs_and_ab_tests_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, calls = standins.mlflow(monkeypatch)
    assert run(usual(200)).log_to(module) == []
    assert ABTest(**vars(experiment(0.9)), quality=SAME, environment=ENVIRONMENT).log_to(module) == []
    logged = {one["key"]: one["value"] for one in calls.of("log_metric")}
    assert {"perfnb/run/step_ms", "perfnb/run/peak_bytes", "perfnb/ab_test/ratio"} <= logged.keys()
    assert logged["perfnb/ab_test/ratio_low"] < logged["perfnb/ab_test/ratio"] < logged["perfnb/ab_test/ratio_high"]
    assert {one["key"]: one["value"] for one in calls.of("set_tag")} == {
        "perfnb/run/verdict": "Steady",
        "perfnb/ab_test/verdict": "accept",
    }


def test_anything_else_is_refused_in_a_sentence(profile: perfnb.Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"^log_to requires an MLflow run or the mlflow module, .* not 'mlflow'\.$"):
        profile.log_to("mlflow")
    for accepted in (True, False, standins.tensorboard()[0]):
        require_log(accepted)
    with pytest.raises(TypeError, match=r"^log_to requires an MLflow run or the mlflow module, .* not 1\.$"):
        require_log(1)
    with pytest.raises(ValueError, match="step"):
        profile.log_to(standins.tensorboard()[0], step=-1)
    module, _, _ = standins.mlflow(monkeypatch)
    monkeypatch.setattr(module, "active_run", lambda: None)
    with pytest.raises(PerfnbError, match=r"^MLflow has no open run to log to: call mlflow\.start_run\(\) first\.$"):
        profile.log_to(module)
    other, _, _ = standins.wandb(monkeypatch)
    monkeypatch.setattr(other, "run", None)
    with pytest.raises(PerfnbError, match=r"^W&B has no open run"):
        profile.log_to(other)


def test_open_runs_are_found_in_loaded_trackers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "wandb"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert open_runs() == []
    module, open_run, _ = standins.mlflow(monkeypatch)
    other, its_run, _ = standins.wandb(monkeypatch)
    assert open_runs() == [open_run, its_run]
    assert open_runs(["wandb"]) == [its_run]
    monkeypatch.setattr(module, "active_run", lambda: None)
    assert open_runs(["mlflow"]) == [open_run]  # the script has closed it
    monkeypatch.setattr(module, "last_active_run", lambda: None)
    monkeypatch.setattr(other, "run", None)
    assert open_runs() == []


def test_a_result_that_cannot_be_logged_is_one_sentence_and_costs_no_other() -> None:
    class Failing:
        def log_to(self, run: str, step: int) -> list[str]:
            raise KeyError(f"{run}{step}")

    class Fine:
        def log_to(self, run: str, step: int) -> list[str]:
            return [f"{run}{step}"]

    said = [*log_at_once([(Failing(), 1), (Fine(), 2)], iter("ab"))]
    assert said == ["Nothing was logged: KeyError: 'a1'", "Nothing was logged: KeyError: 'b1'", "a2", "b2"]
    assert len([*log_at_once([(Fine(), 1)] * 2, [])]) == 1
