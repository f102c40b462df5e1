"""What is a key, in which forms it stands in a text, and that no door lets one out."""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import sys
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest

from airloop.config import load_config
from airloop.errors import AirError
from airloop.files import append_line, read_lines, write_json
from airloop.serve.app import Endpoint
from airloop.text.keys import (
    KeylessStream,
    note_addresses,
    pieces_without_keys,
    print_no_keys,
    stream_without_keys,
    with_keys,
    without_keys,
    without_keys_in,
)

KEY = 'sk-"quoted"/and+0123'
DUMMIES = [
    "not-needed",
    "no-key-required",
    "sk-no-key-required",
    "dummy-key",
    "sk-dummy",
    "token-abc123",
    "local-key",
    "unused-key",
    "none-needed",
    "your api key",
]


@pytest.mark.parametrize(
    "name", ["JUDGE_API_KEY", "HF_TOKEN", "my_secret", "DB_PASSWORD", "AWS_ACCESS_KEY_ID", "OPENAI_KEY_2", "GITHUB_PAT"]
)
def test_variables_are_keys_by_their_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "planted-here\n")
    assert without_keys("by planted-here.") == "by …."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JUDGE_KEY_FILE", "planted-here"),  # says where one is
        ("TOKENIZER", "planted-here"),
        ("KEYBOARD", "planted-here"),
        ("JUDGE_API_KEY", "none"),
        ("JUDGE_API_KEY", "EMPTY"),
        ("JUDGE_API_KEY", "local"),
        *(("JUDGE_API_KEY", dummy) for dummy in DUMMIES),
        ("DB_PASSWORD", "completed"),  # a run's status
        ("DB_PASSWORD", "learning_rate"),
        ("MAX_TOKENS", "100000000"),
        ("SSL_KEY", str(Path(__file__))),
    ],
)
def test_words_numbers_and_paths_are_no_keys(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert without_keys(f"by {value}.") == f"by {value}."


@pytest.mark.parametrize(
    "value",
    ["{api_key}", "${DB_PASSWORD}", "%(token)s", "<a-token>", "<|im_end|>", "$JUDGE_API_KEY", "MY_API_KEY", "*" * 20],
)
def test_what_stands_for_a_key_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", value)
    said = f"as postgres://me:{value}@host and http://host/?api_key={value} say"
    assert without_keys(said) == said and load_config(["arith", "--logbook.goal", said]).logbook.goal == said


def test_addresses_by_their_names_are_none_and_one_variable_may_hold_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTH_TOKEN_URL", "https://me:planted-in-it@login/token")
    monkeypatch.setenv("API_KEY_SERVICE_HOST", "10.0.0.12")
    monkeypatch.setenv("JUDGE_API_KEYS", "sk-planted-1, sk-planted-2")
    monkeypatch.setenv("DB_PASS", "sk-planted-3")
    monkeypatch.setenv("MYSQL_PWD", "sk-planted-4")
    said = "login/token 10.0.0.12 planted-in-it sk-planted-1 sk-planted-2 sk-planted-3 sk-planted-4"
    assert without_keys(said) == "login/token 10.0.0.12 … … … … …"


def test_a_variable_that_is_removed_meanwhile_breaks_nothing() -> None:
    """As another thread does it: whatever is printed or written would have raised a KeyError."""

    class Fading(UserDict[str, str]):
        def __iter__(self) -> Any:
            return iter(["GONE_API_KEY", *self.data])

    assert without_keys("by planted-here", Fading(JUDGE_API_KEY="planted-here")) == "by …"


def test_passwords_and_keys_in_addresses_are_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_URL", "https://me:p%40ssword-9@judge/v1?api_key=in-the-query&page=123456789")
    said = "p@ssword-9, p%40ssword-9, in-the-query, me, 123456789"
    assert without_keys(said) == "…, …, …, me, 123456789"
    monkeypatch.setenv(
        "PACKAGES_URL", "git+https://ghp_planted0123456789@host/me/mine ssh://an-account-with-a-long-name@host"
    )
    assert without_keys("ghp_planted0123456789 an-account-with-a-long-name") == "… an-account-with-a-long-name"
    note_addresses(["http://me:typed-in-a-command@host/v1", "http://host:8000/v1"])
    assert without_keys("typed-in-a-command host") == "… host"


def test_a_key_is_found_in_every_form_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    monkeypatch.setenv("OTHER_API_KEY", f"{KEY}-and-longer")
    for form in (
        KEY,
        json.dumps(KEY)[1:-1],
        repr(KEY)[1:-1],
        "sk-%22quoted%22%2Fand%2B0123",
        "sk-&quot;quoted&quot;/and+0123",
    ):
        assert without_keys(f"<{form}>") == "<…>"
    assert without_keys(f"{KEY}-and-longer") == "…"


def test_an_episodes_key_is_known_by_its_form() -> None:
    for number in range(50):
        key = Endpoint("m").key(str(number))
        assert without_keys(f"Bearer {key}_x") == "Bearer …_x"
    slug = "air-" + "a-long-name-of-a-run-that-has-no-capitals-" + "in-it"
    assert without_keys(slug) == slug
    for name in ("air-Qwen3-4B-Instruct-2507-titanic-grpo-lora-rank16-seed3", f"/runs/{Endpoint('m').key('1')}/x"):
        assert without_keys(name) == name
    assert load_config(["arith", "--run_name", Endpoint("m").key("1")])  # no config can hold one


def test_files_of_a_run_hold_no_key_and_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    data = {"said": [{"text": f"by {KEY}"}], KEY: 1, "tokens": [1, 2], "logprobs": [-0.5, "nan"], "none": None}
    clean = {"said": [{"text": "by …"}], "…": 1, "tokens": [1, 2], "logprobs": [-0.5, "nan"], "none": None}
    write_json(tmp_path / "one.json", data)
    append_line(tmp_path / "lines.jsonl", data)
    assert json.loads((tmp_path / "one.json").read_text()) == clean == read_lines(tmp_path / "lines.jsonl")[0]
    tokens = list(range(10))
    assert without_keys_in({"tokens": tokens})["tokens"] is tokens  # thousands of them are not looked at one by one


def test_pieces_of_a_key_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "planted-here")
    assert pieces_without_keys(["by ", "plan", "", "ted-", "here, ", "again"]) == ["by ", "…", "…", "…", "…", "again"]
    file = b"x" * 9000 + b"planted-here" + b"y" * 9000
    for size in (7, 1000, 9005):
        sent = b"".join(stream_without_keys(file[i : i + size] for i in range(0, len(file), size)))
        assert sent == file.replace(b"planted-here", "…".encode())


def test_what_is_printed_has_no_key_and_tracebacks_neither(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "planted-here")
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    print_no_keys()
    print_no_keys()
    assert isinstance(sys.stderr, KeylessStream) and not isinstance(sys.stderr.stream, KeylessStream)
    try:
        raise ValueError("401 for planted-here")
    except ValueError:
        sys.excepthook(*sys.exc_info())
    sys.stdout.writelines(["one planted-here\n"])
    print("its own: planted-here", file=with_keys(sys.stdout))
    printed = capsys.readouterr()
    assert "ValueError: 401 for …" in printed.err and printed.out == "one …\nits own: planted-here\n"
    assert with_keys(io.StringIO()).getvalue() == ""
    with copy.copy(KeylessStream(io.StringIO())) as copied:
        copied.write("planted-here")
        assert copied.getvalue() == "…"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--orchestrator.env.0.args.api_key", "sk-planted-0123"], "orchestrator.env.0.args.api_key holds a key"),
        (["--orchestrator.env.0.args.judge", "sk-proj-planted-Here_and_long-0123"], "args.judge holds a key"),
        (["--logbook.goal", "as judge-planted-0123 says"], "logbook.goal holds a key"),
        (
            ["--inference.backend", "vllm", "--inference.vllm.urls", '["http://me:sk-planted-0123@host:8000"]'],
            "an address in inference.vllm.urls.0 holds a password",
        ),
    ],
)
def test_a_config_holds_no_key(flags: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "judge-planted-0123")
    with pytest.raises(AirError) as refused:
        load_config(["arith", *flags])
    assert told in refused.value.problem and "0123" not in without_keys(str(refused.value))


def test_whose_key_it_is_that_a_config_holds_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_KEY", "rows-of-2026")  # its user may have meant no key
    for goal in ("as rows-of-2026 say", "long " * 1000 + "rows-of-2026"):
        with pytest.raises(AirError, match=r"logbook.goal holds a key \(the value of DATA_KEY\)"):
            load_config(["arith", "--logbook.goal", goal])


@pytest.mark.parametrize("dummy", DUMMIES)
def test_what_stands_for_no_key_may_be_in_a_config(dummy: str) -> None:
    """A server of one's own asks for some key and looks at none."""
    with pytest.raises(AirError) as refused:  # of arith: it has no such argument
        load_config(["arith", "--orchestrator.env.0.args.api_key", dummy])
    assert "holds a key" not in str(refused.value)


@pytest.mark.parametrize("name", ["sk-learn-digits-classifier-v2", "sk-2026-11-19-longer-run-of-arith"])
def test_a_name_that_begins_as_keys_do_is_none(name: str) -> None:
    assert load_config(["arith", "--run_name", name]).run_name == name


def test_what_only_sounds_like_a_key_stays_in_a_config(tmp_path: Path) -> None:
    env = tmp_path / "e.toml"
    env.write_text('[[orchestrator.env]]\nid = "arith"\n[logbook]\ngoal = "answer_key: see http://host/?page=1"\n')
    assert load_config(["arith", "@", str(env)]).logbook.goal


def test_a_key_in_the_command_line_is_told_and_not_repeated(air: Any) -> None:
    code, printed, errors = air("serve", "--agent", "run:sk-planted-0123", "--api-key", "sk-planted-0123")
    assert code == 1 and "can read --api-key" in printed + errors and "planted" not in printed + errors


def test_looking_for_keys_costs_little_beside_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an episode with thousands of tokens. The least of five, of this thread: what else a process does, and what
    another one does to its caches, is no cost of ours."""
    from time import thread_time

    for number in range(20):
        monkeypatch.setenv(f"PLANTED_{number}_API_KEY", f"sk-{number}-{os.urandom(20).hex()}")
    episode = {
        "tokens": list(range(30000)),
        "logprobs": [-i / 7 for i in range(30000)],
        "turns": ["some words " * 50] * 20,
    }
    looking, writing = [], []
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            began = thread_time()
            without_keys_in(episode)
            looking.append(thread_time() - began)
            began = thread_time()
            json.dumps(episode)
            writing.append(thread_time() - began)
    finally:
        gc.enable()
    assert min(looking) < min(writing) / 4, (looking, writing)
