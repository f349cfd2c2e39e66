"""Tokenizers whose model transformers does not know, or whose files lack something: loaded, or told why."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import tinytokenizers
from longctx.errors import PromptError
from longctx.prompts.pretrained import TokenizerSpec
from longctx.prompts.tokenizers import load_tokenizer

ROOT = Path(__file__).parents[3]
# vLLM's own environment has mistral-common, with Mistral's released vocabularies in it.
VLLM_PACKAGES = next(iter((ROOT / ".venv-vllm" / "lib").glob("python3*/site-packages")), Path("/nonexistent"))
VOCABULARIES = VLLM_PACKAGES / "mistral_common" / "data"
TEXT = "def area(r):\n    return 3.14 * r ** 2  # é\n"
ROPES: list[dict[str, Any]] = [
    {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    {"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 4096},
    {"rope_scaling": {"rope_type": "something_new"}},
    {"rope_scaling": [1]},
    {"rope_parameters": {"rope_type": "longrope"}, "layer_types": ["unheard_of"]},
]
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A function that makes a folder of a complete fast tokenizer, with these files beside or instead of its own."""

    def make(without: tuple[str, ...] = (), **contents: Any) -> Path:
        for path in tinytokenizers.fast_folder().glob("tokenizer*.json"):
            if path.name not in without:
                shutil.copy(path, tmp_path)
        for name, content in contents.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / name.replace("_json", ".json")).write_text(text)
        return tmp_path

    return make


def load(path: Path) -> Any:
    return load_tokenizer(TokenizerSpec(str(path)))


@pytest.mark.parametrize("rope", ROPES)
def test_a_model_that_transformers_does_not_know(folder: Folder, rope: dict[str, Any]) -> None:
    tokenizer = load(folder(config_json={"model_type": "brand_new", **rope}))
    assert tokenizer.fingerprint == tinytokenizers.load("fast").fingerprint
    assert tokenizer.special_ids == tinytokenizers.load("fast").special_ids


@pytest.mark.parametrize("content", ["{", "[1]", "", "\ufeff{}"])
def test_a_broken_config_of_the_model_does_not_matter(folder: Folder, content: str) -> None:
    assert load(folder(config_json=content)).fingerprint == tinytokenizers.load("fast").fingerprint


@pytest.mark.parametrize("name", ["BrandNewTokenizer", "BrandNewTokenizerFast", "KimiTokenizer"])
def test_a_class_that_transformers_does_not_know(folder: Folder, name: str) -> None:
    rope = {"model_type": "brand_new", **ROPES[0]}
    tokenizer = load(folder(tokenizer_config_json={"tokenizer_class": name}, config_json=rope))
    assert tokenizer.encode(TEXT).tolist() == tinytokenizers.load("fast").encode(TEXT).tolist()


@pytest.mark.parametrize("config", [None, {"model_type": "brand_new", **ROPES[0]}, {"model_type": "llama"}])
def test_tokenizer_json_alone(folder: Folder, config: dict[str, Any] | None) -> None:
    path = folder(without=("tokenizer_config.json",), **({"config_json": config} if config else {}))
    assert load(path).encode(TEXT).tolist() == tinytokenizers.load("fast").encode(TEXT).tolist()


@pytest.mark.parametrize(
    "contents",
    [
        {"config_json": {"model_type": "new", **ROPES[1], "auto_map": {"AutoConfig": "configuration_new.NewConfig"}}},
        {"config_json": {"model_type": "new", **ROPES[1], "auto_map": {"AutoTokenizer": ["new.NewTokenizer", None]}}},
        {
            "config_json": {"model_type": "new", **ROPES[0]},
            "tokenizer_config_json": {"auto_map": {"AutoTokenizer": ["new.NewTokenizer", None]}},
        },
        {"tokenizer_config_json": {"auto_map": ["new.NewTokenizer", None]}, "config_json": "{"},
    ],
)
def test_a_model_with_code_of_its_own_says_how_to_run_it(folder: Folder, contents: dict[str, Any]) -> None:
    with pytest.raises(PromptError, match="it needs its own code: set trust_remote_code: true"):
        load(folder(**contents))


def test_trusted_code_of_the_model_that_fails_leaves_the_tokenizer(folder: Folder) -> None:
    """Code of a model's configuration often imports torch, which the pipeline does not have."""
    config = {"model_type": "new", **ROPES[1], "auto_map": {"AutoConfig": "configuration_new.NewConfig"}}
    path = folder(config_json=config)
    (path / "configuration_new.py").write_text("import a_module_that_is_not_here\n")
    tokenizer = load_tokenizer(TokenizerSpec(str(path), trust_remote_code=True))
    assert tokenizer.fingerprint == tinytokenizers.load("fast").fingerprint


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer_config"])
@pytest.mark.parametrize("content", ["{", "[1]", "null", ""])
def test_a_broken_file_of_the_tokenizer_is_named(folder: Folder, name: str, content: str) -> None:
    with pytest.raises(PromptError, match=f"cannot be loaded: {name}.json is not a JSON object; fetch it again$"):
        load(folder(**{f"{name}_json": content}))


def test_an_empty_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot be loaded") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not VOCABULARIES.is_dir(), reason="no mistral-common in .venv-vllm")
def test_a_vocabulary_that_needs_another_package_names_it(tmp_path: Path) -> None:
    shutil.copy(VOCABULARIES / "tokenizer.model.v1", tmp_path / "tokenizer.model")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(PromptError, match=r"tokenizer\.model needs the Python package sentencepiece"):
        load(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    shutil.copy(VOCABULARIES / "tekken_240911.json", tmp_path / "tekken.json")
    with pytest.raises(PromptError, match=r"tekken\.json needs the Python package mistral-common"):
        load(tmp_path)


def in_a_process(code: str, *paths: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    python_path = ":".join(map(str, [*paths, ROOT / "scripts", ROOT / "tests"]))
    program = f"from longctx.prompts.pretrained import *; from longctx.prompts.tokenizers import *; {code}"
    child = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": python_path, **env}
    return subprocess.run([sys.executable, "-c", program], env=child, capture_output=True, text=True, check=False)


@pytest.fixture
def mistral_common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mistral-common and what it needs beyond the pipeline's packages."""
    packages = tmp_path_factory.mktemp("packages")
    for name in ("mistral_common", "pydantic_extra_types", "pycountry", "sentencepiece"):
        for path in (*VLLM_PACKAGES.glob(name), *VLLM_PACKAGES.glob(f"{name}-*"), *VLLM_PACKAGES.glob(f"{name}.libs")):
            (packages / path.name).symlink_to(path)
    return packages


@pytest.mark.process
@pytest.mark.skipif(not VOCABULARIES.is_dir(), reason="no mistral-common in .venv-vllm")
@pytest.mark.parametrize("config", [None, {"model_type": "mistral"}, {"model_type": "mistral3"}, {"model_type": "new"}])
def test_tekken_json_where_mistral_common_is_installed(
    folder: Folder, mistral_common: Path, config: dict[str, Any] | None
) -> None:
    path = folder(**({"config_json": config} if config else {}))
    shutil.copy(VOCABULARIES / "tekken_240911.json", path / "tekken.json")
    ids = f"print(load_tokenizer(TokenizerSpec({str(path)!r})).encode({TEXT!r}).tolist())"
    done = in_a_process(ids, mistral_common)
    assert json.loads(done.stdout or "[]") == tinytokenizers.load("fast").encode(TEXT).tolist(), done.stderr
    (path / "tokenizer.json").unlink()
    (path / "tokenizer_config.json").unlink()
    done = in_a_process(ids, mistral_common)
    theirs = in_a_process(
        "from mistral_common.tokens.tokenizers.tekken import Tekkenizer;"
        f"print(Tekkenizer.from_file({str(path / 'tekken.json')!r}).encode({TEXT!r}, False, False))",
        mistral_common,
    )
    assert json.loads(done.stdout or "[]") == json.loads(theirs.stdout), done.stderr


class Gate(BaseHTTPRequestHandler):
    """The hub's answers about a gated repository, or one that is not there."""

    def do_GET(self) -> None:
        gated = "gated" in self.path
        self.send_response(403 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("X-Error-Message", "Access to model owner/gated is restricted.")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.process
def test_a_gated_repository_says_how_to_enter(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as hub:
        Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path)}
        said = [
            in_a_process(f"load_tokenizer(TokenizerSpec('owner/{name}', revision='main'))", **env).stderr
            for name in ("gated", "none")
        ]
        hub.shutdown()
    remedy = "ask for access on https://huggingface.co/owner/gated, then export HF_TOKEN or put a token into ~/hf_token"
    assert f"PromptError: tokenizer owner/gated: the repository is gated: {remedy}" in said[0]
    assert "PromptError: tokenizer owner/none cannot be loaded" in said[1]
