"""Claim: the scorer costs a service little beside the model that gives the logits.

    python benchmarks/service.py

Requests per second of processor time, one after the other in one thread, without sockets: the ASGI application
(FastAPI) is called directly, so that parsing, routing and the answer count. A small convolutional network on one
3 x 32 x 32 image per request, bare and with the decision behind it: in Python (`Conformal.decide`) and in ONNX Runtime
(network alone against network and decision in one file). Ways take turns; medians over `--rounds` of 200 requests.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import asyncio
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import fastapi
import numpy as np
import onnxruntime
import torch

from tood import TOOD
from tood.decision import Conformal
from tood.export.onnx import export_network

CLASSES, REQUESTS = 10, 200


def make_network() -> torch.nn.Module:
    torch.manual_seed(0)
    widths = (3, 32, 64, 128)
    layers: list[torch.nn.Module] = []
    for before, after in pairwise(widths):
        layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(128 * 16, CLASSES)).eval()


def make_application(network: torch.nn.Module, conformal: Conformal) -> fastapi.FastAPI:
    app = fastapi.FastAPI()

    def logits(image: list[float]) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.tensor(image).reshape(1, 3, 32, 32)).numpy()

    @app.post("/bare")
    async def bare(image: list[float]) -> dict:
        return {"class": int(logits(image).argmax())}

    @app.post("/decide")
    async def decide(image: list[float]) -> dict:
        values = logits(image)
        decision = conformal.decide(values, alpha=0.05)
        return {"class": int(values.argmax()), "accept": bool(decision.accept[0]), "task": int(decision.task[0])}

    return app


async def request(app: fastapi.FastAPI, path: str, body: bytes) -> None:
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
        "headers": [(b"content-type", b"application/json")], "client": ("test", 1), "server": ("test", 80),
    }  # fmt: skip

    async def receive() -> dict:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise RuntimeError(f"status {message['status']}")

    await app(scope, receive, send)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    network = make_network()
    images = torch.from_numpy(rng.normal(size=(400, 3, 32, 32)).astype(np.float32))
    with torch.inference_mode():
        logits = network(images).numpy()
    cal = TOOD([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]).fit(
        logits + np.eye(CLASSES)[np.arange(400) % 10], np.arange(400) % 10
    )
    conformal = Conformal(cal).fit(logits)
    app, body = make_application(network, conformal), json.dumps(images[0].flatten().tolist()).encode()
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        export_network(network, conformal, Path(folder, "decide.onnx"), images[:2], alpha=0.05)
        program = torch.onnx.export(
            network,
            (images[:2],),
            dynamo=True,
            input_names=["input"],
            verbose=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        program.save(Path(folder, "bare.onnx"))
        sessions = {
            name: onnxruntime.InferenceSession(Path(folder, f"{name}.onnx"), options) for name in ("bare", "decide")
        }
    image = images[:1].numpy()

    def service(path: str) -> None:
        async def all_of_them() -> None:
            for _ in range(REQUESTS):
                await request(app, path, body)

        asyncio.run(all_of_them())

    def runtime(name: str) -> None:
        for _ in range(REQUESTS):
            sessions[name].run(None, {"input": image})

    ways = {
        "FastAPI": (lambda: service("/bare"), lambda: service("/decide")),
        "ONNX Runtime": (lambda: runtime("bare"), lambda: runtime("decide")),
    }
    print("| way | bare model, requests/s | with decision | ratio |\n| --- | ---: | ---: | ---: |")
    for name, pair in ways.items():
        seconds: list[list[float]] = [[], []]
        for _ in range(rounds + 1):
            for way, times in zip(pair, seconds, strict=True):
                start = time.process_time()
                way()
                times.append(time.process_time() - start)
        bare, decide = (REQUESTS / np.median(times[1:]) for times in seconds)
        print(f"| {name} | {bare:,.0f} | {decide:,.0f} | {decide / bare:.2f} |")


if __name__ == "__main__":
    main()
