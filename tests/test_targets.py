"""Table 1's labels against hand computation and a slow, literal transcription."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kova.targets import gae_targets, n_step_targets, q_targets

NO = torch.zeros(4, dtype=torch.bool)
AT_1 = torch.tensor([False, True, False, False])
R = torch.tensor([1.0, 2.0, 4.0, 8.0])
V = torch.tensor([10.0, 20.0, 30.0, 40.0])
NEXT = torch.tensor([20.0, 30.0, 40.0, 50.0])


def test_n_step_by_hand():
    assert n_step_targets(R, NEXT, NO, NO, gamma=0.5, n=1).tolist() == [11, 17, 24, 33]
    assert n_step_targets(R, NEXT, NO, NO, gamma=0.5, n=2).tolist() == [1 + 1 + 7.5, 2 + 2 + 10, 4 + 4 + 12.5, 33]
    whole = n_step_targets(R, NEXT, NO, NO, gamma=0.5).tolist()
    assert whole == [1 + 1 + 1 + 1 + 50 / 16, 2 + 2 + 2 + 50 / 8, 4 + 4 + 50 / 4, 8 + 25]
    assert n_step_targets(R, NEXT, NO, NO, gamma=0.5, n=99).tolist() == whole


def test_a_terminal_state_is_worth_nothing_and_a_truncated_one_its_value():
    ended = n_step_targets(R, NEXT, AT_1, NO, gamma=0.5)
    cut = n_step_targets(R, NEXT, NO, AT_1, gamma=0.5)
    assert ended.tolist()[:2] == [1 + 1, 2]
    assert cut.tolist()[:2] == [1 + 1 + 30 / 4, 2 + 15]
    assert ended.tolist()[2:] == cut.tolist()[2:] == n_step_targets(R, NEXT, NO, NO, gamma=0.5).tolist()[2:]


def test_gae_by_hand():
    errors = R + 0.5 * NEXT - V
    labels = gae_targets(R, V, NEXT, NO, AT_1, gamma=0.5, gae_lambda=0.5).tolist()
    assert labels == pytest.approx(
        [
            10 + float(errors[0] + 0.25 * errors[1]),
            20 + float(errors[1]),
            30 + float(errors[2] + 0.25 * errors[3]),
            40 + float(errors[3]),
        ]
    )
    assert gae_targets(R, V, NEXT, AT_1, NO, gamma=0.5, gae_lambda=0.5)[1] == 2.0


def test_gae_with_lambda_0_and_1_are_the_two_extremes_of_n_step():
    flags = AT_1, NO
    one_step = gae_targets(R, V, NEXT, *flags, gamma=0.9, gae_lambda=0.0)
    torch.testing.assert_close(one_step, n_step_targets(R, NEXT, *flags, gamma=0.9, n=1))
    # With λ = 1 the values in between cancel if next_values continue values.
    following = torch.tensor([20.0, 99.0, 40.0, 50.0])
    whole = gae_targets(R, V, following, *flags, gamma=0.9, gae_lambda=1.0)
    torch.testing.assert_close(whole, n_step_targets(R, following, *flags, gamma=0.9))


def test_q_labels_take_the_policys_action_or_the_best():
    q = torch.tensor([[1.0, 5.0], [2.0, 0.0], [3.0, 3.0], [-1.0, -2.0]])
    assert q_targets(R, q, AT_1, NO, gamma=0.5).tolist() == [3.5, 2, 5.5, 7.5]
    assert q_targets(R, q, NO, AT_1, gamma=0.5).tolist() == [3.5, 3, 5.5, 7.5]
    assert q_targets(R, q[:, 0], NO, NO, gamma=0.5).tolist() == [1.5, 3, 5.5, 7.5]
    envs = torch.stack([R, R], 1)
    flags = torch.zeros(4, 2, dtype=torch.bool)
    assert q_targets(envs, torch.stack([q, q], 1), flags, flags, gamma=0.5)[:, 0].tolist() == [3.5, 3, 5.5, 7.5]
    assert q_targets(envs, q, flags, flags, gamma=0.5)[0].tolist() == [1.5, 3.5]


def literal_n_step(r: Tensor, following: Tensor, ended: Tensor, cut: Tensor, gamma: float, n: int) -> list[float]:
    labels = []
    for t in range(len(r)):
        label, discount, step = 0.0, 1.0, t
        while True:
            label += discount * float(r[step])
            discount *= gamma
            if ended[step]:
                break
            if cut[step] or step + 1 == len(r) or step + 1 - t == n:
                label += discount * float(following[step])
                break
            step += 1
        labels.append(label)
    return labels


@settings(max_examples=50, deadline=None)
@given(length=st.integers(1, 12), envs=st.integers(1, 3), n=st.integers(1, 14), seed=st.integers(0, 10_000))
def test_environments_are_independent_and_match_the_literal_sum(length, envs, n, seed):
    generator = torch.Generator().manual_seed(seed)
    r, values, following = (torch.randn(length, envs, generator=generator, dtype=torch.float64) for _ in range(3))
    ended, cut = (torch.rand(length, envs, generator=generator) < 0.2 for _ in range(2))
    together = n_step_targets(r, following, ended, cut, gamma=0.9, n=n)
    gae = gae_targets(r, values, following, ended, cut, gamma=0.9, gae_lambda=0.8)
    for env in range(envs):
        column = (r[:, env], following[:, env], ended[:, env], cut[:, env])
        wanted = literal_n_step(*column, 0.9, n)
        torch.testing.assert_close(together[:, env], torch.tensor(wanted, dtype=torch.float64))
        alone = gae_targets(
            r[:, env], values[:, env], following[:, env], ended[:, env], cut[:, env], gamma=0.9, gae_lambda=0.8
        )
        assert torch.equal(gae[:, env], alone)


def test_the_value_of_a_terminal_state_may_be_anything():
    following = torch.tensor([20.0, math.nan, 40.0, 50.0])
    assert torch.isfinite(gae_targets(R, V, following, AT_1, NO, gamma=0.9, gae_lambda=0.9)).all()
    with pytest.raises(ValueError, match="next_values has 1 non-finite"):
        n_step_targets(R, following, NO, AT_1, gamma=0.9)


def test_every_label_may_have_a_discount_of_its_own():
    gammas = torch.tensor([0.9, 0.81, 0.0, 1.0])
    labels = q_targets(R, V, AT_1, NO, gamma=gammas)
    alone = [q_targets(R[i : i + 1], V[i : i + 1], AT_1[i : i + 1], NO[:1], gamma=float(gammas[i])) for i in range(4)]
    torch.testing.assert_close(labels, torch.cat(alone))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: n_step_targets(R[:0], NEXT[:0], NO[:0], NO[:0], gamma=0.9), "rewards"),
        (lambda: n_step_targets(R, NEXT[:3], NO, NO, gamma=0.9), "next_values"),
        (lambda: n_step_targets(R, NEXT, NO.float(), NO, gamma=0.9), "terminated must be boolean"),
        (lambda: n_step_targets(R, NEXT, NO, NO[:2], gamma=0.9), "truncated"),
        (lambda: n_step_targets(R, NEXT, NO, NO, gamma=1.1), "gamma"),
        (lambda: n_step_targets(R, NEXT, NO, NO, gamma=0.9, n=0), "n must be >= 1"),
        (lambda: gae_targets(R, V[:2], NEXT, NO, NO, gamma=0.9, gae_lambda=0.9), "values"),
        (lambda: gae_targets(R, V, NEXT, NO, NO, gamma=0.9, gae_lambda=-0.1), "gae_lambda"),
        (lambda: q_targets(R, V[:3], NO, NO, gamma=0.9), "next_q"),
        (lambda: q_targets(R * math.nan, V, NO, NO, gamma=0.9), "rewards"),
        (lambda: q_targets(R, V, NO, NO, gamma=torch.full((4,), 1.1)), "gamma must be in .*4 of 4"),
        (lambda: q_targets(R, V, NO, NO, gamma=torch.full((3,), 0.9)), "gamma must have the shape of rewards"),
        (lambda: q_targets(R, V, NO, NO, gamma=torch.tensor([0.9, math.nan, 0.9, 0.9])), "gamma must be in .*1 of 4"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
