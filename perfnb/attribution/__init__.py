"""Attribution: which layer and which phase own the time of the traced steps.

1. `blocks` cuts the trace into intervals that can own time (steps, waits for data, layer spans, backward nodes,
   optimizer steps), nests them as they ran, and also turns the time between them into blocks.
2. `attribution` finds the forward op that created each backward node, using autograd's sequence numbers. The node
   belongs to the layer where that op ran. Each block becomes a cell with one phase, one owner and the block's own
   time, which excludes the blocks inside it. A kernel counts in the cell of the call that launched it.
3. Every table of times (`tables`, `events`, `arithmetic`) is a sum of cells, so each table adds up to the step. Time
   that no layer owns is shown as unattributed.

`device_work` describes the work that ran on the GPUs and which call launched it.

The room is large because attribution is exact with recursion, shared layers, recomputation, threads and collectives,
each of which is planted in a test.
"""
