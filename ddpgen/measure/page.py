"""A prediction as one page for people, or as JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ddpgen.driver.wording import table
from ddpgen.measure.cost import StepCost
from ddpgen.measure.predict import HELPS, Checkpoints, Prediction, counted
from ddpgen.measure.quantities import count, time


def as_json(found: Prediction) -> str:
    """Return the prediction as JSON. A number's name ends with its unit."""
    return json.dumps(_plain(found), indent=1, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        known = {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        return {**known, "step_s": value.step_s} if isinstance(value, StepCost) else known
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def as_text(found: Prediction) -> str:
    """Return the page."""
    parts = [_head(found), _links(found), _nodes(found), _changes(found), _hosts(found)]
    parts.append([*_checkpoints(found.checkpoints), *_prices(found)])
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part)


def _head(found: Prediction) -> Iterator[str]:
    gradients, shape = found.gradients, found.shape
    each = ""
    if shape.micro_batches:
        fewest, most = min(shape.micro_batches), shape.most
        each = f", {sum(shape.micro_batches)} micro-batches a step"
        each += f" ({most} each)" if fewest == most else f" ({fewest} to {most} each)"
    yield f"{found.name} on {found.tier}: {counted(shape)}{each}"
    yield (
        f"gradients  {count(gradients.parameters)} parameters ({gradients.source}), sent as "
        f"{gradients.dtype}: {count(gradients.sent_bytes, 'B')}"
    )
    yield f"traffic    {_traffic(found)}"
    if found.compute.micro_batch_s:
        slowest = max(_each(found))
        yield f"compute    {time(slowest)} a step ({found.compute.source})"
    else:
        yield f"compute    {found.compute.source}"


def _each(found: Prediction) -> list[float]:
    """Return the computing time of each host in a step."""
    if found.balance is not None:
        return list(found.balance.compute_s.values())
    return [found.shape.most * each for each in found.compute.micro_batch_s]


def _traffic(found: Prediction) -> str:
    how = "the tree reduction" if found.reduction == "tree" else "DDP's all-reduce"
    sent = count(found.traffic_bytes, "B")
    if found.shape.processes == 1:
        return "none: there is one process"
    if found.shape.hosts == 1:
        return f"none between machines; {sent} a step out of each process and into it, in {how}"
    return f"{sent} a step out of the busiest host or into it, in {how}"


def _links(found: Prediction) -> list[str]:
    if not found.links:
        return []
    known = found.links[0].step is not None
    rows = [["  link", "all-reduce", "FSDP/ZeRO", *(_STEP if known else ())]]
    for row in found.links:
        mark = "> " if row.link == found.link else "  "
        cells = [f"{mark}{row.link.name}", time(row.communication_s), time(row.sharded_s)]
        rows.append([*cells, *_step(row.step)])
    return table(rows, str.rjust)


_STEP = ("comm/compute", "not hidden", "step", "computing")


def _step(step: StepCost | None) -> Iterator[str]:
    if step is not None:
        yield f"{step.communication_s / step.compute_s:.2f}"
        yield time(step.exposed_s)
        yield time(step.step_s)
        yield f"{step.compute_s / step.step_s:.0%}"


def _nodes(found: Prediction) -> list[str]:
    if len(found.nodes) < 2:
        return []
    known = found.nodes[0].step is not None
    counts = bool(found.shape.micro_batches)
    head = [f"  nodes, at {found.link.name}", *(["micro-batches each"] if counts else [])]
    rows = [
        [*head, "all-reduce", *(("compute", "not hidden", "step", "efficiency") if known else ())]
    ]
    for row in found.nodes:
        mark = "> " if row.nodes == found.shape.hosts else "  "
        cells = [f"{mark}{row.nodes}", *([str(row.micro_batches)] if counts else [])]
        cells.append(time(row.communication_s))
        if row.step is not None and row.efficiency is not None:
            cells += [time(row.step.compute_s), time(row.step.exposed_s), time(row.step.step_s)]
            cells.append(f"{row.efficiency:.0%}")
        rows.append(cells)
    return table(rows, str.rjust)


def _changes(found: Prediction) -> list[str]:
    if not found.changes:
        alike = found.links and not found.unequal
        return [f"  what helps, at {found.link.name}: nothing here"] if alike else []
    what = "step" if found.compute.micro_batch_s else "all-reduce"
    rows = [[f"  what helps, at {found.link.name}", what, "speed"]]
    rows += [[f"  {each.what}", time(each.step_s), f"{each.speed:.2f} ×"] for each in found.changes]
    return table(rows, str.rjust)


def _hosts(found: Prediction) -> Iterator[str]:
    balance = found.balance
    if balance is not None:
        each = ", ".join(f"{name} {time(took)}" for name, took in balance.compute_s.items())
        slow = max(balance.compute_s.values()) - min(balance.compute_s.values())
        shares = _shares(balance.shares)
        yield f"unequal hosts: in a step they compute for {each}, so the fastest waits {time(slow)}"
        now, fewer = balance.step_s, balance.fewer
        without = f"leaving out {', '.join(fewer.without)}"
        if len(fewer.shares) > 1:
            without += f", with share: {_shares(fewer.shares)},"
        ways = ((balance.shared_step_s, f"share: {shares}"), (fewer.step_s, without))
        helping = [(took, way) for took, way in sorted(ways) if now > HELPS * took]
        for took, way in helping:
            yield f"  {way} makes the step {time(took)} instead of {time(now)}"
        if not helping:
            yield f"  share: {shares} would fit them, and needs a smaller micro_batch_size to be of effect"
    elif found.unequal:
        yield (
            "unequal hosts: what a slow one costs, and the shares that end it, follow from --step-time "
            "HOST=TIME of each"
        )


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:g}" for name, share in shares.items())


def _checkpoints(found: Checkpoints | None) -> Iterator[str]:
    if found is None:
        yield "checkpoints: interval, lost work and price follow from --preempted-every and --checkpoint-time"
        return
    gone = found.interruptions
    yield (
        f"checkpoints, each taking {time(gone.checkpoint_s)}, with a machine lost every {time(gone.mean_s)}"
    )
    if not any(found.goodput):
        lost = f"a loss costs {time(found.lost_s)}, which is more than the time between two"
        yield f"  the run would never end: {lost}"
        return
    best = f"every {time(found.interval_s)} is best (Young 1974; Daly 2006: {time(found.daly_interval_s)})"
    lost = f"{time(found.lost_s)} lost each time, {time(gone.restart_s)} of it to start again"
    yield f"  {best}, goodput {_percent(found.goodput)}"
    yield f"  {lost}"
    if found.spec_interval_s is not None and found.spec_goodput is not None:
        yield f"  every {time(found.spec_interval_s)}, as the spec says: goodput {_percent(found.spec_goodput)}"


def _prices(found: Prediction) -> Iterator[str]:
    prices, checkpoints = found.prices, found.checkpoints
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
    least, most = goodput
    each = _range(price / most, price / least) + " for an hour that counts"
    if run_s is None:
        return each
    hours = run_s / 3600
    return f"{each}, {_range(hours * price / most, hours * price / least)} for all steps"


def _range(least: float, most: float) -> str:
    low, high = f"{least:.2f}", f"{most:.2f}"
    return low if low == high else f"{low} to {high}"


def _percent(goodput: tuple[float, float]) -> str:
    return f"{goodput[0]:.0%} to {goodput[1]:.0%}"
