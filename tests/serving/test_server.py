"""The server as a process of its own: requests, refusals, the page in a real browser, and the end."""

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mecam.cli import app
from mecam.data.open import open_data
from mecam.recipe import Recipe
from mecam.runs import RunFolder
from mecam.serving import TrainedModel, load_model
from mecam.serving.confidence import FEWEST, Confidence, Space
from mecam.training import train
from tests.serving.runs import write_images

pytest.importorskip("uvicorn", reason="pip install 'mecam[serve]'")
from mecam.serving import server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
HACK = "<img src=x onerror='window.hacked = true'>"
LIMITS = ["--megabytes", "0.2", "--megapixels", "0.1"]
PRECISION = ["--wanted-precision", "0.95"]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a class whose name would like to be markup, to which every image is novel and unknown."""
    images = write_images(tmp_path_factory.mktemp("data") / "images")
    for folder in images.glob("*/red"):
        folder.rename(folder.with_name(HACK))
    recipe = Recipe(data=str(images), backbone="resnet8", image_size=32, batch=4, steps=2, evaluate_every=2)
    data = open_data(images, cache=tmp_path_factory.mktemp("cache"))
    run = train(recipe, tmp_path_factory.mktemp("run"), device="cpu", data=data)
    space = Space(torch.ones(load_model(run.path).network.num_features, 1), torch.full((1, 2, 1), 100.0))
    confidence = Confidence(space, ("lab",), 1.0, None, torch.ones(FEWEST), torch.ones(FEWEST, dtype=torch.bool))
    confidence.write(RunFolder(run.path))
    return run.path


@pytest.fixture(scope="module")
def model(run: Path) -> TrainedModel:
    return load_model(run)


@contextmanager
def serving(run: Path, folder: Path, stop: signal.Signals, *options: str) -> Iterator[tuple[int, Any]]:
    """Yield the port of a server and its process, which the signal ends without an error and without files."""
    command = [sys.executable, "-m", "mecam.cli", "serve", str(run), "--port", "0", "--device", "cpu", *options]
    variables = {**os.environ, "TMPDIR": str(folder), "MECAM_CACHE": str(folder)}
    with subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.fullmatch(rf"http://127\.0\.0\.1:(\d+)/ serves {re.escape(str(run))}; Ctrl-C stops it\n", line)
            assert address, line
            yield int(address[1]), process
            process.send_signal(stop)
            assert process.wait(30) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def port(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving(run, tmp_path_factory.mktemp("empty"), signal.SIGINT, *LIMITS, *PRECISION) as (port, _):
        yield port


def request(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    got = connection.getresponse()
    answer = Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
    connection.close()
    return answer


def picture(width: int = 60, height: int = 40, form: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_the_answer_is_what_predict_prints(port: int, run: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / "photo"
    file.write_bytes(picture(form=form))
    answer = request(port, "POST", "/predict", file.read_bytes())
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    words = ["predict", str(run), str(file), "--probabilities", "--format", "json", "--device", "cpu", *PRECISION]
    (printed,) = json.loads(CliRunner().invoke(app, words).stdout)
    found = answer.content
    assert found.pop("probabilities") == pytest.approx(printed.pop("probabilities"), abs=2e-6)
    assert found["unknown"]
    assert {"image": str(file), **found} == pytest.approx(printed, abs=1e-4)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ({"body": b"no image"}, 400, "cannot be read as an image: it is none of JPEG, PNG"),
        ({"body": picture(400, 300)}, 400, "400 x 300 is more than 100,000 pixels"),
        ({"body": b"0" * 1_000_000}, 413, "the image is larger than 0.2 MB; send a smaller one"),
        ({"body": picture(), "content_type": "multipart/form-data; boundary=x"}, 415, "the body is a form; expected"),
        ({"body": picture(), "host": "example.org"}, 403, "the Host header is 'example.org'; use localhost"),
        ({"body": picture(), "sec_fetch_site": "cross-site"}, 403, "requests from pages of other sites are refused"),
        ({"body": picture(), "origin": "http://evil.org"}, 403, "requests from pages of other sites are refused"),
        ({"body": picture(), "origin": "null"}, 403, "requests from pages of other sites are refused"),
        ({"method": "PUT"}, 405, "Method Not Allowed; expected GET / or POST /predict"),
        ({"path": "/nothing"}, 404, "Not Found; expected GET / or POST /predict"),
    ],
)
def test_a_refusal_is_json_with_a_reason(port: int, words: dict[str, Any], status: int, message: str) -> None:
    answer = request(port, **{"method": "POST", "path": "/predict", **words})
    assert answer.status == status
    assert message in answer.content["error"]


def test_names_of_this_machine_are_accepted(port: int) -> None:
    for host in (f"localhost:{port}", "127.0.0.1", "[::1]:80", "192.168.0.7:8000"):
        assert request(port, "GET", "/", host=host).status == 200
    assert request(port, "GET", "/", host="rebound.example").status == 403
    own = {"host": "192.168.0.7:8000", "origin": "http://192.168.0.7:8000"}  # of the page, without Sec-Fetch-Site
    assert request(port, "POST", "/predict", picture(), **own).status == 200


def test_a_body_of_unknown_length_is_refused_while_it_arrives(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/predict", (b"0" * 50_000 for _ in range(10)), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_request_in_progress_is_answered_before_the_end(run: Path, tmp_path: Path) -> None:
    image = picture()
    with (
        serving(run, tmp_path, signal.SIGTERM) as (port, process),
        socket.create_connection(("127.0.0.1", port)) as own,
    ):
        length = f"Content-Length: {len(image)}"
        own.sendall(f"POST /predict HTTP/1.1\r\nHost: localhost\r\n{length}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert own.recv(1000).startswith(b"HTTP/1.1 100 ")  # the request has begun
        process.send_signal(signal.SIGTERM)
        own.sendall(image)
        answer = b"".join(iter(lambda: own.recv(1000), b""))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"probabilities"' in answer


async def ask(service: Any, *parts: bytes, method: str = "POST") -> Answer:
    """Call the application directly; without parts the body never arrives."""
    sent: list[dict[str, Any]] = []
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if messages:
        messages[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/predict", "headers": [(b"host", b"localhost")]}
    await service({**scope, "query_string": b"", "root_path": ""}, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent))


def test_the_rate_is_limited(model: TrainedModel) -> None:
    service = server.application(model, limits=server.Limits(rate=1e-4))

    async def two() -> tuple[Answer, Answer]:
        return await ask(service, picture()), await ask(service, picture())

    first, second = asyncio.run(two())
    assert first.status == 200
    seconds = int(second.headers["retry-after"])
    assert (second.status, 9_000 < seconds < 10_000) == (429, True)
    assert second.content == {"error": f"more than 0.0001 images per second; try again in {seconds} s"}


def test_few_images_are_held_and_a_slow_client_is_given_up(
    model: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.1)
    service = server.application(model)

    async def crowd() -> list[Answer]:
        return await asyncio.gather(*(ask(service) for _ in range(server.AT_A_TIME + 1)))

    *waited, refused = asyncio.run(crowd())
    assert {answer.status for answer in waited} == {408}
    assert waited[0].content == {"error": "the image did not arrive within 0.1 seconds"}
    assert (refused.status, refused.content["error"]) == (429, "16 images are waiting already; try again in 1 s")


def test_a_client_that_is_too_slow_for_the_end_is_told(model: TrainedModel) -> None:
    service = server.application(model)

    async def stopped() -> Answer:
        waiting = asyncio.create_task(ask(service))
        await asyncio.sleep(0.05)
        waiting.cancel()
        return await waiting

    answer = asyncio.run(stopped())
    assert (answer.status, answer.content) == (503, {"error": "the server is stopping"})


def test_a_port_in_use_and_wrong_limits_are_errors_before_the_model_is_read(tmp_path: Path) -> None:
    with server.listen("127.0.0.1", 0) as taken:
        busy = str(taken.getsockname()[1])
        errors = [
            CliRunner().invoke(app, ["serve", str(tmp_path), *words]).stderr
            for words in (["--port", busy], ["--host", "no.such.host.invalid"], ["--rate", "0"])
        ]
    assert errors[0].startswith(f"mecam: cannot listen on 127.0.0.1, port {busy} ([Errno ")
    assert errors[1].startswith("mecam: cannot listen on no.such.host.invalid, port 8000 (")
    assert all(error.endswith("choose another --host or --port\n") for error in errors[:2])
    assert errors[2] == "mecam: rate must be positive, got 0.0\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "mecam.serving.server")
    result = CliRunner().invoke(app, ["serve", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("mecam: mecam serve needs more packages (")
    assert result.stderr.endswith("pip install 'mecam[serve]'\n")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_photos_dropped_on_the_page_show_their_classes_as_text(port: int, model: TrainedModel, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    photo, note = tmp_path / "a <b>photo.png", tmp_path / "note.png"
    photo.write_bytes(picture(form="PNG"))
    note.write_bytes(b"no image")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page()
        asked: set[str] = set()
        tab.on("request", lambda request: asked.add(request.url))
        tab.goto(f"http://127.0.0.1:{port}/")
        tab.set_input_files("input", [photo, note])
        dropped = tab.evaluate_handle(
            """bytes => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], "dropped.jpg"));
                return data;
            }""",
            list(picture()),
        )
        tab.dispatch_event("#drop", "drop", {"dataTransfer": dropped})
        tab.locator("li:nth-child(3) table").wait_for()
        items = [item.inner_text().split("\n") for item in tab.locator("li").all()]
        shown = [tab.locator(f"li:nth-child({number}) img").evaluate("img => img.naturalWidth") for number in (1, 3)]
        hacked = tab.evaluate("window.hacked")
        tab.route("**/predict", lambda route: route.abort())
        tab.set_input_files("input", [photo])
        tab.get_by_text("the server does not answer; is mecam serve still running?").wait_for()
        browser.close()
    probabilities = next(model.predictions(photo)).probabilities
    ordered = sorted(probabilities, key=lambda name: -probabilities[name])
    assert items[0][0] == photo.name
    assert "unknown: the probability is below the threshold" in items[0]
    assert any(re.match(r"novelty \d+\.\d\d: further from the training images than", line) for line in items[0])
    assert [line.split("\t")[:2] for line in items[0] if "\t" in line] == [
        [name, f"{100 * probabilities[name]:.1f} %"] for name in ordered
    ]
    assert "cannot be read as an image" in " ".join(items[1])
    assert items[2][0] == "dropped.jpg"
    assert shown == [60, 60]
    assert hacked is None
    assert all(url.startswith((f"http://127.0.0.1:{port}/", f"blob:http://127.0.0.1:{port}/")) for url in asked)
