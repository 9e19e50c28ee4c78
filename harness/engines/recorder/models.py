"""Models: loaded from a folder or made on the spot, by the public names of any release."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from .weights import fill


def load(request: dict[str, Any], attention: str | None) -> tuple[Any, dict[str, Any] | None]:
    """The model of a request, in evaluation mode, and what was said of its weights.

    Args:
        request: As the parent wrote it.
        attention: Attention implementation, None for what the library chooses.
    """
    if request["model"] is not None:
        model, loading = _from_folder(
            transformers.AutoModelForCausalLM, request["model"], request, attention
        )
        return model.eval(), loading
    make = request["make"]
    model = _made(make, request["dtype"], attention)
    if not make["after_save_load"]:
        return model.eval(), None
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        class_ = getattr(transformers, make["model_class"])
        model, loading = _from_folder(class_, folder, request, attention)
    return model.eval(), loading


def save(model: Any, request: dict[str, Any]) -> None:
    """Save a model, and its tokenizer where there is one."""
    model.save_pretrained(request["save_to"])
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    folder = request["model"]
    if folder is not None and any(Path(folder, name).is_file() for name in names):
        transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=request["trust_remote_code"]
        ).save_pretrained(request["save_to"])


def default_attention(model: Any) -> str | None:
    """The attention implementation that the config names."""
    found = getattr(model.config, "_attn_implementation", None)
    return None if found is None else str(found)


def _dtype(name: str) -> dict[str, Any]:
    """The argument that names a dtype: it was renamed in 4.56."""
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    key = "dtype" if (major, minor) >= (4, 56) else "torch_dtype"
    return {key: name if name == "auto" else getattr(torch, name)}


def _attention(name: str | None) -> dict[str, str]:
    return {} if name is None else {"attn_implementation": name}


def _from_folder(
    class_: Any, folder: str, request: dict[str, Any], attention: str | None
) -> tuple[Any, dict[str, Any]]:
    model, said = class_.from_pretrained(
        folder,
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=request["trust_remote_code"],
        **_dtype(request["dtype"]),
        **_attention(attention),
    )
    names = {"missing": "missing_keys", "unexpected": "unexpected_keys"}
    loading: dict[str, Any] = {
        key: sorted(str(each) for each in said.get(name) or ()) for key, name in names.items()
    }
    mismatched = said.get("mismatched_keys") or ()
    loading["mismatched"] = sorted(
        str(each if isinstance(each, str) else each[0]) for each in mismatched
    )
    return model, loading


def _made(make: dict[str, Any], dtype: str, attention: str | None) -> Any:
    config = getattr(transformers, make["config_class"])(**json.loads(json.dumps(make["config"])))
    class_ = getattr(transformers, make["model_class"])
    build = class_.from_config if hasattr(class_, "from_config") else class_._from_config
    model = build(config, **_dtype(dtype), **_attention(attention))
    fill(model)
    return model
