"""Checks for lab 4, *Memory*."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from perfnb import Profile, find_leaks, profile_step
from perfnb.labs.answers import as_fields, as_function, as_number, as_numbers, evidence, outcome, tried
from perfnb.labs.exercise import Exercise, Facts, Hint, quoted
from perfnb.labs.judging import Number, all_there, hint_if, judge_checked
from perfnb.labs.made_allocator import ROUND_MIB, steps
from perfnb.labs.rewritten import judge_layer, same_layer
from perfnb.labs.workloads import agree, one_thread
from perfnb.quantities import share
from perfnb.recording.schema import CATEGORIES
from perfnb.results import ABTest, Leaks

MIB = 2**20


def trial(name: str) -> tuple[Any, Any]:
    """Return a model to test the rule on and a batch for it."""
    model = nn.Sequential(nn.Linear(24, 24), nn.BatchNorm1d(24) if "normal" in name else nn.ReLU(), nn.Linear(24, 24))
    model.append(nn.Linear(24, 7))
    if "frozen" in name:
        model[0].requires_grad_(False)
    if "share" in name:
        model[2].weight = model[0].weight
    dtype = torch.bfloat16 if "bfloat16" in name else torch.float32
    return model.to(dtype), torch.randn(5, 24, dtype=dtype)


def trained_bytes(name: str) -> tuple[dict[str, int], int]:
    """Return the bytes that a model keeps after a step with Adam, and the bytes of Adam's step counters."""
    model, x = trial(name)
    adam = torch.optim.Adam(model.parameters())
    model(x).float().square().mean().backward()
    adam.step()
    parameters = list(model.parameters())
    state = [(key, kept) for entry in adam.state.values() for key, kept in entry.items()]
    wanted = {
        "parameters": sum(kept.nbytes for kept in (*parameters, *model.buffers())),
        "gradients": sum(kept.grad.nbytes for kept in parameters if kept.grad is not None),
        "optimizer_state": sum(kept.nbytes for key, kept in state if key != "step"),
    }
    return wanted, sum(kept.nbytes for key, kept in state if key == "step")


def saved_bytes(batch: int, widths: Sequence[int], activation: str) -> int:
    """Return the bytes that autograd saves for a network's backward pass, apart from the batch and the weights."""
    between = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
    layers: list[Any] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), between()]
    network, x = nn.Sequential(*layers[:-1]), torch.randn(batch, widths[0])
    there = {tensor.untyped_storage().data_ptr() for tensor in (x, *network.parameters())}
    saved: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        saved[tensor.untyped_storage().data_ptr()] = tensor  # kept alive, because its address could be reused otherwise
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = network(x)
    assert output.requires_grad
    return sum(tensor.untyped_storage().nbytes() for place, tensor in saved.items() if place not in there)


def measured_peak(step: Callable[[], Any]) -> int:
    """Return the peak bytes alive in a step, excluding the memory of everything else in this process."""
    memory = profile_step(step, steps=1, warmup=1, traced=1, flops=False).memory
    return int((memory["total"] - memory["other"]).max())


def monitored(monitor_of: Callable[..., Any], inputs: Iterable[Any]) -> tuple[list[float], Any, Callable[[Any], None]]:
    """Run some steps with a monitor, and return the values that it recorded, the final weights and the step."""
    with torch.random.fork_rng(devices=[]):  # does not change the reader's own random numbers
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = outcome(monitor_of, net[1])

    def step(x: Any) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for x in inputs:
        outcome(step, x)
    kept = getattr(monitor, "strengths", None)
    if not isinstance(kept, Iterable):
        raise Hint("The monitor no longer has a list called strengths.")
    numbers = (value.detach() if isinstance(value, torch.Tensor) else value for value in kept)
    strengths = [as_number(value, "A value in strengths") for value in numbers]
    return strengths, torch.cat([part.detach().flatten() for part in net.parameters()]), step


#: Tolerance for a number that was read from a report, which shows three digits.
READ = 2e-3


def measure_peak(answer: Any, profile: Any = None) -> Facts:
    memory = _profile(profile).memory
    top = int(memory["total"].argmax())
    made = profile.allocations
    phases = made.loc[made["start_ns"] == round(memory["t_ms"].iloc[top] * 1e6), "phase"]
    return as_fields(answer, most=float, sum_of_most=float, phase=str) | {
        "total": [int(memory["total"].iloc[row]) for row in (top, 0, -1)],
        "sum": int(memory[list(CATEGORIES)].max().sum()),
        "at": str(phases.iloc[0]) if len(phases) else None,
        "process": None if memory["process"].isna().all() else int(memory["process"].max()),
    }


def judge_peak(facts: Facts) -> None:
    (most, *at_ends), summed = facts["total"], facts["sum"]
    total = "is the peak of the total. First take each category's maximum, then add them up."
    for name, wanted, other, mixed_up in (
        ("most", most, summed, "adds up tensors that were not alive at the same instant."),
        ("sum_of_most", summed, most, total),
    ):
        said = Number(facts[name], wanted, READ, name)
        if facts["process"] is not None:
            said.slip(facts["process"], "covers the whole process, Python included; give the step's tensors.")
        said.slip(other, mixed_up)
        said.slip(at_ends, "is what is alive when the step starts or ends, not at the peak.")
        said.slip((wanted / MIB, wanted / 2**10), "is right except for the unit; give bytes.", 0.01)
        said.wrong("does not match the frame.")
    if facts["at"] is not None and facts["phase"].strip().lower() != facts["at"]:
        raise Hint(f"The peak is not in {facts['phase']}. The report's Memory tab shows its phase next to the peak.")


#: Kinds of models, and the hint that is given if the bytes are wrong for that kind.
TRIALS = {
    "plain": "Is every parameter counted, weights and biases?",
    "with a frozen first layer": "Which of the three does a frozen layer still have?",
    "with batch normalisation": "It has buffers, which count as parameters; do they have gradients?",
    "in bfloat16": "How many bytes does each of its numbers have? tensor.element_size() returns it.",
    "with a weight that two layers share": "A tensor shared by two layers exists only once.",
}


def measure_rule(answer: Any) -> Facts:
    function = as_function(answer, "adam_bytes(model)")
    cases = []
    for name in TRIALS:
        wanted, counters = trained_bytes(name)
        said = as_fields(outcome(function, trial(name)[0]), **dict.fromkeys(wanted, float))
        cases.append({"model": name, "said": said, "wanted": wanted, "counters": counters})
    return {"cases": cases}


def judge_rule(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(TRIALS)):
        for kind, wanted in all_there(case["wanted"], 3).items():
            with_counters = wanted + (case["counters"] if kind == "optimizer_state" else 0)
            said = Number(case["said"][kind], (wanted, with_counters), 1e-9)
            said.slip((wanted / MIB, wanted / 2**10), f"{kind}: give bytes, not KiB or MiB.", 1e-3)
            said.wrong(f"A model {case['model']}: {kind} differ from what a step leaves. {TRIALS[case['model']]}", " ")


#: Batch size, widths and activation of networks that consist of linear layers.
NETWORKS: tuple[tuple[int, tuple[int, ...], str], ...] = tuple(
    (batch, widths, activation)
    for batch, widths in ((10, (20, 30, 40, 50)), (64, (784, 256, 10)), (3, (8, 6)), (16, (8, 4, 4, 4, 2)))
    for activation in ("relu", "gelu")
)


def measure_saved(answer: Any) -> Facts:
    return {"cases": tried(as_function(answer, "saved_bytes(batch, widths, activation)"), NETWORKS, saved_bytes)}


def judge_saved(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(NETWORKS)):
        (batch, widths, activation), wanted = case["sizes"], case["wanted"]
        said = Number(case["said"], wanted, 1e-9, f"For ({batch}, {tuple(widths)}, {activation!r}):")
        last = "does any layer of this network need the last layer's output?"
        for factor in (4, 8):
            row = factor * batch
            said.slip(wanted + row * widths[0], "the batch itself is included; it exists anyway.")
            said.slip((wanted + row * widths[-1], 8 * batch * sum(widths[1:])), last)
        if wanted:
            said.slip(wanted / 4, "that is how many numbers are kept; how many bytes does a float32 have?")
            said.slip(wanted / batch, "that is for a single row of the batch.")
            twice = "that is twice as much. A layer reads the tensor that the one before wrote: is it kept twice?"
            said.slip(2 * wanted, twice)
            half = "that is half of it. Which tensor does this activation need: its output or its input?"
            said.slip(wanted / 2, half)
        said.wrong("", "this is not what autograd keeps. Go through the layers one by one.")


#: The memory limit of a step in bytes, and a factor: if a batch larger by it still fits, the answer is too small.
LIMIT, ROOM = 16 * MIB, 1.03


def measure_largest(answer: Any, make_step: Any = None) -> Facts:
    number = as_number(answer, "The largest batch")
    make = as_function(make_step, "make_step(batch)")
    if number != int(number) or not 1 <= number <= 10_000:
        raise Hint("The largest batch is a whole number of rows from 1 to 10,000.")
    if not hasattr(answer, "__index__"):
        raise Hint(f"Rows are counted, so give an int: {quoted(answer)} is a {type(answer).__name__}.")

    def peak(rows: int) -> int:
        return int(outcome(measured_peak, outcome(make, rows)))

    batch = int(number)
    peaks = {str(batch): peak(batch)}
    fits = peaks[str(batch)] <= LIMIT
    if fits or batch > 1:
        other = math.ceil(ROOM * batch) if fits else batch - 1
        peaks[str(other)] = peak(other)
    return {"batch": batch, "peaks": peaks}


def judge_largest(facts: Facts) -> None:
    batch, peaks = facts["batch"], facts["peaks"]
    peak, larger = peaks[str(batch)], str(math.ceil(ROOM * batch))
    if peak > LIMIT and peaks.get(str(batch - 1), math.inf) <= LIMIT:
        raise Hint(
            f"A step with {batch} rows needs {peak:,} bytes, just above the {LIMIT:,} available; one row less fits. "
            "A line meets the limit between two whole numbers: which way do you round?"
        )
    if peak > LIMIT:
        raise Hint(
            f"A step with {batch} rows needs {peak / MIB:.2f} MiB of {LIMIT / MIB:g} available. Do both points lie "
            "where the peak grows with the batch, and did you subtract what does not grow?"
        )
    if peaks[larger] <= LIMIT:
        raise Hint(
            f"A step with {batch} rows fits in {peak / MIB:.2f} MiB, but so does one with {larger}. Is your MiB 2**20 "
            "bytes, and does your line go through both points?"
        )


#: Maximum fraction of a step's memory that may remain, and further batch sizes that a tower is tested on.
LEFT, SMALL = 0.5, (3, 8)


def measure_checkpointed(answer: Any, plain: Any = None, rows: Any = None) -> Facts:
    new, old = as_function(answer, "tower(x)"), as_function(plain, "tower(x)")
    if not isinstance(old, nn.Module) or not isinstance(new, nn.Module) or not isinstance(rows, torch.Tensor):
        raise Hint("Pass both modules and a batch: the new one, plain=tower and rows=rows.")
    generator = torch.Generator().manual_seed(6)

    def fresh(count: int, needs_gradient: bool = False) -> tuple[Any, Any]:
        x, weights = torch.randn(2, count, rows.shape[1], generator=generator)
        return x.requires_grad_(needs_gradient), weights

    def train(tower: Any) -> None:
        tower.zero_grad()
        outcome(tower, x).float().square().mean().backward()

    same = partial(same_layer, old, new, parameters=True)
    with one_thread():
        cases = [same(*fresh(count, needs)) for count in SMALL for needs in (False, True)]
        if not all(case["forward"] and case["backward"] and not case["input_changed"] for case in cases):
            return {"cases": cases}  # a wrong result is not measured
        x, _ = fresh(len(rows))
        peaks = [measured_peak(partial(train, tower)) for tower in (old, new)]
        cases.append(same(*fresh(len(rows))))  # still right, and nothing was cached
    return {"cases": cases, "ratio": peaks[1] / peaks[0]}


def judge_checkpointed(facts: Facts) -> None:
    for case in facts["cases"]:
        missing = "a gradient of the weights or the input is missing or wrong. Every block must be trained, even if "
        judge_layer(case, "tower", f"{missing}the input needs no gradient.")
    all_there(facts["cases"], 2 * len(SMALL) + 1)
    if facts["ratio"] >= LEFT:
        raise Hint(
            f"The result is right, but a step still takes {share(facts['ratio'])} of the memory; get below "
            f"{share(LEFT)}. Tensors that are recomputed together are alive together: how many is that here?"
        )


def measure_price(answer: Any, plain: Any = None, checkpointed: Any = None, test: Any = None) -> Facts:
    given = evidence(test, ABTest)
    said = as_fields(answer, memory=float, arithmetic=float, time=float)
    facts: Facts = {"said": said, "time": given.ratio, "check": given.check}
    for name, profile in (("plain", plain), ("checkpointed", checkpointed)):
        memory, layers = _profile(profile).memory, profile.layers
        flops = layers.loc[layers["depth"] == 0, [f"{way}_flops" for way in ("forward", "backward", "recompute")]]
        facts[name] = {
            "peak": int((memory["total"] - memory["other"]).max()),
            "with_others": int(memory["total"].max()),
            "flops": [int(count) for count in flops.sum()],
        }
    return facts


def judge_price(facts: Facts) -> None:
    before, after = facts["plain"], facts["checkpointed"]
    if not sum(before["flops"]) or not sum(after["flops"]):
        raise Hint("A profile has no FLOPs: do not disable them when you make it.")
    if after["flops"][2] == 0 or before["flops"][2] > 0:
        raise Hint("The second profile recomputes nothing, or the first one does: is plain=plain the first?")
    judge_checked(facts["check"])
    others = "uses the column `total`, which includes `other`: tensors that this notebook keeps and no step needs. "
    others += "peak_bytes leaves them out."
    as_many = "is 1, which would mean as many FLOPs as before. Recomputation has its own column."
    forward = "is only the forward pass; take the whole step."
    textbook = "is the textbook's 4/3. Is the whole forward pass repeated? Divide the counted FLOPs."
    flops = sum(before["flops"])
    slips = {as_many: 1.0, forward: after["flops"][0] / flops, textbook: 4 / 3}
    for name, wanted, within, own_slips in (
        ("memory", after["peak"] / before["peak"], 0.02, {others: after["with_others"] / before["with_others"]}),
        ("arithmetic", sum(after["flops"]) / flops, 5e-3, slips),  # shown with three digits
        ("time", facts["time"], 0.03, {}),
    ):
        number = Number(facts["said"][name], wanted, within, name)
        for words, value in own_slips.items():
            number.slip(value, words)
        number.slip(1 / wanted, "is the inverse: divide the checkpointed step by the plain one.")
        number.slip(abs(1 - wanted), "is only the change. Give the whole ratio: 1 means as much as before.")
        number.wrong("is not the checkpointed step divided by the plain one.")


def measure_leak(answer: Any, leaks: Any = None) -> Facts:
    leaks = evidence(leaks, Leaks)
    made = leaks.survivors.dropna(subset=["layer", "bytes_per_step"])
    process = leaks.process
    return as_fields(answer, layer=str, kib_per_step=float) | {
        "verdict": str(leaks.verdict),
        "layers": {str(name): float(size) for name, size in made.groupby("layer")["bytes_per_step"].sum().items()},
        "growth": None if leaks.allocator is None else float(leaks.allocator.bytes_per_step),
        "process": None if process is None else [process.bytes_per_step, process.ci_low, process.ci_high],
        "steps": len(leaks.steps),
    }


def judge_leak(facts: Facts) -> None:
    layers, growth = facts["layers"], facts["growth"]
    hint_if(facts["verdict"] != "leak", f"The report says: {facts['verdict']}. Test the step that leaks.")
    if not layers or growth is None:
        raise Hint("The report names no layer that allocated what leaks. Test the step that leaks.")
    if facts["layer"] not in layers:
        raise Hint(f"Nothing allocated in {facts['layer']!r} leaks; use a name from leaks.survivors.")
    if layers[facts["layer"]] < max(layers.values()):
        raise Hint(f"Something allocated in {facts['layer']} leaks, but it is not the largest part. Compare the bytes.")
    wanted, steps = growth / 2**10, facts["steps"]
    kib = Number(facts["kib_per_step"], wanted, 0.01, "kib_per_step")
    kib.slip((growth, wanted / 2**10), "is in another unit: a KiB is 1,024 bytes.")
    all_steps = "is the growth over all steps of the test; how much is it per step?"
    kib.slip((wanted * steps, wanted * (steps - 1)), all_steps, 0.05)
    if facts["process"] is not None and not kib.right:
        middle, *ends = facts["process"]
        low, high = (middle if end is None else end for end in ends)
        if 0.98 * low <= 2**10 * facts["kib_per_step"] <= 1.02 * high:
            raise Hint(
                "kib_per_step seems to be the growth of the whole process, which also allocates outside torch. The "
                "growth of torch's memory is in the row above."
            )
    if facts["kib_per_step"] < 0.01 * wanted:
        raise Hint("kib_per_step is far too small: the list's own size does not include what it keeps alive.")
    kib.wrong("is not the growth per step.")


#: Number of steps when comparing a monitor with the leaking one, rows per batch, and harmless bytes per step.
MONITORED, ROWS, HARMLESS = 12, 128, 256


def measure_mended(answer: Any, leaky: Any = None) -> Facts:
    inputs = torch.randn(MONITORED, ROWS, 32, generator=torch.Generator().manual_seed(7))
    with one_thread():
        wanted, weights, _ = monitored(as_function(leaky, "Monitor(layer)"), inputs)
        said, learned, step = monitored(as_function(answer, "Monitor(layer)"), inputs)
        facts: Facts = {"wanted": wanted, "said": said, "training": agree(weights, learned)}
        if not facts["training"] or not agree(wanted, said):
            return facts  # a wrong result is not measured
        leaks = find_leaks(step, iter(lambda: inputs[0], None), steps=15)
    return facts | {
        "allocated": None if leaks.allocator is None else float(leaks.allocator.bytes_per_step),
        "process": None if leaks.process is None else leaks.process.ci_low,
        "batch": ROWS * 64 * 4,
    }


def judge_mended(facts: Facts) -> None:
    said, wanted = facts["said"], all_there(facts["wanted"], MONITORED)
    hint_if(not facts["training"], "The network no longer trains as before: a monitor must only observe.")
    if len(said) != len(wanted):
        raise Hint(f"After {len(wanted)} steps, strengths has {len(said)} values; keep one per step.")
    hint_if(not agree(wanted, said), "strengths has different values than before.")
    if facts["allocated"] is None:
        raise Hint("The values are right, but torch's memory could not be watched. Rerun the check.")
    if facts["allocated"] > HARMLESS:
        raise Hint(
            "The values are right, but memory still grows by more than a number per step. Which tensor does "
            "autograd keep for a backward pass that never comes, or what else do you keep?"
        )
    if facts["process"] is not None and facts["process"] > facts["batch"] / 2:
        raise Hint("torch's memory no longer grows, but the process's does: something is kept outside torch.")


def _profile(given: Any) -> Profile:
    profile = evidence(given, Profile)
    hint_if(profile.memory.empty, "The profile was recorded without memory.")
    return profile


#: Sizes of the steps that are passed to `ordered`, in MiB.
EPOCHS = ([10, 12, 14, 30, 16, 12], [64, 8, 8, 40, 2], [7, 9, 11, 13, 15, 17, 19], [5, 5, 50, 5])


def measure_ordered(answer: Any) -> Facts:
    function = as_function(answer, "ordered(sizes)")
    cases = []
    for sizes in EPOCHS:
        said = as_numbers(outcome(function, list(sizes)), len(sizes), "sizes")
        same = sorted(said) == sorted(sizes)
        reserved = steps([int(size) for size in said]).reserved_mib if same else None
        cases.append({"sizes": sizes, "said": said, "reserved": reserved})
    return {"cases": cases}


def judge_ordered(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(EPOCHS)):
        sizes, said = case["sizes"], case["said"]
        where = f"For the sizes {', '.join(f'{size:g}' for size in sizes)}"
        if sorted(said) != sorted(sizes):
            raise Hint(
                f"{where} you return other sizes: {', '.join(f'{size:g}' for size in said)}. Change only their order."
            )
        least = -(-max(sizes) // ROUND_MIB) * ROUND_MIB
        if case["reserved"] > least:
            order = "in your order"
            if said == sizes:
                order = "in the given order"
            elif said == sorted(sizes):
                order = "with the shortest first"
            raise Hint(
                f"{where}, {order}, {case['reserved']} MiB are reserved; {least} are enough. Which step finds a free "
                "block that is large enough, and which one does not?"
            )


EXERCISES = (
    Exercise("4.1", "The peak", measure_peak, judge_peak),
    Exercise("4.2", "Sixteen bytes", measure_rule, judge_rule),
    Exercise("4.3", "What backward needs", measure_saved, judge_saved),
    Exercise("4.4", "The largest batch", measure_largest, judge_largest),
    Exercise("4.5", "Checkpoints", measure_checkpointed, judge_checkpointed),
    Exercise("4.6", "The price", measure_price, judge_price),
    Exercise("4.7", "A leak", measure_leak, judge_leak),
    Exercise("4.8", "The leak fixed", measure_mended, judge_mended),
    Exercise("4.9", "Reserved, but of no use", measure_ordered, judge_ordered),
)
