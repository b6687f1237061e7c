"""``kova bench step``: time and memory of a step for every structure, beside Adam, literal Algorithm 1 and the floor.

The floor is 3d²N flops (one product with P and half of a symmetric rank-N update) at the sgemm rate measured in the
same run. Arms take turns within every repeat, so that a slow minute of the machine slows them all.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression, median

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kova.experiments.benchmarks import step_arms
from kova.experiments.benchmarks.record import Record
from kova.experiments.files import check_folder, replacing
from kova.memory import human

#: Inputs and hidden units: the paper's 32-32 and 64-64 critics on HalfCheetah (17 inputs) and Ant (111).
CRITICS: tuple[tuple[int, ...], ...] = ((17, 32, 32), (17, 64, 64), (111, 64, 64))
BATCHES = (64, 256)
#: DDPG's critic and batch, for the structures that can take it.
LARGE: tuple[tuple[int, ...], int, tuple[str, ...]] = (
    (23, 400, 300),
    100,
    ("diagonal", "last_layer", "memoryless", "Adam"),
)
#: Steps timed as one: a multiple of the four deferred batches of 64, so that each includes its share of the flushes.
STEPS = 4
#: Sizes along which the cost of a structure should grow as its model says, and what that model counts.
GROWTH: dict[str, tuple[Sequence[tuple[int, ...]], str]] = {
    "full": (((17, 64, 64), (17, 90, 90), (111, 64, 64), (17, 115, 115)), "d²"),
    "neuron": (((17, 192, 192), (17, 256, 256), (17, 384, 384), (17, 512, 512)), "Σ fan-in²·fan-out"),
    "memoryless": (((17, 1024, 1024), (17, 2048, 2048), (17, 3072, 3072), (17, 4096, 4096)), "d"),
}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one step of one arm on one critic and batch, over the repeats, and the sgemm rate meanwhile."""

    arm: str
    d: int
    n: int
    median: float
    low: float
    high: float
    floor: float
    adam: float
    sgemm_gflops: float


@dataclass(frozen=True)
class Memory:
    """Bytes that building an arm and making a few steps add to a process at its highest."""

    arm: str
    d: int
    n: int
    bytes: int


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
    """Return the time of one call, averaged over ``count``, after one that is not counted.

    What was measured before has filled the caches: the first call pays for that, and it is not its own cost.
    """
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measure(
    shape: tuple[int, ...], size: int, arms: Iterable[str], repeats: int, tick: Callable[[], None]
) -> list[Timing]:
    """Time the arms in turns."""
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
    d, rate = parameters(shape), median(rates)
    floor = 1e3 * 3 * d**2 * size / rate
    adam, gflops = median(times["Adam"]), round(rate / 1e9, 1)
    return [
        Timing(arm, d, size, median(found), min(found), max(found), floor, adam, gflops) for arm, found in times.items()
    ]


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
    medians = [median(found) for found in times]
    exponent = linear_regression(xs, [math.log(value) for value in medians]).slope
    return Growth(arm, model, counted, medians, exponent)


def peak_memory(arm: str, shape: tuple[int, ...], size: int) -> int:
    """Measure :class:`Memory` in a process of its own and return the bytes."""
    code = f"from kova.experiments.benchmarks.step import report_peak;report_peak({arm!r}, {tuple(shape)!r}, {size})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout)


def report_peak(arm: str, shape: tuple[int, ...], size: int) -> None:
    """Print the bytes; meant for a process of its own."""
    # Memory for imports, thread pools and autograd must not count for the arm.
    warm = step_arms.make("Adam", shape, size)
    for _ in range(3):
        warm()
    step_arms.make("memoryless", shape, size)()
    # Importing used more memory at its peak than remains: reset the high-water mark.
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


def run(out: Path, repeats: int, console: Console, command: str) -> None:
    """Measure everything, print it case by case, and write ``step.json`` and ``step.png`` into ``out``.

    Raises:
        UsageError: The files cannot be written.
    """
    check_folder(out, "--out", "step.json", "step.png")
    cases = [(shape, size, tuple(step_arms.ARMS)) for shape in CRITICS for size in BATCHES] + [LARGE]
    record = Record(out / "step.json", "step", command, {"repeats": repeats, "steps": STEPS})
    timings: list[Timing] = []
    memory: list[Memory] = []
    with record.kept(console), Progress(console=console) as progress:
        total = (repeats + 1) * sum(len(arms) for _, _, arms in cases)
        task = progress.add_task("timing steps", total=total)
        for shape, size, arms in cases:
            found = measure(shape, size, arms, repeats, lambda: progress.advance(task))
            timings += found
            record.add(*({"measure": "time", **asdict(timing)} for timing in found))
            console.print(table(found))
        task = progress.add_task("timing growth", total=sum(len(s) for s, _ in GROWTH.values()) * (repeats + 1))
        for arm in GROWTH:
            fit = growth(arm, repeats, lambda: progress.advance(task))
            record.add({"measure": "growth", **asdict(fit)})
            console.print(f"time of {fit.arm} ∝ ({fit.model})^{fit.exponent:.2f}")
        task = progress.add_task("measuring memory", total=len(CRITICS) * len(step_arms.ARMS))
        console.print(f"Peak memory that a step adds, N = {BATCHES[0]}, beside 4d² bytes", highlight=False)
        for arm in step_arms.ARMS:
            for shape in CRITICS:
                own = Memory(arm, parameters(shape), BATCHES[0], peak_memory(arm, shape, BATCHES[0]))
                memory.append(own)
                record.add({"measure": "memory", **asdict(own)})
                share = own.bytes / (4 * own.d**2)
                console.print(f"  {arm:<20} d = {own.d:>6,} {human(own.bytes):>8} ({share:.2f})", highlight=False)
                progress.advance(task)
    draw(timings, memory, out / "step.png")
    console.print(f"{out / 'step.json'}\n{out / 'step.png'}", highlight=False, soft_wrap=True)


def table(timings: Sequence[Timing]) -> Table:
    """Return the timings of one critic and batch."""
    first = timings[0]
    output = Table(title=f"d = {first.d:,}, N = {first.n}: floor {first.floor:.2f} ms, Adam {first.adam:.2f} ms")
    for column in ("", "median ms", "min", "max", "/ floor", "/ Adam"):
        output.add_column(column, justify="left" if not column else "right")
    for timing in timings:
        output.add_row(
            timing.arm,
            f"{timing.median:.2f}",
            f"{timing.low:.2f}",
            f"{timing.high:.2f}",
            f"{timing.median / timing.floor:.2f}",
            f"{timing.median / timing.adam:.2f}",
        )
    return output


def draw(timings: Sequence[Timing], memory: Sequence[Memory], path: Path) -> None:
    """Plot time and memory against d."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    known = {parameters(shape) for shape in CRITICS}
    own = [timing for timing in timings if timing.n == BATCHES[0] and timing.d in known]
    dims = sorted({timing.d for timing in own})
    peaks = {(found.arm, found.d): found.bytes for found in memory}
    for index, arm in enumerate(step_arms.ARMS):
        style = {
            "color": "0.4" if arm == "Adam" else f"C{index}",
            "marker": "osD^v<>pX*hPd"[index],
            "linewidth": 1.5,
            "label": arm,
        }
        left.plot(dims, [next(t.median for t in own if (t.arm, t.d) == (arm, d)) for d in dims], **style)
        right.plot(dims, [max(peaks[arm, d], 2**18) / 1e6 for d in dims], **style)
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
    with replacing(path) as draft:
        figure.savefig(draft, dpi=130)
