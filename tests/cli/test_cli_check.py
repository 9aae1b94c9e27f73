"""``qreward check``: what it finds at servers of each kind and at those that are set up wrongly, and that it shows no key."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fakes.endpoint import ModelEndpoint

from qreward.cli import main
from qreward.testing import FakeEndpoint, FakeFleet

KINDS = ("openai", "vllm", "sglang", "tei", "openrlhf", "nim")
KEY, WRONG = "sk-right-key-1234567", "sk-wrong-key-7654321"


class Check:
    """Runs the command on endpoints or on a trainer's file, and reads what it says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file, self._capsys = folder / "fleet.json", capsys

    def file(self, content: dict[str, Any], *more: str) -> tuple[int, str]:
        """The status, and all that was said."""
        self._file.write_text(json.dumps(content))
        status = main(["check", str(self._file), "--timeout", "20", *more])
        said = "".join(self._capsys.readouterr())
        assert KEY not in said
        assert WRONG not in said
        return status, said

    def __call__(self, *endpoints: dict[str, Any], more: tuple[str, ...] = (), routes: Any = ()) -> tuple[int, str]:
        return self.file({"endpoints": [{"name": "a", "proxy": "", **endpoint} for endpoint in endpoints], "routes": routes}, *more)

    def json(self, *endpoints: dict[str, Any], more: tuple[str, ...] = (), routes: Any = ()) -> tuple[int, list[dict[str, Any]]]:
        status, said = self(*endpoints, more=("--json", *more), routes=routes)
        return status, json.loads(said)["endpoints"]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    return Check(tmp_path, capsys)


@contextmanager
def fake(kind: Any = "openai", **settings: Any) -> Iterator[dict[str, Any]]:
    """A fake server, as an endpoint that fits it."""
    with FakeFleet([ModelEndpoint("a", kind=kind, **settings)]) as fleet:
        yield {"base_url": fleet.urls["a"], "kind": kind}


def test_a_server_of_each_kind_that_is_set_up_well_is_found_well(check: Check) -> None:
    key = {"models": ["judge-7b"], "api_key": KEY}
    with FakeFleet([ModelEndpoint(kind, kind=kind, **key) for kind in KINDS]) as fleet:
        endpoints = [{"name": kind, "kind": kind, "base_url": url, **key} for kind, url in fleet.urls.items()]
        status, found = check.json(*endpoints, more=("--call",))
    assert (status, [each["problems"] for each in found]) == (0, [[]] * len(KINDS))
    for each in found:
        kind = each["kind"]
        assert (each["reachable"], each["seems"], each["called"]) == (True, None, "answered")
        assert each["ready"] is (None if kind == "openrlhf" else True)
        assert 0 < each["latency"] < 20
        assert each["auth"] == "not refused"
        if kind not in ("tei", "openrlhf"):
            assert each["models"] == ["judge-7b"]


def test_it_tells_limits_and_queue_as_servers_do(check: Check) -> None:
    with fake("tei") as tei, fake("sglang", max_concurrency=8) as sglang, fake("vllm") as vllm:
        named = [{**endpoint, "name": name} for name, endpoint in (("tei", tei), ("sglang", sglang), ("vllm", vllm))]
        status, found = check.json(*named)
        _, said = check(*named)
    assert (status, found[1]["limits"]) == (0, {"concurrency": 8})
    assert found[0]["limits"] == {"items": 32, "concurrency": 512, "input_tokens": 8192, "batch_tokens": 16384}
    assert [(each["running"], each["waiting"]) for each in found] == [(None, 0), (0, 0), (0, 0)]
    head, *_, last = said.splitlines()
    assert (" ".join(head.split()), last) == ("endpoint url kind state latency models server limits queue key", "all is well")
    assert [words for words in ("items=32 concurrency=512", "0 running, 0 waiting") if words not in said] == []


def test_no_model_is_called_unless_that_is_wanted(check: Check) -> None:
    with FakeFleet([FakeEndpoint("a", models=["judge-7b"])]) as fleet:
        endpoint = {"base_url": fleet.urls["a"], "models": ["judge-7b"]}
        _, (found,) = check.json(endpoint)
        assert (found["called"], fleet.seen("a").requests) == (None, 0)
        status, said = check(endpoint, more=("--call",))
        assert (status, fleet.seen("a").requests, "ready, answered" in said) == (0, 1, True)


def test_a_port_without_a_server_and_a_server_that_never_answers_do_not_delay_the_others(check: Check) -> None:
    with FakeFleet([FakeEndpoint("dead"), FakeEndpoint("well")]) as fleet, socket.create_server(("127.0.0.1", 0)) as silent:
        urls = {**fleet.urls, "hangs": f"http://127.0.0.1:{silent.getsockname()[1]}/v1"}
        fleet.kill("dead")
        given = [{"base_url": urls[name], "name": name} for name in ("dead", "hangs", "well")]
        status, (dead, hanging, well) = check.json(*given, more=("--timeout", "0.5"))
        _, said = check(*given, more=("--timeout", "0.5"))
    assert status == 1
    assert dead["problems"][0].startswith("no connection (Connect call failed ")
    assert dead["problems"][0].endswith("; check base_url, and that the server is up")
    assert hanging["problems"] == ["no answer within 0.5 s; check base_url, and that the server is up and not overloaded"]
    assert (dead["reachable"], hanging["reachable"], well["reachable"], well["problems"]) == (False, False, True, [])
    assert said.splitlines()[-1] == "2 of 3 cannot serve as configured"


def test_a_wrong_key_and_a_missing_one(check: Check) -> None:
    with fake("vllm", api_key=KEY) as endpoint:
        status, (wrong, missing, headers) = check.json(
            {**endpoint, "api_key": WRONG},
            {**endpoint, "name": "b"},
            {**endpoint, "name": "c", "headers": {"Authorization": f"Bearer {KEY}"}},
            more=("--call",),
        )
    assert status == 1
    assert wrong["problems"] == ["it refuses the key that was sent (401); check api_key, or headers if it is sent there"]
    assert missing["problems"] == ["it requires a key, and none was sent (401); set api_key, such as ${JUDGE_KEY}, or OPENAI_API_KEY"]
    assert headers["problems"] == []
    seen = [(each["auth"], each["state"], each["ready"]) for each in (wrong, missing, headers)]
    required = ("required (401)", "key required (401)", False)
    assert seen == [("refused (401)", "key refused (401)", False), required, ("not refused", "ready, answered", True)]


def test_a_server_of_another_kind(check: Check) -> None:
    for said, really, problem in (("vllm", "sglang", True), ("sglang", "tei", True), ("openai", "vllm", False)):
        with fake(really) as endpoint:
            status, (found,) = check.json({**endpoint, "kind": said})
        assert (found["seems"], status) == (really, int(problem))
        words = f"it seems to be a server of kind {really!r}"
        assert any(text.startswith(words) for text in found["problems" if problem else "notes"])


def test_an_address_one_level_too_high_and_one_that_leads_nowhere(check: Check) -> None:
    with fake("openai") as endpoint:
        root = endpoint["base_url"].removesuffix("/v1")
        status, (high, stray) = check.json({"base_url": root}, {"base_url": f"{root}/elsewhere", "name": "b"})
    assert status == 1
    assert high["problems"] == [f"its API is one level below base_url; set base_url to {root}/v1"]
    assert (high["state"], stray["state"]) == ("wrong path (404)", "wrong path (404)")
    assert stray["problems"][0].startswith("it answers 404 to every request; check the host, the port and the path of base_url")


Answers = dict[str, tuple[int, str]]


class Answering(BaseHTTPRequestHandler):
    """Answers each path as its class says, and any other like ``*``; a status of 0 is bytes that are not HTTP."""

    answers: Answers

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path, self.answers["*"])
        if not status:
            self.wfile.write(body.encode())
            self.close_connection = True
            return
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", body)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(answers: Answers, certificate: Path | None = None, key: Path | None = None) -> Iterator[str]:
    """The address, without a path, of a server made by hand; of TLS if it is given a certificate and its key."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Answering,), {"answers": answers}))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that refuses the certificate
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


LIST = '{"object": "list", "data": [{"id": "judge-7b"}]}'
COMPLETION = '{"id": "1", "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}]}'
STRAY: dict[str, tuple[Answers, str, str]] = {
    "a web server": ({"*": (200, "<html>Welcome</html>")}, "/v1", r"answers a web page to a request for its models .* check the host"),
    "another API": ({"*": (404, "{}"), "/health": (200, "{}")}, "/v1", r"answers 404 to a request for its models .* check with --call"),
    "an API of another form": ({"*": (200, '{"ok": true}')}, "/v1", r"answers something else to a request .* no OpenAI-compatible server"),
    "a gateway without a server": ({"*": (502, "<html>Bad Gateway</html>")}, "/v1", r"answers 502 to a request .* look into its log"),
    "a server without a model": ({"*": (404, ""), "/v1/models": (200, '{"data": []}')}, "/v1", r"answers an empty list .* load a model"),
    "nothing at all": ({"*": (404, "")}, "/v1", r"answers 404 to every request; check the host, .* check with --call"),
    "no HTTP": ({"*": (0, "SSH-2.0-OpenSSH_9.6\r\n")}, "/v1", r"the answer is not proper HTTP .*; check the host and port of base_url"),
    "a server that hangs up": ({"*": (0, "")}, "/v1", r"the connection broke .*; check the scheme, the host and the port of base_url"),
    "a wrong path": ({"*": (404, ""), "/v1/models": (200, LIST)}, "/api/v2", "answers 404 to every request; check the host"),
    "/v1 twice": ({"*": (404, ""), "/v1/models": (200, LIST)}, "/v1/v1", "answers 404 to every request; check the host"),
    "the list itself": ({"*": (404, ""), "/v1/models": (200, LIST)}, "/v1/models", "answers 404 to every request; check the host"),
    "no /v1, and no key": ({"*": (404, ""), "/v1/models": (401, "")}, "", r'its API is one level below base_url; set base_url to \S+/v1'),
    "a login page": ({"*": (302, "https://u:p@sso.example.com/?t=1")}, "/v1", r"redirects \(302 .* final address"),
}  # fmt: skip


def test_a_server_that_is_no_model_server_and_a_path_that_leads_nowhere_are_problems_that_say_what_to_change(check: Check) -> None:
    for name, (answers, path, problem) in STRAY.items():
        with answering(answers) as host:
            status, (found,) = check.json({"base_url": host + path})
        assert status == 1, name
        assert re.search(problem, found["problems"][0]), (name, found["problems"])


def test_the_state_is_ready_only_if_the_server_refused_nothing(check: Check) -> None:
    well, unknown = {"/health": (200, "{}")}, {"*": (404, "{}"), "/v1/chat/completions": (404, '{"detail": "Not Found"}')}
    cases: list[tuple[str, Answers, str]] = [
        ("vllm", {**well, "*": (401, "{}")}, "key required (401)"),
        ("vllm", {**well, "*": (403, "{}")}, "key required (403)"),
        ("vllm", {**well, **unknown}, "wrong path (404)"),
        ("sglang", {**well, **unknown}, "wrong path (404)"),
        ("tei", {**well, **unknown}, "wrong path (404)"),
        ("openai", {"*": (404, "")}, "wrong path (404)"),
        ("vllm", {**well, "*": (404, "{}"), "/v1/models": (500, "{}")}, "failing (500)"),
        ("openai", {"*": (200, "<html></html>")}, "no API (a web page)"),
        ("openai", {"*": (302, "https://sso.example.com/")}, "redirects"),
        ("openai", {"*": (200, LIST)}, "ready"),
    ]
    for kind, answers, state in cases:
        with answering(answers) as host:
            status, (found,) = check.json({"base_url": f"{host}/v1", "kind": kind, "models": ["judge-7b"]})
        assert (found["state"], found["ready"], status) == (state, state == "ready", int(state != "ready")), (kind, found)


def test_a_model_request_decides_whether_a_key_is_accepted(check: Check) -> None:
    chat = "/v1/chat/completions"
    cases: list[tuple[Answers, str, str]] = [
        ({"/v1/models": (403, ""), chat: (200, COMPLETION), "*": (200, "{}")}, "ready, answered", "not refused"),
        ({"/v1/models": (200, LIST), chat: (401, "{}"), "*": (200, "{}")}, "key refused (401)", "refused (401)"),
        ({"/v1/models": (200, LIST), chat: (404, "{}"), "*": (200, "{}")}, "call failed (404)", "not refused"),
    ]
    for answers, state, auth in cases:
        with answering(answers) as host:
            given = {"base_url": f"{host}/v1", "models": ["judge-7b"], "api_key": KEY}
            status, (found,) = check.json(given, more=("--call",))
        assert (found["state"], found["auth"], status) == (state, auth, int(state != "ready, answered")), found


def test_a_server_of_embeddings_is_asked_for_an_embedding_after_it_refused_a_chat(check: Check) -> None:
    vector = '{"object": "list", "data": [{"index": 0, "embedding": [0.5]}]}'
    refusal = (400, '{"error": {"message": "The model does not support Chat Completions API", "code": 400}}')
    with answering({"*": (200, LIST), "/v1/chat/completions": refusal, "/v1/embeddings": (200, vector)}) as host:
        status, (found,) = check.json({"base_url": f"{host}/v1", "models": ["judge-7b"]}, more=("--call",))
    assert (status, found["state"], found["called"], found["problems"]) == (0, "ready, answered", "answered", [])
    assert "it answers requests for embeddings, and refuses chat completions" in found["notes"]


def test_a_reward_server_that_refuses_chats_and_embeddings_is_asked_for_a_score(check: Check) -> None:
    answer = '{"object": "list", "data": [{"index": 0, "label": "LABEL_0", "probs": [0.5], "num_classes": 1}]}'
    answers = {"*": (404, '{"detail": "Not Found"}'), "/health": (200, ""), "/v1/models": (200, LIST), "/classify": (200, answer)}
    with answering(answers) as host:
        status, (found,) = check.json({"base_url": f"{host}/v1", "kind": "vllm", "api_key": KEY, "models": ["judge-7b"]}, more=("--call",))
    assert (status, found["state"], found["auth"], found["problems"]) == (0, "ready, answered", "not refused", [])
    assert "it answers requests for scores, and refuses chat completions" in found["notes"]


def test_the_slots_of_a_llama_cpp_server_are_its_limits_and_its_load(check: Check) -> None:
    slots = json.dumps([{"id": number, "n_ctx": 1024, "is_processing": number == 0} for number in range(4)])
    with answering({"*": (404, "{}"), "/v1/models": (200, LIST), "/slots": (200, slots)}) as host:
        (found,) = check.json({"base_url": f"{host}/v1"})[1]
    assert (found["limits"], found["running"], found["problems"]) == ({"concurrency": 4, "input_tokens": 1024}, 1, [])


def test_a_list_of_models_that_fails_is_no_wrong_path(check: Check) -> None:
    with answering({"*": (404, ""), "/v1/models": (500, "")}) as host:
        status, (right, high) = check.json({"base_url": f"{host}/v1"}, {"base_url": host, "name": "b"})
    assert (status, right["state"], high["problems"]) == (
        1,
        "failing (500)",
        [f"its API is one level below base_url; set base_url to {host}/v1"],
    )


SERVED: list[tuple[dict[str, Any], list[dict[str, Any]], list[str]]] = [
    ({"models": ["judge-7b"]}, [], []),
    ({"models": ["judge-*"]}, [], []),
    ({"models": ["mine"], "model_names": {"mine": "judge-7b"}}, [], []),
    ({"models": ["m*"], "model_names": {"mine": "judge-7b"}}, [], []),
    ({"models": ["judge-7"]}, [], ["it does not serve 'judge-7', but 'judge-7b', 'embed-1'"]),
    ({"models": ["gpt-*"]}, [], ["it serves 'embed-1', 'judge-7b', none of which matches 'gpt-*'"]),
    ({"model_names": {"mine": "judge-8b"}}, [], ["model_names maps 'mine' to 'judge-8b', but it serves 'judge-7b', 'embed-1'"]),
    ({}, [{"pattern": "gpt-4", "endpoints": ["a"]}], ["it does not serve 'gpt-4', but 'embed-1', 'judge-7b'"]),
]


def test_models_that_are_not_there(check: Check) -> None:
    many = [f"m-{number}" for number in range(9)]
    with fake("vllm", models=many) as endpoint:
        _, said = check({**endpoint, "models": ["m-33"]})
    assert "m-0, m-1, m-2 +6" in said
    assert re.search(r"a: it does not serve 'm-33', but 'm-3', .* and 3 more; change models", said), said
    with fake("vllm", models=["embed-1", "judge-7b"]) as endpoint:
        for settings, routes, problems in SERVED:
            status, (found,) = check.json({**endpoint, **settings}, routes=routes)
            assert status == (1 if problems else 0), settings
            assert [text.partition(";")[0] for text in found["problems"]] == problems
    with fake("sglang", models=["judge-7b"]) as endpoint:  # it serves one model under any name
        assert check.json({**endpoint, "models": ["mine"]})[0] == 0


def test_a_listed_pattern_is_no_model_and_stands_for_the_models_that_match_it(check: Check) -> None:
    with fake("vllm", models=["judge-*"]) as endpoint:
        for models in (["judge-7b"], ["judge-*"], ["*-7b"], ["*"]):
            status, (found,) = check.json({**endpoint, "models": models})
            assert (status, found["models"], found["problems"]) == (0, ["judge-*"], []), models
        status, (found,) = check.json({**endpoint, "models": ["embed-1"]})
        assert (status, found["problems"][0].partition(";")[0]) == (1, "it does not serve 'embed-1', but 'judge-*'")
        assert check.json({**endpoint, "models": ["mine"], "model_names": {"mine": "judge-7b"}})[0] == 0
        _, (found,) = check.json({**endpoint, "models": ["judge-*"]}, more=("--call",))
        assert (found["called"], found["notes"][0].partition(",")[0]) == (None, "no model was called")
    for kind in ("vllm", "sglang"):
        with fake(kind) as endpoint:
            assert check.json(endpoint, more=("--call",))[1][0]["called"] == "answered"


def test_a_model_that_is_not_listed_is_well_if_it_answers_a_call(check: Check) -> None:
    calls = ("--call",)
    with answering({"*": (404, ""), "/v1/chat/completions": (200, COMPLETION)}) as host:
        status, (found,) = check.json({"base_url": f"{host}/v1", "models": ["judge-7b"]}, more=calls)
    assert (status, found["problems"], found["called"]) == (0, [], "answered")
    assert found["notes"][0].startswith("it does not list its models")
    listing = {"*": (404, ""), "/v1/models": (200, '{"data": [{"id": "other"}]}'), "/v1/chat/completions": (200, COMPLETION)}
    with answering(listing) as host:
        endpoint = {"base_url": f"{host}/v1", "models": ["judge-7b"]}
        assert check(endpoint)[0] == 1
        status, (found,) = check.json(endpoint, more=calls)
        assert (status, found["state"], found["problems"]) == (0, "ready, answered", [])
        assert found["notes"] == ["its list of models has no 'judge-7b', but it answered a call for this model"]
        status, (found,) = check.json({**endpoint, "models": ["judge-7b", "judge-8b"]}, more=calls)
        assert (status, found["problems"][0].partition(";")[0]) == (1, "it does not serve 'judge-8b', but 'other'")


def test_a_server_that_is_loading_and_one_that_fails_a_call(check: Check) -> None:
    with fake("vllm", phases=[{"behaviour": "error_503"}]) as loading, fake("vllm", faults={"error_500": 1.0}) as broken:
        status, found = check.json(loading, {**broken, "name": "b"}, more=("--call",))
    assert status == 1
    assert found[0]["ready"] is False
    assert found[0]["problems"][0].startswith("it answers that it is not ready; wait until it has loaded its model")
    assert found[1]["called"] == "failed"
    assert found[1]["problems"][0].startswith("a call failed: endpoint 'b' answered 500 for model 'any'")


def test_a_timeout_that_is_none_is_a_mistake_and_a_reader_that_has_enough_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"endpoints": [{"base_url": "http://127.0.0.1:9/v1", "name": f"gpu-{n}"} for n in range(20)]}))
    for given in ("0", "-1", "inf", "nan"):
        with pytest.raises(SystemExit, match="2"):
            main(["check", str(path), "--timeout", given])
        assert "argument --timeout: must be more than 0 seconds" in capsys.readouterr().err
    command = [sys.executable, "-m", "qreward", "check", str(path), "--json", "--timeout", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, b"")
    assert main(["check", "http://gpu-0:8000/v1"]) == 2
    assert "CONFIG is a file, not a URL; `qreward init --endpoint URL` writes one" in capsys.readouterr().err


def tls_server(*certificate: Path) -> Any:
    return answering({"/v1/models": (200, LIST), "/health": (200, "{}"), "*": (404, "")}, *certificate)


def openssl(folder: Path, *arguments: str) -> None:
    tool = shutil.which("openssl")
    if tool is None:
        pytest.skip("there is no openssl to make a certificate with")
    subprocess.run([tool, *arguments], check=True, capture_output=True, cwd=folder)


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=test", "-keyout", "key")


def self_signed(folder: Path, days: int) -> tuple[Path, Path]:
    """A certificate that nobody vouches for, which ends after so many days."""
    openssl(folder, "req", "-x509", *NEW_KEY, "-addext", "subjectAltName=IP:127.0.0.1", "-days", str(days), "-out", "certificate")
    return folder / "certificate", folder / "key"


def test_a_self_signed_certificate_is_refused_said_and_trusted_if_verify_says_so(check: Check, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, 10)
    with tls_server(certificate, key) as host:
        given = [
            {"base_url": f"{host}/v1", "name": name, "verify": verify}
            for name, verify in (("a", True), ("b", False), ("c", str(certificate)))
        ]
        status, (refused, unverified, trusted) = check.json(*given)
    assert status == 1
    (problem,) = refused["problems"]
    assert re.fullmatch(r"no connection \(TLS certificate: self.signed certificate\); set verify to the server's CA bundle", problem)
    assert unverified["problems"] == trusted["problems"] == []
    assert unverified["notes"][0] == "its certificate is not verified; set verify to the path of its CA bundle instead of false"


def test_https_at_a_port_without_tls_and_http_at_a_port_with_tls_are_recognised(check: Check, tmp_path: Path) -> None:
    with fake("vllm") as plain, tls_server(*self_signed(tmp_path, 10)) as secure:
        swapped = (plain["base_url"].replace("http:", "https:"), secure.replace("https:", "http:") + "/v1")
        status, (without, with_tls) = check.json({"base_url": swapped[0]}, {"base_url": swapped[1], "name": "b"})
    no_tls = "no connection (the server does not speak TLS at this port); write base_url with http://, or with the port for https"
    assert (status, without["problems"]) == (1, [no_tls])
    assert "check the scheme, the host and the port of base_url" in with_tls["problems"][0]


def test_settings_without_effect_are_notes(check: Check) -> None:
    with fake("vllm", models=["judge-7b"]) as endpoint, fake("openrlhf") as without_status:
        status, found = check.json(endpoint, {**endpoint, "name": "b"}, routes=[{"pattern": "judge-*", "endpoints": ["a"]}])
        _, said = check(endpoint, {**endpoint, "name": "b"})
        _, (probed,) = check.json({**without_status, "probe": 5})
    assert (status, found[0]["notes"]) == (0, [])
    no_route, same = found[1]["notes"]
    assert no_route.startswith("no route names it")
    assert same.startswith("it is the same server as 'a'")
    assert [note for note in probed["notes"] if note.startswith("probe has no effect: a server of kind 'openrlhf'")]
    assert "b: (note) it is the same server as 'a'" in said


def test_of_the_settings_of_a_trainer_the_models_of_the_scorers_must_be_served(check: Check) -> None:
    judge = {"judge": {"model": "judge-7b"}}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, judge, "all is well"),
        ({}, {"judge": {"modle": "judge-7b"}}, "did you mean 'model'?"),
        ({}, {"judge": {"model": "jugde-7b"}}, "a: it does not serve 'jugde-7b', but 'judge-7b'; change judge.model, or map the name with"),
        ({"model_names": {"mine": "judge-7b"}}, {"judge": {"model": "mine"}}, "all is well"),
        ({}, {"judge": {"model": ["judge-7b", "other"]}}, "a: it does not serve 'other', but 'judge-7b'; change judge.model"),
        ({}, {"reward_model": "rm-7b"}, "a: it does not serve 'rm-7b', but 'judge-7b'; change reward_model"),
        ({}, {"cascade": {"stages": ["rm-7b", {"model": "judge-7b"}]}}, "change cascade.stages.0"),
        ({}, {"judge": {"model": "judge-7b", "scale": [10, 0]}}, "scale must be (lowest, highest), such as (0, 10), not (10, 0)"),
        ({}, {"judge": {"model": "judge-7b", "budget": {"cost": 1}}}, "needs the price of the endpoints"),
        ({"models": ["judge-8b"]}, {"judge": {"model": "judge-8b"}}, "a: it does not serve 'judge-8b', but 'judge-7b'; change models or"),
        ({"models": ["judge-7b"]}, {"judge": {"model": "jugde-7b"}}, "judge.model: no endpoint of the client serves the model 'jugde-7b'"),
    ]
    wrong = {}
    with FakeFleet([ModelEndpoint("a", kind="vllm", models=["judge-7b"]), FakeEndpoint("b", models=["other"])]) as fleet:
        a, b = ({"name": name, "kind": kind, "base_url": fleet.urls[name], "proxy": ""} for name, kind in (("a", "vllm"), ("b", "openai")))
        for settings, scorer, words in cases:
            status, said = check.file({"client": {"endpoints": [a | settings]}, **scorer})
            if (status == 0) is not (words == "all is well") or words not in said or said.count("does not serve") > 1:
                wrong[words] = said
        routes = [{"pattern": "judge-*", "endpoints": ["a"]}]
        assert check.file({"client": {"endpoints": [a, b], "routes": routes}, **judge})[0] == 0, "b need not serve what no route sends it"
        assert (
            "b: it does not serve 'judge-7b', but 'other'; change judge.model" in check.file({"client": {"endpoints": [a, b]}, **judge})[1]
        )
    assert wrong == {}


def test_a_call_uses_the_models_of_the_scorers_and_an_answer_to_one_that_is_not_listed_is_enough(check: Check) -> None:
    with FakeFleet([ModelEndpoint("a", kind="vllm", models=["judge-7b", "first"])]) as fleet:
        client = {"endpoints": [{"name": "a", "kind": "vllm", "base_url": fleet.urls["a"], "proxy": ""}]}
        assert check.file({"client": client, "judge": {"model": "judge-7b"}}, "--call")[0] == 0
        status, said = check.file({"client": client, "judge": {"model": ["first", "jugde-7b"]}}, "--call")
        assert (status, "a: a call failed: endpoint 'a' answered 404 for model 'jugde-7b'" in said) == (1, True)
        assert fleet.seen("a").requests == 3
        check.file({"client": client, "reward_model": "judge-7b"}, "--call")
        assert fleet.seen("a").requests == 4
    with answering({"/v1/models": (200, LIST), "/v1/chat/completions": (200, COMPLETION), "*": (200, "{}")}) as host:
        content = {"client": {"endpoints": [{"name": "a", "base_url": f"{host}/v1", "proxy": ""}]}, "judge": {"model": "an-alias"}}
        status, said = check.file(content)
        assert (status, "a: it does not serve 'an-alias'" in said) == (1, True)
        assert check.file(content, "--call")[0] == 0
