"""A prediction as one page for people, or as JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ddpgen.driver.wording import table
from ddpgen.measure.cost import StepCost
from ddpgen.measure.predict import MIN_SPEEDUP, Checkpoints, Prediction, counted
from ddpgen.measure.quantities import count, time


def as_json(prediction: Prediction) -> str:
    """Return the prediction as JSON. A number's name ends with its unit."""
    return json.dumps(_plain(prediction), indent=1, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        values = {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
        return {**values, "step_s": value.step_s} if isinstance(value, StepCost) else values
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def as_text(prediction: Prediction) -> str:
    """Return the page."""
    parts = [
        _head(prediction),
        _links(prediction),
        _nodes(prediction),
        _changes(prediction),
        _hosts(prediction),
    ]
    parts.append([*_checkpoints(prediction.checkpoints), *_prices(prediction)])
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part)


def _head(prediction: Prediction) -> Iterator[str]:
    gradients, shape = prediction.gradients, prediction.shape
    share = ""
    if shape.micro_batches:
        fewest, largest = min(shape.micro_batches), shape.max_micro_batches
        share = f", {sum(shape.micro_batches)} micro-batches a step"
        share += f" ({largest} each" if fewest == largest else f" ({fewest} to {largest} each"
        share += ", share: auto)" if prediction.balances else ")"
    yield f"{prediction.name} on {prediction.tier}: {counted(shape)}{share}"
    yield (
        f"gradients  {count(gradients.parameters)} parameters ({gradients.source}), sent as "
        f"{gradients.dtype}: {count(gradients.sent_bytes, 'B')}"
    )
    yield f"traffic    {_traffic(prediction)}"
    if (shard := prediction.shard) is not None:
        yield (
            f"sharded    {count(shard.gather_bytes, 'B')} a step more for the updated parameters; of the optimizer's state "
            f"{count(shard.process_bytes, 'B')} in each process instead of {count(shard.whole_bytes, 'B')}"
        )
    if prediction.compute.micro_batch_s:
        slowest = max(_host_seconds(prediction))
        yield f"compute    {time(slowest)} a step ({prediction.compute.source})"
    else:
        yield f"compute    {prediction.compute.source}"


def _host_seconds(prediction: Prediction) -> list[float]:
    """Return the computing time of each host in a step."""
    if prediction.balance is not None:
        return list(prediction.balance.compute_s.values())
    return [
        prediction.shape.max_micro_batches * seconds for seconds in prediction.compute.micro_batch_s
    ]


def _traffic(prediction: Prediction) -> str:
    method = "the tree reduction" if prediction.reduction == "tree" else "DDP's all-reduce"
    sent = count(prediction.traffic_bytes, "B")
    if prediction.shape.processes == 1:
        return "none: there is one process"
    if prediction.shape.hosts == 1:
        return f"none between machines; {sent} a step out of each process and into it, in {method}"
    return f"{sent} a step out of the busiest host or into it, in {method}"


def _links(prediction: Prediction) -> list[str]:
    if not prediction.links:
        return []
    has_step = prediction.links[0].step is not None
    rows = [["  link", "all-reduce", *(_STEP if has_step else ())]]
    for row in prediction.links:
        mark = "> " if row.link == prediction.link else "  "
        cells = [f"{mark}{row.link.name}", time(row.communication_s)]
        rows.append([*cells, *_step(row.step)])
    return table(rows, str.rjust)


_STEP = ("comm/compute", "not hidden", "step", "computing")


def _step(step: StepCost | None) -> Iterator[str]:
    if step is not None:
        yield f"{step.communication_s / step.compute_s:.2f}"
        yield time(step.exposed_s)
        yield time(step.step_s)
        yield f"{step.compute_s / step.step_s:.0%}"


def _nodes(prediction: Prediction) -> list[str]:
    if len(prediction.nodes) < 2:
        return []
    has_step = prediction.nodes[0].step is not None
    has_micro_batches = bool(prediction.shape.micro_batches)
    head = [
        f"  nodes, at {prediction.link.name}",
        *(["micro-batches each"] if has_micro_batches else []),
    ]
    rows = [
        [
            *head,
            "all-reduce",
            *(("compute", "not hidden", "step", "efficiency") if has_step else ()),
        ]
    ]
    for row in prediction.nodes:
        mark = "> " if row.nodes == prediction.shape.hosts else "  "
        cells = [f"{mark}{row.nodes}", *([str(row.micro_batches)] if has_micro_batches else [])]
        cells.append(time(row.communication_s))
        if row.step is not None and row.efficiency is not None:
            cells += [time(row.step.compute_s), time(row.step.exposed_s), time(row.step.step_s)]
            cells.append(f"{row.efficiency:.0%}")
        rows.append(cells)
    return table(rows, str.rjust)


def _changes(prediction: Prediction) -> list[str]:
    if not prediction.changes:
        applicable = prediction.links and not prediction.unequal
        return [f"  what helps, at {prediction.link.name}: nothing here"] if applicable else []
    quantity = "step" if prediction.compute.micro_batch_s else "all-reduce"
    rows = [[f"  what helps, at {prediction.link.name}", quantity, "speed"]]
    rows += [
        [f"  {change.what}", time(change.step_s), f"{change.speed:.2f} ×"]
        for change in prediction.changes
    ]
    return table(rows, str.rjust)


def _hosts(prediction: Prediction) -> Iterator[str]:
    balance = prediction.balance
    if balance is not None:
        host_times = ", ".join(
            f"{name} {time(seconds)}" for name, seconds in balance.compute_s.items()
        )
        difference = max(balance.compute_s.values()) - min(balance.compute_s.values())
        shares = _shares(balance.shares)
        yield f"unequal hosts: in a step they compute for {host_times}, so the fastest waits {time(difference)}"
        step_s, fewer = balance.step_s, balance.fewer
        smaller_job = f"leaving out {', '.join(fewer.without)}"
        if len(fewer.shares) == 1:
            smaller_job = f"{next(iter(fewer.shares))} alone"
        elif not prediction.balances:
            smaller_job += f", with share: {_shares(fewer.shares)},"
        share = "share: auto" if prediction.balances else f"share: {shares}"
        helpful = sorted(
            (seconds, remedy)
            for seconds, remedy in ((balance.shared_step_s, share), (fewer.step_s, smaller_job))
            if step_s > MIN_SPEEDUP * seconds
        )
        for seconds, remedy in helpful:
            yield f"  {remedy} makes the step {time(seconds)} instead of {time(step_s)}"
        if not helpful and prediction.balances:
            yield "  share: auto needs a smaller micro_batch_size to be of effect: it moves whole micro-batches"
        elif not helpful:
            yield f"  {share} would fit them, and needs a smaller micro_batch_size to be of effect"
    elif prediction.unequal:
        yield (
            "unequal hosts: what a slow one costs, and the shares that end it, follow from --step-time "
            "HOST=TIME of each"
        )


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:g}" for name, share in shares.items())


def _checkpoints(checkpoints: Checkpoints | None) -> Iterator[str]:
    if checkpoints is None:
        yield "checkpoints: interval, lost work and price follow from --preempted-every and --checkpoint-time"
        return
    interruptions = checkpoints.interruptions
    yield (
        f"checkpoints, each taking {time(interruptions.checkpoint_s)}, with a machine lost every {time(interruptions.mean_s)}"
    )
    if not any(checkpoints.goodput):
        lost = f"a loss costs {time(checkpoints.lost_s)}, which is more than the time between two"
        yield f"  the run would never end: {lost}"
        return
    best = f"every {time(checkpoints.interval_s)} is best (Young 1974)"
    lost = f"{time(checkpoints.lost_s)} lost each time, {time(interruptions.restart_s)} of it to start again"
    yield f"  {best}, goodput {_percent(checkpoints.goodput)}"
    yield f"  {lost}"
    if checkpoints.spec_interval_s is not None and checkpoints.spec_goodput is not None:
        yield f"  every {time(checkpoints.spec_interval_s)}, as the spec says: goodput {_percent(checkpoints.spec_goodput)}"


def _prices(prediction: Prediction) -> Iterator[str]:
    prices, checkpoints = prediction.prices, prediction.checkpoints
    if prices is None:
        return
    if prices.on_demand is not None:
        yield f"  on demand: {_price(prices.on_demand, prices.run_s, (1.0, 1.0))}"
    if prices.spot is None:
        return
    if checkpoints is None:
        yield "  spot: its price follows from --preempted-every and --checkpoint-time"
        return
    if any(checkpoints.goodput):
        yield f"  spot: {_price(prices.spot, prices.run_s, checkpoints.goodput)}"
    if prices.on_demand is not None:
        part = prices.spot / prices.on_demand
        pays = f"pays above a goodput of {part:.0%}" if part < 1 else "never pays: it costs no less"
        yield f"  spot {pays}"


def _price(price: float, run_s: float | None, goodput: tuple[float, float]) -> str:
    lowest, highest = goodput
    hourly = _range(price / highest, price / lowest) + " for an hour that counts"
    if run_s is None:
        return hourly
    hours = run_s / 3600
    return f"{hourly}, {_range(hours * price / highest, hours * price / lowest)} for all steps"


def _range(lowest: float, highest: float) -> str:
    low, high = f"{lowest:.2f}", f"{highest:.2f}"
    return low if low == high else f"{low} to {high}"


def _percent(goodput: tuple[float, float]) -> str:
    return f"{goodput[0]:.0%} to {goodput[1]:.0%}"
