"""Facts about a job's requests, from a sample of them and a tokenizer. Renders no chat template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.advice.facts import Replay, WorkloadFacts
from pipeline.advice.sample import Sample
from pipeline.advice.sharing import lookup_forwards, repeated_share, shared_prefixes, spread
from pipeline.checkpoints.tokens import TokenCounter
from pipeline.formats.texts import output_allowance, prompt_texts
from pipeline.ports import JsonObject
from pipeline.specs import GenerateSpec

#: Words of requests whose answers often hold parts of the prompt.
_COPY_WORDS = re.compile(
    r"\b(rewrite|rephrase|correct|proofread|edit|fix|extract|quote|copy|repeat|translate|summari[sz]e|refactor|"
    r"convert|reformat|classify|json|csv|xml)\b",
    re.IGNORECASE,
)

#: Prompts whose repetition is measured: it costs more than counting.
_REPEAT_ITEMS = 200


def workload_facts(
    sample: Sample, spec: GenerateSpec, counter: TokenCounter | None, *, context_length: int | None = None
) -> WorkloadFacts:
    """Without a ``counter`` figures in tokens are None."""
    bodies = [request.body for request in sample.requests]
    texts = ["\n".join(prompt_texts(body)) for body in bodies]
    answers = [output_allowance(body, spec) for body in bodies]
    facts = WorkloadFacts(
        items=sample.items,
        items_are_estimated=sample.is_estimate,
        sampled=len(bodies),
        invalid=sample.invalid,
        prompt_chars=spread([len(text) for text in texts]),
        prompt_tokens=None,
        answer_tokens=spread(answers),
        row_tokens=None,
        shared=None,
        repeats=None,
        copy_words=sum(_COPY_WORDS.search(text) is not None for text in texts) / len(texts),
        greedy=sum(_is_greedy(body, spec) for body in bodies) / len(bodies),
        choices=sum(body.get("n", 1) for body in bodies),
        features=dict(sorted(Counter(name for body in bodies for name in _features(body)).items())),
        over_context=0,
    )
    if counter is None:
        return facts
    prompts = counter.encode(texts)
    rows = [len(prompt) + answer for prompt, answer in zip(prompts, answers, strict=True)]
    return replace(
        facts,
        prompt_tokens=spread([len(prompt) for prompt in prompts]),
        row_tokens=spread(rows),
        shared=shared_prefixes(prompts),
        repeats=_mean([repeated_share(prompt) for prompt in prompts[:_REPEAT_ITEMS]]),
        over_context=0 if context_length is None else sum(row > context_length for row in rows),
    )


def replay_answers(
    job: str, pairs: Iterable[tuple[JsonObject, str]], spec: GenerateSpec, counter: TokenCounter
) -> Replay | None:
    """Prompt lookup over a job's requests and the texts they were answered with; None without an answer.

    Ids are those of the text encoded anew, which may be cut elsewhere than the model cut them.
    """
    options = spec.lookup
    items = tokens = forwards = 0
    for body, text in pairs:
        prompt, answer = counter.encode(["\n".join(prompt_texts(body)), text], special=False)
        if not answer:
            continue
        items += 1
        tokens += len(answer)
        forwards += lookup_forwards(
            prompt, answer, ngram_min=options.ngram_min, ngram_max=options.ngram_max, max_draft=options.max_draft
        )
    return Replay(job, items, tokens, forwards) if items else None


def _is_greedy(body: JsonObject, spec: GenerateSpec) -> bool:
    temperature = body.get("temperature", spec.sampling.temperature)
    return bool(temperature == 0 or body.get("top_k", spec.sampling.top_k) == 1)


def _features(body: JsonObject) -> Iterable[str]:
    """What a request uses that not every request does."""
    if body.get("logprobs") not in (None, False):
        yield "logprobs"
    if (body.get("response_format") or {}).get("type", "text") != "text":
        yield "response_format"
    if body.get("n", 1) > 1:
        yield "n"
    for name in ("tools", "logit_bias", "stop", "seed"):
        if body.get(name) not in (None, [], {}):
            yield name
    if any(body.get(name) for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")):
        yield "penalties"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
