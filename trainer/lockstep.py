"""The lockstep engine: one process, deterministic, resumable bit for bit.

    every S updates: weights -> behaviour snapshot
    prompts -> behaviour -> verifier -> advantages -> store      as trainer.schedule says
    store -> batch -> learner -> journals -> collapse rule -> stop?
    every so often: evaluation, checkpoint

Without a buffer and with schedule=strict, update t trains on the rollouts of the snapshot taken at
S·⌊t/S⌋, so its lag is t mod S exactly (math.md B1). What is generated together is cut at fixed places
within a cycle, whatever the horizon, so a run that is continued equals a longer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from trainer.budget import Budget
from trainer.checkpoint import Checkpoint, load_newest, save_checkpoint, save_weights
from trainer.collapse import CollapseDetector
from trainer.config import RunConfig
from trainer.errors import RunFault, UserError
from trainer.evaluation import completions, due_sets, evaluate
from trainer.files import finite, write_json
from trainer.journal import Journals, cut_journals
from trainer.learner import Learner
from trainer.policy import (
    behaviour_copy,
    checkpoint_activations,
    copy_weights,
    weights_of,
)
from trainer.prompts import TRAINING
from trainer.record import CHECKPOINT_FORMAT, RunPaths, UpdateMetrics
from trainer.rollouts import PromptStream, ended, mean_reward
from trainer.schedule import make_schedule
from trainer.setup import initial_policy, make_task
from trainer.supply import Supply
from trainer.usage import Usage

JOURNALS = ("metrics", "timings", "samples", "evaluations")


class Lockstep:
    """One run in progress. `step` counts learner updates done."""

    def __init__(self, paths: RunPaths, config: RunConfig, budget: Budget, check: Callable[[], None]) -> None:
        self.paths, self.config, self.budget = paths, config, budget
        self.task, pretrained = make_task(config, paths.prepared, budget.evaluation)
        self.policy, self.warm_start = initial_policy(config, self.task, pretrained, paths.warm_starts, check)
        self.policy.to(config.resources.device)
        self.behaviour = behaviour_copy(self.policy, config.model.compute_dtype)
        if config.resources.activation_checkpointing:
            checkpoint_activations(self.policy)
        self.learner = Learner(self.policy, config)
        self.detector = CollapseDetector(budget.collapse, config.sync_interval)
        usage = Usage(paths.rollouts, budget.usage_window)
        stream = PromptStream(self.task, config)
        self.supply = Supply(self.behaviour, stream, usage, lambda group: self.schedule.ahead(group))
        self.schedule = make_schedule(config, self.supply)
        self.step = 0
        self.cumulative_rate = 0.0
        self.fault: str | None = None
        self.best: dict[str, Any] | None = None
        """Of the evaluation that did best on the first set: step, set, metric, value."""
        if self.task.reports:
            write_json(paths.prompts, self.task.reports)

    @property
    def prompt_hash(self) -> str | None:
        """Of the rendered training prompts; None for built-in tasks."""
        return self.task.reports[TRAINING]["rendered"] if self.task.reports else None

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
        """One learner update; sets `fault`, which ends the run, when it cannot go on."""
        started = time.perf_counter()
        try:
            self._sync(journals)
            self.supply.prepare(self.step)
            self.schedule.fill(self.step)
        except (FloatingPointError, RunFault) as error:
            self.fault = f"update {self.step}: {error}"
            return
        batch, rollouts, drawn = self.supply.draw()
        generated = time.perf_counter()
        update = self.learner.update(batch, self.step)
        norms = self.learner.rollout_gradient_norms
        if norms is not None:
            self.supply.store.record_gradient_norms(rollouts, norms.numpy())
        trained = time.perf_counter()
        arrived = self._arrived()
        try:
            self.schedule.trained()
        except (FloatingPointError, RunFault) as error:
            self.fault = f"update {self.step}: {error}"
        worked = time.perf_counter()
        self.cumulative_rate += self.learner.rate(self.step)
        values = asdict(update)
        seconds = values.pop("seconds")
        metrics = UpdateMetrics(
            step=self.step,
            policy_version=self.supply.version,
            learning_rate=self.learner.rate(self.step),
            cumulative_rate=self.cumulative_rate,
            **arrived,
            **drawn,
            **values,
            **self.schedule.measurements(),
        )
        error = metrics.reward_standard_error
        spread = 1 - self.config.task.wrong_reward
        self.detector.update(metrics.accuracy, None if error is None else error / spread)
        journals.append("metrics", finite(asdict(metrics)))
        self.supply.usage.close_update(self.step)
        self.step += 1
        if not update.finite:
            self.fault = f"update {self.step - 1}: loss or gradient is not finite"
        seconds["generate"] = (generated - started) + (worked - trained)
        seconds["record"] = time.perf_counter() - worked
        if self._evaluate(journals):
            seconds["evaluate"] = time.perf_counter() - worked - seconds["record"]
        journals.append("timings", {"step": self.step - 1} | {k: round(v, 6) for k, v in seconds.items()})

    def _sync(self, journals: Journals) -> None:
        """Give the behaviour policy the learner's weights where a cycle begins."""
        if self.step == 0:
            self._evaluate(journals)
        if self.step % self.config.sync_interval == 0:
            copy_weights(self.policy, self.behaviour)
            self.supply.sync(self.step)
            self._write_samples(journals)
            if self.step:
                self.schedule.synced()

    def _arrived(self) -> dict[str, Any]:
        """Measurements of the rollouts that entered the store since the last update, by metric name."""
        batch = self.supply.arrived()
        self.supply.clear()
        if batch is None:
            names = ("reward", "reward_standard_error", "accuracy", "response_length", "truncated_share")
            return dict.fromkeys((*names, "unscored_share", "filtered_share"))
        reward, error = mean_reward(batch, self.config.group_size)
        truncated = ~ended(self.task, batch.responses, batch.mask)
        filtered = 0.0
        if self.config.task.truncation == "filter":
            groups = truncated.view(-1, self.config.group_size)
            filtered = groups.any(dim=1).double().mean().item()
        return {
            "reward": reward,
            "reward_standard_error": error,
            "accuracy": None if reward is None else self.config.task.accuracy(reward),
            "response_length": batch.mask.sum(1).double().mean().item(),
            "truncated_share": truncated.double().mean().item(),
            "unscored_share": (~batch.scored).double().mean().item(),
            "filtered_share": filtered,
        }

    def _evaluate(self, journals: Journals) -> bool:
        """Measure what is due, on the learner's weights of now; keep them where they did best so far."""
        lines: list[dict[str, Any]] = []
        training = self.policy.training
        self.policy.eval()  # layers that recompute their activations keep no cache
        for name, settings in due_sets(self.config, self.budget.evaluation, self.step):
            lines += evaluate(self.policy, self.task, self.config, name, settings, self.step)
        self.policy.train(training)
        for line in lines:
            journals.append("evaluations", line)
        if lines and self.budget.evaluation.keep_best:
            self._keep_best(lines[0])
        return bool(lines)

    def _keep_best(self, line: dict[str, Any]) -> None:
        """Sets may be measured at different times: only lines of one set are compared, the first one's."""
        found = {key: line[key] for key in ("step", "set", "metric", "value")}
        best = self.best
        if found["value"] is None or (best is not None and best["set"] != found["set"]):
            return
        if best is None or found["value"] > best["value"]:
            self.best = found
            save_weights(self.paths.best, weights_of(self.policy), found)

    def _write_samples(self, journals: Journals) -> None:
        """Completions of the behaviour policy, at the syncs where they are due."""
        every = -(-self.budget.sample_every // self.config.sync_interval) * self.config.sync_interval
        if self.budget.sample_prompts and self.step % every == 0:
            count = self.budget.sample_prompts
            for line in completions(self.behaviour, self.task, self.config, count, self.step):
                journals.append("samples", line)

    def save(self, journals: Journals, *, keep: int) -> None:
        """Write a checkpoint of everything that decides how the run goes on."""
        previous = self.learner.previous_gradient
        supply, tensors = self.supply.save()
        if self.done and self.step:
            self.supply.usage.write(self.step - 1)
        meta: dict[str, Any] = {
            "format": CHECKPOINT_FORMAT,
            "cumulative_rate": self.cumulative_rate,
            "warm_start": self.warm_start,
            "detector": self.detector.state_dict(),
            "journals": journals.sync(),
            "fault": self.fault,
            "best": self.best,
            "prompts": self.prompt_hash,
            "supply": supply,
            "schedule": self.schedule.state_dict(),
        }
        groups: dict[str, dict[str, Tensor]] = {
            "weights": weights_of(self.policy),
            "behaviour": weights_of(self.behaviour),
            "optimizer": self.learner.optimizer_tensors(),
            "previous_gradient": {} if previous is None else {"gradient": previous},
            **tensors,
        }
        save_checkpoint(self.paths.checkpoints, Checkpoint(self.step, groups, meta), keep)

    def restore(self, tail_attempt: int, notice: Callable[[str], None]) -> None:
        """Go back to the newest complete checkpoint, or to the start; cut the journals to match.

        Raises `UserError` when the checkpoint has another format or grew from other initial weights.
        """
        checkpoint = load_newest(self.paths.checkpoints, notice)
        lengths = dict.fromkeys(JOURNALS, 0)
        if checkpoint is None:
            self.supply.usage.restore(0, {})
        else:
            meta = checkpoint.meta
            if meta.get("format") != CHECKPOINT_FORMAT:
                raise UserError(
                    f"the checkpoint has format {meta.get('format', 1)}, this version continues format "
                    f"{CHECKPOINT_FORMAT}: continue with the version that wrote it, or start a new sweep"
                )
            if meta["warm_start"] != self.warm_start:
                raise UserError(
                    f"the checkpoint grew from weights {meta['warm_start'][:12]}, the warm start at hand is "
                    f"{self.warm_start[:12]}: put the sweep's warm_starts folder back, or start a new sweep"
                )
            if meta["prompts"] != self.prompt_hash:
                raise UserError(
                    "the checkpoint was trained on other prompts than those at hand: put the sweep's "
                    "prepared folder back, or start a new sweep"
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
        self.supply.load(checkpoint.step, meta["supply"], groups)
        self.schedule.load_state_dict(meta["schedule"])
        self.detector = CollapseDetector.from_state(meta["detector"])
        self.cumulative_rate = meta["cumulative_rate"]
        self.fault, self.best = meta["fault"], meta["best"]
        self.step = checkpoint.step
