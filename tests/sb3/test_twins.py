"""The twin critics of TD3 and SAC take their steps together."""

import numpy as np
import pytest
import torch
from sb3_cases import ENOUGH, TWINS, make, same, snapshot

import kova


@pytest.mark.parametrize("algorithm", TWINS)
@pytest.mark.parametrize("critic_kwargs", [{}, {"evolution": kova.FadingMemory(0.01)}], ids=repr)
@pytest.mark.parametrize("trained", [False, True])
def test_if_the_second_critic_cannot_step_the_first_does_not(algorithm, critic_kwargs, trained):
    model = make(algorithm, critic_kwargs=critic_kwargs)
    # The first labels set the units of a filter: they must not be set for one of the two.
    model.learn(ENOUGH if trained else 10)
    assert [optimizer.steps > 0 for optimizer in model.critic_optimizers] == [trained, trained]
    with torch.no_grad():
        model.critic.q_networks[1][0].weight[0, 0] = np.nan
    before = snapshot(model)
    with pytest.raises((ValueError, kova.NumericalError), match="finite"):
        model.train(1, 8)
    after = snapshot(model)
    names = ("critic_optimizer", "critic_optimizer_2")
    assert all(same(after[name], before[name]) for name in names)
    first = [name for name in before["policy"] if name.startswith("critic.qf0")]
    assert first
    assert all(torch.equal(after["policy"][name], before["policy"][name]) for name in first)


@pytest.mark.parametrize("algorithm", TWINS)
@pytest.mark.filterwarnings("ignore:the output layer of the critic is frozen")
def test_a_critic_with_nothing_to_train_is_refused_again_and_again(algorithm):
    model = make(algorithm)
    model.learn(ENOUGH)
    model.critic.q_networks[1].requires_grad_(False)
    filters, before = model.critic_optimizers, snapshot(model)
    for _ in range(2):
        with pytest.raises(ValueError, match="nothing to optimise"):
            model.train(1, 8)
    assert model.critic_optimizers == filters
    assert same([one.state_dict() for one in filters], [before["critic_optimizer"], before["critic_optimizer_2"]])
