"""How a generative reranker is asked: the question in the model's own chat form, and the two tokens that answer it.

Knows nothing about weights or batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from pipeline.errors import ContextLengthExceeded, ModelUnsupported, NoChatTemplate
from pipeline.ports import JsonObject

#: What stands for a query and a document while a template is split; no tokenizer's special token looks like it.
_QUERY, _DOCUMENT = "\u27e6query\u27e7", "\u27e6document\u27e7"

#: The protocol that Qwen3-Reranker checkpoints were trained on, as their model card gives it.
_QWEN3_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_QWEN3_TURNS = (
    f"<|im_start|>system\n{_QWEN3_SYSTEM}<|im_end|>\n<|im_start|>user\n"
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
_QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

#: The question for any other chat model.
_PLAIN_TURN = (
    "{instruction}Question: {query}\nPassage: {document}\nDoes the passage answer the question? Reply Yes or No."
)


class ChatTokenizer(Protocol):
    """What is used of mlx-lm's wrapper of a transformers tokenizer."""

    has_chat_template: bool

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """One pair as token ids, and whether its document was cut."""

    ids: tuple[int, ...]
    truncated: bool


class Judge:
    """Writes the prompt of a query-document pair and knows the tokens of yes and no."""

    def __init__(self, tokenizer: ChatTokenizer, *, is_qwen3_reranker: bool, max_length: int) -> None:
        """Raises NoChatTemplate, or ModelUnsupported where yes or no is not one token."""
        self.protocol = "qwen3_reranker" if is_qwen3_reranker else "chat"
        self.max_length = max_length
        self._chat = tokenizer
        # The Rust tokenizer itself: it knows offsets, and it does not warn about a text that will be cut.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ModelUnsupported("reranking needs a tokenizer in its fast form", hint="save a tokenizer.json")
        backend.no_truncation()
        backend.no_padding()
        self._tokenizer = backend
        yes, no = ("yes", "no") if is_qwen3_reranker else ("Yes", "No")
        self.yes_id, self.no_id = self._single_token(yes), self._single_token(no)

    def _single_token(self, word: str) -> int:
        ids: list[int] = self._tokenizer.encode(word, add_special_tokens=False).ids
        if len(ids) != 1:
            raise ModelUnsupported(f"{word!r} is {len(ids)} tokens of this model; reranking needs one")
        return ids[0]

    def question(self, instruction: str | None) -> Question:
        """The prompt with its places for query and document, under an instruction (None: the default)."""
        if self.protocol == "qwen3_reranker":
            text = _QWEN3_TURNS.format(instruction=instruction or _QWEN3_INSTRUCTION, query=_QUERY, document=_DOCUMENT)
        else:
            turn = _PLAIN_TURN.format(
                instruction=f"{instruction}\n" if instruction else "", query=_QUERY, document=_DOCUMENT
            )
            text = self._render(turn)
        head, _, rest = text.partition(_QUERY)
        middle, found, tail = rest.partition(_DOCUMENT)
        if not found or _QUERY in rest or _DOCUMENT in tail:
            raise ModelUnsupported("the model's chat template does not keep the text of a message as it is")
        return Question(self._tokenizer, (head, middle, tail), self.max_length)

    def _render(self, turn: str) -> str:
        if not self._chat.has_chat_template:
            raise NoChatTemplate("the model has no chat template, and reranking asks it as a chat")
        # A model that can think aloud would put its thoughts where the answer is read.
        rendered = self._chat.apply_chat_template(
            [{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return str(rendered)


class Question:
    """A prompt with two places to fill."""

    def __init__(self, tokenizer: Tokenizer, parts: tuple[str, str, str], max_length: int) -> None:
        self._tokenizer = tokenizer
        self._parts = parts
        self._max_length = max_length

    def ask(self, query: str, document: str, *, may_truncate: bool) -> Judgement:
        """Tokens of one pair. Only the document is ever shortened, at its end.

        Raises ContextLengthExceeded when it must not be, or when the rest alone is too long.
        """
        ids = self._encode(query, document)
        count = len(ids)
        if count <= self._max_length:
            return Judgement(tuple(ids), truncated=False)
        if not may_truncate:
            raise ContextLengthExceeded(
                f"query and document have {count} tokens with the question, the model takes {self._max_length}",
                param="documents",
            )
        # The prompt is tokenized again after each cut, so that it is what the tokenizer makes of a shorter document.
        while document and len(ids) > self._max_length:
            document = self._shortened(document, len(ids) - self._max_length)
            ids = self._encode(query, document)
        if not document:
            raise ContextLengthExceeded(
                f"the query and the question have {len(ids)} tokens, the model takes {self._max_length}",
                param="query",
            )
        return Judgement(tuple(ids), truncated=True)

    def _encode(self, query: str, document: str) -> list[int]:
        head, middle, tail = self._parts
        encoding = self._tokenizer.encode(f"{head}{query}{middle}{document}{tail}", add_special_tokens=False)
        return list(encoding.ids)

    def _shortened(self, document: str, excess: int) -> str:
        """The document without its last ``excess`` tokens, at least one character shorter."""
        offsets: list[tuple[int, int]] = self._tokenizer.encode(document, add_special_tokens=False).offsets
        kept = len(offsets) - excess
        end = offsets[kept - 1][1] if kept > 0 else 0
        return document[: min(end, len(document) - 1)]


def is_qwen3_reranker(config: JsonObject, folder: Path, name: str, tokenizer: ChatTokenizer) -> bool:
    """Whether a checkpoint was trained on the Qwen3-Reranker protocol.

    Its configuration is that of a plain Qwen3, so the name it goes by has to tell: what the user wrote, its folder,
    or the name inside its files; or its chat template, where that holds the protocol's system turn.
    """
    if config.get("model_type") != "qwen3":
        return False
    names = (name, *folder.parts[-3:], str(config.get("_name_or_path", "")))
    return any("qwen3-reranker" in text.lower() for text in names) or _QWEN3_SYSTEM in str(
        getattr(tokenizer, "chat_template", "")
    )
