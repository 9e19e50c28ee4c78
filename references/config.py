"""Reading a config to the letter: every key is read, known to be inert, or an error.

A reader that ignores keys computes another model without a word. So a family's config asks a
:class:`ConfigReader` for the keys that it follows, and :meth:`ConfigReader.finish` refuses any
other key whose value is not the default.
"""

import difflib
import sys
from collections.abc import Collection, Mapping
from typing import Any

from .errors import ConfigError

#: Keys that do not enter the forward pass of a trained model: bookkeeping, training, generation.
INERT = frozenset(
    [
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_pdrop",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "finetuning_task",
        "generation_config",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_llama_config",
        "label2id",
        "max_length",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "resid_pdrop",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
        "vocab_file",
    ]
)

#: Sizes and layers beyond these are damage; a list of the parameters of so many layers would fill
#: the memory before anybody could see that the checkpoint has none of them.
MOST = (1 << 31) - 1
MOST_LAYERS = 10_000

_MISSING = object()


class ConfigReader:
    """A config, with a note of which keys were asked for.

    Args:
        raw: config.json as written.
        defaults: What transformers takes for keys that are absent, used only to accept a key that
            nothing here reads when its value changes nothing. Empty accepts no such key.
    """

    def __init__(self, raw: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self._raw = raw
        self._defaults = defaults or {}
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is there with another value than null."""
        self._read.add(key)
        return self._raw.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there and null, where that is not the same as its absence."""
        self._read.add(key)
        return key in self._raw and self._raw[key] is None

    def get(self, key: str, default: Any = None) -> Any:
        """A value as written; ``default`` where the key is absent or null."""
        self._read.add(key)
        value = self._raw.get(key)
        return default if value is None else value

    def integer(self, key: str, default: Any = _MISSING, *, most: int = MOST) -> int:
        """A positive integer up to ``most``; without a default the key must be there."""
        value = self._required(key, "a positive integer") if default is _MISSING else None
        value = self.get(key, default) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self._unusable(key, "a positive integer", value)
        if value > most:
            raise self._unusable(key, f"a positive integer up to {most}", value)
        return value

    def number(self, key: str, default: Any = _MISSING) -> float:
        """A positive number; without a default the key must be there."""
        value = self._required(key, "a positive number") if default is _MISSING else None
        value = self.get(key, default) if value is None else value
        return positive(key, value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._unusable(key, "true or false", value)
        return value

    def choice(self, key: str, known: Collection[Any], default: Any = _MISSING) -> Any:
        """One of the values that the family implements."""
        value = self._required(key, "a value") if default is _MISSING else self.get(key, default)
        if value not in list(known):  # a list, as the value may be unhashable
            expected = " or ".join(repr(x) for x in sorted(known, key=str))
            raise self._unusable(key, expected, value)
        return value

    def finish(self) -> None:
        """Refuse every key that was neither asked for, inert, nor at its default.

        Raises:
            ConfigError: Names all such keys with their values.
        """
        unread = {
            key: value
            for key, value in self._raw.items()
            if key not in self._read and key not in INERT and not self._is_default(key, value)
        }
        if not unread:
            return
        found = []
        for key, value in sorted(unread.items()):
            near = difflib.get_close_matches(key, sorted(self._read), n=1, cutoff=0.8)
            hint = f" (near the known key {near[0]})" if near else ""
            default = f", default {self._defaults[key]!r}" if key in self._defaults else ""
            found.append(f"{key}={value!r}{default}{hint}")
        raise ConfigError(
            "config.json",
            expected="only keys that the reference follows, or default values",
            found="; ".join(found),
            advice="remove the keys if they change nothing, or teach the family to follow them",
        )

    def _is_default(self, key: str, value: Any) -> bool:
        # JSON has one number type and Python two, and True == 1: compare the types of flags too.
        return (
            key in self._defaults
            and self._defaults[key] == value
            and isinstance(self._defaults[key], bool) == isinstance(value, bool)
        )

    def _required(self, key: str, expected: str) -> Any:
        if not self.has(key):
            raise self._unusable(key, expected, None)
        return self._raw[key]

    @staticmethod
    def _unusable(key: str, expected: str, value: Any) -> ConfigError:
        return unusable(key, expected, value)


def unusable(key: str, expected: str, value: Any) -> ConfigError:
    """The error for a key whose value cannot be followed."""
    found = "nothing" if value is None else repr(value)
    return ConfigError(
        f"config.json: {key}",
        expected=expected,
        found=found,
        advice="correct the config, or use a family that implements this value",
    )


def positive(key: str, value: Any) -> float:
    """``value`` as a float, if it is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unusable(key, "a positive number", value)
    if not 0 < value <= sys.float_info.max:
        raise unusable(key, "a positive number", value)
    return float(value)
