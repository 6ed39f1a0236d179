"""Attribute the time of the traced steps to layers and phases.

1. `blocks` cuts the trace into intervals that can own time (steps, waits for data, layer spans, backward nodes,
   optimizer steps) and nests them in the way they ran. The time between them also becomes blocks.
2. `attribution` finds the forward op that created each backward node, using autograd's sequence numbers. The node
   belongs to the layer where that op ran. Each block becomes a cell with a phase, an owner and the block's own time,
   which excludes the blocks inside it. A kernel counts towards the cell of the call that launched it.
3. Every table of times (`tables`, `events`, `arithmetic`) is a sum of cells, so each table adds up to the step. Time
   that does not belong to any layer is shown as unattributed.

`device_work` describes the work that ran on the GPUs and the calls that launched it.

This package is large because attribution must be exact even with recursion, shared layers, recomputation, threads and
collectives. Each of these cases is covered by a test with known times.
"""
