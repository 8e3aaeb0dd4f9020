"""The learner: a network, its optimizer and its losses."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from stateroom.errors import NotFound
from stateroom.training.options import LearningOptions
from stateroom.training.rollouts import Sample

REINFORCED, SUPERVISED = 0, 1
"""The phases of a training."""

Losses = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Token losses from the current and the original log-probabilities, the advantages, and the reference's."""


class Learner:
    """Updates a network, so answers with an advantage become more likely."""

    def __init__(self, network: Any, options: LearningOptions, seed: int, base: str) -> None:
        """`base` is the path of the base model that is stored in a LoRA adapter."""
        torch.manual_seed(seed)
        self.network = network if options.lora is None else _with_lora(network, options.lora, base)
        self._options = options
        self._reference = copy.deepcopy(network).requires_grad_(False) if options.kl and options.lora is None else None
        learned = [each for each in self.network.parameters() if each.requires_grad]
        rates = options.learning_rate, options.supervised_rate
        self._optimizers = [torch.optim.AdamW(learned, lr=rate, weight_decay=0.0) for rate in rates]
        """The optimizers by phase."""
        self._schedules = [LambdaLR(each, self._rate_after) for each in self._optimizers]

    def _rate_after(self, updates: int) -> float:
        return min(1.0, (updates + 1) / (self._options.warmup + 1))

    def learn(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Learn from samples by their advantages; returns the figures of the last update."""
        figures: dict[str, float] = {}
        tokens = sum(sum(sample.mask) for sample in samples)
        if not self._options.kl:  # without an advantage, the gradient is zero
            samples = [sample for sample in samples if any(sample.advantages)]
        for _ in range(self._options.epochs):
            figures = self._update(samples, self._policy_losses, tokens, REINFORCED)
        return figures

    def imitate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Learn to write the samples."""
        tokens = sum(sum(sample.mask) for sample in samples)
        return self._update(samples, lambda now, *_: -now, tokens, SUPERVISED)

    def _policy_losses(
        self, now: torch.Tensor, then: torch.Tensor, advantages: torch.Tensor, reference: torch.Tensor | None
    ) -> torch.Tensor:
        ratios, clip = (now - then).exp(), self._options.clip
        losses = -torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages)
        return losses if reference is None else losses + self._options.kl * _divergence(now, reference)

    def _update(self, samples: Sequence[Sample], losses: Losses, tokens: int, phase: int) -> dict[str, float]:
        """Make one optimizer step with all samples; their losses are divided by `tokens`."""
        optimizer = self._optimizers[phase]
        ordered = sorted(samples, key=lambda sample: len(sample.ids))  # similar lengths need little padding
        sums: defaultdict[str, float] = defaultdict(float)
        optimizer.zero_grad()
        for start in range(0, len(ordered), self._options.micro_batch):
            batch = Batch(ordered[start : start + self._options.micro_batch], self.network.device)
            now = batch.log_probs(self.network, self._options.temperature)
            reference = self._reference_log_probs(batch) if self._options.kl and phase == REINFORCED else None
            loss = losses(now, batch.then, batch.advantages, reference).sum() / tokens
            loss.backward()
            sums["loss"] += float(loss.detach())
            if phase == REINFORCED:
                now = now.detach()
                sums["divergence"] += float(_divergence(now, batch.then).sum()) / tokens
                sums["clipped"] += float(((now - batch.then).exp() - 1).abs().gt(self._options.clip).sum()) / tokens
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self._options.max_norm)
        optimizer.step()
        self._schedules[phase].step()
        return {**sums, "gradient": float(norm)}

    def _reference_log_probs(self, batch: Batch) -> torch.Tensor:
        """The log-probabilities of the initial model."""
        adapters = self.network.disable_adapter() if self._reference is None else nullcontext()
        with torch.no_grad(), adapters:
            return batch.log_probs(self._reference or self.network, self._options.temperature)

    def save(self, folder: Path, tokenizer: Any, progress: dict[str, Any]) -> None:
        """Write a checkpoint: the model, the state of the optimizer, and the progress."""
        new = folder.with_name(folder.name + ".new")
        self.network.save_pretrained(new)
        tokenizer.save_pretrained(new)
        states = [each.state_dict() for each in (*self._optimizers, *self._schedules)]
        torch.save(states, new / "optimizers.pt")
        (new / "progress.json").write_text(json.dumps(progress))
        new.rename(folder)

    def load(self, folder: Path) -> dict[str, Any]:
        """Continue from a checkpoint; returns the progress."""
        from safetensors.torch import load_file  # noqa: PLC0415

        file = folder / "progress.json"
        if not file.exists():
            raise NotFound(f"{folder} is not a checkpoint")
        if self._options.lora is None:
            self.network.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        else:
            from peft import set_peft_model_state_dict  # noqa: PLC0415

            set_peft_model_state_dict(self.network, load_file(folder / "adapter_model.safetensors"))
        parts = (*self._optimizers, *self._schedules)
        for each, state in zip(parts, torch.load(folder / "optimizers.pt", weights_only=True), strict=True):
            each.load_state_dict(state)
        progress: dict[str, Any] = json.loads(file.read_text())
        return progress


class Batch:
    """Samples as tensors. Values per token are only for learned tokens, in one row."""

    def __init__(self, samples: Sequence[Sample], device: torch.device) -> None:
        length = max(len(sample.ids) for sample in samples)
        self._ids = torch.zeros(len(samples), length, dtype=torch.long)
        self._mask = torch.zeros(len(samples), length, dtype=torch.long)
        learned = torch.zeros(len(samples), length, dtype=torch.bool)
        for row, sample in enumerate(samples):
            self._ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
            self._mask[row, : len(sample.ids)] = 1
            learned[row, : len(sample.ids)] = torch.tensor(sample.mask, dtype=torch.bool)
        self._ids, self._mask, self._learned = self._ids.to(device), self._mask.to(device), learned[:, 1:].to(device)
        self.then = torch.tensor(_chosen(samples, "log_probs"), device=device)
        self.advantages = torch.tensor(_chosen(samples, "advantages"), device=device)

    def log_probs(self, network: Any, temperature: float) -> torch.Tensor:
        """The log-probabilities of the learned tokens by a network."""
        logits = network(self._ids, attention_mask=self._mask).logits[:, :-1][self._learned]
        scores = (logits.float() / temperature).log_softmax(-1)
        return scores.gather(1, self._ids[:, 1:][self._learned][:, None])[:, 0]


def _chosen(samples: Sequence[Sample], name: str) -> list[float]:
    """The values of the learned tokens."""
    return [value for each in samples for value, own in zip(getattr(each, name), each.mask, strict=True) if own]


def _divergence(now: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """An unbiased, non-negative estimate of the divergence from another policy."""
    difference = other - now
    return difference.exp() - difference - 1


def _with_lora(network: Any, rank: int, base: str) -> Any:
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - for adapters alone

    options = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    made = get_peft_model(network, options)
    made.peft_config["default"].base_model_name_or_path = base
    return made
