"""What is done in an environment: a model is loaded, told of, and run; imports transformers."""

import gc
import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from .models import default_attention, load, save
from .running import run_pass, state_of
from .stages import Stages
from .store import Kept, Noise, digest

_PACKAGES = (
    "transformers",
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "accelerate",
    "kernels",
    "flash_attn",
)


def begin(request: dict[str, Any], facts: dict[str, Any]) -> None:
    """Set what numbers depend on, and tell of the environment."""
    torch.set_num_threads(int(request["threads"]))
    torch.manual_seed(0)  # whatever was recorded before in this process
    transformers.logging.set_verbosity_warning()
    transformers.logging.disable_progress_bar()
    facts["versions"] = {"python": platform.python_version()} | _versions()
    facts["machine"] = {
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "capability": str(torch.backends.cpu.get_cpu_capability()),
        "threads": torch.get_num_threads(),
        "blas": _blas(),
    }


def record(
    request: dict[str, Any],
    stages: Stages,
    facts: dict[str, Any],
    output: Path,
    warnings: list[dict[str, str]],
) -> None:
    """Do what a request asks for, and fill the document."""
    if request["model"] is not None:
        with stages.stage("config"):
            facts["config_as_saved"] = json.loads(Path(request["model"], "config.json").read_text())
    if request["texts"]:
        with stages.stage("tokenizer"):
            facts["tokenizer"] = _tokenize(request)
    if stages.failed_at("config"):
        return
    if request["save_to"] is not None:
        _save(request, stages, facts)
        return
    passes, kept = request["passes"], Kept()
    wanted = [each["attention"] or request["attention"] for each in passes]
    done: dict[str, dict[str, Any]] = {}
    for attention in dict.fromkeys([request["attention"], *wanted]):
        chosen = [each for each, its in zip(passes, wanted, strict=True) if its == attention]
        if "model_class" not in facts:
            model = _first_model(request, stages, facts)
        elif chosen:
            model = None  # the one before is gone before the next one comes
            gc.collect()
            model = _other_model(request, attention, chosen, stages, done)
        if model is None and "model_class" not in facts:
            break
        if model is not None:
            _run_all(model, chosen, stages, kept, done)
            if request["noise"]:
                sound = [each for each in chosen if done[each["name"]]["failed"] is None]
                _measure(model, sound, stages, kept, warnings)
    facts["passes"] = [done[each["name"]] for each in passes if each["name"] in done]
    save_file(kept.arrays, str(output / "taps.safetensors"))


def _first_model(request: dict[str, Any], stages: Stages, facts: dict[str, Any]) -> Any:
    """Load the model of the request and tell of it; None where it fails."""
    model: Any = None
    with stages.stage("load"):
        model, facts["loading"] = load(request, request["attention"])
        facts.update(_told(model))
    return model


def _other_model(
    request: dict[str, Any],
    attention: str | None,
    passes: list[dict[str, Any]],
    stages: Stages,
    done: dict[str, dict[str, Any]],
) -> Any:
    """Load the model with another attention implementation; where that fails, its passes do."""
    model: Any = None
    for each in passes:
        if model is None:
            with stages.stage(f"pass:{each['name']}"):
                model = load(request, attention)[0]
        if model is None:
            done[each["name"]] = _began(each, attention) | {"failed": stages.failures[-1]}
    return model


def _began(asked: dict[str, Any], attention: str | None) -> dict[str, Any]:
    return {"name": asked["name"], "attention": attention, "taps": [], "failed": None}


def _run_all(
    model: Any,
    passes: list[dict[str, Any]],
    stages: Stages,
    kept: Kept,
    done: dict[str, dict[str, Any]],
) -> None:
    """Run all passes of one attention implementation; one that fails keeps no other from it."""
    before = state_of(model)
    for each in passes:
        made = done[each["name"]] = _began(each, default_attention(model))
        failures = len(stages.failures)
        with stages.stage(f"pass:{each['name']}"):
            made.update(run_pass(model, each, kept, before))
        if len(stages.failures) > failures:
            made["failed"] = stages.failures[-1]
        made["taps"] = kept.taps.get(each["name"], [])


def _measure(
    model: Any,
    passes: list[dict[str, Any]],
    stages: Stages,
    kept: Kept,
    warnings: list[dict[str, str]],
) -> None:
    """Run passes again with the same weights in float64."""
    noise = Noise(kept)
    model.double()  # float32 values are float64 values: nothing is rounded
    before = state_of(model)
    for each in passes:
        stages.now = f"pass:{each['name']}"
        try:
            run_pass(model, each, noise, before, wide=True)
        except Exception as error:
            noise.forget(each["name"])
            why = stages.failure(error)
            text = f"not run in float64, so its noise is unknown: {why['type']}: {why['message']}"
            warnings.append({"stage": stages.now, "text": text})


def _save(request: dict[str, Any], stages: Stages, facts: dict[str, Any]) -> None:
    model = _first_model(request, stages, facts)
    if model is not None:
        with stages.stage("save"):
            save(model, request)


def _plain_config() -> Any:
    """A config of no model: what every config has; its class is called otherwise before 5.0."""
    kind = getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig
    return kind()


def _told(model: Any) -> dict[str, Any]:
    """What there is to tell of a loaded model."""
    config = model.config
    generation = getattr(model, "generation_config", None)
    names: dict[int, str] = {}
    tied = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if names.setdefault(id(parameter), name) != name:
            tied.append([names[id(parameter)], name])
    return {
        "model_class": type(model).__name__,
        "config_class": type(config).__name__,
        "config": config.to_dict(),
        "config_defaults": _plain_config().to_dict(),
        "generation_config": None if generation is None else generation.to_dict(),
        "generation_defaults": transformers.GenerationConfig().to_dict(),
        "attention": default_attention(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "modules": [
            {"path": path, "class_name": type(module).__name__}
            for path, module in model.named_modules()
        ],
        "parameters": [
            {
                "name": name,
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "digest": digest(parameter)[:16],
            }
            for name, parameter in model.named_parameters()
        ],
        "tied": tied,
    }


def _tokenize(request: dict[str, Any]) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        request["model"], local_files_only=True, trust_remote_code=request["trust_remote_code"]
    )
    ids = {name: list(tokenizer(text)["input_ids"]) for name, text in request["texts"].items()}
    special = dict(tokenizer.special_tokens_map)
    numbers = {
        f"{role}_id": getattr(tokenizer, f"{role}_id", None)
        for role in special
        if hasattr(tokenizer, f"{role}_id")
    }
    return {"class_name": type(tokenizer).__name__, "ids": ids, "special": special | numbers}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """Name of the processor's model, as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or os.uname().machine


def _blas() -> str:
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return found[1] if found else "unknown"
