"""A simulated caching allocator for lab 4.

It follows the same rules as torch's allocator for large tensors on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfnb.errors import LabError

#: The size of a segment is a multiple of this number of MiB.
ROUND_MIB = 2


@dataclass
class _Block:
    mib: int
    free: bool = True


@dataclass
class CachingAllocator:
    """Allocate memory in blocks without ever returning reserved memory to the GPU. All sizes are whole MiB.

    Each request is served from the smallest free block that is large enough, and the rest of that block stays free. If
    no block is large enough, the allocator reserves a new segment. Adjacent free blocks are merged if they are in the
    same segment. Blocks from different segments are never merged.

    Attributes
    ----------
    reserved_mib, allocated_mib : int
        The memory that the allocator has reserved, and the part of it that is in use.
    history : list of (int, int)
        Both figures after each request and each release.
    """

    reserved_mib: int = 0
    allocated_mib: int = 0
    history: list[tuple[int, int]] = field(default_factory=list)
    _segments: list[list[_Block]] = field(default_factory=list, repr=False)

    def allocate(self, mib: int) -> _Block:
        """Return a block of the given size. Pass it to `free` when it is no longer needed."""
        if mib != int(mib) or mib < 1:
            raise LabError(f"The size must be a whole number of MiB and at least 1, not {mib}.")
        mib = int(mib)
        fitting = [
            (block.mib, number, place)
            for number, segment in enumerate(self._segments)
            for place, block in enumerate(segment)
            if block.free and block.mib >= mib
        ]
        if not fitting:
            size = -(-mib // ROUND_MIB) * ROUND_MIB
            self.reserved_mib += size
            self._segments.append([_Block(size)])
            fitting = [(size, len(self._segments) - 1, 0)]
        _, number, place = min(fitting)
        segment = self._segments[number]
        block, rest = _Block(mib, free=False), segment[place].mib - mib
        segment[place : place + 1] = [block, _Block(rest)] if rest else [block]
        self._moved(mib)
        return block

    def free(self, block: _Block) -> None:
        """Return a block to the allocator, which keeps it reserved."""
        if block.free:
            raise LabError("This block has already been freed.")
        block.free = True
        for number, segment in enumerate(self._segments):
            merged: list[_Block] = []
            for each in segment:
                if merged and merged[-1].free and each.free:
                    merged[-1] = _Block(merged[-1].mib + each.mib)
                else:
                    merged.append(each)
            self._segments[number] = merged
        self._moved(-block.mib)

    def _moved(self, mib: int) -> None:
        self.allocated_mib += mib
        self.history.append((self.reserved_mib, self.allocated_mib))


def steps(sizes_mib: list[int]) -> CachingAllocator:
    """Return an allocator after one step per size, each of which allocates its activations and frees them again."""
    gpu = CachingAllocator()
    for mib in sizes_mib:
        gpu.free(gpu.allocate(mib))
    return gpu
