"""Serve predictions over HTTP, with a page to drop photos on. Nothing is written to disk."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except Exception as error:  # a broken optional package can raise anything
    raise ImportError(f"mecam serve needs more packages ({error}): pip install 'mecam[serve]'") from error

from mecam.runs import RunError
from mecam.serving.model import Prediction, TrainedModel
from mecam.serving.tables import entry

AT_A_TIME = 16  # images received or waiting; one is decoded and predicted at a time, which bounds memory
BURST = 1.0  # seconds of the rate that may come at once
PATIENCE = 30.0  # seconds for a client to send an image
GRACE = 10  # seconds for the last answers at shutdown
USAGE = "expected GET / or POST /predict, with the bytes of an image as the body"


@dataclass(frozen=True)
class Limits:
    """Limits of what the server accepts.

    Args:
        megabytes: size of an image file.
        megapixels: width * height of an image.
        rate: images per second, of all clients together.
    """

    megabytes: float = 20.0
    megapixels: float = 50.0
    rate: float = 20.0

    def __post_init__(self) -> None:
        for name in ("megabytes", "megapixels", "rate"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, got {value}")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to this address; port 0 is any free port."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen on {host}, port {port} ({error}); choose another --host or --port") from error


def address_of(bound: socket.socket) -> str:
    """Return the address of the page on a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(app: Starlette, bound: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM. Requests in progress are answered first."""
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", log_level="error", access_log=False, proxy_headers=False,
        server_header=False, timeout_graceful_shutdown=GRACE,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[bound])


def application(
    model: TrainedModel, *, host: str = "localhost", limits: Limits | None = None, unknown_below: float | None = None
) -> Starlette:
    """Return the ASGI application: GET / is the page, and POST /predict takes the bytes of an image.

    Args:
        host: the name of this machine that requests may use, beside localhost and IP addresses.
        unknown_below: mark predictions with a probability below this as unknown.
    """
    service = _Service(model, host, limits or Limits(), unknown_below)
    routes = [
        Route("/", service.page, methods=["GET"]),
        Route("/predict", service.predict, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers=dict.fromkeys((HTTPException, RunError, Exception), _failure))


class _Service:
    def __init__(self, model: TrainedModel, host: str, limits: Limits, unknown_below: float | None) -> None:
        self.model, self.host, self.limits, self.unknown_below = model, host.lower(), limits, unknown_below
        self.images = 0  # received or waiting
        self.next_slot = 0.0  # when the rate allows the next image
        self.turn = asyncio.Lock()
        self.html = files("mecam.serving").joinpath("server.html").read_text(encoding="utf-8")
        self.headers = {"Content-Security-Policy": _policy(self.html), "X-Content-Type-Options": "nosniff"}

    async def page(self, request: Request) -> Response:
        self._check_host(request)
        return Response(self.html, media_type="text/html", headers=self.headers)

    async def predict(self, request: Request) -> Response:
        self._check_host(request)
        self._check_site(request)
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise HTTPException(415, f"the body is a form; {USAGE}: curl --data-binary @photo.jpg")
        if self.images >= AT_A_TIME:
            raise _too_many_error(f"{AT_A_TIME} images are waiting already", 1.0)
        self.images += 1
        try:
            image = await self._receive(request)
            self._check_rate()
            async with self.turn:
                prediction = await run_in_threadpool(self._predict, image)
        except asyncio.CancelledError as error:  # GRACE is over
            raise HTTPException(503, "the server is stopping") from error
        finally:
            self.images -= 1
        if prediction.error is not None:
            raise HTTPException(400, prediction.error)
        return _json(entry(prediction, self.model.classes))

    def _predict(self, image: bytes) -> Prediction:
        max_pixels = int(1e6 * self.limits.megapixels)
        (prediction,) = self.model.predictions(image, max_pixels=max_pixels, unknown_below=self.unknown_below)
        return prediction

    async def _receive(self, request: Request) -> bytes:
        """Return the body; one that is too large is refused before it fills memory."""
        most, image = int(1e6 * self.limits.megabytes), bytearray()
        too_large = HTTPException(413, f"the image is larger than {self.limits.megabytes:g} MB; send a smaller one")
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        try:
            async with asyncio.timeout(PATIENCE):
                async for part in request.stream():
                    image += part
                    if len(image) > most:
                        raise too_large
        except TimeoutError as error:
            raise HTTPException(408, f"the image did not arrive within {PATIENCE:g} seconds") from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the client closed the connection") from error
        return bytes(image)

    def _check_rate(self) -> None:
        now = time.monotonic()
        wait = self.next_slot - now - BURST
        if wait > 0:
            raise _too_many_error(f"more than {self.limits.rate:g} images per second", wait)
        self.next_slot = max(self.next_slot, now) + 1 / self.limits.rate

    def _check_site(self, request: Request) -> None:
        """Refuse requests from pages of other sites."""
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        if site is None and origin is not None:  # browsers omit the former where the address is not HTTPS or localhost
            own = origin.partition("://")[2] == request.headers.get("host")
            site = "same-origin" if own else "cross-site"
        if site not in (None, "same-origin", "none"):
            raise HTTPException(403, "requests from pages of other sites are refused")

    def _check_host(self, request: Request) -> None:
        """Refuse names that another site may have pointed at this machine (DNS rebinding)."""
        host = request.headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name not in ("localhost", self.host):
                ip_address(name)
        except ValueError:
            message = f"the Host header is {host!r}; use localhost, an IP address, or the name given as --host"
            raise HTTPException(403, message) from None


def _policy(html: str) -> str:
    """Return a Content-Security-Policy that allows the page its own script and style alone."""
    digests = {}
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
        digests[tag] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    own = "; ".join(f"{tag}-src 'sha256-{digest}'" for tag, digest in digests.items())
    rest = "connect-src 'self'; img-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"default-src 'none'; {own}; {rest}"


def _too_many_error(why: str, wait: float) -> HTTPException:
    seconds = math.ceil(wait)
    return HTTPException(429, f"{why}; try again in {seconds} s", {"Retry-After": str(seconds)})


def _failure(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        what = str(error) if isinstance(error, RunError) else "the server failed; its output has the reason"
        error = HTTPException(500, what)
    usage = f"; {USAGE}" if error.status_code in (404, 405) else ""
    return _json({"error": f"{error.detail}{usage}"}, error.status_code, error.headers)


def _json(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content) + "\n", status, headers, media_type="application/json")
