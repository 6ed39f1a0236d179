"""Lines of code that findings propose: each is run, on the user's own objects, and does what it promises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import perfnb
from perfnb.profile.profile import Profile
from perfnb.recording.recording import Recording
from perfnb.remedies.levers import by_name
from perfnb.remedies.subject import Subject
from perfnb.step.namespace import named_parts
from tests.findings.findings_recordings import found, one_layer
from tests.findings.test_findings import STEPS, attention, one_long_op, timed

SAMPLES = torch.arange(40.0).reshape(20, 2)
ENVIRONMENT = {"processor": "made up", "threads": 1, "cpus": 4, "gpus": []}


class Rows(Dataset[torch.Tensor]):
    """A data set that can only be asked for one sample."""

    def __len__(self) -> int:
        return len(SAMPLES)

    def __getitem__(self, place: int) -> torch.Tensor:
        return SAMPLES[int(place)]


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(SAMPLES)


def stacked(samples: list[torch.Tensor]) -> torch.Tensor:
    return -torch.stack(samples)


def waiting_for(
    loader: Any, name: str = "train_loader", loop: dict[str, Any] | None = None, **environment: Any
) -> dict[str, Any]:
    """Return the finding of a step that waits for batches from this loader."""
    parts = named_parts({name: loader}, loader, [])
    if loop and loop.get("trainer") == "prepared":  # by an Accelerator, which gives the loop no name
        parts["optimizers"], loop = [prepared_optimizer()], {}
    recording = timed(
        one_long_op().recording(),
        [31.0, 41.0] * 10,
        [30.0, 40.0] * 10,
        parts=parts,
        environment=ENVIRONMENT | environment,
        loop=loop or {},
    )
    result: dict[str, Any] = found(recording, "input pipeline").loc["input pipeline"].to_dict()
    return result


def prepared_optimizer() -> dict[str, Any]:
    """Return what is recorded of an optimizer that Accelerate has prepared."""

    class AcceleratedOptimizer(torch.optim.SGD):
        pass

    layer = torch.nn.Linear(2, 2)
    optimizer = AcceleratedOptimizer(layer.parameters(), 1e-3)
    part: dict[str, Any] = named_parts({"optimizer": optimizer}, None, [layer])["optimizers"][0]
    return part


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ("transformers", "The setting for that: TrainingArguments(dataloader_num_workers=N)."),
        ("lightning", "The setting for that: num_workers=N, where the DataLoader for training is made."),
        ("prepared", "The setting for that: num_workers=N, where the DataLoader for accelerator.prepare is made."),
        ("somebody's", None),
        (["transformers"], None),
        (None, None),
    ],
)
def test_in_a_trainer_a_finding_names_the_trainer_s_setting(trainer: Any, said: str | None) -> None:
    class Texts(TensorDataset):
        pass

    finding = waiting_for(DataLoader(Texts(torch.ones(8, 2))), loop={"step": 100, "trainer": trainer})
    assert ("The setting for that" in finding["advice"]) == (said is not None)
    assert said is None or finding["advice"].endswith(said)
    assert finding["evidence"].endswith("Its samples come from Texts.__getitem__.")


def test_a_loader_of_accelerate_s_own_class_gets_workers_from_its_trainer_unless_it_has_some() -> None:
    class DataLoaderShard(DataLoader[Any]):
        pass

    loop, data = {"step": 100, "trainer": "transformers"}, TensorDataset(torch.ones(8, 2))
    finding = waiting_for(DataLoaderShard(data), loop=loop)
    assert finding["remedy"] == ""  # try_levers cannot copy it
    assert finding["advice"].endswith("The setting for that: TrainingArguments(dataloader_num_workers=N).")
    assert "The setting for that" not in waiting_for(DataLoaderShard(data, num_workers=1), loop=loop)["advice"]


def batches(loader: Any) -> list[Any]:
    """Of three epochs, because a loader may begin the later ones with other random numbers."""
    torch.manual_seed(3)
    return [batch[0] if isinstance(batch, (list, tuple)) else batch for _ in range(3) for batch in loader]


def first(rows: list[Any]) -> Any:
    return -rows[0][0]


def unchanged(sample: Any) -> Any:
    return sample


def loaders() -> dict[str, DataLoader[Any]]:
    """Loaders that do most of what torch's own can."""
    tensors, rows, seeded = TensorDataset(SAMPLES), Rows(), torch.Generator().manual_seed(7)
    return {
        "shuffled": DataLoader(tensors, batch_size=4, shuffle=True),
        "in order": DataLoader(tensors, batch_size=6, drop_last=True),
        "collated": DataLoader(tensors, batch_size=6, shuffle=True, collate_fn=first),
        "one by one": DataLoader(rows, batch_size=3, shuffle=True, drop_last=True, collate_fn=stacked),
        "single samples": DataLoader(rows, batch_size=None, shuffle=True, collate_fn=unchanged),
        "single samples of tensors": DataLoader(tensors, batch_size=None, sampler=[3, 1, 2]),
        "a stream": DataLoader(Stream(), batch_size=3, drop_last=True),
        "single samples of a stream": DataLoader(Stream(), batch_size=None, collate_fn=unchanged),
        "a batch sampler": DataLoader(rows, batch_sampler=BatchSampler(RandomSampler(rows), 3, True)),
        "a batch sampler of tensors": DataLoader(tensors, batch_sampler=BatchSampler(RandomSampler(tensors), 3, True)),
        "tuples of places": DataLoader(tensors, batch_sampler=[(0, 1), (2, 3)]),
        "collated of a batch sampler": DataLoader(rows, batch_sampler=[[0, 5], [2]], collate_fn=stacked),
        "seeded": DataLoader(rows, batch_size=4, shuffle=True, generator=seeded, worker_init_fn=unchanged),
        "seeded tensors": DataLoader(tensors, batch_size=4, shuffle=True, generator=seeded),
        "weighted": DataLoader(rows, batch_size=4, sampler=[1, 1, 4, 0, 9]),
    }


def in_this_process(line: str) -> str:
    """Return the line without its workers, which would take their time, and cannot be sent functions without a name."""
    return re.sub(r", num_workers=\d+", "", line)


@pytest.mark.parametrize("name", loaders())
def test_a_line_for_a_loader_changes_nothing_that_the_program_computes(name: str) -> None:
    """Of a finding and of the lever: the same batches in the same order, and the same random numbers afterwards."""
    made = [loaders()[name] for _ in range(3)]
    subject = Subject(print, made[1], {}, {}, ("train_loader", made[1]), chosen={"workers": 2})
    told = [waiting_for(made[0])["code"], "\n".join(by_name()["loader_workers"].code(subject))]
    expected, numbers = batches(made[2]), torch.get_rng_state()

    for loader, line in zip(made, told, strict=False):
        known: dict[str, Any] = {"train_loader": loader, "torch": torch}
        exec(in_this_process(line), known)
        assert known["train_loader"] is not loader
        assert [batch.tolist() for batch in batches(known["train_loader"])] == [one.tolist() for one in expected]
        assert torch.equal(torch.get_rng_state(), numbers)


def test_finding_and_lever_print_the_same_line() -> None:
    loader = DataLoader(Rows(), batch_sampler=[[0, 1], [2]], collate_fn=stacked, timeout=3, generator=torch.Generator())
    line = waiting_for(loader)["code"].removeprefix("import torch; ")
    workers = int(re.findall(r"num_workers=(\d+)", line)[0])
    subject = Subject(print, loader, {}, {}, ("train_loader", loader), chosen={"workers": workers})
    assert by_name()["loader_workers"].code(subject) == [line]


def test_no_line_replaces_a_loader_of_another_class() -> None:
    class Moving(DataLoader[Any]):
        pass

    assert waiting_for(Moving(Rows(), batch_size=4))["code"] == ""


def loop(kind: str = "SGD", **meta: Any) -> Recording:
    """Return steps with an optimizer that updates one parameter after the other."""
    hand, net = one_layer("net")
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t, t + 3000)
        hand.call(net, t, t + 500).op("aten::mm", t + 1, t + 499)
        hand.event(f"Optimizer.step#{kind}.step", t + 1000, t + 3000, "user_annotation")
        for place in range(200):
            hand.op("aten::add_", t + 1001 + 9.9 * place, t + 1005 + 9.9 * place)
    return hand.recording(**meta)


def optimizers() -> dict[str, Callable[[nn.Module], list[torch.optim.Optimizer]]]:
    """Optimizers that loop over parameters."""
    optim = torch.optim
    return {
        "sgd": lambda net: [optim.SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=5e-4)],
        "adamw": lambda net: [optim.AdamW(net.parameters(), betas=(0.8, 0.9), foreach=False)],
        "rmsprop": lambda net: [optim.RMSprop(net.parameters(), lr=0.2, foreach=False)],
        "groups": lambda net: [optim.Adam([{"params": [p], "lr": 0.1 + i} for i, p in enumerate(net.parameters())])],
        "two": lambda net: [optim.SGD([p], lr=0.1, momentum=0.5) for p in net.parameters()],
    }


@pytest.mark.parametrize("name", optimizers())
def test_the_line_for_optimizers_keeps_their_state_and_results(name: str) -> None:
    """Run in the middle of training, as findings and levers print it."""

    def trained(lines: Callable[[nn.Module, dict[str, Any]], str]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        net = nn.Linear(4, 2)
        names: dict[str, Any] = {f"opt{place}": each for place, each in enumerate(optimizers()[name](net))}
        schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in names.values()]
        for number in range(6):
            if number == 3:
                exec(lines(net, names), names | {"torch": torch, "net": net})
            net(torch.ones(3, 4)).square().sum().backward()
            for each in [*(value for value in names.values() if hasattr(value, "param_groups")), *schedulers]:
                each.step()
            net.zero_grad()
        return [parameter.detach() for parameter in net.parameters()]

    def told(net: nn.Module, names: dict[str, Any]) -> str:
        kind = type(next(iter(names.values()))).__name__
        finding = found(loop(kind, parts=named_parts(names, None, [net])), "optimizer").loc["optimizer"]
        subject = Subject(print, None, {"net": net}, dict(names), None)
        assert by_name()[finding["remedy"]].code(subject) == [finding["code"]]
        assert by_name()[finding["remedy"]].refuses(subject) == ""
        line: str = finding["code"]
        return line

    for mine, other in zip(trained(told), trained(lambda *_: ""), strict=True):
        torch.testing.assert_close(mine, other)


def test_lbfgs_is_not_a_loop_over_parameters() -> None:
    net = nn.Linear(4, 2)
    parts = named_parts({"opt": torch.optim.LBFGS(net.parameters())}, None, [net])

    assert "optimizer" not in found(loop("LBFGS", parts=parts), "optimizer").index


def test_advice_names_the_attention_layer_that_computes_unused_weights() -> None:
    hand, net = one_layer("net")
    layers = hand.layer("net.layers", net)
    first = hand.layer("net.layers.0", layers)
    own = hand.layer("net.layers.0.a b", first)
    for row, kind in ((net, "Net"), (layers, "ModuleList"), (first, "Block"), (own, "MultiheadAttention")):
        hand.modules[row]["module"] = kind
    for t in range(0, 2000 * STEPS, 2000):
        hand.step(t - 1, t + 1001)
        hand.call(net, t - 0.5, t + 1000.5).call(own, t, t + 1000)
        attention(hand, t)

    finding = found(hand.recording(), "attention unfused").loc["attention unfused"]

    assert finding["code"] == ""
    assert "Call net.layers.0.a b with need_weights=False." in finding["advice"]
    assert "weights are not requested" in finding["advice"]


@pytest.mark.parametrize("lever", ["compile --fix; os.system('echo PWNED')", "PWNED"])
def test_code_and_levers_of_an_edited_file_are_not_shown(lever: str, tmp_path: Path) -> None:
    recording = timed(one_long_op().recording(), [31.0, 41.0] * 10, [30.0, 40.0] * 10, environment=ENVIRONMENT)
    saved = Profile(recording)._reduced().save(tmp_path / "step")
    file = saved / "profile.json"
    content = json.loads(file.read_text())
    assert content["meta"]["reduced"]["findings"]
    for row in content["meta"]["reduced"]["findings"]:
        row["code"] = "import os; os.system('echo PWNED')"
        row["remedy"] = lever
    file.write_text(json.dumps(content))

    loaded = perfnb.load(saved)

    assert isinstance(loaded, Profile)
    assert set(loaded.findings["code"]) == set(loaded.findings["remedy"]) == {""}
    assert "PWNED" not in str(loaded)
