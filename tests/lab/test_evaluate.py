"""air eval: any agent, the same rows, and everything about them on disk."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import tiny_run, write_config

from airloop.errors import AirError
from airloop.eval.agents import UrlOptions
from airloop.eval.evaluate import EvalOptions, evaluate, format_report
from airloop.runs.run import read_trajectories
from airloop.watch.display.display import Display


class Adding(BaseHTTPRequestHandler):
    """Speaks /v1/chat/completions and adds; says that a question took 10 tokens and an answer 2."""

    requests: list[dict[str, Any]]
    failures: int
    counts: bool

    def do_GET(self) -> None:
        self._answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = type(self)
        kind.requests.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        if kind.failures:
            kind.failures -= 1
            return self._answer(503, {})
        total = sum(int(n) for n in re.findall(r"\d+", body["messages"][-1]["content"]))
        choice = {"message": {"role": "assistant", "content": str(total)}, "finish_reason": "stop"}
        usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 2}} if kind.counts else {}
        return self._answer(200, {"choices": [choice], **usage})

    def _answer(self, status: int, data: dict[str, Any]) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def adding_server(failures: int = 0, counts: bool = True) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    requests: list[dict[str, Any]] = []
    handler = type("Handler", (Adding,), {"requests": requests, "failures": failures, "counts": counts})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()


def run(directory: Path, agent: str, *argv: str, url: UrlOptions | None = None, **options: Any) -> dict[str, Any]:
    given = EvalOptions(agent, url=url or UrlOptions(), **options)
    return evaluate(["@", str(write_config(directory)), *argv], given, Display(quiet=True))


def rows(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["env"], row["task"], row["seed"]) for row in report["rows"]]


def test_a_script_is_evaluated_and_saved(tmp_path: Path) -> None:
    report = run(tmp_path, "scripted:oracle")
    directory = Path(report["directory"])
    assert directory == tmp_path / "outputs" / "eval-oracle-1"
    saved = json.loads((directory / "evaluation.json").read_text())
    assert saved == {k: v for k, v in report.items() if k != "directory"}
    assert saved["means"]["reward"] == {"mean": 1.0, "low": pytest.approx(0.6306, abs=1e-4), "high": 1.0, "tasks": 8}
    assert (saved["sampling"], saved["cost"], saved["lost"], saved["episodes"]) == (None, None, [], 8)
    assert saved["mode"]["env"]["arith"]["max_turns"] == 1
    assert saved["mode"]["env"]["arith"]["args"]["max_number"] == 9
    episodes = read_trajectories(directory / "episodes")
    assert sorted((t.task.env, t.task.id, t.seed) for t in episodes) == sorted(rows(report))
    assert "reward" in format_report(report) and str(directory) in format_report(report)


def test_every_agent_meets_the_same_rows(tmp_path: Path) -> None:
    script = run(tmp_path, "scripted:noop")
    model = run(tmp_path, "model")
    trained = evaluate([], EvalOptions(f"run:{tiny_run()}", out=tmp_path / "trained"), Display(quiet=True))
    assert rows(script) == rows(model) == rows(trained)
    assert model["model"] == "tiny:llama" and model["version"] == 0
    assert model["tokens"]["out"] == sum(8 * [model["means"]["sampled_tokens"]["mean"]])
    assert model["tokens"]["in"] > model["tokens"]["out"]
    assert trained["checkpoint"].endswith("checkpoints/step_2") and trained["version"] == 2
    assert model["sampling"] == trained["sampling"]
    assert model["sampling"] == {"temperature": 1.0, "max_tokens": 4, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def test_a_run_is_evaluated_as_it_was_after_training(tmp_path: Path) -> None:
    """The same policy, rows and seeds give the same episodes as the run's own evaluation."""
    report = evaluate([], EvalOptions(f"run:{tiny_run()}", out=tmp_path / "again"), Display(quiet=True))
    again = {t.task.id: t.turns[0].reply["content"] for t in read_trajectories(tmp_path / "again" / "episodes")}
    after = read_trajectories(tiny_run() / "evaluations" / "after")
    assert again == {t.task.id: t.turns[0].reply["content"] for t in after}
    assert report["episodes"] == len(after)


def test_best_and_numbered_checkpoints_can_be_chosen(tmp_path: Path) -> None:
    one = evaluate([], EvalOptions(f"run:{tiny_run()}@1", n=1, out=tmp_path / "1"), Display(quiet=True))
    best = evaluate([], EvalOptions(f"run:{tiny_run()}@best", n=1, out=tmp_path / "b"), Display(quiet=True))
    assert one["version"] == 1 and best["version"] == 1  # the only one evaluated before the last step
    with pytest.raises(AirError, match="no checkpoint of step 7") as error:
        evaluate([], EvalOptions(f"run:{tiny_run()}@7"), Display(quiet=True))
    assert "choose from 1, 2" in error.value.fix


def test_a_run_keeps_its_model(tmp_path: Path) -> None:
    with pytest.raises(AirError, match=r"trained with model.name = 'tiny:llama'") as error:
        evaluate(["--model.name", "tiny:qwen3"], EvalOptions(f"run:{tiny_run()}"), Display(quiet=True))
    assert "leave model.name out" in error.value.fix


# --- a model behind a URL -------------------------------------------------------------------------------


def test_a_url_is_evaluated_with_its_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDING_KEY", "secret-word")
    with adding_server() as (base, requests):
        url = UrlOptions("adder-1", price_in=100.0, price_out=500.0, api_key_env="ADDING_KEY")
        report = run(tmp_path, f"url:{base}", url=url, temperature=0.5)
    assert report["means"]["correct"]["mean"] == 1.0
    assert report["tokens"] == {"in": 80, "out": 16}
    assert report["cost"] == pytest.approx((80 * 100 + 16 * 500) / 1e6)
    assert len(requests) == 8 and requests[0]["path"] == "/v1/chat/completions"
    assert requests[0]["key"] == "Bearer secret-word"
    assert {(r["model"], r["temperature"], r["max_tokens"]) for r in requests} == {("adder-1", 0.5, 4)}
    assert report["sampling"]["temperature"] == 0.5 and report["mode"]["strategy"] is None
    assert "cost 0.0160" in format_report(report)
    everything = "".join(p.read_text() for p in Path(report["directory"]).rglob("*.json"))
    assert "secret-word" not in everything


def test_a_server_that_counts_no_tokens_is_not_free(tmp_path: Path) -> None:
    with adding_server(counts=False) as (base, _):
        report = run(tmp_path, f"url:{base}", url=UrlOptions("adder-1", 1.0, 1.0), n=2)
    assert report["cost"] is None and "cost is not known" in format_report(report)


def test_a_hiccup_of_the_server_costs_no_row(tmp_path: Path) -> None:
    with adding_server(failures=3) as (base, requests):
        report = run(tmp_path, f"url:{base}", url=UrlOptions("adder-1"), n=4)
    assert report["episodes"] == 4 and not report["lost"] and len(requests) == 7
    assert report["cost"] is None and "cost" not in format_report(report).splitlines()[-2]


def test_a_server_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with adding_server() as (base, _):
        pass
    with pytest.raises(AirError, match="Nothing answers at") as error:
        run(tmp_path, f"url:{base}", url=UrlOptions("adder-1"))
    assert "start the server" in error.value.fix


@pytest.mark.parametrize(
    ("agent", "argv", "url", "problem"),
    [
        ("scripted:nobody", [], UrlOptions(), "no scripted agent 'nobody'"),
        ("oracle", [], UrlOptions(), "There is no agent 'oracle'"),
        ("url:127.0.0.1:8000/v1", [], UrlOptions("m"), "is not a URL"),
        ("url:http://127.0.0.1:1/v1", [], UrlOptions(), "Which model"),
        ("url:http://127.0.0.1:1/v1", [], UrlOptions("m", price_in=1.0), "gives no cost"),
        ("model", [], UrlOptions(price_in=1.0), "--price-in says something about a model behind a URL"),
        ("model", [], UrlOptions("m"), "--url-model says something"),
        (
            "url:http://127.0.0.1:1/v1",
            ["--orchestrator.sampling.top_p", "0.9"],
            UrlOptions("m"),
            "top_p = 0.9 cannot be asked",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, agent: str, argv: list[str], url: UrlOptions, problem: str
) -> None:
    with pytest.raises(AirError, match=re.escape(problem)) as error:
        run(tmp_path, agent, *argv, url=url)
    assert error.value.fix


# --- directories ------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    first = run(tmp_path, "scripted:oracle", n=1)
    second = run(tmp_path, "scripted:oracle", n=1)
    assert Path(second["directory"]).name == "eval-oracle-2"
    with pytest.raises(AirError, match="holds a finished evaluation"):
        run(tmp_path, "scripted:oracle", n=1, out=Path(first["directory"]))
    with pytest.raises(AirError, match="is not empty"):
        run(tmp_path, "scripted:oracle", n=1, out=tmp_path)


def test_a_stopped_evaluation_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "e"
    report = run(tmp_path, "scripted:demo", out=out)
    files = sorted((out / "episodes").glob("*.json"))
    kept, times = files[3:], {p.name: p.stat().st_mtime_ns for p in files[3:]}
    for path in files[:3]:
        path.unlink()
    header = {k: v for k, v in report.items() if k not in ("rows", "means", "directory")}
    (out / "evaluation.json").write_text(json.dumps({**header, "finished": False}))
    with pytest.raises(AirError, match="it is another one: tasks differ"):
        run(tmp_path, "scripted:demo", out=out, n=3)
    again = run(tmp_path, "scripted:demo", out=out)
    assert rows(again) == rows(report) and again["means"] == report["means"]
    assert {p.name: p.stat().st_mtime_ns for p in kept} == times
    assert len(list((out / "episodes").glob("*.json"))) == 8


def test_a_small_split_is_said_and_used_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = EvalOptions("scripted:oracle", n=500, rollouts=2)
    report = evaluate(["@", str(write_config(tmp_path))], options, Display())
    assert report["tasks"] == 8 and report["episodes"] == 16 and report["means"]["reward"]["tasks"] == 8
    assert "has 8 tasks, not 500" in capsys.readouterr().err
