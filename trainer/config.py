"""The typed configuration of one run: what is trained (`RunConfig`) and how long (`BudgetConfig`).

There is one schema: the command line, the sweep presets, `config.yaml` in a run's folder and the trainer all
go through `trainer.schema.parse`. Nothing here imports torch. Every field is one of three kinds:

* **scientific** (the default): decides what the run computes; hashed into the run id;
* **resource** (`RunConfig.resources`): how it is computed; never part of the id;
* **budget** (`BudgetConfig`): how long it goes on; outside the id, may only grow.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.collapse import CollapseRuleConfig
from trainer.schema import Section

Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class TaskConfig(Section):
    """Prompts and their verifier."""

    name: Literal["copy"] = "copy"
    """`copy`: a prompt of letters, to be answered by the same letters and an end mark; reward 1 iff exact."""
    length: Annotated[int, Field(ge=1, le=256)] = 8
    """Letters in a prompt."""
    alphabet: Annotated[int, Field(ge=2, le=1000)] = 8
    """Different letters."""
    max_response_tokens: Count = 9
    """Longest response, end mark included; a response without an end mark is wrong."""

    @model_validator(mode="after")
    def _answer_fits(self) -> TaskConfig:
        if self.max_response_tokens < self.length + 1:
            raise ValueError(
                f"max_response_tokens={self.max_response_tokens} cannot hold the answer of "
                f"length={self.length} and its end mark: use {self.length + 1} or more"
            )
        return self


class ModelConfig(Section):
    """A small causal language model made from a transformers config; the task sets the vocabulary."""

    family: Literal["llama", "qwen3"] = "llama"
    """Architecture."""
    hidden_size: Count = 32
    """Width of the residual stream."""
    layers: Count = 2
    """Decoder layers."""
    heads: Count = 1
    """Attention heads (as many key-value heads)."""
    intermediate_size: Count = 64
    """Width of the MLP."""
    tie_embeddings: bool = False
    """One matrix for input embedding and output head."""
    initializer_range: Positive = 0.15
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelConfig:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} divided by heads={self.heads} is not an even whole number, "
                f"as rotary positions need: use heads={self.hidden_size // 32 or 1} or another hidden_size"
            )
        return self


class WarmStartConfig(Section):
    """Supervised steps before reinforcement learning; equal settings give equal weights."""

    target_reward: Fraction = 0.1
    """Stop at the first check whose sampled reward reaches this; 0 skips the warm start."""
    learning_rate: Positive = 3e-3
    """AdamW rate after the ramp."""
    beta2: Fraction = 0.99
    """AdamW second-moment decay."""
    ramp_updates: Annotated[int, Field(ge=0)] = 50
    """Linear ramp of the rate."""
    batch_size: Count = 256
    """Prompts per supervised update."""
    check_every: Count = 5
    """Updates between checks of the sampled reward."""
    max_updates: Count = 2000
    """Give up, with an error, when the target is not reached by then."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of initial weights and warm-start data."""


class OptimizerConfig(Section):
    """AdamW on fp32 master weights."""

    beta1: Fraction = 0.9
    """First-moment decay."""
    beta2: Fraction = 0.95
    """Second-moment decay."""
    epsilon: Positive = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay."""
    ramp_updates: Annotated[int, Field(ge=0)] = 20
    """Linear ramp: update t runs at η·min(1, (t+1)/ramp_updates); the rate is constant afterwards."""
    master_dtype: Literal["float32"] = "float32"
    """Type of the weights that the optimizer updates. bf16 is refused: it swallows small updates."""


class AdvantageConfig(Section):
    """Group-normalised advantages, computed once, when a rollout is generated (math.md A4)."""

    ddof: Annotated[int, Field(ge=0, le=1)] = 0
    """0: population standard deviation; 1: sample standard deviation."""
    epsilon: Annotated[float, Field(ge=0)] = 1e-6
    """Added to the standard deviation."""


class LossConfig(Section):
    """Clipped policy-gradient loss with token-level ratios to the stored behaviour log-probabilities."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Ratio clip below 1 (ε_low)."""
    clip_high: Positive = 0.2
    """Ratio clip above 1 (ε_high)."""
    log_ratio_clamp: Annotated[float, Field(gt=0, le=60)] = 20.0
    """Log-ratios are clamped to ± this before exp, so that loss and gradient stay finite."""


class SamplingConfig(Section):
    """How rollouts are drawn for training. There is no top-p or top-k: they would bias the ratio."""

    temperature: Positive = 1.0
    """Softmax temperature, applied to behaviour and learner log-probabilities alike."""


class ResourceConfig(Section):
    """How a run is computed; outside the run id. A change can alter rounding, not the experiment."""

    threads: Count = 1
    """CPU threads of the job."""
    generation_chunk: Count = 1024
    """Most rollouts sampled in one forward pass; a chunk holds whole batches of one policy version."""


class RunConfig(Section):
    """One run. Field names are the field's words; the paper's symbol stands once in each doc."""

    sync_interval: Count = 1
    """S: learner updates between weight syncs."""
    learning_rate: Annotated[float, Field(ge=0, le=10)] = 1e-3
    """η: constant optimizer rate after the ramp."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seeds prompts and sampling; the warm start has a seed of its own."""
    batch_size: Count = 64
    """B: rollouts per learner update."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """G: rollouts per prompt."""
    engine: Literal["lockstep"] = "lockstep"
    """`lockstep`: one deterministic process with a virtual clock."""
    schedule: Literal["strict"] = "strict"
    """`strict`: each rollout is used once, at lag t mod S exactly."""
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    sampling: SamplingConfig = SamplingConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    resources: ResourceConfig = ResourceConfig()

    @model_validator(mode="after")
    def _groups_fill_the_batch(self) -> RunConfig:
        if self.batch_size % self.group_size:
            low = self.batch_size // self.group_size * self.group_size
            fitting = [str(size) for size in (low, low + self.group_size) if size]
            raise ValueError(
                f"batch_size={self.batch_size} is not divisible by group_size={self.group_size}, as whole "
                f"groups are needed when schedule=strict: use {' or '.join(fitting)}"
            )
        return self

    @property
    def prompts_per_batch(self) -> int:
        """P = B/G."""
        return self.batch_size // self.group_size


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

    def run(self) -> RunConfig:
        """The run alone."""
        return RunConfig.model_validate(self.model_dump(exclude={"budget"}))
