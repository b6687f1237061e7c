"""How long a step takes and how much memory, for every structure, beside Adam, literal Algorithm 1 and the floor.

The floor is 3d²N flops (one product with P and half of a symmetric rank-N update) at the sgemm rate measured in the
same run. Arms take turns within every repeat, so that a slow minute of the machine slows them all.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kova.experiments.benchmarks import step_arms
from kova.experiments.runs.provenance import provenance

#: Inputs and hidden units: the paper's 32-32 and 64-64 critics on HalfCheetah (17 inputs) and Ant (111).
CRITICS: tuple[tuple[int, ...], ...] = ((17, 32, 32), (17, 64, 64), (111, 64, 64))
BATCHES = (64, 256)
#: DDPG's critic and batch, for the structures that can take it.
LARGE: tuple[tuple[int, ...], int, tuple[str, ...]] = (
    (23, 400, 300),
    100,
    ("diagonal", "last_layer", "memoryless", "Adam"),
)
#: Steps timed as one: a multiple of the four deferred batches of 64, so that each holds its share of the flushes.
STEPS = 4
#: Sizes along which the cost of a structure should grow as its model says, and what that model counts.
GROWTH: dict[str, tuple[Sequence[tuple[int, ...]], str]] = {
    "full": (((17, 64, 64), (17, 90, 90), (111, 64, 64), (17, 115, 115)), "d²"),
    "neuron": (((17, 192, 192), (17, 256, 256), (17, 384, 384), (17, 512, 512)), "Σ fan-in²·fan-out"),
    "memoryless": (((17, 1024, 1024), (17, 2048, 2048), (17, 3072, 3072), (17, 4096, 4096)), "d"),
}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one step of one arm on one critic and batch, over the repeats."""

    arm: str
    d: int
    n: int
    median: float
    low: float
    high: float
    floor: float
    adam: float


@dataclass(frozen=True)
class Growth:
    """The fitted exponent of a structure's time against what its cost model counts."""

    arm: str
    model: str
    counts: list[int]
    milliseconds: list[float]
    exponent: float


def parameters(shape: tuple[int, ...]) -> int:
    """Return d of a critic with these inputs and hidden units."""
    return sum((a + 1) * b for a, b in zip(shape, (*shape[1:], 1), strict=True))


def neuron_numbers(shape: tuple[int, ...]) -> int:
    """Return Σ fan-in²·fan-out, the bias counted as an input."""
    return sum((a + 1) ** 2 * b for a, b in zip(shape, (*shape[1:], 1), strict=True))


#: What a cost model counts.
COUNTS: dict[str, Callable[[tuple[int, ...]], int]] = {
    "d²": lambda shape: parameters(shape) ** 2,
    "d": parameters,
    "Σ fan-in²·fan-out": neuron_numbers,
}


def sgemm_rate() -> float:
    """Return the flops per second of a large float32 product, the best of a few."""
    a, b, out = torch.randn(3, 2048, 2048).unbind()
    best = min(seconds(lambda: torch.mm(a, b, out=out)) for _ in range(5))
    return float(2 * 2048**3 / best)


def seconds(call: Callable[[], object], count: int = 1) -> float:
    """Return the time of one call, averaged over ``count``."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measure(
    shape: tuple[int, ...], size: int, arms: Iterable[str], repeats: int, tick: Callable[[], None]
) -> tuple[list[Timing], float]:
    """Time the arms in turns; return their timings and the sgemm rate."""
    steps = {arm: step_arms.make(arm, shape, size) for arm in arms}
    times: dict[str, list[float]] = {arm: [] for arm in steps}
    rates = []
    for repeat in range(repeats + 1):
        rates.append(sgemm_rate())
        for arm, step in steps.items():
            elapsed = 1e3 * seconds(step, STEPS)
            # The first round warms caches and allocators.
            if repeat:
                times[arm].append(elapsed)
            tick()
    d, rate = parameters(shape), statistics.median(rates)
    floor = 1e3 * 3 * d**2 * size / rate
    adam = statistics.median(times["Adam"])
    timings = [
        Timing(arm, d, size, statistics.median(found), min(found), max(found), floor, adam)
        for arm, found in times.items()
    ]
    return timings, rate


def growth(arm: str, repeats: int, tick: Callable[[], None]) -> Growth:
    """Time one structure along its sizes and fit log time = exponent · log count + constant."""
    shapes, model = GROWTH[arm]
    counted = [COUNTS[model](shape) for shape in shapes]
    steps = [step_arms.make(arm, shape, 64) for shape in shapes]
    times: list[list[float]] = [[] for _ in shapes]
    for repeat in range(repeats + 1):
        for step, found in zip(steps, times, strict=True):
            elapsed = 1e3 * seconds(step, STEPS)
            if repeat:
                found.append(elapsed)
            tick()
    xs = [math.log(count) for count in counted]
    medians = [statistics.median(found) for found in times]
    exponent = statistics.linear_regression(xs, [math.log(value) for value in medians]).slope
    return Growth(arm, model, counted, medians, exponent)


def peak_memory(arm: str, shape: tuple[int, ...], size: int) -> int:
    """Return the bytes that building the arm and making a few steps add to a fresh process at its highest."""
    code = f"from kova.experiments.benchmarks.step import report_peak;report_peak({arm!r}, {tuple(shape)!r}, {size})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout)


def report_peak(arm: str, shape: tuple[int, ...], size: int) -> None:
    """Print the bytes; meant for a process of its own."""
    # Imports, thread pools and autograd are not the arm's.
    warm = step_arms.make("Adam", shape, size)
    for _ in range(3):
        warm()
    step_arms.make("memoryless", shape, size)()
    # Importing peaks higher than what stays: start the high-water mark anew.
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    step = step_arms.make(arm, shape, size)
    for _ in range(6):
        step()
    sys.stdout.write(str(max(0, _resident("VmHWM") - before)))


def _resident(field: str) -> int:
    """Return a size from Linux's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def run(out: Path, repeats: int, console: Console) -> None:
    """Measure everything, print it, and write ``step.json`` and ``step.png`` into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    cases = [(shape, size, tuple(step_arms.ARMS)) for shape in CRITICS for size in BATCHES] + [LARGE]
    timings: list[Timing] = []
    rates = []
    with Progress(console=console) as progress:
        total = (repeats + 1) * sum(len(arms) for _, _, arms in cases)
        task = progress.add_task("timing steps", total=total)
        for shape, size, arms in cases:
            found, rate = measure(shape, size, arms, repeats, lambda: progress.advance(task))
            timings += found
            rates.append(rate)
        task = progress.add_task("timing growth", total=sum(len(s) for s, _ in GROWTH.values()) * (repeats + 1))
        fits = [growth(arm, repeats, lambda: progress.advance(task)) for arm in GROWTH]
        task = progress.add_task("measuring memory", total=len(CRITICS) * len(step_arms.ARMS))
        memory: dict[str, dict[int, int]] = {arm: {} for arm in step_arms.ARMS}
        for shape in CRITICS:
            for arm in step_arms.ARMS:
                memory[arm][parameters(shape)] = peak_memory(arm, shape, BATCHES[0])
                progress.advance(task)
    for shape, size, _ in cases:
        console.print(table(timings, parameters(shape), size))
    console.print(memory_table(memory))
    for fit in fits:
        console.print(f"time of {fit.arm} ∝ ({fit.model})^{fit.exponent:.2f}")
    numbers = {
        "made_by": provenance(f"kova bench step --repeats {repeats}"),
        "sgemm_gflops": [round(rate / 1e9, 1) for rate in rates],
        "timings": [asdict(timing) for timing in timings],
        "growth": [asdict(fit) for fit in fits],
        "peak_bytes": memory,
    }
    (out / "step.json").write_text(json.dumps(numbers, indent=1) + "\n")
    draw(timings, memory, out / "step.png")
    console.print(f"{out / 'step.json'}\n{out / 'step.png'}", highlight=False, soft_wrap=True)


def table(timings: Sequence[Timing], d: int, size: int) -> Table:
    """Return the timings of one critic and batch."""
    own = [timing for timing in timings if (timing.d, timing.n) == (d, size)]
    output = Table(title=f"d = {d:,}, N = {size}: floor {own[0].floor:.2f} ms, Adam {own[0].adam:.2f} ms")
    for column in ("", "median ms", "min", "max", "/ floor", "/ Adam"):
        output.add_column(column, justify="left" if not column else "right")
    for timing in own:
        output.add_row(
            timing.arm,
            f"{timing.median:.2f}",
            f"{timing.low:.2f}",
            f"{timing.high:.2f}",
            f"{timing.median / timing.floor:.2f}",
            f"{timing.median / timing.adam:.2f}",
        )
    return output


def memory_table(memory: dict[str, dict[int, int]]) -> Table:
    """Return the peak memory of every arm, and what part of 4d² bytes it is."""
    output = Table(title=f"Peak memory a step adds, MB (of 4d² bytes), N = {BATCHES[0]}")
    dims = [parameters(shape) for shape in CRITICS]
    output.add_column("")
    for d in dims:
        output.add_column(f"d = {d:,}", justify="right")
    for arm, found in memory.items():
        output.add_row(arm, *(f"{found[d] / 1e6:.0f} ({found[d] / (4 * d * d):.2f})" for d in dims))
    return output


def draw(timings: Sequence[Timing], memory: dict[str, dict[int, int]], path: Path) -> None:
    """Plot time and memory against d."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    known = {parameters(shape) for shape in CRITICS}
    own = [timing for timing in timings if timing.n == BATCHES[0] and timing.d in known]
    dims = sorted({timing.d for timing in own})
    for index, arm in enumerate(step_arms.ARMS):
        style = {
            "color": "0.4" if arm == "Adam" else f"C{index}",
            "marker": "osD^v<>pX*h"[index],
            "linewidth": 1.5,
            "label": arm,
        }
        left.plot(dims, [next(t.median for t in own if (t.arm, t.d) == (arm, d)) for d in dims], **style)
        right.plot(dims, [max(memory[arm][d], 2**18) / 1e6 for d in dims], **style)
    floors = [next(t.floor for t in own if t.d == d) for d in dims]
    left.plot(dims, floors, color="black", linestyle="--", label="floor: 3d²N flops")
    right.plot(dims, [4 * d * d / 1e6 for d in dims], color="black", linestyle="--", label="4d² bytes")
    left.set(ylabel="time of a step (ms)", title=f"Time, N = {BATCHES[0]}, {torch.get_num_threads()} threads")
    right.set(ylabel="peak memory added (MB)", title="Memory (below 0.3 MB drawn there)")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="parameters d")
        axes.set_xticks(dims, [f"{d:,}" for d in dims])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=130)
