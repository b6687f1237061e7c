"""Write what 0.1.0 leaves on disk: state dicts of the filter, models of every algorithm, run directories, a sweep."""
import sys, json, subprocess, shutil
from pathlib import Path
import torch, numpy as np
import kova, kova.sb3
assert kova.__version__ == "0.1.0" and "/tmp/v010" in kova.__file__, kova.__file__
out = Path(sys.argv[1]); out.mkdir(parents=True, exist_ok=True)
def critic():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
filters = {}
for structure in ("full", "layer", "neuron", "block:8", "diagonal", "last_layer", "low_rank:4"):
    for ev in (kova.FadingMemory(0.05), kova.PriorRelaxation(0.01)):
        m = critic(); o = kova.KOVA(m, covariance=structure, evolution=ev, noise=kova.Robust(kova.InnovationNoise()))
        g = torch.Generator().manual_seed(1)
        batches = [(torch.randn(7, 3, generator=g), torch.randn(7, generator=g)) for _ in range(6)]
        for u, y in batches[:5]: o.step(u, y)
        saved = {"critic": {k: v.clone() for k, v in m.state_dict().items()}, "filter": o.state_dict()}
        o.step(*batches[5])
        v = o.predict(batches[0][0])
        filters[f"{structure} {type(ev).__name__}"] = {**saved, "next": batches[5], "inputs": batches[0][0], "mean": v.mean, "stddev": v.stddev}
m = critic(); o = kova.KOVA(m, evolution=kova.Memoryless(0.1))
o.step(*batches[0]); saved = {"critic": {k: v.clone() for k, v in m.state_dict().items()}, "filter": o.state_dict()}
o.step(*batches[5]); v = o.predict(batches[0][0])
filters["auto Memoryless"] = {**saved, "next": batches[5], "inputs": batches[0][0], "mean": v.mean, "stddev": v.stddev}
torch.save(filters, out / "filters.pt")
small = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
made = {
 "ppo": (kova.sb3.PPO, "CartPole-v1", {"n_steps": 64, "critic_kwargs": {"evolution": kova.PriorRelaxation(0.02), "noise": kova.Robust(kova.MaxRatio())}}),
 "a2c": (kova.sb3.A2C, "CartPole-v1", {}),
 "trpo": (kova.sb3.TRPO, "CartPole-v1", {"n_steps": 64}),
 "dqn": (kova.sb3.DQN, "CartPole-v1", {"learning_starts": 32, "buffer_size": 500, "critic_kwargs": {"noise": kova.InverseVariance()}}),
 "ddpg": (kova.sb3.DDPG, "Pendulum-v1", {"learning_starts": 32, "buffer_size": 500}),
}
expected = {}
for name, (cls, env, kw) in made.items():
    model = cls("MlpPolicy", env, **small, **kw).learn(128)
    model.save(out / name)
    obs = np.linspace(-0.5, 0.5, 5 * model.observation_space.shape[0], dtype=np.float32).reshape(5, -1)
    args = (obs,) if name in ("ppo", "a2c", "trpo") else (obs, np.zeros((5, 1), dtype=np.float32) if name == "ddpg" else np.zeros(5, dtype=int))
    value = model.predict_value(*args)
    expected[name] = {"frames": model.num_timesteps, "mean": value.mean.tolist(), "stddev": value.stddev.tolist(), "repr": repr(model.critic_optimizer)}
(out / "models.json").write_text(json.dumps(expected, indent=1) + "\n")
