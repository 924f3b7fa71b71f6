"""The variance of normalised targets in theory."""

import math


def expected_variance(beta: float) -> float | None:
    r"""Return the variance of normalised normal targets for s = 1; None for medium $\beta$.

    With $\delta = Y_t - \mu_{t-1}$ a normalised target, squared, is
    $(1 - \beta) \delta^2 / (\sigma_{t-1}^2 + \beta \delta^2)$. To first order in $\beta$ its mean is
    $1 - 2 \beta$. For $\eta = 1 - \beta$ near 0, $\sigma_{t-1}^2$ is $\eta$ times the last $\delta^2$. The
    ratio of the two $\delta$, which are normal with correlation -1/2, has a Cauchy distribution. The mean is
    $\frac{\eta}{\beta} \left(1 - \frac{\sqrt\eta (\gamma + \sqrt\eta)}{1 + 2 \gamma \sqrt\eta + \eta}\right)$
    with $\gamma = \sqrt 3 / 2$.
    """
    if beta < 0.03:
        return 1 - 2 * beta
    if beta < 0.95:
        return None
    root, gamma = math.sqrt(1 - beta), math.sqrt(3) / 2
    return (1 - beta) / beta * (1 - root * (gamma + root) / (1 + 2 * gamma * root + 1 - beta))
