"""The typed configuration of one run: what is trained. How long it goes on is in `trainer.budget`.

There is one schema: the command line, the sweep presets, `config.yaml` in a run's folder and the trainer all
go through `trainer.schema.parse`. Nothing here imports torch. Every field is one of three kinds:

* **scientific** (the default): decides what the run computes; hashed into the run id;
* **resource** (`RunConfig.resources`): how it is computed; never part of the id;
* **budget** (`trainer.budget`): how long it goes on; outside the id, may only grow.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.fields import Count, Fraction, Positive
from trainer.schema import Section
from trainer.task_config import TaskConfig, check_revision


def positive_places(size: int, share: float) -> int:
    """⌊δN + ½⌋ places of N that are kept for correct rollouts (math.md A5)."""
    return math.floor(share * size + 0.5)


class ModelConfig(Section):
    """A causal language model: one that is `pretrained`, or a small one with fresh weights.

    A fresh one has the vocabulary of the task, or printable characters where the task is text.
    """

    pretrained: str | None = None
    """A folder with a transformers model, a .gguf file, or a name on a hub; null: fresh weights of the shape
    below."""
    revision: str | None = None
    """Commit of a model from a hub, 40 hex digits."""
    untie_embeddings: bool = False
    """Give the output head of a pretrained model weights of its own, at first equal to the embedding's."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of activations and matrix products; `bfloat16` is autocast over float32 master weights."""
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

    @property
    def from_hub(self) -> bool:
        """Whether `pretrained` is a name on a hub: NAME or OWNER/NAME with no path's signs."""
        name = self.pretrained
        return (
            name is not None
            and re.fullmatch(r"[\w.-]*\w(/[\w.-]+)?", name) is not None
            and (not name.endswith(".gguf"))
        )

    @model_validator(mode="after")
    def _pretrained_or_shape(self) -> ModelConfig:
        shape = ("family", "hidden_size", "layers", "heads", "intermediate_size", "tie_embeddings")
        fields = type(self).model_fields
        if self.pretrained is None:
            for name in ("revision", "untie_embeddings"):
                if getattr(self, name) != fields[name].default:
                    raise ValueError(
                        f"{name}={getattr(self, name)} has no effect without pretrained: leave it out"
                    )
            return self
        for name in (*shape, "initializer_range"):
            if getattr(self, name) != fields[name].default:
                raise ValueError(
                    f"{name}={getattr(self, name)} has no effect when pretrained={self.pretrained}, which "
                    "has a shape of its own: leave it out"
                )
        if self.from_hub:
            check_revision(self.pretrained, self.revision, "revision")
        elif self.revision is not None:
            raise ValueError(
                f"revision={self.revision} has no effect on pretrained={self.pretrained}, a path: leave out"
            )
        return self

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
    clip_norm: Positive | None = None
    """Gradients longer than this are scaled down to it; null: off. It suppresses collapse in small runs."""
    alignment_limit: Annotated[float, Field(ge=0, lt=1)] | None = None
    """GAC: where the cosine with the previous gradient exceeds this, the gradient's component along the
    previous one is reduced until it equals this; null: off. The recorded cosine is that of raw gradients."""
    master_dtype: Literal["float32"] = "float32"
    """Type of the weights that the optimizer updates. bf16 is refused: it swallows small updates."""


class AdvantageConfig(Section):
    """Advantages within a prompt's group, computed once, when a rollout is generated (math.md A4)."""

    normalize: Literal["std", "none"] = "std"
    """`std`: (r − group mean) / (group std + ε); `none`: r − group mean. AsymRE always takes the latter."""
    ddof: Annotated[int, Field(ge=0, le=1)] = 0
    """0: population standard deviation; 1: sample standard deviation."""
    epsilon: Annotated[float, Field(ge=0)] = 1e-6
    """Added to the standard deviation."""


class LossConfig(Section):
    """Policy-gradient losses against the behaviour log-probabilities stored with each rollout."""

    kind: Literal["grpo", "truncated", "asymre"] = "grpo"
    """`grpo`: clipped ratio; `truncated`: policy gradient with the ratio, cut at `weight_cap`, as a constant
    weight; `asymre`: no ratio, advantages against the group mean shifted by `asymre_shift` (math.md A4)."""
    ratio_level: Literal["token", "sequence"] = "token"
    """One ratio per token, or one per response: the product of its tokens' ratios."""
    aggregation: Literal["sequence_mean", "token_mean", "constant_length"] = "sequence_mean"
    """Mean over each response's tokens, then over responses; mean over all tokens; or sum over tokens divided
    by responses times max_response_tokens."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Ratio clip below 1 (ε_low); 1 switches it off."""
    clip_high: Positive = 0.2
    """Ratio clip above 1 (ε_high)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """For negative advantages the objective is no less than this times the advantage; null: off."""
    weight_cap: Positive = 2.0
    """Largest importance weight of `truncated`."""
    asymre_shift: Annotated[float, Field(ge=-10, le=10)] = -0.1
    """δV of `asymre`, added to the group mean before it is subtracted."""
    kl_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of KL(policy || initial policy), estimated per token as exp(q) − 1 − q with q = log reference −
    log policy; 0: off, and no reference is held."""
    log_ratio_clamp: Annotated[float, Field(gt=0, le=60)] = 20.0
    """Log-ratios are clamped to ± this before exp, so that loss and gradient stay finite."""

    @model_validator(mode="after")
    def _settings_of_its_kind(self) -> LossConfig:
        fields = type(self).model_fields
        for name, kinds in (
            ("clip_low", ("grpo",)),
            ("clip_high", ("grpo",)),
            ("dual_clip", ("grpo",)),
            ("weight_cap", ("truncated",)),
            ("asymre_shift", ("asymre",)),
        ):
            value = getattr(self, name)
            if self.kind not in kinds and value != fields[name].default:
                raise ValueError(
                    f"{name}={value} has no effect when kind={self.kind}: leave it out, or set "
                    f"kind={kinds[0]}"
                )
        if self.kind == "asymre" and self.ratio_level != "token":
            raise ValueError(
                "ratio_level=sequence has no effect when kind=asymre, which has no ratio: leave it out"
            )
        return self


class SamplingConfig(Section):
    """How rollouts are drawn for training. There is no top-p or top-k: they would bias the ratio."""

    temperature: Positive = 1.0
    """Softmax temperature, applied to behaviour and learner log-probabilities alike."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Only 1 (off): a cut distribution biases the ratio. Evaluations have a top_p of their own."""
    top_k: Count | None = None
    """Only null (off), for the same reason."""

    @model_validator(mode="after")
    def _whole_distribution(self) -> SamplingConfig:
        for name in ("top_p", "top_k"):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}={value} is refused in training: tokens would come from a cut, renormalised "
                    "distribution, and every ratio of learner over behaviour would be biased; leave it out "
                    "(evaluations have a budget.evaluation.top_p of their own)"
                )
        return self


class StoreConfig(Section):
    """What lies between generation and training: a queue (buffer_size=0) or a replay buffer (math.md A5)."""

    order: Literal["fifo", "lifo"] = "fifo"
    """Queue: which rollouts are taken first, the oldest or the newest."""
    capacity: Count | None = None
    """Queue: most rollouts held, all shards together; workers wait when it is full. Null: (delay + 2)·B."""
    delay: Annotated[int, Field(ge=0)] = 0
    """Queue: batches that have to wait behind the one that is taken: staleness without replay."""
    max_lag: Annotated[int, Field(ge=0)] | None = None
    """Rollouts whose policy is more than this many updates old are dropped; null: none are."""
    positive_share: Fraction = 0.0
    """Buffer: δ, the share of it that is kept for the newest correct rollouts among those past the rest."""
    backfill: bool = False
    """Buffer: where there are too few correct rollouts, the newest incorrect ones take their places."""
    selection: Literal["uniform", "recency", "reward", "least_used", "gradient_norm"] = "uniform"
    """Buffer: how a batch is drawn. Weights are 2^(−age/half-life), the scaled reward, or the gradient norm
    at the last use; `least_used` takes the least used, ties at random."""
    within_batch_replacement: bool = True
    """Buffer: whether a batch may hold a rollout more than once (always no for `least_used`)."""
    recency_half_life: Positive = 8.0
    """`recency`: learner updates in which a rollout's weight halves."""
    selection_floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """`reward` and `gradient_norm`: least weight, as a share of the greatest."""


class ClockConfig(Section):
    """The virtual clock of schedule=free. Its unit is one learner update's work on one trainer.

    A worker needs μ/B for a rollout, a learner update takes 1/T (architecture: the lockstep engine).
    """

    reference_tokens: Count | None = None
    """Response length at which a rollout costs μ/B; others in proportion. Null: max_response_tokens."""
    verifier_share: Fraction = 0.0
    """Share of μ that is waiting for the verifier, at its mean; the worker waits with its group."""
    verifier_variation: Annotated[float, Field(ge=0, le=20)] = 0.0
    """Coefficient of variation of that waiting time, which is log-normal; 0: always its mean."""
    sync_cost: Annotated[float, Field(ge=0)] = 0.0
    """Time for which workers and trainers stop at every weight sync."""
    in_flight_updates: bool = False
    """Whether a sync reaches rollouts in progress: their later tokens come from the newer weights."""


class ResourceConfig(Section):
    """How a run is computed; outside the run id. A change can alter rounding, not the experiment."""

    threads: Count = 1
    """CPU threads of the job."""
    generation_chunk: Count = 1024
    """Most rollouts sampled in one forward pass; a chunk holds whole batches of one policy version."""
    micro_batch: Count | None = None
    """Rollouts per forward and backward pass; null: the whole batch at once."""
    micro_batch_tokens: Count | None = None
    """Most tokens per forward and backward pass, padding included; rollouts of like length go together."""
    logit_chunk: Count | None = None
    """Tokens whose logits over the vocabulary are held at once; null: those of the whole pass."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass rather than hold them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model computes."""
    previous_gradient: Literal["float32", "bfloat16", "off"] = "float32"
    """How the gradient of the update before is held, in CPU memory; `off`: no cosine is measured."""
    displacement: Literal["memory", "disk", "off"] = "memory"
    """Where the initial weights are held that displacement is measured from; `off`: it is not."""
    verifier_processes: Count = 1
    """Processes of a `command` verifier at once."""

    @model_validator(mode="after")
    def _one_split(self) -> ResourceConfig:
        if self.micro_batch is not None and self.micro_batch_tokens is not None:
            raise ValueError(
                f"micro_batch={self.micro_batch} and micro_batch_tokens={self.micro_batch_tokens} both split "
                "a batch: keep one"
            )
        return self


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
    schedule: Literal["strict", "free"] = "strict"
    """`strict`: update t trains after R = B/y new rollouts of the weights of update S·⌊t/S⌋; without a buffer
    each is used once, at lag t mod S exactly. `free`: workers and trainers run on a virtual clock."""
    buffer_size: Annotated[int, Field(ge=0)] = 0
    """N: rollouts held in the replay buffer, all shards together; 0: a queue, each rollout used once."""
    replay_ratio: Annotated[float, Field(ge=1)] | None = None
    """y = B/R: mean uses of a rollout; only with schedule=strict and a buffer, null means 1."""
    inference_workers: Count = 1
    """W: workers that generate; only with schedule=free."""
    trainers: Count = 1
    """T: trainer ranks; the store has a shard for each."""
    generation_cost_ratio: Positive | None = None
    """μ: cost of generating a rollout over that of training on it once; schedule=free needs it."""
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    sampling: SamplingConfig = SamplingConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    store: StoreConfig = StoreConfig()
    clock: ClockConfig = ClockConfig()
    resources: ResourceConfig = ResourceConfig()

    @model_validator(mode="after")
    def _groups_fill_the_batch(self) -> RunConfig:
        if self.schedule == "strict" and not self.buffer_size and self.batch_size % self.group_size:
            low = self.batch_size // self.group_size * self.group_size
            fitting = [str(size) for size in (low, low + self.group_size) if size]
            raise ValueError(
                f"batch_size={self.batch_size} is not divisible by group_size={self.group_size}, as whole "
                f"groups are needed when schedule=strict and buffer_size=0: use {' or '.join(fitting)}"
            )
        return self

    @model_validator(mode="after")
    def _shares_are_whole(self) -> RunConfig:
        for name in ("batch_size", "buffer_size"):
            value = getattr(self, name)
            if value % self.trainers:
                low = value // self.trainers * self.trainers
                fitting = [str(size) for size in (low, low + self.trainers) if size]
                raise ValueError(
                    f"{name}={value} is not divisible by trainers={self.trainers}, and each trainer has an "
                    f"equal share: use {' or '.join(fitting)}"
                )
        return self

    @model_validator(mode="after")
    def _schedule_has_its_settings(self) -> RunConfig:
        if self.schedule == "free":
            if self.generation_cost_ratio is None:
                raise ValueError(
                    "schedule=free needs generation_cost_ratio, the cost of generating a rollout over that "
                    "of training on it once: set it to a measured or assumed value, 5 say"
                )
            if self.replay_ratio is not None:
                raise ValueError(
                    f"replay_ratio={self.replay_ratio} cannot be set when schedule=free, where it follows as "
                    "generation_cost_ratio·trainers/inference_workers: leave it out, or set schedule=strict"
                )
            return self
        free = {
            "generation_cost_ratio": (self.generation_cost_ratio, None),
            "inference_workers": (self.inference_workers, 1),
            **{
                f"clock.{name}": (getattr(self.clock, name), field.default)
                for name, field in ClockConfig.model_fields.items()
            },
        }
        for name, (value, default) in free.items():
            if value != default:
                raise ValueError(
                    f"{name}={value} has no effect when schedule=strict, which has no clock: leave it out, "
                    "or set schedule=free (reports on strict runs show savings for every cost ratio)"
                )
        if self.replay_ratio is not None and not self.buffer_size:
            raise ValueError(
                f"replay_ratio={self.replay_ratio} needs a replay buffer: set buffer_size, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _store_can_serve(self) -> RunConfig:
        store, size, batch = self.store, self.buffer_size, self.batch_size
        other = (
            ("order", "capacity", "delay")
            if size
            else (
                "positive_share",
                "backfill",
                "selection",
                "within_batch_replacement",
                "recency_half_life",
                "selection_floor",
            )
        )
        for name in other:
            value = getattr(store, name)
            if value != StoreConfig.model_fields[name].default:
                what = "a replay buffer (buffer_size above 0)" if size else "a queue (buffer_size=0)"
                raise ValueError(f"store.{name}={value} has no effect on {what}: leave it out")
        if store.backfill and not store.positive_share:
            raise ValueError("store.backfill=true has no effect without store.positive_share: leave it out")
        least = (store.delay + 1) * batch + self.group_size
        if store.capacity is not None and store.capacity < least:
            raise ValueError(
                f"store.capacity={store.capacity} cannot hold (delay + 1) batches and a group that arrives: "
                f"use {least} or more"
            )
        if store.max_lag is not None and store.max_lag < self.sync_interval - 1:
            raise ValueError(
                f"store.max_lag={store.max_lag} drops every rollout made late in a cycle of "
                f"sync_interval={self.sync_interval}, so that training would wait for ever: use "
                f"{self.sync_interval - 1} or more, or a smaller sync_interval"
            )
        distinct = not store.within_batch_replacement or store.selection == "least_used"
        sure = self.sure_size
        if size and sure < self.trainers:
            raise ValueError(
                f"store.positive_share={store.positive_share} leaves no room for new rollouts in a shard of "
                f"{size // self.trainers}: use a smaller share or a larger buffer_size"
            )
        if size and distinct and sure < batch:
            raise ValueError(
                f"a batch of batch_size={batch} different rollouts cannot be drawn from a buffer that is "
                f"only sure to hold {sure} (buffer_size={size}, "
                f"store.positive_share={store.positive_share}): "
                "raise buffer_size, or set store.within_batch_replacement=true and another selection"
            )
        return self

    @model_validator(mode="after")
    def _model_and_task_fit(self) -> RunConfig:
        if self.model.pretrained is not None:
            if not self.task.is_text:
                raise ValueError(
                    f"task.name={self.task.name} has tokens of its own, which model.pretrained="
                    f"{self.model.pretrained} does not know: set task.name=text, or leave it out"
                )
            if self.warm_start != WarmStartConfig():
                raise ValueError(
                    f"warm_start has no effect on model.pretrained={self.model.pretrained}: leave it out"
                )
        if self.optimizer.alignment_limit is not None and self.resources.previous_gradient == "off":
            raise ValueError(
                f"optimizer.alignment_limit={self.optimizer.alignment_limit} needs the previous gradient: "
                "set resources.previous_gradient=float32"
            )
        return self

    @property
    def sure_size(self) -> int:
        """Rollouts that a full buffer holds whatever their rewards: N less the places for correct ones."""
        shard = self.buffer_size // self.trainers
        kept = 0 if self.store.backfill else positive_places(shard, self.store.positive_share)
        return (shard - kept) * self.trainers

    @property
    def prompts_per_batch(self) -> int:
        """P = ⌈B/G⌉."""
        return -(-self.batch_size // self.group_size)
