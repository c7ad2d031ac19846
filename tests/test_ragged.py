"""Batches of prompts of different lengths give what each prompt gives alone, for several architectures."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import Module

from tests.tiny_models import FAMILIES, VOCABULARY, tiny
from trainer.policy import checkpoint_activations, ragged_log_probabilities
from trainer.sampling import Decoding, sample

TEMPERATURE = 0.8
LENGTHS, RESPONSES = [3, 9, 1, 12, 6], [7, 2, 5, 1, 0]


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left-padded prompts, their lengths, responses and the mask; one response is empty."""
    stream = torch.Generator().manual_seed(3)
    lengths = torch.tensor(LENGTHS)
    prompts = torch.randint(4, VOCABULARY, (len(LENGTHS), 14), generator=stream)
    prompts[torch.arange(14) < 14 - lengths.unsqueeze(1)] = 0
    responses = torch.randint(4, VOCABULARY, (len(LENGTHS), 9), generator=stream)
    mask = torch.arange(9) < torch.tensor(RESPONSES).unsqueeze(1)
    return prompts, lengths, responses.masked_fill(~mask, 0), mask


def one_by_one(model: Module) -> Tensor:
    """Log-probabilities [n, l], each sequence without padding in a forward pass of its own."""
    prompts, lengths, responses, mask = batch()
    rows = []
    for row in range(len(prompts)):
        count = int(mask[row].sum())
        values = torch.zeros(mask.shape[1])
        if count:
            tokens = torch.cat([prompts[row, 14 - int(lengths[row]) :], responses[row, :count]])
            logits = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0]
            ahead = (logits / TEMPERATURE).log_softmax(-1)[int(lengths[row]) - 1 : -1]
            values[:count] = ahead.gather(1, responses[row, :count].unsqueeze(1)).squeeze(1)
        rows.append(values)
    return torch.stack(rows)


def gradients(model: Module, values: Tensor) -> list[Tensor]:
    model.zero_grad()
    weights = torch.linspace(-1, 1, values.numel()).reshape(values.shape)
    (values * weights).sum().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_head_on_the_states(family: str) -> None:
    model, tokens = tiny(family), torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        whole = model(input_ids=tokens, use_cache=False).logits
        states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        assert torch.equal(whole, model.get_output_embeddings()(states))


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("logit_chunk", [None, 1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_each_sequence_alone(
    family: str, logit_chunk: int | None, checkpointed: bool
) -> None:
    model = tiny(family)
    expected = one_by_one(model)
    slopes = gradients(model, expected)
    if checkpointed:
        checkpoint_activations(model)
    prompts, lengths, responses, mask = batch()
    values, entropies = ragged_log_probabilities(
        model, prompts, lengths, responses, mask, TEMPERATURE, logit_chunk
    )
    assert float((values - expected).detach().abs().max()) < 1e-5
    assert bool((values[~mask] == 0).all()) and bool((entropies[~mask] == 0).all())
    for slope, other in zip(slopes, gradients(model, values), strict=True):
        assert torch.allclose(slope, other, rtol=1e-4, atol=1e-5 * float(slope.abs().max() + 1))


@pytest.mark.parametrize("top_p", [1.0, 0.7])
@pytest.mark.parametrize("family", FAMILIES)
def test_samples_are_those_of_each_prompt_alone(family: str, top_p: float) -> None:
    model = tiny(family)
    prompts, lengths, _, _ = batch()
    uniforms = torch.rand(len(prompts), 40, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    decoding = Decoding(TEMPERATURE, (3, 17, 41), 0, top_p)
    together = sample(model, prompts, lengths, uniforms, decoding)
    ends = set()
    for row in range(len(prompts)):
        alone = prompts[row : row + 1, 14 - LENGTHS[row] :]
        single = sample(model, alone, lengths[row : row + 1], uniforms[row : row + 1], decoding)
        assert torch.equal(single.tokens[0], together.tokens[row])
        assert torch.equal(single.mask[0], together.mask[row])
        assert float((single.log_probabilities[0] - together.log_probabilities[row]).abs().max()) < 1e-5
        drawn = together.tokens[row][together.mask[row]].tolist()
        assert not set(drawn[:-1]) & {3, 17, 41}
        ends.add(drawn[-1])
    assert ends & {3, 17, 41}  # some ended, or the test would show little


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_drawn_has_the_learners_log_probabilities(family: str) -> None:
    model = copy.deepcopy(tiny(family))
    prompts, lengths, _, _ = batch()
    uniforms = torch.rand(len(prompts), 40, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    drawn = sample(model, prompts, lengths, uniforms, Decoding(TEMPERATURE, (3, 17, 41), 0))
    with torch.no_grad():
        values, _ = ragged_log_probabilities(
            model, prompts, lengths, drawn.tokens, drawn.mask, TEMPERATURE, None
        )
    assert float((values - drawn.log_probabilities).abs().max()) < 1e-5
