"""Regression on a stream whose targets grow a millionfold, in PyTorch.

    python examples/stream.py

The same network, optimizer and learning rate are used once with a linear head and once with Pop-Art.
"""

import torch
from torch import nn

import popart
from popart.torch import PopArt

STEPS, BATCH = 1500, 32


def targets(x: torch.Tensor, step: int) -> torch.Tensor:
    """Return a smooth function of x, a thousand times larger after each third of the stream."""
    return 1000.0 ** (step // (STEPS // 3)) * (torch.sin(3 * x[:, 0]) + x[:, 1] + 2)


def learn(head: nn.Linear | PopArt, seed: int = 0) -> list[float]:
    """Train a network; return the error at the end of each third, relative to the spread of the targets."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 3e-3)
    errors: list[float] = []
    for step in range(STEPS):
        x = 2 * torch.rand(BATCH, 2) - 1
        y = targets(x, step)
        if isinstance(head, PopArt):
            y = head.update(y, optimizer=optimizer)  # first the targets,
            prediction = head.normalized(body(x))[:, 0]  # then the outputs, both normalised
        else:
            prediction = head(body(x))[:, 0]
        loss = (prediction - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % (STEPS // 3) == 0:
            x = 2 * torch.rand(1000, 2) - 1
            y = targets(x, step)
            with torch.no_grad():
                error = (head(body(x))[:, 0] - y).square().mean().sqrt() / y.std()
            errors.append(float(error))
    return errors


def main() -> None:
    torch.set_num_threads(1)
    print("error relative to the spread of targets, which grow a thousandfold each time:")
    for name, head in (("linear", nn.Linear(64, 1)), ("Pop-Art", PopArt(64, 1, popart.Moments(beta=1e-2)))):
        print(f"{name:>8}:", "  ".join(f"{error:6.3f}" for error in learn(head)))


if __name__ == "__main__":
    main()
