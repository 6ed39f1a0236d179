"""Checks of lab 5, *Architectures*."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from perfnb import ArchitectureComparison
from perfnb.labs.answers import as_function, as_number, as_numbers, close, outcome, require, slip
from perfnb.labs.exercise import Exercise, Facts, Hint, all_there
from perfnb.labs.growth import judge_held_out, judge_law, measure_held_out, measure_law
from perfnb.labs.lab_03 import counted
from perfnb.quantities import share

PIXELS, DIGITS = 64, 10
#: Parameters of the lab's CNN.
CNN = 25_866


def mlp_parameters(width: int) -> int:
    """Parameters of an MLP with two hidden layers of this width."""
    return sum(inputs * outputs + outputs for inputs, outputs in ((PIXELS, width), (width, width), (width, DIGITS)))


def measure_width(answer: Any, like: Any = None) -> Facts:
    if not hasattr(like, "parameters"):
        raise Hint("Pass the CNN as well: like=cnn.")
    width = as_number(answer, "The width")
    if width != int(width) or width < 1:
        raise Hint(f"A layer has a whole number of outputs, at least one, not {width:g}.")
    near = {str(each): mlp_parameters(each) for each in range(max(1, int(width) - 1), int(width) + 2)}
    return {"width": int(width), "near": near, "wanted": sum(each.numel() for each in like.parameters())}


def judge_width(facts: Facts) -> None:
    wanted, own = facts["wanted"], facts["near"][str(facts["width"])]
    if wanted != CNN:
        raise Hint(
            f"This model has {wanted:,} parameters, so it is not the lab's CNN: pass like=cnn, the result of make_cnn."
        )
    if all(abs(own - wanted) <= abs(other - wanted) for other in facts["near"].values()):
        return
    words = f"With this width the MLP has {own:,} parameters; the CNN has {wanted:,}."
    if close(own, wanted, 0.02):
        raise Hint(f"{words} A neighbouring width is closer: does every linear layer have a bias?")
    raise Hint(f"{words} Count again: three linear layers, the middle one with width × width weights.")


def measure_uses(answer: Any, comparison: Any = None, images: Any = None) -> Facts:
    table = _comparison(comparison).table
    said = as_numbers(answer, tuple(map(str, table.index)))
    batch = as_number(len(images) if hasattr(images, "__len__") else images, "The number of images")
    counts = table[["parameters", "forward_flops", "backward_flops"]].astype(int)
    return {"said": said, "batch": batch, "models": counts.to_dict("index")}


def judge_uses(facts: Facts) -> None:
    for name, said in all_there(facts["said"], 1, or_more=True).items():
        model, batch = facts["models"][name], facts["batch"]
        wanted = model["forward_flops"] / 2 / model["parameters"] / batch
        if close(said, wanted, 0.01):
            continue
        both = (model["forward_flops"] + model["backward_flops"]) / model["forward_flops"]
        for factor, words in (
            (both, "It includes backward; count only the forward pass."),
            (both - 1, "That is the backward pass; count the forward pass."),
            (batch, f"That is for the whole batch of {batch:g} images; give it for one image."),
            (2.0, "A use is a product and an addition, which are two FLOPs."),
            (2 * batch, f"That is FLOPs per parameter, for {batch:g} images. Take one image, and two FLOPs per use."),
        ):
            if close(said, factor * wanted, 0.01):
                raise Hint(f"{name}: {words}")
        raise Hint(f"{name}: {slip(said, wanted, 0.01)}")


def measure_decomposition(answer: Any, comparison: Any = None) -> Facts:
    found = _comparison(comparison)
    said = as_numbers(answer, ("time", "arithmetic", "per_flop"))
    pairs = found.ratios.set_index(["a", "b"])["ratio"]
    table = found.table
    if ("cnn", "transformer") not in pairs.index:
        raise Hint("The comparison does not have the three models; pass comparison=comparison.")
    both = table["forward_flops"] + table["backward_flops"]
    return {
        "said": said,
        "time": [float(pairs["cnn", "transformer"]), _by(table["median_ms"], "transformer", "cnn")],
        "arithmetic": _by(both, "transformer", "cnn"),
        "forward": _by(table["forward_flops"], "transformer", "cnn"),
    }


def _by(column: Any, above: str, below: str) -> float:
    return float(column[above]) / float(column[below])


def judge_decomposition(facts: Facts) -> None:
    said, arithmetic = facts["said"], facts["arithmetic"]
    if not any(close(said["time"], each, 0.02) for each in facts["time"]):
        raise Hint(f"time is not the measured ratio. {slip(said['time'], facts['time'][0], 0.02)}")
    if not close(said["arithmetic"], arithmetic, 2e-3):
        if close(said["arithmetic"], facts["forward"], 1e-3):
            raise Hint("arithmetic counts only the forward pass, but a training step was timed.")
        raise Hint(f"arithmetic is not the ratio of the counts. {slip(said['arithmetic'], arithmetic, 2e-3)}")
    wanted = said["time"] / arithmetic
    if not close(said["per_flop"], wanted, 0.02):
        if close(said["per_flop"], said["time"] * arithmetic, 0.02):
            raise Hint("per_flop multiplies instead of dividing: time = arithmetic × per_flop.")
        raise Hint(f"per_flop does not match the other two. {slip(said['per_flop'], wanted, 0.02)}")


#: Numbers of images for testing the accuracy of made-up models.
TRIED = (200, 37)


def measure_accuracy(answer: Any) -> Facts:
    import torch
    from torch import nn

    accuracy = as_function(answer, "accuracy(model, images, labels)")
    generator = torch.Generator().manual_seed(5)
    cases = []
    for images_tried in TRIED:
        images = torch.rand(images_tried, 1, 8, 8, generator=generator)
        labels = torch.randint(DIGITS, (images_tried,), generator=generator)
        norm = nn.BatchNorm1d(PIXELS)
        norm.running_mean = torch.rand(PIXELS, generator=generator)
        net = nn.Sequential(nn.Flatten(), norm, nn.Dropout(0.5), nn.Linear(PIXELS, DIGITS))
        logits = net.eval()(images)
        labels[: images_tried // 3] = logits.argmax(1)[: images_tried // 3]  # better than chance
        for training in (True, False):
            net.train(training)
            kept = [each.clone() for each in net.state_dict().values()]
            said = as_number(outcome(accuracy, net, images, labels), "The result of your function")
            same = all(map(torch.equal, kept, net.state_dict().values()))
            cases.append(
                {
                    "images": images_tried,
                    "right": int((logits.argmax(1) == labels).sum()),
                    "said": said,
                    "training": [training, net.training],
                    "unchanged": same and all(each.grad is None for each in net.parameters()),
                }
            )
    return {"cases": cases}


def judge_accuracy(facts: Facts) -> None:
    for case in all_there(facts["cases"], 2 * len(TRIED)):
        right, images, said = case["right"], case["images"], case["said"]
        wanted = right / images
        if not case["unchanged"]:
            raise Hint("The model was changed: its running means or gradients differ. Is it in evaluation mode?")
        if not np.isclose(said, wanted, atol=1e-6):
            if right > 1 and close(said, right, 1e-6):
                raise Hint("That is how many are right; give the fraction.")
            if np.isclose(said, 1 - wanted, atol=1e-6):
                raise Hint("That is the fraction of mistakes.")
            if close(said, 100 * wanted, 1e-6):
                raise Hint("It looks like percent; give a fraction from 0 to 1.")
            mode = "starts in training mode" if case["training"][0] else "starts in evaluation mode"
            raise Hint(
                f"For a model that {mode} you return {said:.3g}, but {right} of {images} images are right. Is it run"
                " in evaluation mode, and is the largest of ten outputs compared with the label?"
            )
        if case["training"][0] != case["training"][1]:
            raise Hint("The answer is right, but the model's mode is not restored.")


#: Length and width of blocks.
BLOCKS = ((64, 64), (512, 64), (7, 12), (100, 32), (1, 4))


def measure_block(answer: Any) -> Facts:
    function = as_function(answer, "block_flops(length, width)")
    cases = []
    for length, width in BLOCKS:
        parts = _two(outcome(function, length, width))
        cases.append({"sizes": [length, width], "said": parts, "counted": _counted_block(length, width)})
    return {"cases": cases}


def _two(returned: Any) -> list[float]:
    if returned is None:
        raise Hint("The function returns nothing yet.")
    if not isinstance(returned, Iterable) or len(parts := list(returned)) != 2:
        raise Hint("Return two numbers: the FLOPs of the linear layers, and those of attention's two products.")
    return [as_number(part, "A part of the result") for part in parts]


def _counted_block(length: int, width: int) -> list[int]:
    from torch import nn, ones

    def linears() -> None:
        for inputs, outputs in ((1, 3), (1, 1), (1, 4), (4, 1)):
            nn.Linear(inputs * width, outputs * width)(ones(1, length, inputs * width))

    def products() -> None:
        query, key, value = (ones(1, length, width) for _ in range(3))
        (query @ key.transpose(1, 2)) @ value

    return [counted(linears), counted(products)]


def judge_block(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(BLOCKS)):
        length, width = case["sizes"]
        (linear, square), (all_linear, all_square) = case["said"], case["counted"]
        where = f"For a length of {length} and a width of {width}: "
        if close(linear, all_linear, 1e-9) and close(square, all_square, 1e-9):
            continue
        if close(linear, all_square, 1e-9) and close(square, all_linear, 1e-9):
            raise Hint("The two parts are swapped: the linear layers come first.")
        if not close(linear, all_linear, 1e-9):
            left_out = round((all_linear - linear) / (2 * length * width**2), 9)
            words = {1: "the layer after attention, `out`", 3: "`qkv`", 4: "one of the MLP's layers (or both others)"}
            if left_out in words:
                raise Hint(f"{where}{words[int(left_out)]} seems to be missing from the linear layers.")
            raise Hint(f"{where}the linear layers. {_miscounted(linear, all_linear)}")
        if close(square, all_square / 2, 1e-9):
            raise Hint(f"{where}the products of attention are half: there are two, and a use is two FLOPs.")
        raise Hint(f"{where}the products of attention. {_miscounted(square, all_square)}")


def _miscounted(said: float, wanted: float) -> str:
    if close(said, 3 * wanted, 1e-9):
        return "It is three times too much: count only the forward pass."
    return slip(said, wanted, 1e-9, "It does not match: how do length and width enter the size of each product?")


def measure_share(answer: Any, comparison: Any = None) -> Facts:
    found = _comparison(comparison)
    said = as_numbers(answer, ("time", "arithmetic", "per_flop"))
    lengths = [name for name in found.profiles if name.isdecimal()]
    if not lengths:
        raise Hint("The comparison has no lengths; pass the second one, comparison=at_lengths.")
    longest = max(lengths, key=int)
    layers = found.profiles[longest].layers
    flops = layers["forward_flops"].fillna(0) + layers["backward_flops"].fillna(0)
    inside = flops[flops.index.str.endswith(".attention")]
    products = inside.sum() - flops[flops.index.str.contains(r"\.attention\.")].sum()
    shares = found.shares.query("by == 'kind' and part == 'attention'").set_index("name")["share"].to_dict()
    return {
        "said": said,
        "longest": longest,
        "shares": {str(name): float(found) for name, found in shares.items()},
        "arithmetic": float(inside.sum() / flops[longest]),
        "products": float(products / flops[longest]),
        "forward": float(layers["forward_flops"][inside.index].sum() / flops[longest]),
    }


def judge_share(facts: Facts) -> None:
    said, shares, arithmetic = facts["said"], facts["shares"], facts["arithmetic"]
    time = shares[facts["longest"]]
    if not close(said["time"], time, 0.02):
        others = [name for name, found in shares.items() if close(said["time"], found, 0.005)]
        if others:
            raise Hint(f"time is the share at length {others[0]}; give it for the longest.")
        raise Hint(f"time is not the share of the kind attention. {slip(said['time'], time, 0.02)}")
    if not close(said["arithmetic"], arithmetic, 5e-3):
        if close(said["arithmetic"], facts["products"], 5e-3):
            raise Hint("arithmetic has only the two products, but the time includes the layers `qkv` and `out`.")
        if close(said["arithmetic"], 1 - facts["products"], 5e-3):
            raise Hint("arithmetic is the share of the linear layers.")
        if close(said["arithmetic"], facts["forward"], 5e-3):
            raise Hint("arithmetic counts attention's forward pass, but both passes of the block.")
        raise Hint(f"arithmetic is not the share of the attention layer. {slip(said['arithmetic'], arithmetic, 5e-3)}")
    wanted = (time / (1 - time)) / (arithmetic / (1 - arithmetic))
    if close(said["per_flop"], wanted, 0.05):
        return
    if close(said["per_flop"], time / arithmetic, 0.03):
        raise Hint("per_flop compares attention with the whole block, which includes it; compare it with the rest.")
    raise Hint(f"per_flop does not match the two shares. {slip(said['per_flop'], wanted, 0.05)}")


#: How far a share may fall from one length to the next and still count as rising.
FLAT = 0.02


def doubts_of_share(facts: Facts) -> str:
    """Why a measurement is unreliable if attention's share does not rise with the length; empty otherwise."""
    shares = [facts["shares"][name] for name in sorted(facts["shares"], key=float)]
    if all(later > earlier - FLAT for earlier, later in itertools.pairwise(shares)):
        return ""
    return (
        "attention's share of time should rise with the length, as its arithmetic does; yours goes "
        f"{', '.join(map(share, shares))}. The machine was probably busy: rerun the cell"
    )


def _comparison(given: Any) -> ArchitectureComparison:
    return require(given, ArchitectureComparison, "Pass a comparison, as from perfnb.compare_architectures.")


EXERCISES = (
    Exercise("5.1", "The same number of parameters", measure_width, judge_width),
    Exercise("5.2", "How often a weight is used", measure_uses, judge_uses),
    Exercise("5.3", "Time by arithmetic", measure_decomposition, judge_decomposition),
    Exercise("5.4", "What was learned", measure_accuracy, judge_accuracy),
    Exercise("5.5", "Arithmetic of a block", measure_block, judge_block),
    Exercise("5.6", "Attention's share", measure_share, judge_share, doubts=doubts_of_share),
    Exercise("5.7", "A held-out size", measure_held_out, judge_held_out, timed=True),
    Exercise("5.8", "A law that knows more", measure_law, judge_law),
)
