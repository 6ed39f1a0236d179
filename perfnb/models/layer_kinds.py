"""The kind of work a layer or an operator does, by which models of different designs can be compared."""

from __future__ import annotations

import re

import pandas as pd

from perfnb.recording.schema import SPECIAL_ROWS
from perfnb.recording.text import TEXT

KINDS = ("attention", "linear", "convolution", "normalisation", "activation", "embedding", "other")

#: Class names of the layers of each kind; the first match counts.
_CLASSES = {
    "attention": r"attention|attn|^MHA",
    "normalisation": r"norm",
    "convolution": r"conv",
    "embedding": r"embed",
    "linear": r"linear|^dense$",
    "activation": (
        r"(re|ge|se|ce|si|gl|pre)lu|tanh|sigmoid|softmax|softplus|softsign|swish|mish|activation|^hard|threshold|"
        r"dropout"  # elementwise too, and as cheap
    ),
}
#: The same for operators, autograd's included, of layers whose class says nothing.
_OPS = {
    "attention": r"attention",
    "normalisation": r"norm",
    "convolution": r"conv",
    "embedding": r"embedding",
    "linear": r"addmm|addmv|addbmm|baddbmm|bmm|matmul|linear|::mm$|::mv$|^mm|einsum|dot$",
    "activation": r"(re|ge|se|ce|si|g|pre)lu|tanh|sigmoid|softmax|softplus|swish|mish|threshold|dropout|clamp_min",
}


def kind_of_class(name: str) -> str | None:
    """The kind of a layer by its class name; ``None`` if unknown.

    ``Conv1D`` is what transformers calls a linear layer; torch's convolution is ``Conv1d``.
    """
    if name == "Conv1D":
        return "linear"
    return next((kind for kind, words in _CLASSES.items() if re.search(words, name, re.IGNORECASE)), None)


def kind_of_op(name: str) -> str:
    """The kind of an operator by its name."""
    return next((kind for kind, words in _OPS.items() if re.search(words, name, re.IGNORECASE)), "other")


def kinds_of_layers(layers: pd.DataFrame) -> pd.Series:
    """The kind of each row of the frame ``layers``; missing if only its operators tell.

    Everything inside an attention layer, projections included, is attention.
    """
    kinds: list[str | None] = []
    around: list[tuple[int, bool]] = []  # depth of each layer around, and whether it is or is inside attention
    for name, kind, depth in zip(layers.index, layers["module"], layers["depth"].fillna(0), strict=True):
        if name in SPECIAL_ROWS:
            kinds.append(None)
            continue
        around = [each for each in around if each[0] < depth]
        own = None if pd.isna(kind) else kind_of_class(str(kind))
        inside = own == "attention" or bool(around and around[-1][1])
        around.append((int(depth), inside))
        kinds.append("attention" if inside else own)
    return pd.Series(kinds, index=layers.index, dtype=TEXT)


def time_by_kind(layers: pd.DataFrame, layer_ops: pd.DataFrame) -> pd.Series:
    """Milliseconds of a traced step's operators by kind, in GPU time if there is any; all of `KINDS`, in order.

    Parameters
    ----------
    layers, layer_ops : DataFrame
        The frames of that name.
    """
    on_gpu = layer_ops["gpu_ms"].notna().any()
    of_layer = kinds_of_layers(layers)
    of_layer = of_layer[~of_layer.index.duplicated()]
    kind = layer_ops["layer"].map(of_layer)
    ops = {str(name): kind_of_op(str(name)) for name in layer_ops["op"].unique()}
    kind = kind.where(kind.notna(), layer_ops["op"].map(ops))
    ms = layer_ops["gpu_ms" if on_gpu else "self_cpu_ms"].astype("Float64").fillna(0.0)
    return ms.groupby(kind.astype(TEXT)).sum().reindex(list(KINDS), fill_value=0.0)
