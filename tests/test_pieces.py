"""A large batch is taken in pieces: the same numbers, in less memory, and still as a whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from cases import batch, mask, mlp, paper_filter, relative, same_bits, snapshot, theta
from reference import Algorithm1, relaxation
from torch import nn

import kova

EVOLUTIONS = [
    kova.Static(),
    kova.FadingMemory(0.1, max_variance=1.5),
    kova.PriorRelaxation(0.05),
    kova.RandomWalk(0.01),
]
NOISES = [kova.BatchSize(), kova.Robust(kova.ConstantNoise(2.0)), kova.InnovationNoise()]
SIZES = [40, 3, 90, 41]


def run(piece: int, evolution: kova.Evolution, noise: kova.Noise, **settings: object) -> tuple[kova.KOVA, list]:
    optimizer = paper_filter(mlp(), evolution=evolution, noise=noise, dtype=torch.float64, **settings)
    optimizer._piece = piece
    return optimizer, [optimizer.step(*batch(size, seed=size)) for size in SIZES]


@pytest.mark.parametrize("piece", [1, 7, 32])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("evolution", EVOLUTIONS, ids=repr)
def test_pieces_of_a_full_filter_are_the_whole_batch(evolution, noise, piece):
    whole, wholes = run(1000, evolution, noise, covariance="full")
    pieced, reports = run(piece, evolution, noise, covariance="full")
    assert relative(theta(pieced.observation.module), theta(whole.observation.module)) < 1e-10
    assert relative(pieced.covariance.dense(), whole.covariance.dense()) < 1e-9
    assert pieced.state_dict()["noise_memory"] == pytest.approx(whole.state_dict()["noise_memory"])
    assert pieced.steps == whole.steps == len(SIZES)
    for one, other in zip(reports, wholes, strict=True):
        for name in ("loss", "nis", "log_likelihood", "information_gain", "update_norm", "mean_variance", "innovation"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", ["layer", "neuron", "diagonal"])
def test_pieces_of_other_structures_are_steps_at_the_same_weights(structure):
    pieced, _ = run(30, kova.PriorRelaxation(0.05), kova.ConstantNoise(1.0), covariance=structure)
    literal = Algorithm1(mlp(), relaxation(0.05))
    keep = mask(mlp(), structure)
    for size in SIZES:
        u, y = batch(size, seed=size)
        J, delta = literal.jacobian(u), y - literal.h(literal.theta, u)
        literal.P = literal.rule(literal.P, J, 1.0)
        moved = torch.zeros_like(literal.theta)
        for piece in torch.arange(size).split(30):
            S = J[piece] @ literal.P @ J[piece].T + torch.eye(len(piece), dtype=torch.float64)
            K = literal.P @ J[piece].T @ torch.linalg.inv(S)
            moved = moved + K @ (delta[piece] - J[piece] @ moved)
            # Covariances are left out after every piece.
            literal.P = keep * (literal.P - K @ S @ K.T)
        literal.theta = literal.theta + moved
    assert relative(theta(pieced.observation.module), literal.theta) < 1e-9
    assert relative(pieced.covariance.dense(), literal.P) < 1e-9


@pytest.mark.parametrize(
    "settings",
    [
        {"evolution": kova.DirectionalForgetting(0.1)},
        {"evolution": kova.Memoryless(0.1)},
        {"step_size": 0.5},
    ],
    ids=repr,
)
def test_where_only_the_whole_batch_is_exact_it_is_taken_whole(settings):
    optimizer, twin = (paper_filter(mlp(), dtype=torch.float64, **settings) for _ in range(2))
    optimizer._piece = 8 if "evolution" not in settings or settings["evolution"].keeps_memory else optimizer._piece
    twin._piece = 1000
    for one in (optimizer, twin):
        one.step(*batch(30))
    assert same_bits(snapshot(optimizer), snapshot(twin))


def test_correlated_labels_are_taken_whole():
    optimizer, twin = (paper_filter(mlp(), dtype=torch.float64) for _ in range(2))
    optimizer._piece, twin._piece = 8, 1000
    noise = torch.eye(30, dtype=torch.float64) + 0.5
    for one in (optimizer, twin):
        one.step(*batch(30), noise=noise)
    assert same_bits(snapshot(optimizer), snapshot(twin))


@pytest.mark.parametrize("structure", ["full", "layer", "neuron", "diagonal", "low_rank:8"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_piece_that_fails_undoes_those_before_it(structure, error):
    class Failing(nn.Sequential):
        calls_left = 10**9

        def forward(self, inputs):
            type(self).calls_left -= 1
            if type(self).calls_left < 0:
                raise error("in the middle")
            return super().forward(inputs)

    critic = Failing(*mlp())
    optimizer = paper_filter(critic, covariance=structure, dtype=torch.float64)
    optimizer._piece = 8
    for seed in range(20):
        optimizer.step(*batch(40, seed=seed))
    before = snapshot(optimizer)
    # One call for the values of all, then one for each piece.
    Failing.calls_left = 4
    with pytest.raises((ValueError, KeyboardInterrupt), match="in the middle"):
        optimizer.step(*batch(40))
    assert same_bits(before, snapshot(optimizer))
    Failing.calls_left = 10**9
    optimizer.step(*batch(40))
    assert optimizer.steps == 21


def test_the_choice_of_auto_says_why():
    assert "auto: Adam steps that a step is worth at N = 64: full 1." in repr(paper_filter(mlp()))
    wide = repr(paper_filter(mlp(inputs=17, hidden=256, dtype=torch.float32), batch_size=32))
    assert "diagonal P over" in wide
    assert "auto: Adam steps that a step is worth at N = 32: full" in wide
    assert "auto" not in repr(paper_filter(mlp(), covariance="full"))


def test_a_snapshot_keeps_the_structure_that_auto_chose_then():
    critics = [mlp(inputs=17, hidden=32, dtype=torch.float32) for _ in range(2)]
    saved, fresh = paper_filter(critics[0], covariance="full"), paper_filter(critics[1])
    assert fresh.covariance.name == "neuron"
    u, y = torch.randn(20, 17), torch.randn(20)
    saved.step(u, y)
    critics[1].load_state_dict(critics[0].state_dict())
    fresh.load_state_dict(saved.state_dict())
    assert fresh.covariance.name == "full"
    for one in (saved, fresh):
        one.step(u, y)
    assert same_bits(snapshot(saved), snapshot(fresh))


def test_a_snapshot_loaded_after_another_is_taken_too():
    critics = [mlp(inputs=17, hidden=32, dtype=torch.float32) for _ in range(3)]
    full, diagonal = (
        paper_filter(critic, covariance=name) for critic, name in zip(critics[:2], ("full", "diagonal"), strict=True)
    )
    fresh = paper_filter(critics[2])
    for other in (full, diagonal, full):
        fresh.load_state_dict(other.state_dict())
        assert fresh.covariance.name == other.covariance.name
        assert "chosen when it was saved" in repr(fresh)


def test_where_the_batch_is_what_costs_auto_keeps_the_whole_matrix():
    assert paper_filter(mlp(inputs=4, hidden=8, dtype=torch.float32), batch_size=2048).covariance.name == "full"


def test_a_noise_model_of_ones_own_sees_what_was_predicted():
    class Doubtful(kova.Noise):
        def covariance(self, batch):
            return 1.0 + batch.predicted

    pieced, _ = run(8, kova.Static(), Doubtful(), covariance="full")
    whole, _ = run(1000, kova.Static(), Doubtful(), covariance="full")
    assert relative(theta(pieced.observation.module), theta(whole.observation.module)) < 1e-10


MEMORY = """
    import sys
    import torch
    from torch import nn
    import kova

    def resident(field):
        lines = open("/proc/self/status").read().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])

    critic = nn.Sequential(nn.Linear(60, 650), nn.Tanh(), nn.Linear(650, 650), nn.Tanh(), nn.Linear(650, 1))
    warm = kova.KOVA(nn.Linear(60, 1))
    u, y = torch.randn(512, 60), torch.randn(512)
    warm.step(u[:64], y[:64])
    optimizer = kova.KOVA(critic, covariance="diagonal", memory_budget=int(sys.argv[1]))
    before = resident("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    optimizer.step(u, y)
    optimizer.predict(u)
    print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's account of memory")
@pytest.mark.parametrize(("budget", "at_most"), [pytest.param(10**7, 5e7, marks=pytest.mark.slow), (10**8, 2e8)])
def test_a_step_keeps_within_the_memory_budget(budget, at_most):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    code = [sys.executable, "-c", textwrap.dedent(MEMORY), str(budget)]
    done = subprocess.run(code, capture_output=True, text=True, check=True, env=environment)
    # 463,451 weights: at once, 512 samples would take 4 GB. Torch's own buffers and the small things are on top.
    assert int(done.stdout) < at_most
