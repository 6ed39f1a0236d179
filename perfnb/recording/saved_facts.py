"""The types and ranges of the facts that are saved with tables. A file may have been altered, so msgspec checks it.

Keys that are not listed here are preserved unchanged.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, Required, TypedDict

from msgspec import Meta, Struct, field

Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Share = Annotated[float, Meta(ge=0, le=1)]
Above0 = Annotated[float, Meta(gt=0, le=1e18)]
Rank = Annotated[int, Meta(ge=0, lt=2**31)]
Plain = bool | Whole | Number | str | None


class Noise(TypedDict, total=False):
    """The conditions during the steps, as reported by `perfnb.step.environment`."""

    cpus: Count | None
    load_before: Amount
    load_after: Amount
    cpu_mhz_before: Amount
    cpu_mhz_after: Amount
    gc_pauses: list[tuple[Count, Amount]]
    gc_share: Share
    involuntary_switches: Whole
    throttled_periods: Whole
    throttled_ms: Number
    gpu_throttle_reasons: list[str]


class Environment(TypedDict, total=False):
    """The machine and software, as reported by `perfnb.step.environment`."""

    python: str | None
    torch: str | None
    platform: str | None
    machine: str | None
    processor: str | None
    cpus: Count | None
    cpu_limit: Amount | None
    threads: Count | None
    interop_threads: Count | None
    gpus: list[str]
    untraced_accelerators: list[str]
    debugger_or_tracer: bool
    host: str | None
    commit: str | None
    uncommitted: bool


class Options(TypedDict, total=False):
    warmup: Count | None
    steps: Count | None
    traced: Count
    budget_s: Annotated[float, Meta(ge=0)]
    memory: bool
    flops: bool


class Cost(TypedDict, total=False):
    """The overhead of tracing in nanoseconds."""

    op_ns: Amount
    call_ns: Amount


class Ceilings(TypedDict, total=False):
    on: Required[str]
    device: Required[str]
    threads: Count | None
    flops_per_s: Required[dict[str, Above0]]
    bytes_per_s: Required[Above0 | None]
    measured_at: str | None
    others: Amount


class Optimizer(Struct):
    name: str
    class_: str = field(name="class")
    tensors: Count
    elements: Count
    groups: Count
    at_once: list[str]
    foreach: Plain = None
    fused: Plain = None
    capturable: Plain = None


class LoaderFacts(Struct):
    """The name and settings of the step's data loader."""

    name: str | None
    class_: str = field(name="class")
    dataset: str = ""
    iterable: bool = False
    indexed: bool = False
    direct: bool = False
    same: list[str] = field(default_factory=list)
    num_workers: Number = 0.0
    prefetch_factor: Number = 0.0
    batch_size: Number = 0.0


class Model(Struct):
    name: str
    called: bool = False


class Parallel(Struct):
    """A model that is wrapped in DistributedDataParallel."""

    name: str
    find_unused_parameters: bool = False
    static_graph: bool = False
    bucket_bytes: Count = 0
    unused_bytes: Count | None = None


class Parts(TypedDict, total=False):
    """The names that the user gave to the parts of the step."""

    optimizers: list[Optimizer]
    loader: LoaderFacts | None
    refused: list[str]
    imports: list[str]
    models: list[Model]
    own_tables: list[str]
    parallel: list[Parallel]


class Threads(TypedDict):
    """The trial with one thread per core."""

    threads: Count
    steps_ms: list[Amount]


class Allocator(TypedDict, total=False):
    """Statistics from CUDA's allocator for a device."""

    retries: Count | None
    ooms: Count | None
    largest_free_bytes: Count | None


class Sum(TypedDict):
    """A metric over all of a watch's readings, as in `perfnb.telemetry.history.Exact`."""

    max: Number
    integral: Annotated[float, Meta(ge=-1e30, le=1e30)]  # byte-seconds: a terabyte for a week is close to 1e18
    known_s: Amount
    readings: Count


class DeviceFacts(TypedDict, total=False):
    name: str | None
    cpus: Count | None
    memory_bytes: Count | None
    power_limit_w: Amount | None
    cpu_limit: Amount | None
    memory_limit_bytes: Count | None


class WatchFacts(TypedDict, total=False):
    running: bool
    interval_s: Required[Above0]
    devices: Required[dict[str, DeviceFacts]]
    absent: Required[dict[str, str]]
    notes: Required[list[str]]
    ticks: Required[Count]
    missed: Required[Count]
    unsent: Count
    sampler_cpu_s: Amount | None
    sampler_lived_s: Amount | None
    exact: dict[str, dict[str, Sum]]


class TraceFacts(TypedDict, total=False):
    file: Required[str]
    rank_known: Required[bool]
    rank: Whole | None
    world_size: Whole | None
    events: Required[Count]
    unit_ns: Required[Count]
    steps_marked: Required[bool]
    steps_ignored: Required[Count]
    negative_durations: Required[Count]
    host_events: Required[Count]
    host_calls: Required[Count]
    device_events: Required[Count]
    foreign: bool
    caveats: list[str]
    process_names: list[tuple[Whole, str]]
    process_labels: list[tuple[Whole, str]]
    thread_names: list[tuple[Whole, Whole, str]]


class PlaceInJob(TypedDict):
    """The measured process's position among the processes of its job."""

    rank: Rank
    world_size: Annotated[int, Meta(ge=1, lt=2**31)]
    #: The size of the process group.
    backend: NotRequired[str]


class Looped(TypedDict):
    """An optimizer that the step called more than once."""

    optimizer: str
    times: Count


class Loop(TypedDict, total=False):
    """The position of the steps in a loop, and the number of batches that each step used."""

    step: Count
    trainer: str
    batches: Count
    #: Whether each batch counts as a step, because there is no optimizer step that marks the end of a step.
    by_batch: bool


class PythonFacts(TypedDict, total=False):
    """The numbers behind the sampled Python stacks.

    They are the numbers of sampled steps, samples, loader workers that were sampled, and loader workers that could not
    be.
    """

    steps: Required[Annotated[int, Meta(ge=1, le=2**31)]]
    samples: Required[Count]
    workers: Count
    unreached_workers: Count


class KeptFinding(TypedDict):
    """A row in ``findings``."""

    bottleneck: str
    evidence: str
    rows: list[dict[str, str]]
    bound_ms: Number | None
    bound_share: Number | None
    bound_bytes: Count | None
    advice: str
    code: str
    remedy: str
    confidence: str
    why: str
    blind: str


class Reduced(TypedDict):
    """The contents of a profile without its trace, apart from its tables."""

    notes: list[str]
    #: The verdict, its reason, and the recommendation.
    verdict: tuple[str, str, str] | None
    finding: Count | None
    step_ms: Number | None
    findings: list[KeptFinding]


class ProfileFacts(TypedDict, total=False):
    name: Required[str]
    rank: Rank
    job: PlaceInJob
    base_ns: Whole
    devices: list[dict[str, Any]]
    environment: Required[Environment]
    options: Required[Options]
    models_chosen: bool
    steady: bool | None
    tokens: Count
    #: The number of batches, if a step uses several.
    batches: Count
    noise: Noise
    #: The compilations during timed and traced steps: step, function, line, failed guard, milliseconds.
    compilations: list[tuple[Count, str, str, str, Amount]]
    traced_compilations: list[tuple[Count, str, str, str, Amount]]
    #: The models that were recompiled for the traced steps, and the names missing from this PyTorch version that are
    #: needed to report layers.
    recompiled: list[str]
    compiler_lacks: str
    #: Whether `gc.freeze` kept compiled code from being found.
    frozen: bool
    timed_cut_short: bool
    traced_cut_short: bool
    stacks: bool
    python: PythonFacts
    threads_tried: Threads
    cost: Cost
    bare_cost: Cost
    ceilings: Ceilings
    parts: Parts
    optimizer_steps: Looped
    allocator: dict[str, Allocator]
    watch: WatchFacts
    trace: TraceFacts
    failure: str
    failed_in: str
    tables_made_by: str
    loop: Loop
    reduced: Reduced
