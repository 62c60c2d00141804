"""Muon for hidden matrices, AdamW for the rest: orthogonalised momentum reaches the same loss in far fewer steps.

K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). Matrices of one shape are
orthogonalised together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95


class Muon:
    """`matrices` all 2-D. `step(rate)` applies one update and leaves gradients alone; `rate` is a tensor of no
    dimensions on their device, so that a CUDA graph can hold the step."""

    def __init__(self, matrices: Iterable[torch.nn.Parameter], *, weight_decay: float = 0.01) -> None:
        groups: dict[tuple[int, ...], list[torch.Tensor]] = defaultdict(list)
        for matrix in matrices:
            groups[tuple(matrix.shape)].append(matrix)
        self.groups = list(groups.values())
        self.momenta = [[torch.zeros_like(m) for m in group] for group in self.groups]
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self, rate: torch.Tensor) -> None:
        for matrices, momenta in zip(self.groups, self.momenta, strict=True):
            gradients = [m.grad for m in matrices if m.grad is not None]
            assert len(gradients) == len(matrices)
            torch._foreach_lerp_(momenta, gradients, 1.0 - _MOMENTUM)
            nesterov = torch._foreach_lerp(gradients, momenta, _MOMENTUM)
            rows, columns = matrices[0].shape
            updates = orthogonalise(torch.stack(list(nesterov)))
            updates = updates.to(matrices[0].dtype) * (-rate * max(1.0, rows / columns) ** 0.5)
            torch._foreach_mul_(matrices, 1.0 - rate * self.weight_decay)
            torch._foreach_add_(matrices, list(updates.unbind(0)))


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """[n, rows, columns] -> the same singular vectors with singular values near one (Newton-Schulz, fifth order)."""
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Optimiser:
    """Muon on the `hidden` matrices, by name, AdamW on everything else. `schedule(share)` scales both rates."""

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        hidden: Iterable[str],
        *,
        matrix_rate: float,
        other_rate: float,
    ) -> None:
        names = set(hidden)
        assert all(parameters[name].ndim == 2 for name in names)
        self.parameters = list(parameters.values())
        self.matrix_rate, self.other_rate = matrix_rate, other_rate
        device = self.parameters[0].device
        self.share, self.adam_rate = torch.zeros((), device=device), torch.zeros((), device=device)
        self.muon = Muon(parameters[name] for name in names)
        rest = [value for name, value in parameters.items() if name not in names]
        on_gpu = device.type == "cuda"
        self.adam = torch.optim.AdamW(
            rest, lr=self.adam_rate, betas=(0.9, 0.98), weight_decay=1e-3, fused=on_gpu, capturable=on_gpu
        )

    def schedule(self, share_of_peak: float) -> None:
        """For the steps to come; a captured step reads it too."""
        self.share.fill_(share_of_peak)
        self.adam_rate.fill_(self.other_rate * share_of_peak)

    def step(self) -> None:
        """Clip, update, and drop the gradients. A gradient that is not finite is no update, not the end of the run."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adam.step()
        self.muon.step(self.matrix_rate * self.share)
        for parameter in self.parameters:
            parameter.grad = None
