"""The lockstep engine, strict schedule: one process, deterministic, resumable bit for bit.

    every S updates: weights -> behaviour snapshot
    a chunk of batches <- snapshot (as the queue runs dry) -> queue -> one batch per update -> learner
    learner -> journals -> collapse rule -> stop?        every so often: checkpoint

Update t trains on the rollouts of the snapshot taken at S·⌊t/S⌋, so its lag is t mod S exactly (math.md B1).
Chunks are cut at fixed places within a cycle, whatever the horizon, so a run that is continued equals a
longer one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from trainer.checkpoint import Checkpoint, load_newest, pack_batches, save_checkpoint, unpack_batches
from trainer.collapse import CollapseDetector
from trainer.config import Budget, RunConfig
from trainer.files import finite
from trainer.journal import Journals, cut_journals
from trainer.learner import Learner
from trainer.policy import build_policy, copy_weights, weights_of
from trainer.record import RunPaths, UpdateMetrics
from trainer.rollouts import RolloutBatch, draw_responses, draw_uniforms, generate_batches
from trainer.seeding import generator
from trainer.tasks import make_task
from trainer.warm_start import initial_weights, load_weights

JOURNALS = ("metrics", "timings", "samples")


class Lockstep:
    """One run in progress. `step` counts learner updates done."""

    def __init__(self, paths: RunPaths, config: RunConfig, budget: Budget, check: Callable[[], None]) -> None:
        self.paths, self.config, self.budget = paths, config, budget
        self.task = make_task(config.task)
        file, self.warm_start = initial_weights(config, self.task, paths.warm_starts, check)
        self.policy = build_policy(config.model, self.task, config.warm_start.seed)
        load_weights(self.policy, file)
        self.behaviour = build_policy(config.model, self.task, config.warm_start.seed)
        self.learner = Learner(self.policy, config)
        self.detector = CollapseDetector(budget.collapse, config.sync_interval)
        self.queue: deque[RolloutBatch] = deque()
        self.step = 0
        self.cumulative_rate = 0.0
        self.fault: str | None = None

    @property
    def target(self) -> int:
        """Updates after which this run ends: the horizon, or the watch after a confirmed collapse."""
        confirmed = self.detector.verdict().confirmed_step
        if confirmed is None:
            return self.budget.horizon
        return min(self.budget.horizon, confirmed + 1 + self.budget.updates_after_collapse)

    @property
    def done(self) -> bool:
        return self.fault is not None or self.step >= self.target

    def advance(self, journals: Journals) -> None:
        """One learner update; sets `fault`, which ends the run, when numbers stop being finite."""
        started = time.perf_counter()
        try:
            batch = self._next_batch(journals)
        except FloatingPointError as error:
            self.fault = f"update {self.step}: {error}"
            return
        generated = time.perf_counter()
        update = self.learner.update(batch, self.step)
        measured = time.perf_counter()
        rate = self.learner.rate(self.step)
        self.cumulative_rate += rate
        groups = batch.rewards.view(-1, self.config.group_size)
        reward = batch.rewards.mean().item()
        values = asdict(update)
        seconds = values.pop("seconds")
        metrics = UpdateMetrics(
            step=self.step,
            policy_version=batch.policy_version,
            learning_rate=rate,
            cumulative_rate=self.cumulative_rate,
            reward=reward,
            reward_standard_error=groups.mean(1).std(correction=0).item() / len(groups) ** 0.5,
            reward_trained=reward,
            informative_share=(groups != groups[:, :1]).any(1).float().mean().item(),
            lag_mean=float(self.step - batch.policy_version),
            lag_max=self.step - batch.policy_version,
            response_length=batch.mask.sum(1).double().mean().item(),
            truncated_share=self._truncated_share(batch),
            **values,
        )
        self.detector.update(metrics.reward, metrics.reward_standard_error)
        journals.append("metrics", finite(asdict(metrics)))
        seconds |= {"generate": generated - started, "record": time.perf_counter() - measured}
        journals.append("timings", {"step": self.step} | {k: round(v, 6) for k, v in seconds.items()})
        self.step += 1
        if not update.finite:
            self.fault = f"update {self.step - 1}: loss or gradient is not finite"

    def _next_batch(self, journals: Journals) -> RolloutBatch:
        phase = self.step % self.config.sync_interval
        if phase == 0:
            copy_weights(self.policy, self.behaviour)
            self._write_samples(journals)
        if not self.queue:
            chunk = max(1, self.config.resources.generation_chunk // self.config.batch_size)
            version = self.step - phase
            # the queue is part of a checkpoint, so it only runs dry where a chunk ends
            last = min(self.step + chunk, version + self.config.sync_interval)
            steps = range(self.step, last)
            self.queue.extend(generate_batches(self.behaviour, self.task, self.config, steps, version))
        return self.queue.popleft()

    def _truncated_share(self, batch: RolloutBatch) -> float:
        ended = ((batch.responses == self.task.eos_id) & batch.mask).any(dim=1)
        return (~ended).double().mean().item()

    def _write_samples(self, journals: Journals) -> None:
        every = -(-self.budget.sample_every // self.config.sync_interval) * self.config.sync_interval
        if not self.budget.sample_prompts or self.step % every:
            return
        prompts = self.task.prompts(self.budget.sample_prompts, generator(0, "sample prompts", 0))
        stream = generator(self.config.seed, "sample completions", self.step)
        uniforms = draw_uniforms(self.task, len(prompts), stream)
        drawn = draw_responses(self.behaviour, self.task, prompts, uniforms, self.config.sampling.temperature)
        rewards = self.task.verify(prompts, drawn.tokens).tolist()
        for prompt, response, reward in zip(prompts, drawn.tokens, rewards, strict=True):
            line = {
                "prompt": self.task.render(prompt),
                "response": self.task.render(response),
                "reward": reward,
            }
            journals.append("samples", {"policy_version": self.step} | line)

    def save(self, journals: Journals, *, keep: int) -> None:
        """Write a checkpoint of everything that decides how the run goes on."""
        previous = self.learner.previous_gradient
        meta: dict[str, Any] = {
            "cumulative_rate": self.cumulative_rate,
            "warm_start": self.warm_start,
            "detector": self.detector.state_dict(),
            "journals": journals.sync(),
            "fault": self.fault,
            "queue": [{"step": b.step, "policy_version": b.policy_version} for b in self.queue],
        }
        groups = {
            "weights": weights_of(self.policy),
            "behaviour": weights_of(self.behaviour),
            "optimizer": self.learner.optimizer_tensors(),
            "previous_gradient": {} if previous is None else {"gradient": previous},
            "queue": pack_batches([batch.tensors() for batch in self.queue]),
        }
        save_checkpoint(self.paths.checkpoints, Checkpoint(self.step, groups, meta), keep)

    def restore(self, tail_attempt: int, notice: Callable[[str], None]) -> None:
        """Go back to the newest complete checkpoint, or to the start; cut the journals to match.

        Raises `ValueError` when the checkpoint grew from other initial weights than those at hand.
        """
        checkpoint = load_newest(self.paths.checkpoints, notice)
        lengths = dict.fromkeys(JOURNALS, 0)
        if checkpoint is not None:
            meta = checkpoint.meta
            if meta["warm_start"] != self.warm_start:
                raise ValueError(
                    f"the checkpoint grew from weights {meta['warm_start'][:12]}, the warm start at hand is "
                    f"{self.warm_start[:12]}: put the sweep's warm_starts folder back, or start a new sweep"
                )
            lengths = meta["journals"]
            self._load(checkpoint)
        cut = cut_journals(self.paths.folder, lengths, self.paths.tail(tail_attempt))
        if self.step or cut:
            notice(f"continues at update {self.step}; {cut} journal lines after it were moved aside")

    def _load(self, checkpoint: Checkpoint) -> None:
        groups, meta = checkpoint.groups, checkpoint.meta
        with torch.no_grad():
            for model, name in ((self.policy, "weights"), (self.behaviour, "behaviour")):
                for key, parameter in weights_of(model).items():
                    parameter.copy_(groups[name][key])
        self.learner.load_optimizer_tensors(dict(groups["optimizer"]))
        self.learner.previous_gradient = groups["previous_gradient"].get("gradient")
        packed = unpack_batches(groups["queue"], len(meta["queue"]))
        self.queue = deque(
            RolloutBatch(**head, **body) for head, body in zip(meta["queue"], packed, strict=True)
        )
        self.detector = CollapseDetector.from_state(meta["detector"])
        self.cumulative_rate = meta["cumulative_rate"]
        self.fault = meta["fault"]
        self.step = checkpoint.step
