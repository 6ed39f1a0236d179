"""Find the forward op of each backward node, using the sequence numbers that autograd assigns to both."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.attribution.blocks import Host, Kind
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.text import of_labels
from perfnb.trace_names import ACCUMULATE_GRAD


def owning_blocks(events: pd.DataFrame, host: Host) -> Ints:
    """Return the block where each backward node's forward op ran, or `NONE` for blocks that are not backward nodes.

    If the op itself ran in a backward node (double backward), the forward op of that node determines the block.
    """
    owner = np.append(host.block, NONE)[makers(events, host)]
    is_node = (host.blocks["kind"] == Kind.NODE).to_numpy()
    for _ in range(len(owner)):  # in an unusual trace, a node may refer to itself
        through = (owner != NONE) & is_node[owner]
        if not through.any():
            break
        owner = np.where(through, owner[owner], owner)
    return owner


def makers(events: pd.DataFrame, host: Host) -> Ints:
    """Return the index in `host` of the forward op that created each backward node.

    The result is `NONE` for blocks that are not backward nodes.
    """
    result = np.full(len(host.blocks), NONE, dtype=np.int64)
    nodes = np.flatnonzero((host.blocks["kind"] == Kind.NODE).to_numpy())
    result[nodes] = forward_ops(events, host, _numbered_rows(events, host, nodes))
    return result


def _numbered_rows(events: pd.DataFrame, host: Host, nodes: Ints) -> Ints:
    """Return the rows of the events that have the nodes' sequence numbers.

    This is the node itself, or the op inside it if a hook ran other ops first.
    """
    sequence, forward_thread = (events[name].to_numpy()[host.rows] for name in ("sequence", "forward_thread"))
    places = np.flatnonzero((sequence != NONE) & (forward_thread > 0))
    places = places[np.argsort(host.starts[places], kind="stable")]
    inside = pd.Series(host.rows[places], index=host.block[places])
    rows: Ints = inside[~inside.index.duplicated()].reindex(nodes, fill_value=NONE).to_numpy(dtype=np.int64)
    return np.where(rows != NONE, rows, host.blocks["event"].to_numpy()[nodes])


def forward_ops(events: pd.DataFrame, host: Host, rows: Ints) -> Ints:
    """Return the forward ops for events in a backward pass, as indices of host events.

    The result is `NONE` if the forward op was not recorded. `rows` are the rows of backward nodes, or of the ops inside
    them that have their sequence numbers.
    """
    result = np.full(len(rows), NONE, dtype=np.int64)
    columns = ("sequence", "forward_thread", "start_ns")
    asked_number, asked_thread, asked_at = (events[name].to_numpy()[rows] for name in columns)
    sequence, forward_thread = (events[name].to_numpy()[host.rows] for name in columns[:2])
    forward = np.flatnonzero((sequence != NONE) & (forward_thread <= 0))
    number, thread = sequence[forward], host.thread[forward]
    numbered = (asked_number != NONE) & (asked_thread > 0)
    for one in np.unique(asked_thread[numbered]):
        asked = np.flatnonzero(numbered & (asked_thread == one))
        of_thread = thread == _thread_of(asked_number[asked], number, thread)
        on_thread = forward[of_thread]
        place = _latest_before(number[of_thread], host.starts[on_thread], asked_number[asked], asked_at[asked])
        result[asked] = np.append(on_thread, NONE)[place]
    return result


def accumulates(events: pd.DataFrame, host: Host) -> np.ndarray:
    """Return whether each block is a node that accumulates a parameter's gradient."""
    adds = of_labels(events["name"], lambda name: ACCUMULATE_GRAD in name)
    event = host.blocks["event"].to_numpy()
    is_node = (host.blocks["kind"] == Kind.NODE).to_numpy()
    return is_node & np.where(event != NONE, adds[event], False)


def _thread_of(numbers: Ints, op_number: Ints, op_thread: Ints) -> int:
    """Return the thread in the trace with most of these sequence numbers. torch's own thread numbers are different."""
    threads = np.unique(op_thread).tolist()
    return max(threads, key=lambda one: np.isin(numbers, op_number[op_thread == one]).sum(), default=NONE)


def _latest_before(number: Ints, start: Ints, wanted: Ints, before: Ints) -> Ints:
    """Return the index of the last entry up to each wanted number and time.

    Entries are sorted by number, then by start.
    """
    # Entries and queries are sorted together. The answer to each query is the last entry before it.
    numbers, times = np.concatenate([number, wanted]), np.concatenate([start, before])
    is_entry = np.arange(len(numbers)) < len(number)
    order = np.lexsort((is_entry, times, numbers))
    last = np.maximum.accumulate(np.where(is_entry[order], np.arange(len(order)), NONE))
    asked = ~is_entry[order]
    result = np.empty(len(wanted), dtype=np.int64)
    result[order[asked] - len(number)] = np.where(last != NONE, order[last], NONE)[asked]
    return result
