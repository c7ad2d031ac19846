"""How long a run goes on and what it writes on the way: outside the run id, may only grow. Torch-free."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import AliasChoices, Field, model_validator

from trainer.collapse import CollapseRuleConfig
from trainer.config import RunConfig
from trainer.fields import Count, Positive
from trainer.schema import Section
from trainer.task_config import PromptSource


class HorizonRule(Section):
    """Updates to train: `updates`, or clip(cumulative_rate / learning_rate, at_least, at_most)."""

    updates: Count | None = None
    """A fixed number of updates; wins over the rule."""
    cumulative_rate: Positive = 2.0
    """Λ to reach: the horizon is this over the learning rate."""
    at_least: Count = 300
    """Lower end of the rule."""
    at_most: Count = 100_000
    """Upper end of the rule."""

    @model_validator(mode="after")
    def _ordered(self) -> HorizonRule:
        if self.at_least > self.at_most:
            raise ValueError(
                f"at_least={self.at_least} is above at_most={self.at_most}: raise at_most or lower at_least"
            )
        return self

    def resolve(self, learning_rate: float) -> int:
        """Horizon in updates for a run at this rate."""
        if self.updates is not None:
            return self.updates
        if learning_rate == 0:
            return self.at_most
        # 2/1e-3 is 2000.0000000000002 on no machine, but 0.3/0.1 is 2.9999999999999996 on all
        wanted = math.ceil(round(self.cumulative_rate / learning_rate, 6))
        return min(max(wanted, self.at_least), self.at_most)


class EvaluationSampling(Section):
    """How responses are drawn for an evaluation."""

    max_prompts: Count = Field(512, validation_alias=AliasChoices("max_prompts", "prompts"))
    """Most prompts; the same in every run. Built-in tasks have as many as are asked for."""
    samples: Count = 1
    """n: responses per prompt; accuracy is the mean over all of them (avg@n)."""
    temperature: Positive = 1.0
    """Softmax temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Tokens are drawn from the smallest set of the likeliest ones that has this share of the probability."""
    pass_at: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """k of each unbiased pass@k = 1 − C(n − c, k)/C(n, k) that is recorded, c of n responses being right."""

    @model_validator(mode="after")
    def _enough_samples(self) -> Self:
        if self.pass_at and max(self.pass_at) > self.samples:
            raise ValueError(
                f"pass_at={list(self.pass_at)} needs {max(self.pass_at)} responses per prompt: raise "
                f"samples={self.samples}"
            )
        return self


class EvaluationSet(EvaluationSampling):
    """A named set of prompts of its own, rendered and verified as the run's task says."""

    source: PromptSource
    """Where the problems come from; none may be among those trained on."""
    every: Count = 1
    """It is measured at every so manieth evaluation."""


class EvaluationConfig(EvaluationSampling):
    """Evaluations apart from training: on held-out prompts of the run's own task, and on named sets."""

    every: Annotated[int, Field(ge=0)] = 0
    """Learner updates between evaluations, the first one before update 0; 0: none."""
    sets: dict[Annotated[str, Field(pattern=r"^[a-z0-9_]+$")], EvaluationSet] = {}
    """Named sets, for tasks with name=text, beside the set `held_out` of task.held_out_share."""
    keep_best: bool = True
    """Keep the weights that did best on the first set, as checkpoints/best."""


class BudgetConfig(Section):
    """How long runs go on and what they write on the way; outside the run id, may only grow."""

    horizon: HorizonRule = HorizonRule()
    updates_after_collapse: Annotated[int, Field(ge=0)] | None = None
    """Updates after a confirmed collapse, to see recovery; null means max(40, 2S)."""
    checkpoint_every: Count = 200
    """Learner updates between checkpoints."""
    keep_checkpoints: Count = 2
    """Complete checkpoints kept while running; the last one is kept afterwards."""
    sample_prompts: Annotated[int, Field(ge=0, le=64)] = 2
    """Fixed prompts whose completions are written to samples.jsonl."""
    sample_every: Count = 64
    """Learner updates between written samples, rounded up to a sync."""
    usage_window: Count = 256
    """Learner updates whose rollouts and uses go into one file of rollouts/."""
    evaluation: EvaluationConfig = EvaluationConfig()
    collapse: CollapseRuleConfig = CollapseRuleConfig()

    def resolve(self, run: RunConfig) -> Budget:
        """The frozen budget of one run."""
        after = self.updates_after_collapse
        return Budget(
            horizon=self.horizon.resolve(run.learning_rate),
            updates_after_collapse=max(40, 2 * run.sync_interval) if after is None else after,
            checkpoint_every=self.checkpoint_every,
            keep_checkpoints=self.keep_checkpoints,
            sample_prompts=self.sample_prompts,
            sample_every=self.sample_every,
            usage_window=self.usage_window,
            evaluation=self.evaluation,
            collapse=self.collapse,
        )


class Budget(Section):
    """`budget.json`: a `BudgetConfig` with its rules resolved for one run."""

    horizon: Count
    """Learner updates to train."""
    updates_after_collapse: Annotated[int, Field(ge=0)]
    """Updates to go on after a confirmed collapse."""
    checkpoint_every: Count
    keep_checkpoints: Count
    sample_prompts: Annotated[int, Field(ge=0)]
    sample_every: Count
    usage_window: Count = 256
    evaluation: EvaluationConfig = EvaluationConfig()
    collapse: CollapseRuleConfig

    def grown_to(self, other: Budget) -> Budget:
        """This budget with the larger of both horizons and watch times; the stop rule stays frozen."""
        return self.model_copy(
            update={
                "horizon": max(self.horizon, other.horizon),
                "updates_after_collapse": max(self.updates_after_collapse, other.updates_after_collapse),
            }
        )


class CellConfig(RunConfig):
    """What a sweep sets for one cell: every field of the run, and its budget."""

    budget: BudgetConfig = BudgetConfig()

    @model_validator(mode="after")
    def _evaluations_have_prompts(self) -> CellConfig:
        evaluation = self.budget.evaluation
        if evaluation.sets and not self.task.is_text:
            raise ValueError(
                f"budget.evaluation.sets has no effect when task.name={self.task.name}: leave it out"
            )
        if evaluation.sets and not evaluation.every:
            raise ValueError("budget.evaluation.sets needs budget.evaluation.every: set it to 20 say")
        if "held_out" in evaluation.sets:
            raise ValueError("budget.evaluation.sets: held_out names the task's own set: take another name")
        if self.task.is_text and evaluation.every and not (evaluation.sets or self.task.held_out_share):
            raise ValueError(
                f"budget.evaluation.every={evaluation.every} has no prompts to evaluate on: set "
                "task.held_out_share, or budget.evaluation.sets, or leave it out"
            )
        return self

    def run(self) -> RunConfig:
        """The run alone."""
        return RunConfig.model_validate(self.model_dump(exclude={"budget"}))
