"""transformers as an engine: any model object, any attention implementation."""

import difflib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ..errors import EngineError, MissingPackageError, UsageError
from ..padding import Padding
from ..result import EngineInfo
from .hf_attention import AttentionTap
from .hf_caches import kinds, make_cache
from .hf_hooks import ModuleTaps
from .hf_inputs import COLUMNS, FORMS, Inputs, inputs_of
from .hf_modules import MODULE_MAPS
from .hf_parameters import stacked, unpacked
from .protocol import Emit
from .ways import ABILITIES, Way

Array = NDArray[Any]
TokenIds = NDArray[np.int64]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

#: What an attention implementation that never forms scores cannot give.
_FUSED = "never formed by a fused attention kernel"


class HFEngine:
    """A transformers model, tapped by hooks for as long as a sequence is open.

    Args:
        model: Any causal language model of a mapped layout, patched or fine-tuned as it may be.
            It is run in evaluation mode and left as it was.
        name: Short name within a run; ``hf:<attention implementation>`` if not given.
        threads: Threads that torch may use while it runs, None for as many as it has.

    Raises:
        EngineError: The model's ``model_type`` has no map of modules.
    """

    def __init__(
        self, model: torch.nn.Module, *, name: str | None = None, threads: int | None = None
    ) -> None:
        self.model = model
        config: Any = model.config
        self._attention = str(config._attn_implementation or "eager")
        self.name = name or f"hf:{self._attention}"
        self._threads = threads
        dtype = next(model.parameters()).dtype
        self.dtype = str(dtype).removeprefix("torch.")
        if config.model_type not in MODULE_MAPS:
            raise EngineError(
                f"engine {self.name}",
                expected="a model_type of " + ", ".join(sorted(MODULE_MAPS)),
                found=repr(config.model_type),
                advice="add its modules to harness/engines/hf_modules.py",
            )
        self._map = MODULE_MAPS[config.model_type]

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        attention: str = "eager",
        dtype: str = "float32",
        name: str | None = None,
        threads: int | None = None,
    ) -> "HFEngine":
        """Load a model directory; safetensors stay memory-mapped where the dtype is as stored.

        Args:
            path: An HF directory.
            attention: Name of the attention implementation.
            dtype: float32, bfloat16 or float16.
            name: Short name within a run.
            threads: See the class.

        Raises:
            EngineError: The attention implementation is unknown or not installed, or the
                directory cannot be loaded.
        """
        if dtype not in _DTYPES:
            raise UsageError(
                "dtype", expected=" or ".join(_DTYPES), found=dtype, advice="choose one of them"
            )
        _require_attention(attention, name or f"hf:{attention}")
        try:
            with _quiet():
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    path,
                    attn_implementation=attention,
                    dtype=_DTYPES[dtype],
                    use_safetensors=True,
                    local_files_only=True,
                )
        except (ImportError, ValueError, OSError, RuntimeError, KeyError) as error:
            raise _loading_failed(name or f"hf:{attention}", attention, error) from error
        return cls(model, name=name, threads=threads)

    @property
    def unavailable(self) -> dict[str, str]:
        """Kinds of taps that the model, as it is now, cannot give, each with the reason."""
        absent = dict(ModuleTaps(self.model, self._map).absent)
        if self._attention != "eager":
            absent |= dict.fromkeys(("attn.scores", "attn.probs"), _FUSED)
            if getattr(self.model.config, self._map.scores_cap or "_", None) is not None:
                absent["attn.scores_capped"] = _FUSED
            absent["attn.mask"] = "a fused attention kernel may take none"
        return absent

    @property
    def parameters(self) -> dict[str, Array]:
        """The model's parameters as the checkpoint names them, not copied in main memory."""
        named = {
            name: to_numpy(piece, copy=False)
            for whole, parameter in self.model.named_parameters()
            if parameter.device.type != "meta"
            for name, piece in unpacked(whole, parameter, self._map.packed)
        }
        return named | stacked(named, self._map.stacked)

    def info(self) -> EngineInfo:
        """What ran."""
        detail = {
            "class": type(self.model).__name__,
            "attention": self._attention,
            "device": str(next(self.model.parameters()).device),
            "transformers": transformers.__version__,
            "torch": str(torch.__version__),
        }
        return EngineInfo(self.name, "transformers", self.dtype, detail)

    @property
    def abilities(self) -> frozenset[str]:
        """All of them; kinds of caches go by what is installed."""
        masks = {f"mask:{form}" for form in (*FORMS, COLUMNS)}
        dtypes = {f"dtype:{dtype}" for dtype in _DTYPES}
        caches = {f"cache:{kind}" for kind in kinds()}
        return frozenset(ABILITIES) | masks | dtypes | caches | {"rope:longrope"}

    @contextmanager
    def open(
        self, *, cache: bool, padding: Padding | None = None, way: Way | None = None
    ) -> Iterator["HFSession"]:
        """Begin a new sequence; the model is tapped until it is closed, then as before.

        Args:
            cache: Whether more than one feed will follow.
            padding: Where the batch has pads. The model is then given an ``attention_mask`` and
                ``position_ids``, and without padding neither, as most callers do.
            way: What else is not as usual; with padding, blank columns alone.
        """
        # Modules are looked up now, not when the engine was made: a caller may have replaced some.
        taps = ModuleTaps(self.model, self._map)
        attention = AttentionTap(taps.attention_layers, self._map)
        threads = self._threads if way is None or way.threads is None else way.threads
        kept = make_cache(self.model, way.cache if way else "") if cache else None
        inputs = inputs_of(self.model, padding, way)
        with ExitStack() as stack:
            stack.enter_context(_threads(threads))
            stack.enter_context(_evaluating(self.model))
            stack.enter_context(_rotary_state(self.model))
            stack.enter_context(taps.installed())
            stack.enter_context(attention.installed())
            yield HFSession(self.model, taps, attention, cache=kept, inputs=inputs)

    def generate(
        self, token_ids: TokenIds, count: int, *, cache: bool, beams: int = 1
    ) -> NDArray[np.int64]:
        """Tokens [B, count] that ``generate`` puts behind token ids [B, T], without sampling."""
        model: Any = self.model
        with torch.no_grad(), _evaluating(model), _rotary_state(model):
            ids = torch.as_tensor(token_ids)
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                num_beams=beams,
                use_cache=cache,
                pad_token_id=0,
            )
        new: NDArray[np.int64] = found[:, token_ids.shape[1] :].numpy()
        return new

    def hidden_states(self, token_ids: TokenIds) -> list[Array]:
        """What ``output_hidden_states`` hands out: layers + 1 arrays [B, T, C]."""
        with torch.no_grad(), _evaluating(self.model), _rotary_state(self.model):
            ids = torch.as_tensor(token_ids)
            out = self.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        return [to_numpy(state) for state in out.hidden_states]

    def resaved(self, folder: Path) -> "HFEngine":
        """``save_pretrained`` into an empty folder, and what is loaded from there."""
        model: Any = self.model
        with _quiet():
            model.save_pretrained(folder)
        return HFEngine.load(
            folder, attention=self._attention, dtype=self.dtype, threads=self._threads
        )

    def in_dtype(self, dtype: str, folder: Path) -> "HFEngine":
        """Load a checkpoint with the same attention implementation in another dtype."""
        return HFEngine.load(folder, attention=self._attention, dtype=dtype, threads=self._threads)


class HFSession:
    """One sequence in a transformers model."""

    def __init__(
        self,
        model: torch.nn.Module,
        taps: ModuleTaps,
        attention: AttentionTap,
        *,
        cache: Any,
        inputs: Inputs,
    ) -> None:
        self._inputs = inputs
        self._fed = 0
        self._model = model
        self._taps = taps
        self._attention = attention
        self._cache = cache
        if cache is not None:
            attention.watch_cache(cache)

    def feed(
        self, token_ids: TokenIds, emit: Emit | None = None, *, keep: int | None = None
    ) -> Array:
        """Run the next tokens: [B, T] to logits [B, T, V], or [B, keep, V] of the last ones."""

        def send(tap: str, tensor: torch.Tensor) -> None:
            if emit is not None:
                emit(tap, to_numpy(tensor))

        self._tap_into(send if emit is not None else None, batch=len(token_ids))
        kwargs: dict[str, Any] = {"use_cache": self._cache is not None}
        if self._cache is not None:
            kwargs[cache_argument(self._model)] = self._cache
        device = next(self._model.parameters()).device
        kwargs |= self._given(token_ids, device)
        if keep is not None:
            kwargs["logits_to_keep"] = keep
        try:
            with torch.no_grad():
                ids = torch.as_tensor(token_ids, device=device)
                logits = to_numpy(self._model(input_ids=ids, **kwargs).logits)
        finally:
            self._tap_into(None)
        if emit is not None:
            emit("logits", logits)
        return logits

    def crop(self, length: int) -> None:
        """Forget all columns behind the first ``length``.

        Raises:
            EngineError: The cache says that it cannot.
        """
        if not getattr(self._cache, "is_croppable", True):
            raise EngineError(
                "crop",
                expected="a cache that says it can be cropped",
                found=f"{type(self._cache).__name__} with is_croppable false",
                advice="begin a new sequence, or use another kind of cache",
            )
        # Counted from the end, which all releases take; there 0 is not nothing.
        if length < self._fed:
            self._cache.crop(length - self._fed)
        self._fed = length

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row ``i`` of the batch go on from what row ``rows[i]`` was."""
        self._cache.reorder_cache(torch.as_tensor(list(rows)))

    def _given(self, token_ids: TokenIds, device: torch.device) -> dict[str, Any]:
        """Arguments besides token ids, as tensors."""
        batch, length = token_ids.shape
        start, self._fed = self._fed, self._fed + length
        given = self._inputs.arguments(start, self._fed, batch=batch)
        return {name: _as_tensors(value, device) for name, value in given.items()}

    def _tap_into(
        self, send: Callable[[str, torch.Tensor], None] | None, *, batch: int = 1
    ) -> None:
        self._taps.begin(send, batch=batch)
        self._attention.emit = send


def _as_tensors(given: Any, device: torch.device) -> Any:
    if isinstance(given, dict):
        return {key: _as_tensors(value, device) for key, value in given.items()}
    return torch.as_tensor(given, device=device)


def default_threads() -> int:
    """Number of threads that torch uses when nobody sets another."""
    return torch.get_num_threads()


def to_numpy(tensor: torch.Tensor, *, copy: bool = True) -> Array:
    """A tensor as NumPy has it, bfloat16 included."""
    tensor = tensor.detach().to("cpu", copy=copy)
    if tensor.dtype == torch.bfloat16:
        # NumPy knows no bfloat16: hand the bits over as integers and name them.
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def cache_argument(model: torch.nn.Module) -> str:
    """``cache`` where forward has that argument, ``past_key_values`` in older releases."""
    arguments = inspect.signature(model.forward).parameters
    return "cache" if "cache" in arguments else "past_key_values"


def _require_attention(attention: str, name: str) -> None:
    """Refuse a misspelt attention implementation before the weights are read."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known = ("eager", *ALL_ATTENTION_FUNCTIONS.valid_keys())
    if attention in known or "/" in attention:  # a kernel of the hub is owner/name
        return
    near = difflib.get_close_matches(attention, known, n=1)
    raise EngineError(
        f"engine {name}",
        expected=f"an attention implementation that transformers lists: {', '.join(known)}",
        found=repr(attention),
        advice=f"did you mean hf:{near[0]}?" if near else "for example hf:eager or hf:sdpa",
    )


def _loading_failed(name: str, attention: str, error: Exception) -> EngineError:
    advice = "look at the message; `parity run --debug` shows where it was raised"
    kind = EngineError
    if isinstance(error, ImportError):
        kind = MissingPackageError
        package = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3"}
        wanted = package.get(attention, "the package that it names")
        advice = f"pip install {wanted} on a machine that it supports, or use hf:eager or hf:sdpa"
    elif "attn_implementation" in str(error):
        advice = "use an implementation that transformers lists, for example hf:eager or hf:sdpa"
    return kind(
        f"engine {name}",
        expected=f"a model that loads with attention implementation {attention}",
        found=f"{type(error).__name__}: {error}",
        advice=advice,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own progress bars out of ours."""
    logging = transformers.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, module by module, because a caller may have mixed them."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


#: What names of attributes end with that rotary modules change as they run.
_ROTARY_STATE = ("max_seq_len_cached", "original_inv_freq", "attention_scaling")


@contextmanager
def _rotary_state(model: torch.nn.Module) -> Iterator[None]:
    """Put back what dynamic rope scaling changes in its module as sequences grow.

    transformers keeps the frequencies of the longest sequence so far, so that one run would change
    the next.
    """
    rotary = [m for m in model.modules() if hasattr(m, "max_seq_len_cached")]
    before = [(dict(m._buffers), dict(vars(m))) for m in rotary]
    try:
        yield
    finally:
        for module, (buffers, attributes) in zip(rotary, before, strict=True):
            module._buffers.clear()
            module._buffers.update(buffers)
            # A model with several rotations puts the layer type in front of each name.
            for key in [key for key in vars(module) if key.endswith(_ROTARY_STATE)]:
                module.__dict__.pop(key)
                if key in attributes:
                    module.__dict__[key] = attributes[key]
