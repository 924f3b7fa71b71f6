"""Pop-Art for Stable-Baselines3: its algorithms, free of the scale of rewards.

    from popart.sb3 import PopArtPPO

    model = PopArtPPO("MlpPolicy", "CartPole-v1").learn(50_000)

Each class takes the arguments of the algorithm that it is named after, and `beta` or `art`.
"""

try:
    import stable_baselines3  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"popart.sb3 needs {error.name}, which is not installed: pip install 'popart-learn[sb3]'",
        name=error.name,
    ) from error

from popart.sb3.dqn import PopArtDQN
from popart.sb3.on_policy import PopArtA2C, PopArtPPO
from popart.sb3.sac import PopArtSAC
from popart.sb3.td3 import PopArtTD3

__all__ = ["PopArtA2C", "PopArtDQN", "PopArtPPO", "PopArtSAC", "PopArtTD3"]
