"""Models and data sets from a hub: fetched once at a commit, then used without a network."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers import ROOT
from tests.hub_server import Hub, Repository, serve
from trainer.rendering import character_tokenizer

pytestmark = pytest.mark.end_to_end

TOKEN = "hf_secretsecretsecret"
WRONG = "f" * 40
QUIET = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def parquet(**columns: list[Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def card(*subsets: tuple[str, dict[str, str]]) -> bytes:
    """README.md with the data files of each subset."""
    lines = ["---", "configs:"]
    for name, splits in subsets:
        lines += [f"- config_name: {name}", "  data_files:"]
        for split, path in splits.items():
            lines += [f"  - split: {split}", f"    path: {path}"]
    return "\n".join([*lines, "---", ""]).encode()


MATH_TRAIN = parquet(
    problem=["What is $1+1$?", "What is $2+2$?", "What is $3+3$?", "What is $4+4$?"],
    level=["Level 1", "Level 2", "Level 3", "Level 4"],
    type=["Algebra"] * 4,
    solution=[
        "First \\boxed{1}, then \\boxed{2}.",
        "It is \\boxed{\\frac{8}{2}}.",
        "It is $\\fbox{6}$.",
        "8.",
    ],
)
MATH_500 = parquet(
    problem=["What is $5+5$?"],
    solution=["\\boxed{10}"],
    answer=["10"],
    subject=["Algebra"],
    level=[1],
    unique_id=["test/1.json"],
)
DAPO = parquet(
    prompt=[[{"role": "user", "content": f"Solve {n}."}] for n in (1, 2)] * 20,
    reward_model=[{"ground_truth": str(n), "style": "rule"} for n in (10, 20)] * 20,
    extra_info=[{"index": f"id-{n}"} for n in range(40)],
)
OPENR1 = parquet(
    problem=["Prove it.", "Find x.", "Find y."],
    answer=[None, "3", "4"],
    generations=[["long " * 1000] * 2] * 3,
    correctness_math_verify=[None, [True, False], None],
)
OPENR1_EXTENDED = parquet(problem=["Extended."], answer=["9"], generations=[["long"]])
AMC = parquet(id=[0, 1], problem=["Area?", "Length?"], answer=[142.0, 0.5])
LISTED = parquet(problem=["Speed?", "Mass?"], answer=[["3", "3.0"], ["4"]])


def tiny_model(folder: Path) -> dict[str, bytes]:
    """Files of a random model with characters as tokens."""
    tokenizer = character_tokenizer()
    settings = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    return files | {"onnx/model.onnx": b"x" * 1000, "README.md": b"# tiny"}


@dataclass
class Place:
    """A hub, what is on it, and a user's home."""

    hub: Hub
    commits: dict[str, str]
    home: Path

    def environment(self, **extra: str) -> dict[str, str]:
        own = {"HF_ENDPOINT": self.hub.address, "HF_HOME": str(self.home), "HOME": str(self.home)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return kept | QUIET | own | extra

    def start(self, steps: list[dict[str, Any]], **extra: str) -> "subprocess.Popen[str]":
        file = self.home.parent / f"{self.home.name}-steps.json"
        file.write_text(json.dumps(steps))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.hub_driver", str(file)],
            cwd=ROOT,
            env=self.environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def do(self, steps: dict[str, dict[str, Any]], **extra: str) -> dict[str, dict[str, Any]]:
        """Results of named steps, one after the other in one process."""
        job = self.start(list(steps.values()), **extra)
        output, errors = job.communicate(timeout=120)
        assert job.returncode == 0, errors
        assert "Traceback" not in errors
        return dict(zip(steps, map(json.loads, output.splitlines()), strict=True))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, dict[str, str]]]:
    files = tiny_model(tmp_path_factory.mktemp("model"))
    subsets = card(
        ("default", {"train": "train.parquet", "test": "test.parquet"}), ("listed", {"test": "l.parquet"})
    )
    test = parquet(problem=["Test."], level=["Level 1"], type=["Algebra"], solution=["\\boxed{0}"])
    old = {"README.md": subsets, "train.parquet": MATH_TRAIN, "test.parquet": test, "l.parquet": LISTED}
    later = parquet(problem=["Later."], level=["Level 1"], type=["Algebra"], solution=["\\boxed{1}"])
    new = old | {"train.parquet": later}
    found = Hub()
    commits = {}
    for kind, name, contents in (
        (found.models, "tiny/llama", [files]),
        (found.models, "meta/gated", [files]),
        (found.models, "tiny/onlybin", [{"config.json": files["config.json"], "pytorch_model.bin": b"x"}]),
        (found.datasets, "tiny/MATH-lighteval", [old, new]),
        (found.datasets, "tiny/MATH-500", [{"test.parquet": MATH_500}]),
        (found.datasets, "tiny/DAPO-Math-17k", [{"data/dapo.parquet": DAPO}]),
        (
            found.datasets,
            "tiny/OpenR1",
            [
                {
                    "README.md": card(
                        ("all", {"train": "data/train-*.parquet"}), ("extended", {"train": "e/*.parquet"})
                    ),
                    "data/train-00000-of-00001.parquet": OPENR1,
                    "e/0.parquet": OPENR1_EXTENDED,
                }
            ],
        ),
        (found.datasets, "tiny/amc", [{"data/train-00000-of-00001.parquet": AMC}]),
        (found.datasets, "tiny/broken", [{"train.parquet": b"PAR1 and no more"}]),
        (found.datasets, "tiny/gated-data", [{"test.parquet": MATH_500}]),
    ):
        kind[name] = Repository(gate=TOKEN if "gated" in name else None)
        for number, content in enumerate(contents):
            commits[name + ("" if not number else " new")] = kind[name].commit(content)
    with serve(found):
        yield found, commits


@pytest.fixture
def place(hub: tuple[Hub, dict[str, str]], tmp_path: Path) -> Place:
    found, commits = hub
    found.requests.clear()
    found.stall = None
    found.stalled.clear()
    found.released.clear()
    (tmp_path / "home").mkdir()
    return Place(found, commits, tmp_path / "home")


def source(place: Place, name: str, *, at: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"dataset": name, "revision": place.commits[at or name]} | fields


def run_config(place: Place, training: dict[str, Any], **task: Any) -> dict[str, Any]:
    return {
        "model": {"pretrained": "tiny/llama", "revision": place.commits["tiny/llama"]},
        "task": {"name": "text", "max_response_tokens": 8, "source": training} | task,
    }


def math(place: Place, **fields: Any) -> dict[str, Any]:
    columns = {"prompt_column": "problem", "answer_column": "solution", "answer_extract": "boxed"}
    return source(place, "tiny/MATH-lighteval", **columns | fields)


def test_a_sweep_from_a_hub_runs_on_without_one(place: Place) -> None:
    config = run_config(place, math(place))
    listed = math(place, subset="listed", split="test", answer_column="answer", answer_extract="whole")
    sets = {
        "math500": {"source": source(place, "tiny/MATH-500", split="test", prompt_column="problem")},
        "listed": {"source": listed},
        "amc": {"source": source(place, "tiny/amc", prompt_column="problem")},
    }
    sweep = {"config": config, "prepared": str(place.home / "sweep" / "prepared"), "sets": sets}
    fresh = sweep | {"prepared": str(place.home / "fresh" / "prepared")}
    dapo = {
        "source": source(
            place, "tiny/DAPO-Math-17k", answer_column="reward_model.ground_truth", prompt_column="prompt"
        )
    }
    openr1 = {"source": source(place, "tiny/OpenR1", prompt_column="problem", subset="all")}
    extended = {"source": openr1["source"] | {"subset": "extended"}}
    later = {"source": math(place, at="tiny/MATH-lighteval new")}

    steps = {"first": sweep, "dapo": dapo, "openr1": openr1, "extended": extended, "later": later}
    got = place.do(steps)
    first = got["first"]
    assert first["problems"] == {
        "training": [
            ["What is $1+1$?", "2"],
            ["What is $2+2$?", "\\frac{8}{2}"],
            ["What is $3+3$?", "6"],
        ],
        "math500": [["What is $5+5$?", "10"]],
        "listed": [["Mass?", "4"], ["Speed?", "3"]],
        "amc": [["Area?", "142"], ["Length?", "0.5"]],
    }
    assert first["reports"]["training"]["without_answer"] == 1
    chat = [json.dumps([{"content": f"Solve {n}.", "role": "user"}]) for n in (1, 2)]
    assert got["dapo"]["rows"] == [[chat[0], "10"], [chat[1], "20"]] * 20
    assert got["openr1"]["rows"] == [["Prove it.", ""], ["Find x.", "3"], ["Find y.", "4"]]
    assert got["extended"]["rows"] == [["Extended.", "9"]]
    assert got["later"]["rows"] == [["Later.", "1"]]
    for request in place.hub.downloads:
        assert request.split("/resolve/")[1].split("/")[0] in place.commits.values()
    assert not [each for each in place.hub.downloads if "onnx" in each]

    downloads = len(place.hub.downloads)
    again = place.do({"first": sweep, "fresh": fresh})
    assert again == {"first": first, "fresh": first}
    assert [each for each in place.hub.downloads[downloads:] if ".parquet" in each or ".safe" in each] == []

    requests = len(place.hub.requests)
    offline = {
        "first": sweep,
        "fresh": fresh | {"prepared": str(place.home / "offline" / "prepared")},
        "dapo": dapo,
        "openr1": openr1,
        "extended": extended,
        "later": later,
        "earlier": {"source": math(place)},
    }
    without = place.do(offline, HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert without.pop("earlier")["rows"][0] == ["What is $1+1$?", "2"]  # not the newest in the cache
    assert without.pop("fresh") == first
    assert without == got
    assert len(place.hub.requests) == requests


def test_each_mistake_is_one_line_that_names_field_value_and_fix(place: Place) -> None:
    prepared = str(place.home / "sweep" / "prepared")
    model = {"pretrained": "tiny/llama", "revision": place.commits["tiny/llama"]}
    gated = {
        "model": {"pretrained": "meta/gated", "revision": place.commits["meta/gated"]},
        "prepared": prepared,
    }
    gated_data = {"source": source(place, "tiny/gated-data", split="test", prompt_column="problem")}
    got = place.do(
        {
            "no model": {"model": model | {"pretrained": "tiny/lama"}, "prepared": prepared},
            "no revision": {"model": model | {"revision": WRONG}, "prepared": prepared},
            "only bin": {
                "model": {"pretrained": "tiny/onlybin", "revision": place.commits["tiny/onlybin"]},
                "prepared": prepared,
            },
            "gated": gated,
            "gated data": gated_data,
            "no set": {"source": math(place) | {"dataset": "tiny/MATHS"}},
            "no commit": {"source": math(place) | {"revision": WRONG}},
            "subset": {"source": math(place, subset="geometry")},
            "split": {"source": math(place, split="validation")},
            "no subset": {"source": source(place, "tiny/OpenR1", prompt_column="problem")},
            "broken": {"source": source(place, "tiny/broken")},
            "column": {"source": math(place, answer_column="answers")},
            "nested": {"source": source(place, "tiny/DAPO-Math-17k", answer_column="reward_model.truth")},
            "admitted": gated | {"environment": {"HF_TOKEN": TOKEN}},
            "admitted data": gated_data,
        }
    )
    assert got.pop("admitted")["weights"] > 0
    assert got.pop("admitted data")["rows"] == [["What is $5+5$?", "10"]]
    expected = {
        "no model": ("model.pretrained=tiny/lama", "correct the name"),
        "no revision": (f"model.revision={WRONG}", "commit"),
        "only bin": ("model.pretrained=tiny/onlybin", "safetensors"),
        "gated": ("model.pretrained=meta/gated", "HF_TOKEN"),
        "gated data": ("task.source.dataset=tiny/gated-data", "HF_TOKEN"),
        "no set": ("task.source.dataset=tiny/MATHS", "correct the name"),
        "no commit": (f"task.source.revision={WRONG}", "commit"),
        "subset": ("task.source.subset=geometry", "listed"),
        "no subset": ("task.source.subset=null", "extended"),
        "broken": ("task.source.dataset=tiny/broken", "Parquet"),
        "split": ("task.source.split=validation", "test"),
        "column": ("answers", "solution"),
        "nested": ("reward_model.truth", "ground_truth"),
    }
    for name, words in expected.items():
        (line,) = got[name]["error"]
        assert "\n" not in line and len(line) < 400, line
        for word in words:
            assert word in line, (name, line)
    missing = {
        "data": {"source": source(place, "tiny/MATH-500", split="test", prompt_column="problem")},
        "model": {"model": model, "prepared": prepared},
    }
    without = place.do(missing, HF_ENDPOINT="http://127.0.0.1:9", UNREACHABLE="1") | {
        f"{name} offline": result for name, result in place.do(missing, HF_HUB_OFFLINE="1").items()
    }
    for name, result in without.items():
        (line,) = result["error"]
        assert "\n" not in line and len(line) < 500, line
        assert "cannot be fetched" in line and "prefetch" in line, (name, line)
    for file in (place.home / "sweep").rglob("*"):
        assert file.is_dir() or TOKEN.encode() not in file.read_bytes()


@pytest.mark.parametrize("what", ["model", "data set"])
def test_a_fetch_that_was_killed_completes_when_started_again(place: Place, what: str) -> None:
    steps = {
        "model": {
            "model": {"pretrained": "tiny/llama", "revision": place.commits["tiny/llama"]},
            "prepared": str(place.home / "sweep" / "prepared"),
        },
        "data set": {"source": math(place)},
    }
    place.hub.stall = "model.safetensors" if what == "model" else "train.parquet"
    job = place.start([steps[what]])
    try:
        assert place.hub.stalled.wait(60)
    finally:
        job.send_signal(signal.SIGKILL)
        job.communicate()
    place.hub.stall = None
    place.hub.released.set()
    result = place.do({what: steps[what]})[what]
    assert "weights" in result or result["rows"][0] == ["What is $1+1$?", "2"]
    shutil.rmtree(place.home)
