"""Verdicts on responses: exact, by value, by generator, by a program."""

import json
import logging
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.command_verifier import read_verdicts, without_secrets
from trainer.errors import UserError
from trainer.evaluated_answers import ARITHMETIC, EXPRESSIONS, VALUES
from trainer.task_config import PromptSource, TaskConfig
from trainer.time_limit import within
from trainer.verifiers import (
    CommandVerifier,
    ExactVerifier,
    GeneratorVerifier,
    Item,
    MathVerifier,
    make_generator,
    make_verifier,
)


def item(answer: str, extracted: str | None, index: int = 0) -> Item:
    return Item(
        problem=f"problem {index}", answer=answer, response=extracted or "", extracted=extracted, index=index
    )


def text_task(**fields: object) -> TaskConfig:
    source = {"generator": "chain_sum", "rows": 10}
    return TaskConfig.model_validate({"name": "text", "max_response_tokens": 64, "source": source, **fields})


def test_exact() -> None:
    items = [item("4", " 4\n"), item(" 4", "4"), item("4", "4.0"), item("4", None)]
    assert ExactVerifier().verify(items) == [True, True, False, False]


# --- math ---


@pytest.fixture(scope="module")
def math() -> MathVerifier:
    return MathVerifier(time_limit=5)


@pytest.mark.parametrize(
    ("answer", "extracted", "right"),
    [
        ("\\frac{1}{2}", "0.5", True),
        ("0.5", "\\frac{1}{2}", True),
        ("\\frac12", "1/2", True),
        ("1/2", "\\dfrac{2}{4}", True),
        ("1,000", "1000", True),
        ("1000", "1{,}000", True),
        ("x+1", "1+x", True),
        ("x+1", "x+2", False),
        ("(x+1)^2", "x^2+2x+1", True),
        ("x=5", "5", True),
        ("5", "x = 5", True),
        ("[1,2)", "[1, 2)", True),
        ("[1,2)", "[1,2]", False),
        ("(1,2)", "(2,1)", False),
        ("\\{1,2\\}", "\\{2, 1\\}", True),
        ("\\{1,2\\}", "\\{1, 3\\}", False),
        ("(-\\infty, 0) \\cup (1, 2)", "(1,2) \\cup (-\\infty,0)", True),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", True),
        ("2\\pi", "2", False),
        ("2", "2\\pi", False),
        ("10", "10^{10}", False),
        ("-3", "- 3", True),
        ("3", "-3", False),
        ("3\\frac12", "7/2", True),
        ("\\sqrt{8}", "2\\sqrt{2}", True),
        ("sqrt(2)", "\\sqrt{2}", True),
        ("pi", "\\pi", True),
        ("1e3", "1000", True),
        ("1.5e-3", "0.0015", True),
        ("50\\%", "50%", True),
        ("12 \\text{ cm}", "12", True),
        ("5 dollars", "5", True),
        ("42", "The answer is 42.", True),
        ("42", "The answer is $42$, not 41.", True),
        ("42", "The answer is 43.", False),
        ("$\\frac{1}{2}$", "\\boxed{0.5}", True),
        ("Paris", "Paris", True),
        ("Paris", "\\text{Paris}", True),
        ("Paris", "Pairs", False),
        ("\\text{even}", "even", True),
        ("\\text{even}", "odd", False),
        ("(C)", "C", True),
        ("\\frac{1", "\\frac{1", True),
        ("\\frac{1", "1", False),
        ("4", "", False),
        ("4", "}{", False),
        ("4", None, False),
    ],
)
def test_math(math: MathVerifier, answer: str, extracted: str | None, right: bool) -> None:
    assert math.verify([item(answer, extracted)]) == [right]


@settings(deadline=None, max_examples=50)
@given(a=st.integers(-999, 999), b=st.integers(1, 999), k=st.integers(2, 9))
def test_math_takes_a_fraction_for_its_multiple(a: int, b: int, k: int) -> None:
    verifier = MathVerifier(time_limit=5)
    items = [item(f"\\frac{{{a}}}{{{b}}}", f"{a * k}/{b * k}"), item(f"{a}/{b}", f"{a + b}/{b}")]
    assert verifier.verify(items) == [True, False]


def test_math_in_a_thread(math: MathVerifier) -> None:
    verdicts: list[bool | None] = []
    items = [item("\\frac{1}{2}", "0.5"), item("3", "4")]
    thread = threading.Thread(target=lambda: verdicts.extend(math.verify(items)))
    thread.start()
    thread.join()
    assert verdicts == [True, False]


@pytest.mark.parametrize("extracted", ["9^{9^{9^9}}", "100000000!", "{" * 3000])
def test_math_bounds_the_time(extracted: str) -> None:
    verifier = MathVerifier(time_limit=0.5)
    start = time.monotonic()
    assert verifier.verify([item("5", extracted), item("5", "5.0")]) == [False, True]
    assert time.monotonic() - start < 4


def test_math_is_silent(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        MathVerifier(time_limit=0.2).verify([item("5", "9^{9^{9^9}}"), item("5", "}{"), item("}{", "5")])
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_math_leaves_the_alarm_as_it_was() -> None:
    fired: list[float] = []
    old = signal.signal(signal.SIGALRM, lambda *_: fired.append(time.monotonic()))
    try:
        handler = signal.getsignal(signal.SIGALRM)
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 1.0, 5.0)
        assert MathVerifier(time_limit=0.2).verify([item("5", "9^{9^{9^9}}"), item("5", "5.0")]) == [
            False,
            True,
        ]
        assert signal.getsignal(signal.SIGALRM) is handler
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert interval == 5 and (fired or left == pytest.approx(start + 1 - time.monotonic(), abs=0.1))
        # one that was due meanwhile fires afterwards
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        fired.clear()
        assert within(5, lambda: time.sleep(0.2) or len(fired), late=-1) == 0
        time.sleep(0.1)
        assert len(fired) == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_within_passes_errors_on() -> None:
    old = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0, late=0)
    assert signal.getsignal(signal.SIGALRM) is old
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_math_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UserError, match=r"pip install 'grposweep\[text\]'"):
        MathVerifier(time_limit=1)


# --- generators ---


@pytest.mark.parametrize(
    "name",
    [
        "chain_sum",
        "basic_arithmetic",
        "gcd",
        "lcm",
        "products",
        "simple_equations",
        "spell_backward",
        "letter_counting",
        "base_conversion",
        "syllogism",
        "prime_factorization",
    ],
)
def test_generators_take_their_own_answers(name: str) -> None:
    source = PromptSource(generator=name, rows=20, seed=3)
    generator, again = make_generator(source), make_generator(source)
    answers = [generator[i]["answer"] for i in range(20)]
    assert [again[i]["answer"] for i in reversed(range(20))] == answers[::-1]
    items = [item(answer, answer, i) for i, answer in enumerate(answers)]
    wrong = [item(answer, "-999999999", i) for i, answer in enumerate(answers)]
    odd = [item(answers[0], extracted) for extracted in ("", "x", "[1,2", "{}", "1e999")]
    missing = [item(answers[0], None)]
    verdicts = GeneratorVerifier(source).verify([*items, *wrong, *odd, *missing])
    assert verdicts == [True] * 20 + [False] * 26


@pytest.mark.parametrize("name", sorted(ARITHMETIC | EXPRESSIONS | VALUES))
def test_answers_that_scorers_evaluate(name: str, tmp_path: Path) -> None:
    source = PromptSource(generator=name, rows=30, seed=5)
    generator = make_generator(source)
    answers = [generator[i]["answer"] for i in range(30)]
    verifier = GeneratorVerifier(source)
    # an unevaluated integral is no answer, though the generator takes it for one
    right = ["Integral" not in answer for answer in answers]
    assert sum(right) >= 15
    assert verifier.verify([item(answer, answer, i) for i, answer in enumerate(answers)]) == right
    trap = tmp_path / "ran"
    hostile = [
        f"__import__('os').mkdir({str(trap)!r})",
        f"[open({str(trap)!r}, 'w')]",
        f"sin(1).func.__init__.__globals__['os'].mkdir({str(trap)!r})",
        f"exec('import os; os.mkdir({str(trap)!r})')",
        f"(exec)('import os; os.mkdir({str(trap)!r})')",
        *(
            "9**9**9**9",
            "9**(9**9)",
            "(((9**99)**99)**99)**99",
            "9* *9* *9",
            "factorial(99999999)",
            "99999999!",
        ),
        *("[0]*9999999999", "'a'*9999999999", "x**x**x", "2**99999999999"),
    ]
    start = time.monotonic()
    assert verifier.verify([item(answers[0], text) for text in hostile]) == [False] * len(hostile)
    assert time.monotonic() - start < 3
    assert not trap.exists()


def test_generators_use_settings_and_seed() -> None:
    one, other = (
        make_generator(
            PromptSource(
                generator="chain_sum",
                rows=5,
                seed=seed,
                settings={"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
            )
        )
        for seed in (0, 1)
    )
    assert len(one) == 5
    assert one[0]["metadata"]["num_terms"] == 3
    assert [one[i]["question"] for i in range(5)] != [other[i]["question"] for i in range(5)]


@pytest.mark.parametrize(
    ("name", "settings", "messages"),
    [
        ("chain_sums", {}, ["task.source.generator=chain_sums", "did you mean chain_sum"]),
        ("zzzz", {}, ["task.source.generator=zzzz", "use one of ab, acre"]),
        ("chain_sum", {"min_term": 2}, ["task.source.settings.min_term=2", "did you mean min_terms"]),
        ("chain_sum", {"qqq": 2}, ["task.source.settings.qqq=2", "use one of allow_negation"]),
        (
            "chain_sum",
            {"min_terms": 9, "max_terms": 2, "min_digits": 1},
            ["task.source.settings.min_terms=9, task.source.settings.max_terms=2: ", "max_terms must be"],
        ),
        ("chain_sum", {"min_terms": "a"}, ["task.source.settings.min_terms=a"]),
        ("chain_sum", {"min_terms": 2.5}, ["task.source.settings.min_terms=2.5"]),
        ("chain_sum", {"seed": 2}, ["task.source.settings.seed=2", "task.source.seed"]),
        ("chain_sum", {"size": 2}, ["task.source.settings.size=2", "task.source.rows"]),
        ("composite", {}, ["task.source.generator=composite", "Must specify at least one dataset"]),
    ],
)
def test_generators_name_what_is_wrong(name: str, settings: dict[str, object], messages: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        make_generator(PromptSource(generator=name, rows=5, settings=settings))
    for message in messages:
        assert message in str(caught.value)


def test_generators_name_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"task.source.generator.*pip install 'grposweep\[text\]'"):
        make_generator(PromptSource(generator="gcd", rows=5))


# --- commands ---

Checker = Callable[..., CommandVerifier]


@pytest.fixture
def checker(tmp_path: Path) -> Checker:
    """Write a checker into a folder with an unpleasant name; `body` judges `item`."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()

    def make(body: str, *, whole: bool = False, **fields: float) -> CommandVerifier:
        if not whole:
            lines = "\n".join("    " + line for line in body.splitlines())
            body = (
                "import json, os, signal, subprocess, sys, time\n"
                "def say(correct): print(json.dumps({'correct': correct}), flush=True)\n"
                f"for line in sys.stdin:\n    item = json.loads(line)\n{lines}\n"
            )
        (folder / "check it.py").write_text(body)
        settings = {"time_limit": 10.0, "memory_limit_mb": 2048, "batch": 4, "processes": 2, **fields}
        command = f"{shlex.quote(sys.executable)} 'check it.py'"
        return CommandVerifier(command, folder=folder, **settings)  # type: ignore[arg-type]

    return make


def gone(pid: int) -> bool:
    """Whether the process ends within two seconds."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def pids(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("pid-")) for path in folder.rglob("pid-*")]


NUMBERS = [item(str(i), str(i) if i % 3 else "no", i) for i in range(11)]
JUDGE = "say(item['extracted'] == item['answer'])"
RIGHT = [bool(i % 3) for i in range(11)]


@pytest.mark.parametrize(("batch", "processes"), [(1, 3), (4, 1), (4, 3), (100, 2)])
def test_command_keeps_the_order(checker: Checker, batch: int, processes: int) -> None:
    verifier = checker(JUDGE, batch=batch, processes=processes)
    assert verifier.verify(NUMBERS) == RIGHT
    assert verifier.last_problem is None
    assert verifier.verify([]) == []


def test_command_reads_every_field(checker: Checker) -> None:
    seen = "say(item == {'problem': 'p\\u2028\\n', 'answer': 'é', 'response': '\\ud800', 'extracted': None})"
    items = [Item(problem="p\u2028\n", answer="é", response="\ud800", extracted=None, index=7)]
    assert checker(seen).verify(items) == [True]


@pytest.mark.parametrize(
    ("crash", "message"),
    [
        ("os._exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("raise RuntimeError('odd item')", "RuntimeError: odd item"),
        ("os._exit(0)", "ended early"),
        ("print('hm', flush=True)", "wrote a line that is no verdict: hm"),
        ("print('{\"correct\": 1}', flush=True)", "no verdict"),
    ],
)
def test_command_crash_on_one(checker: Checker, crash: str, message: str) -> None:
    verifier = checker(f"if item['answer'] == '5':\n    {crash}\nelse:\n    {JUDGE}", batch=8)
    assert verifier.verify(NUMBERS) == [None if i == 5 else right for i, right in enumerate(RIGHT)]
    assert verifier.last_problem is not None and message in verifier.last_problem
    assert "check it.py" in verifier.last_problem and "0 of 1 verdicts" in verifier.last_problem


def test_command_says_unscored_itself(checker: Checker) -> None:
    verifier = checker("say(None)\nopen(f'ran-{os.getpid()}', 'w')")
    assert verifier.verify(NUMBERS[:4]) == [None] * 4
    assert verifier.last_problem is None


def test_command_takes_other_keys(checker: Checker) -> None:
    verifier = checker("print(json.dumps({'time': 1, 'correct': True}))")
    assert verifier.verify(NUMBERS[:3]) == [True] * 3


def test_command_with_too_many_lines_gives_no_verdict(checker: Checker) -> None:
    verifier = checker("say(True)\nsay(True)")
    assert verifier.verify(NUMBERS[:2]) == [None, None]
    assert verifier.last_problem is not None and "wrote 2 lines for 1 responses" in verifier.last_problem


def test_command_time_out_leaves_nothing_behind(checker: Checker, tmp_path: Path) -> None:
    slow = (
        "if item['answer'] == '1':\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    for pid in (child.pid, os.getpid()): open(f'pid-{pid}', 'w')\n"
        "    time.sleep(60)\n" + JUDGE
    )
    verifier = checker(slow, time_limit=1.0, batch=2)
    start = time.monotonic()
    assert verifier.verify(NUMBERS[:3]) == [False, None, True]
    assert time.monotonic() - start < 5
    assert verifier.last_problem is not None and "took longer than 1 s" in verifier.last_problem
    left = pids(tmp_path)
    assert len(left) >= 2 and all(gone(pid) for pid in left)


def test_command_does_not_wait_for_what_it_left_running(checker: Checker, tmp_path: Path) -> None:
    body = "child = subprocess.Popen(['sleep', '60'])\nopen(f'pid-{child.pid}', 'w')\n" + JUDGE
    start = time.monotonic()
    assert checker(body, time_limit=60).verify(NUMBERS[:2]) == RIGHT[:2]
    assert time.monotonic() - start < 5
    left = pids(tmp_path)
    assert len(left) == 2 and all(gone(pid) for pid in left)


def test_command_memory_limit(checker: Checker) -> None:
    body = "if item['answer'] == '1':\n    x = bytearray(900 << 20)\n" + JUDGE
    verifier = checker(body, memory_limit_mb=512)
    assert verifier.verify(NUMBERS[:3]) == [False, None, True]
    assert verifier.last_problem is not None and "MemoryError" in verifier.last_problem
    assert checker(body, memory_limit_mb=4096).verify(NUMBERS[:3]) == RIGHT[:3]


@pytest.mark.parametrize(
    "body",
    [
        "print('\\x00 garbage ' * 1000)",
        "import sys; sys.stdout.buffer.write(bytes(range(256)) * 20000)",
        "import sys; sys.stdin.close()",
        "print('[' * 100000)",
        "",
    ],
)
def test_command_garbage(checker: Checker, body: str) -> None:
    verifier = checker(body, whole=True)
    assert verifier.verify(NUMBERS[:2]) == [None, None]
    assert verifier.last_problem


def test_command_keeps_a_part_of_endless_output(checker: Checker) -> None:
    body = "import sys\nwhile True:\n    sys.stdout.write('x' * 65536)\n    sys.stderr.write('e' * 65536)"
    verifier = checker(body, whole=True, time_limit=0.5)
    assert verifier.verify(NUMBERS[:1]) == [None]
    assert verifier.last_problem is not None and len(verifier.last_problem) < 3000


def test_command_sees_no_secrets(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "X_PASSWORD", "x_secret", "OPENAI_API_KEY", "A_ACCESS_KEY")
    for name in (*names, "HARMLESS"):
        monkeypatch.setenv(name, "1")
    body = f"say('HARMLESS' in os.environ and not any(name in os.environ for name in {names}))"
    assert checker(body).verify(NUMBERS[:1]) == [True]
    assert without_secrets({"TOKENIZERS_PARALLELISM": "1", "GH_TOKEN": "2"}) == {
        "TOKENIZERS_PARALLELISM": "1"
    }


@pytest.mark.parametrize("reads", [True, False])
def test_command_large_responses(checker: Checker, reads: bool) -> None:
    large = [Item("p", str(i), "é" * 5_000_000, "x", i) for i in range(3)]
    if reads:
        body = "sys.stderr.write('e' * 200_000)\nsay(len(item['response']) == 5_000_000)"
        assert checker(body).verify(large) == [True] * 3
    else:
        assert checker("print('{\"correct\": true}')", whole=True, batch=1).verify(large) == [True] * 3


def test_command_interrupted_leaves_nothing_behind(checker: Checker, tmp_path: Path) -> None:
    body = "child = subprocess.Popen(['sleep', '60'])\n" + (
        "for pid in (child.pid, os.getpid()): open(f'pid-{pid}', 'w')\ntime.sleep(60)"
    )
    verifier = checker(body, time_limit=60, batch=1, processes=2)

    def interrupt() -> None:
        deadline = time.monotonic() + 20
        while len(pids(tmp_path)) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        verifier.verify(NUMBERS)
    thread.join()
    left = pids(tmp_path)
    assert len(left) == 4 and all(gone(pid) for pid in left)
    time.sleep(0.3)
    assert pids(tmp_path) == left, "no further process was started"


def test_command_not_found(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("no program")
    for command in ("no-such-program --x", "./plain.txt", "./absent.sh"):
        with pytest.raises(UserError, match=r"task\.verifier\.command='.*" + command.split()[0]):
            verifier = {"kind": "command", "command": command}
            make_verifier(text_task(verifier=verifier), 1, tmp_path)


def test_command_relative_program(tmp_path: Path) -> None:
    script = tmp_path / "yes.sh"
    script.write_text("#!/bin/sh\nwhile read -r line; do echo '{\"correct\": true}'; done\n")
    script.chmod(0o755)
    verifier = make_verifier(text_task(verifier={"kind": "command", "command": "./yes.sh"}), 2, tmp_path)
    assert verifier.verify(NUMBERS) == [True] * 11


def test_the_checker_of_the_guide(checker: Checker) -> None:
    guide = (Path(__file__).parents[1] / "docs/tasks.md").read_text()
    program = guide.split("```python\nimport json, re, secrets")[1].split("```\n\n## ")[0]
    responses = ["def f(x): return x + 1", "def f(x): return x", "import os; os._exit(0)", "def f("]
    items = [
        Item("p", "assert f(1) == 2", f"Here:\n```python\n{code}\n```\n", None, i)
        for i, code in enumerate(responses)
    ]
    items.append(Item("p", "assert f(1) == 2", "no code", None, 4))
    verifier = checker(f"import json, re, secrets{program}", whole=True)
    assert verifier.verify(items) == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("verifier", "kind"),
    [
        ({}, GeneratorVerifier),
        ({"kind": "exact"}, ExactVerifier),
        ({"kind": "math"}, MathVerifier),
        ({"kind": "command", "command": "cat"}, CommandVerifier),
    ],
)
def test_make_verifier(verifier: dict[str, str], kind: type, tmp_path: Path) -> None:
    assert type(make_verifier(text_task(verifier=verifier), 1, tmp_path)) is kind


@settings(deadline=None)
@given(st.lists(st.sampled_from([True, False, None]), max_size=8), st.binary(max_size=40))
def test_verdicts_before_garbage_count(verdicts: list[bool | None], garbage: bytes) -> None:
    output = b"".join(json.dumps({"correct": verdict}).encode() + b"\n" for verdict in verdicts)
    assert read_verdicts(output, len(verdicts)) == (verdicts, None)
    read, problem = read_verdicts(output + b"?" + garbage, len(verdicts))
    assert read == verdicts and problem is not None
