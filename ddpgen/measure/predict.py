"""`ddpgen predict`: the cost of a job's step on a link and over node counts, and the changes that would reduce it.

Owns which numbers of the job, the command line and the newest run (measured.py) go into the formulas of
cost.py. page.py makes the page for people. Reads no file, and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ddpgen.lint import workloads
from ddpgen.measure import cost, quantities
from ddpgen.measure.cost import Interruptions, Link, Overlap, Shape, StepCost
from ddpgen.measure.measured import Run
from ddpgen.spec.fields import Refused
from ddpgen.spec.job import JobSpec
from ddpgen.tiers import ranks as launch
from ddpgen.tiers.registry import DEFAULT_TIER

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
# A proposed change multiplies the micro-batches, or the link's rate, by this.
_SCALE_UP = 4

# Eight buckets hide all but an eighth of the communication.
_BUCKETS = 8

# A proposed change has to gain this much, because a smaller gain is within a prediction's error.
MIN_SPEEDUP = 1.02


@dataclass(frozen=True)
class PredictOptions:
    """The options of the command line; None for an option that is left out.

    `step_times`: by the name of a host; the time under "" is for all hosts.
    """

    parameters: int | None = None
    dtype: str | None = None
    link: Link | None = None
    efficiency: float = 0.85
    step_times: Mapping[str, float] = field(default_factory=dict)
    preempted_every: float | None = None
    checkpoint_time: float | None = None
    restart_time: float = 300.0
    price: float | None = None
    spot_price: float | None = None


@dataclass(frozen=True)
class Gradients:
    """The gradients that a step adds up. `source`: the source of the number of parameters, in words."""

    parameters: int
    dtype: str
    sent_bytes: float
    source: str


@dataclass(frozen=True)
class Compute:
    """The seconds of a micro-batch on each host, or of a script's step, and their source in words.

    `micro_batch_s` is empty if they are not known; then `source` tells the user how to give them.
    """

    micro_batch_s: tuple[float, ...]
    source: str


@dataclass(frozen=True)
class OnLink:
    """A step on one link."""

    link: Link
    communication_s: float
    step: StepCost | None


@dataclass(frozen=True)
class OnNodes:
    """A step on so many equal nodes. `efficiency`: the speed of each node as a part of a single node's."""

    nodes: int
    micro_batches: int
    communication_s: float
    step: StepCost | None
    efficiency: float | None


@dataclass(frozen=True)
class Change:
    """A proposed change and its effect. `speed`: samples in a second, relative to the present job's."""

    what: str
    step_s: float
    speed: float


@dataclass(frozen=True)
class Fewer:
    """A step without the hosts in `without`. `shares`: the shares of the other hosts."""

    without: Sequence[str]
    shares: Mapping[str, float]
    step_s: float


@dataclass(frozen=True)
class Balance:
    """The effect of shares on unequal hosts.

    `compute_s`: the seconds that each host computes in a step. `shares`: the shares with which no host waits for
    another. `shared_step_s`: the step with them. `fewer`: the best step without the slowest hosts.
    """

    compute_s: Mapping[str, float]
    shares: Mapping[str, float]
    step_s: float
    shared_step_s: float
    fewer: Fewer


@dataclass(frozen=True)
class Shard:
    """The effect of shard: optimizer. `gather_bytes`: a step's traffic of the updated parameters, on the busiest link.

    `whole_bytes`, `process_bytes`: the optimizer's state in each process, without it and with it.
    """

    gather_bytes: float
    gather_s: float
    whole_bytes: float
    process_bytes: float


@dataclass(frozen=True)
class Checkpoints:
    """The cost of checkpoints and lost machines.

    `goodput`: the least and the most; 0 if a loss costs more than the time between two losses.
    """

    interruptions: Interruptions
    interval_s: float
    lost_s: float
    goodput: tuple[float, float]
    spec_interval_s: float | None
    spec_goodput: tuple[float, float] | None


@dataclass(frozen=True)
class Prices:
    """The price of an hour of all machines. `run_s`: the seconds of all steps, uninterrupted; None if not known."""

    run_s: float | None
    on_demand: float | None
    spot: float | None


@dataclass(frozen=True)
class Prediction:
    """The whole prediction.

    `balances`: micro-batches move between the processes (share: auto). `unequal`: the hosts differ, so a table over equal
    nodes would not fit them. `changes`: the changes that help, the best one first.
    """

    name: str
    tier: str
    shape: Shape
    reduction: str
    gradients: Gradients
    traffic_bytes: float
    compute: Compute
    efficiency: float
    link: Link
    links: Sequence[OnLink]
    nodes: Sequence[OnNodes]
    changes: Sequence[Change]
    balances: bool
    unequal: bool
    balance: Balance | None
    shard: Shard | None
    checkpoints: Checkpoints | None
    prices: Prices | None


def choose_tier(jobs: Mapping[str, JobSpec]) -> str:
    """Return the tier to predict for if the user names none: the first with several machines, else the first."""
    return next(
        (tier for tier, job in jobs.items() if len(shape_of(job).procs) > 1), next(iter(jobs))
    )


def predict(
    jobs: Mapping[str, JobSpec], tier: str, options: PredictOptions, run: Run | None
) -> Prediction:
    """Return the prediction for the job of `tier`. Raise Refused for an option that is missing or does not fit."""
    return _Job(jobs, tier, options, run).predict()


class _Job:
    """A job on one tier, with the options of the command line and the newest run."""

    def __init__(
        self, jobs: Mapping[str, JobSpec], tier: str, options: PredictOptions, run: Run | None
    ) -> None:
        self.jobs, self.tier, self.job = jobs, tier, jobs[tier]
        self.options, self.run = options, run
        self.shape = shape_of(self.job)
        self.gradients = self._gradients()
        default_link = "100G" if self.job.on_gpus else "1GbE"
        self.link = options.link or quantities.link(default_link)
        # The processes of one machine share memory. Its GPUs have a link, for which the user may ask.
        self.on_gpu_link = self.shape.hosts == 1 and self.job.on_gpus and options.link is not None
        self.compute = self._compute()

    def predict(self) -> Prediction:
        job, options = self.job, self.options
        differ = len(set(self.shape.procs)) > 1 or len(set(self.compute.micro_batch_s)) > 1
        unequal = differ or len({machine.weight for machine in job.machines}) > 1
        changes = [change for change in self._changes(unequal) if change.speed > MIN_SPEEDUP]
        return Prediction(
            job.name, self.tier, self.shape, self._reduction(), self.gradients,
            self._bytes(self.shape, self.gradients.sent_bytes),
            self.compute, options.efficiency, self.link, tuple(self._links()),
            () if unequal or self.on_gpu_link else tuple(self._nodes()),
            tuple(sorted(changes, key=lambda change: -change.speed)),
            job.balances, unequal, self._balance(), self._shard(), self._checkpoints(), self._prices(),
        )  # fmt: skip

    # --- what goes in --------------------------------------------------------------------------

    def _gradients(self) -> Gradients:
        train, options, run = self.job.train, self.options, self.run
        hook = train.comm_hook if train.comm_hook in DTYPE_BYTES else "fp32"
        dtype = options.dtype or hook
        args = train.args if isinstance(train.args, Mapping) else {}
        if options.parameters is not None:
            number, source = options.parameters, "as given"
        elif (counted := workloads.counted(train.workload, args)) is not None:
            number, source = counted, "counted from train.args"
        elif run is not None and run.parameters and run.same_model(self.job):
            number, source = run.parameters, f"told by the newest run, {run.directory}"
            if run.gradient_bytes and not options.dtype and hook == "fp32":
                kinds = {4: "fp32", 2: "16 bits"}
                dtype = kinds.get(run.gradient_bytes // number, "mixed types")
                return Gradients(number, dtype, run.gradient_bytes, source)
        else:
            program = train.workload or train.script or train.command[0]
            raise Refused(
                f"how many parameters {program} has is not known",
                "give it, like --params 760M"
                + (
                    ", or run it once: the run records it"
                    if train.program_field == "workload"
                    else ""
                ),
            )
        return Gradients(number, dtype, number * DTYPE_BYTES[dtype], source)

    def _compute(self) -> Compute:
        if self.options.step_times:
            return self._given_times(self.options.step_times)
        run, give = self.run, "give --step-time 1.5s"
        if run is None or not run.step_s:
            same_device = (
                DEFAULT_TIER in self.jobs and self.jobs[DEFAULT_TIER].on_gpus == self.job.on_gpus
            )
            command = f"ddpgen launch SPEC --target {DEFAULT_TIER if same_device else self.tier}"
            return Compute((), f"not known: {give}, or run it once ({command})")
        differs = run.differs(self.job)
        if not differs and run.parameters not in (None, self.gradients.parameters):
            differs = f"{quantities.count(run.parameters or 0)} parameters"
        if differs:
            return Compute((), f"not known: the newest run ({run.directory}) had {differs}; {give}")
        shape = self._shape_of(run)
        if shape is None:
            return Compute((), f"not known: which hosts {run.directory} ran on; {give}")
        measurement = f"median of {run.steps} steps of {run.directory} on {counted(shape)}"
        communication_s = self._communication_s(shape) if shape.hosts > 1 else 0.0
        own_s = run.step_s - (self._gather_s(shape) if run.shard else 0.0)
        compute_s = self._overlap(shape.max_micro_batches).compute_s(own_s, communication_s)
        if compute_s <= 0:
            communication = (
                f"{quantities.time(communication_s)} at {self.link.name}; --link names theirs"
            )
            return Compute(
                (), f"not known: {measurement} is less than the communication, {communication}"
            )
        if communication_s:
            measurement += f", less the communication at {self.link.name}"
        return Compute(
            (compute_s / shape.max_micro_batches,) * self.shape.hosts, f"measured: {measurement}"
        )

    def _given_times(self, step_times: Mapping[str, float]) -> Compute:
        if list(step_times) == [""]:
            micro_batch_s = step_times[""] / self.shape.max_micro_batches
            return Compute((micro_batch_s,) * self.shape.hosts, "as given")
        names = self._names()
        if not all(names):
            raise Refused(
                f"{self.tier} has no hosts with names", "give one time, like --step-time 1.5s"
            )
        misfits = [
            name for name in (*names, *step_times) if name not in step_times or name not in names
        ]
        if misfits:
            remedy = (
                f"give --step-time HOST=TIME for each of {', '.join(names)}, or one time for all"
            )
            unknown = next((name for name in step_times if name not in names), None)
            problem = (
                f"names {unknown}, which is no host of the job"
                if unknown
                else "has a time without a host"
            )
            if unknown is None:
                problem = f"has no time for {misfits[0]}"
            raise Refused(f"--step-time {problem}", remedy)
        micro_batches = _largest_counts(self.shape)
        times = (step_times[name] / count for name, count in zip(names, micro_batches, strict=True))
        return Compute(tuple(times), "as given for each host")

    def _shape_of(self, run: Run) -> Shape | None:
        if run.tier == DEFAULT_TIER:
            return _equal_hosts(self.job, 1, run.processes)
        shapes = {tier: shape_of(job) for tier, job in self.jobs.items()}
        shape = shapes.get(run.tier)
        return shape if shape is not None and shape.processes == run.processes else None

    def _names(self) -> list[str]:
        """Return the names of the machines by node rank; "" for one that a scheduler chooses."""
        return [machine.name for machine in self.job.machines]

    # --- what comes out ------------------------------------------------------------------------

    def _reduction(self) -> str:
        return (
            self.job.train.reduction if self.job.train.program_field == "workload" else "allreduce"
        )

    def _bytes(self, shape: Shape, sent_bytes: float) -> float:
        tree = self._reduction() == "tree"
        return (cost.tree_bytes if tree else cost.ring_bytes)(shape, sent_bytes)

    def _communication_s(self, shape: Shape, link: Link | None = None) -> float:
        if shape.hosts == 1 and not self.on_gpu_link:
            return 0.0
        crossing = self._bytes(shape, self.gradients.sent_bytes)
        return (link or self.link).seconds(crossing, self.options.efficiency)

    def _parameter_bytes(self) -> float:
        return self.gradients.parameters * DTYPE_BYTES["fp32"]

    def _gather_s(self, shape: Shape, link: Link | None = None) -> float:
        if shape.hosts == 1 and not self.on_gpu_link:
            return 0.0
        sent = cost.gather_bytes(shape, self._parameter_bytes())
        return (link or self.link).seconds(sent, self.options.efficiency)

    def _shard(self) -> Shard | None:
        train, shape = self.job.train, self.shape
        if not self.job.sharded:
            return None
        # Moments of each parameter: two of Adam and AdamW, and SGD's momentum.
        moments = 2 if train.optimizer != "sgd" else int(train.momentum > 0)
        whole = moments * self._parameter_bytes()
        sent = cost.gather_bytes(shape, self._parameter_bytes())
        return Shard(sent, self._gather_s(shape), whole, whole / shape.processes)

    def _overlap(self, micro_batches: int) -> Overlap:
        gradient_bytes = self._parameter_bytes()
        last_bucket = cost.last_bucket(gradient_bytes, self.job.train.bucket_cap_mb)
        return Overlap(micro_batches, last_bucket)

    def _compute_s(self, shape: Shape, micro_batch_s: Sequence[float]) -> float:
        """Return the compute time of the slowest rank in a step. `micro_batch_s`: each host's seconds."""
        if shape.hosts != len(micro_batch_s):
            return shape.max_micro_batches * micro_batch_s[0]  # another number of hosts, all equal
        return max(
            count * seconds
            for count, seconds in zip(_largest_counts(shape), micro_batch_s, strict=True)
        )

    def _step(self, shape: Shape, link: Link) -> StepCost | None:
        micro_batch_s = self.compute.micro_batch_s
        return self._step_of(shape, link, micro_batch_s) if micro_batch_s else None

    def _step_of(self, shape: Shape, link: Link, micro_batch_s: Sequence[float]) -> StepCost:
        communication_s = self._communication_s(shape, link)
        step = self._overlap(shape.max_micro_batches).step(
            self._compute_s(shape, micro_batch_s), communication_s
        )
        if not self.job.sharded:
            return step
        gather_s = self._gather_s(shape, link)  # it begins after the update: nothing hides it
        return replace(
            step, communication_s=communication_s + gather_s, exposed_s=step.exposed_s + gather_s
        )

    def _links(self) -> Iterator[OnLink]:
        if self.shape.processes == 1 or (self.shape.hosts == 1 and not self.on_gpu_link):
            return
        named = [link for link in quantities.LINKS if self.on_gpu_link or link.name != "NVLink"]
        links = {link.bits_per_s: link for link in (*named, self.link)}
        for _, link in sorted(links.items()):
            communication_s = self._communication_s(self.shape, link)
            yield OnLink(link, communication_s, self._step(self.shape, link))

    def _nodes(self) -> Iterator[OnNodes]:
        procs = self.shape.procs[0]
        counts = {1, 2, 4, 8, 16, self.shape.hosts, 2 * self.shape.hosts}
        single = self._step(_equal_hosts(self.job, 1, procs), self.link)
        for nodes in sorted(counts)[:6]:
            if self.job.micro_batches and nodes * procs > self.job.micro_batches:
                return  # a process without a micro-batch
            shape = _equal_hosts(self.job, nodes, procs)
            step, efficiency = self._step(shape, self.link), None
            if step is not None and single is not None:
                # On more nodes a script's step does more work.
                share = nodes if self.job.micro_batches else 1
                efficiency = single.step_s / (share * step.step_s)
            yield OnNodes(
                nodes, shape.max_micro_batches, self._communication_s(shape), step, efficiency
            )

    def _changes(self, unequal: bool) -> Iterator[Change]:
        """Yield the changes that reduce the cost of the communication, with their effect on the step.

        Without a known compute time, the effect is on the communication alone.
        """
        communication_s = self._communication_s(self.shape)
        if not communication_s:
            return
        compute_s, micro_batches = (
            self._compute_s(self.shape, self.compute.micro_batch_s or (0.0,)),
            self.shape.max_micro_batches,
        )
        overlap = self._overlap(micro_batches)
        now_s = overlap.step(compute_s, communication_s).step_s

        def change(what: str, step_s: float, work: float = 1.0) -> Change:
            return Change(what, step_s, work * now_s / step_s)

        train = self.job.train
        if compute_s and not unequal:
            for nodes in (1 << n for n in range((self.shape.hosts - 1).bit_length())):
                fewer = self._step(_equal_hosts(self.job, nodes, self.shape.procs[0]), self.link)
                assert fewer is not None
                # On fewer hosts a script's step does less work.
                work = 1.0 if self.job.micro_batches else nodes / self.shape.hosts
                yield change(f"fewer hosts: {nodes} of {self.shape.hosts}", fewer.step_s, work)
        batch = f"{_SCALE_UP} times the steps of gradient accumulation"
        if train.global_batch_size:
            batch = f"global_batch_size: {_SCALE_UP * train.global_batch_size}"
        longer = replace(overlap, micro_batches=_SCALE_UP * micro_batches)
        longer_s = longer.step(_SCALE_UP * compute_s, communication_s).step_s
        yield change(f"more micro-batches a step: {batch}", longer_s, _SCALE_UP)
        rate = _SCALE_UP * self.link.bits_per_s
        better = next((link for link in quantities.LINKS if link.bits_per_s >= rate), None)
        if better is not None:
            faster = overlap.step(compute_s, self._communication_s(self.shape, better))
            yield change(f"a better link: {better.name}", faster.step_s)
        full = self.gradients.sent_bytes >= DTYPE_BYTES["fp32"] * self.gradients.parameters
        if full and train.shard != "optimizer":  # which goes with reduction: tree alone
            sent = cost.ring_bytes(self.shape, self.gradients.sent_bytes / 2)
            half = overlap.step(compute_s, self.link.seconds(sent, self.options.efficiency))
            hook = (
                "reduction: allreduce, comm_hook: fp16"
                if train.program_field == "workload"
                else "fp16"
            )
            yield change(f"compression: {hook}", half.step_s)
        hidden = Overlap(1, min(overlap.last_bucket, 1 / _BUCKETS))
        if compute_s and hidden != overlap:
            hidden_s = hidden.step(compute_s, communication_s).step_s
            yield change(f"overlap: {', '.join(self._for_overlap(overlap))}", hidden_s)

    def _for_overlap(self, overlap: Overlap) -> Iterator[str]:
        train = self.job.train
        if overlap.micro_batches > 1 and train.micro_batch_size:
            yield f"micro_batch_size: {overlap.micro_batches * train.micro_batch_size}"
        if overlap.last_bucket > 1 / _BUCKETS:
            gradient_bytes = self._parameter_bytes()
            yield f"bucket_cap_mb: {gradient_bytes / cost.MIB / _BUCKETS:.1g}"

    def _balance(self) -> Balance | None:
        job, seconds = self.job, self.compute.micro_batch_s
        names, procs = self._names(), self.shape.procs
        if not all(names) or len(set(seconds)) < 2 or not job.micro_batches:
            return None
        micro_batches = _largest_counts(self.shape)
        step = self._step(self.shape, self.link)
        assert step is not None
        # The fastest hosts come first: those that compute most in a second.
        order = sorted(range(len(names)), key=lambda host: seconds[host] / procs[host])
        shared = [self._shared(sorted(order[:count])) for count in range(1, len(names) + 1)]
        *fewer, (_, shares, step_s) = shared
        return Balance(
            {
                name: count * each
                for name, count, each in zip(names, micro_batches, seconds, strict=True)
            },
            shares,
            step.step_s,
            step_s,
            min((Fewer(*each) for each in fewer), key=lambda each: each.step_s),
        )

    def _shared(self, hosts: Sequence[int]) -> tuple[tuple[str, ...], dict[str, float], float]:
        """Return a step on only these hosts, with shares by their speed: the other hosts, the shares, the seconds."""
        names = self._names()
        procs = [self.shape.procs[host] for host in hosts]
        seconds = [self.compute.micro_batch_s[host] for host in hosts]
        weights = [1 / Fraction(each) for each in seconds]
        ranks = [weight for weight, count in zip(weights, procs, strict=True) for _ in range(count)]
        shape = Shape(tuple(procs), _counts(self.job.micro_batches, ranks))
        parts = [float(weight * count) for weight, count in zip(weights, procs, strict=True)]
        return (
            tuple(name for host, name in enumerate(names) if host not in hosts),
            {
                names[host]: round(part / min(parts), 2)
                for host, part in zip(hosts, parts, strict=True)
            },
            self._step_of(shape, self.link, seconds).step_s,
        )

    def _checkpoints(self) -> Checkpoints | None:
        options, job = self.options, self.job
        automatic = job.preempted_after
        mean_s = options.preempted_every or automatic
        if mean_s is None or options.checkpoint_time is None:
            return None
        interruptions = Interruptions(mean_s, options.checkpoint_time, options.restart_time)
        step = self._step(self.shape, self.link)
        period = job.checkpoint.every
        written_s = period.seconds
        if period.steps is not None:
            written_s = period.steps * step.step_s if step else None
        if automatic or job.train.program_field != "workload":
            written_s = None  # the training computes the interval itself, or the script has its own
        return Checkpoints(
            interruptions, interruptions.young_s, interruptions.lost_s(interruptions.young_s), interruptions.goodput(interruptions.young_s),
            written_s, interruptions.goodput(written_s) if written_s else None,
        )  # fmt: skip

    def _prices(self) -> Prices | None:
        options, steps = self.options, self.job.train.steps
        if options.price is None and options.spot_price is None:
            return None
        step = self._step(self.shape, self.link)
        run_s = steps * step.step_s if steps and step else None
        return Prices(run_s, options.price, options.spot_price)


def shape_of(job: JobSpec) -> Shape:
    """Return the processes of each host of the job, and the micro-batches of each rank."""
    ranks = launch.ranks(job)
    procs: dict[int, int] = {}
    for rank in ranks:
        procs[rank.node_rank] = procs.get(rank.node_rank, 0) + 1
    counts = tuple(rank.end - rank.first for rank in ranks) if job.micro_batches else ()
    return Shape(tuple(procs.values()), counts)


def _equal_hosts(job: JobSpec, nodes: int, procs: int) -> Shape:
    micro_batches = job.micro_batches
    return Shape(
        (procs,) * nodes, _counts(micro_batches, [1] * (nodes * procs)) if micro_batches else ()
    )


def _counts(micro_batches: int, weights: Sequence[int | Fraction]) -> tuple[int, ...]:
    return tuple(end - first for first, end in launch.shares(micro_batches, weights))


def _largest_counts(shape: Shape) -> list[int]:
    """Return the largest number of micro-batches of a rank, for each host."""
    counts = shape.micro_batches or (1,) * shape.processes
    largest, first = [], 0
    for procs in shape.procs:
        largest.append(max(counts[first : first + procs]))
        first += procs
    return largest


def counted(shape: Shape) -> str:
    """Return the shape in words: 2 hosts × 4 processes."""
    hosts = "1 host" if shape.hosts == 1 else f"{shape.hosts} hosts"
    if len(set(shape.procs)) > 1:
        return f"{hosts} with {shape.processes} processes"
    return f"{hosts} × {shape.procs[0]} process{'es' if shape.procs[0] > 1 else ''}"
