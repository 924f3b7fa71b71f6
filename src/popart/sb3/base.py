"""The base of all algorithms: settings of the statistics, and logging."""

from typing import Any, ClassVar, Self

from stable_baselines3.common.base_class import BaseAlgorithm
from torch.optim.optimizer import Optimizer

from popart.rules import Rule
from popart.sb3.policies import PopArtPolicy
from popart.torch import PopArt
from popart.torch.checks import chosen_rule


class PopArtAlgorithm(BaseAlgorithm):
    """The base of the algorithms: `art`, the rule that measures targets, and metrics of the heads."""

    BETA: ClassVar[float]
    """The default step size of the statistics, for one update."""

    policy_base: ClassVar[type[PopArtPolicy]]
    """The class that policies must inherit from."""

    art: Rule[Any]

    def __init__(
        self,
        policy: Any,
        env: Any,
        *args: Any,
        beta: float | None = None,
        art: Rule[Any] | None = None,
        **settings: Any,
    ) -> None:
        self.art = chosen_rule(art, self.BETA if beta is None and art is None else beta)
        if not isinstance(policy, str) and not issubclass(policy, self.policy_base):
            raise TypeError(
                f"policy is {policy.__name__}, which has no Pop-Art head; give a name, such as 'MlpPolicy', "
                f"or class Mine(popart.sb3.policies.{self.policy_base.__name__}, {policy.__name__})"
            )
        super().__init__(policy, env, *args, **settings)

    @classmethod
    def load(cls, path: Any, *args: Any, beta: float | None = None, **settings: Any) -> Self:
        """Load a model as in Stable-Baselines3; `beta` or `art` takes the place of the saved one."""
        if beta is not None:
            settings["art"] = chosen_rule(settings.get("art"), beta)
        return super().load(path, *args, **settings)

    def _setup_model(self) -> None:
        """Make buffers and networks; `policy_kwargs` is not changed, because `load` compares it."""
        given = self.policy_kwargs
        self.policy_kwargs = {"art": self.art, **given}
        super()._setup_model()  # pyright: ignore[reportAbstractUsage]
        self.policy_kwargs = given

    def _record(self, head: PopArt) -> None:
        """Log scale, shift, and the norms of the head's weights and of their last gradient."""
        record, gradient = self.logger.record, head.weight.grad
        record("popart/sigma", head.scale.item())
        record("popart/mu", head.shift.item())
        record("popart/weight_norm", head.weight.detach().norm().item())
        if gradient is not None:
            record("popart/gradient_norm", gradient.norm().item())


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """Return the parameters that an optimizer trains, without a search through all modules of the policy."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
