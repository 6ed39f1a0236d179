"""Find the operations that each kernel in a compiled graph computes, and the bytes that they move.

The bytes are those read from and written to memory. Inductor attributes more operations to a kernel than the kernel
actually computes. In particular, it includes operations whose results an earlier kernel has already stored, and library
operators whose inputs the kernel only prepares. The operations that a kernel computes are therefore derived from
the graph, according to these rules:

- A library kernel computes the operator that it is named after, and no other kernel computes this operator.
- For any other operation, the first kernel that is named with it stores its result if the result is needed by the
  graph's caller, a library operator, or an operation in a kernel that is not named with it. Other kernels read the
  stored result.
- A result that is not needed outside stays inside each kernel. Operations that several kernels need are computed in
  each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from perfnb.recording.nesting import NONE
from perfnb.trace.trace_file import MAX_DEPTH, MOST_TEXT

#: Texts and numbers that are accepted from a file.
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
_Whole = Annotated[int, Meta(ge=0, lt=2**53)]


class Operation(NamedTuple):
    """An operation in a graph after Inductor's passes, or an input of the graph."""

    name: Text
    #: The name as in a trace, such as ``aten::gelu``; empty for an input.
    op: Text
    #: The modules that called it, from the outside in: their paths in the compiled code, and their classes.
    modules: Annotated[tuple[tuple[Text, Text], ...], Meta(max_length=MAX_DEPTH)]
    inputs: tuple[Text, ...]
    #: Size of the result.
    bytes: _Whole
    flops: _Whole
    #: The line of user code: file, number and text; ``None`` if it is unknown.
    source: tuple[Text, _Whole, Text] | None = None
    #: Whether the result is a view of the first input, which means that the operation computes nothing.
    view: bool = False
    #: Whether the graph returns the result.
    returned: bool = False


class Kernel(NamedTuple):
    """A kernel call in a compiled graph."""

    #: The name as in the generated code: ``cpp_fused_gelu_1``, ``extern_kernels.addmm``.
    name: Text
    #: Whether it is a library operator, as opposed to generated code.
    extern: bool
    #: Keys of the operations that Inductor attributes to it.
    operations: tuple[Text, ...]


class Work(NamedTuple):
    """The work that a kernel does."""

    #: The operations that it computes, by key, with the bytes that each reads from or writes to memory. Values passed
    #: between operations inside the kernel are not counted.
    moved: Mapping[str, int]
    #: Whether a result is only used by code outside the graph.
    leaves: bool


#: Operations that read only as many elements of their first input as they return.
_PICKING = frozenset(f"aten::{name}" for name in ("embedding", "index", "index_select", "gather", "_unsafe_index"))


def work_of(kernels: Sequence[Kernel], operations: Mapping[str, Operation]) -> list[Work]:
    """Return the work of each kernel in a graph. `operations` must be in the graph's order.

    If a kernel's work is unknown, for example because the kernel only rearranges memory, all of its operations are
    attributed to it, and its bytes are 0.
    """
    memory, nothing = _Memory(operations), set[str]()
    operators = [_operator_of(kernel, operations) if kernel.extern else nothing for kernel in kernels]
    of_libraries = nothing.union(*operators)
    named = dict[str, list[int]]()
    for number, kernel in enumerate(kernels):
        for name in operators[number] if kernel.extern else set(kernel.operations) - of_libraries:
            named.setdefault(name, []).append(number)
    stored = {name: at[0] for name, at in named.items() if name in operations and memory.is_stored(name, at, named)}
    work = []
    for number, kernel in enumerate(kernels):
        names = [name for name in kernel.operations if name in operations]
        own = {name for name in names if not operations[name].view and stored.get(name, number) == number}
        own = own & operators[number] if kernel.extern else own - of_libraries
        results = own & stored.keys()
        computed = memory.leading_to(results or {name for name in own if not memory.users[name] & own}, own)
        moved = memory.moved([name for name in names if name in computed], results)
        moved = moved or dict.fromkeys(names, 0)
        work.append(Work(moved, any(not memory.users[name] for name in moved)))
    return work


def _operator_of(kernel: Kernel, operations: Mapping[str, Operation]) -> set[str]:
    """Return the operation that a library kernel computes, if it is known.

    This is the operation with the kernel's name, or the first operation if there is none.
    """
    names = [name for name in kernel.operations if name in operations and not operations[name].view]
    words = kernel.name.split(".")
    named = [name for name in names if operations[name].op.rpartition("::")[2] in words]
    return set((named or names)[:1])


class _Memory:
    """The results of a graph's operations. A view shares the memory of another result."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = operations
        self._base: dict[str, str] = {}
        #: The number of bytes in the memory that a view refers to.
        self._shown: dict[str, int] = {}
        for key, operation in operations.items():
            held = operation.inputs[0] if operation.view and operation.inputs else key
            self._base[key] = self._base.get(held, held)
            self._shown[key] = min(operation.bytes, self._shown.get(held, operation.bytes))
        self._returned = {self._base[key] for key, operation in operations.items() if operation.returned}
        #: Keys of the operations that use each result, either directly or through views.
        self.users: dict[str, set[str]] = {key: set() for key in operations}
        for key, operation in operations.items():
            for name in () if operation.view else operation.inputs:
                self.users.setdefault(self._base.get(name, name), set()).add(key)

    def is_stored(self, key: str, at: Sequence[int], named: Mapping[str, Sequence[int]]) -> bool:
        """Check whether an operation's result is needed by an operation that none of the given kernels computes.

        The kernels are passed as indices.
        """
        users = self.users[key]
        return not users or key in self._returned or any(not set(named.get(user, (NONE,))) <= set(at) for user in users)

    def leading_to(self, results: Iterable[str], inside: set[str]) -> set[str]:
        """Return the given operations that results depend on, including the operations that produce the results."""
        found, waiting = set(results), list(results)
        while waiting:
            inputs = {self._base.get(name, name) for name in self._operations[waiting.pop()].inputs}
            new = (inputs & inside) - found
            found |= new
            waiting += new
        return found

    def moved(self, computed: Sequence[str], results: set[str]) -> dict[str, int]:
        """Return the number of bytes that each of a kernel's operations reads or writes."""
        inside, moved, left = set(computed), dict[str, int](), dict[str, int]()
        for key in computed:
            operation = self._operations[key]
            moved[key] = operation.bytes if key in results else 0
            for place, name in enumerate(dict.fromkeys(operation.inputs)):
                base = self._base.get(name, name)
                if base in inside or base not in self._operations:
                    continue
                reads = self._shown[name]
                if place == 0 and operation.op in _PICKING:
                    reads = min(reads, operation.bytes)
                left.setdefault(base, self._operations[base].bytes)
                reads = min(reads, left[base])  # views may refer to the same memory
                left[base] -= reads
                moved[key] += reads
        return moved
