"""Time one step of KOVA beside Adam, literal Algorithm 1 and the hardware's floor, in one run.

    python benchmarks/step.py --units 32 64 --batch 64 --repeats 7

Arms take turns within every repeat, so that a slow minute of the machine slows them all. The floor is 3d²N flops (one
product with P, half of one symmetric rank-N update) at the sgemm rate measured in the same run.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import kova

INPUTS = 17


def critic(units: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, units), nn.Tanh(), nn.Linear(units, units), nn.Tanh(), nn.Linear(units, 1))


def adam(module: nn.Module, u: Tensor, y: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(module(u).squeeze(1), y).backward()
        optimizer.step()

    return step


def literal(module: nn.Module, u: Tensor, y: Tensor) -> Callable[[], None]:
    """Algorithm 1 as printed: P + P_v formed, S inverted, K formed; the Jacobian is the library's own fast one."""
    optimizer = kova.KOVA(module, evolution=kova.Memoryless(0.01))
    size, dim = len(u), optimizer.covariance.dim
    P = torch.eye(dim)

    def step() -> None:
        nonlocal P
        jacobian = optimizer.observation.linearise(u, size, torch.float32)
        J = jacobian.transposed().T
        P = P + 0.01 / 0.99 * P
        cross = P @ J.T
        S = J @ P @ J.T + size * torch.eye(size)
        K = cross @ torch.linalg.inv(S)
        update = K @ (y - jacobian.values)
        with torch.no_grad():
            nn.utils.vector_to_parameters(
                nn.utils.parameters_to_vector(module.parameters()) + update, module.parameters()
            )
        P = P - K @ S @ K.T

    return step


def filtered(module: nn.Module, u: Tensor, y: Tensor, evolution: kova.Evolution) -> Callable[[], None]:
    optimizer = kova.KOVA(module, evolution=evolution)
    return lambda: optimizer.step(u, y) and None


def sgemm_rate() -> float:
    """Return flops per second of a large float32 product, best of a few."""
    a, b, out = torch.randn(3, 2048, 2048).unbind()
    best = min(_seconds(lambda: torch.mm(a, b, out=out)) for _ in range(7))
    return 2 * 2048**3 / best


def _seconds(call: Callable[[], object], count: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measure(units: int, size: int, repeats: int, steps: int) -> dict[str, object]:
    torch.manual_seed(1)
    u, y, module = torch.randn(size, INPUTS), torch.randn(size), critic(units)
    dim = sum(parameter.numel() for parameter in module.parameters())
    arms = {
        "literal Algorithm 1": literal(copy.deepcopy(module), u, y),
        "full, FadingMemory": filtered(copy.deepcopy(module), u, y, kova.FadingMemory(0.01)),
        "full, PriorRelaxation": filtered(copy.deepcopy(module), u, y, kova.PriorRelaxation(0.01)),
        "full, DirectionalForgetting": filtered(copy.deepcopy(module), u, y, kova.DirectionalForgetting(0.01)),
        "memoryless": filtered(copy.deepcopy(module), u, y, kova.Memoryless(0.01)),
        "Adam": adam(copy.deepcopy(module), u, y),
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    rates = []
    for repeat in range(repeats + 1):
        rates.append(sgemm_rate())
        for name, step in arms.items():
            # A multiple of the deferral's depth, so that every repeat holds its share of flushes.
            elapsed = _seconds(step, steps)
            if repeat:
                times[name].append(1e3 * elapsed)
    floor = 1e3 * 3 * dim**2 * size / statistics.median(rates)
    return {"d": dim, "N": size, "floor_ms": floor, "sgemm_gflops": statistics.median(rates) / 1e9, "ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, nargs="+", default=[32, 64], help="hidden units of the 17-H-H-1 critic")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps per repeat")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    results = []
    for units in arguments.units:
        result = measure(units, arguments.batch, arguments.repeats, arguments.steps)
        results.append(result)
        print(
            f"\nd = {result['d']}, N = {result['N']}, {torch.get_num_threads()} threads, torch {torch.__version__}, ",
            end="",
        )
        print(f"sgemm {result['sgemm_gflops']:.0f} GFLOP/s, floor {result['floor_ms']:.2f} ms")
        print(f"{'':28s}{'median ms':>10s}{'min':>9s}{'max':>9s}{'/ floor':>9s}{'/ Adam':>9s}")
        times = result["ms"]
        for name, values in times.items():
            middle = statistics.median(values)
            print(
                f"{name:28s}{middle:10.2f}{min(values):9.2f}{max(values):9.2f}{middle / result['floor_ms']:9.2f}"
                f"{middle / statistics.median(times['Adam']):9.2f}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
