"""The page of ``qreward top --web``: one static page and the table that it shows, on 127.0.0.1, for those who have its token."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class PageServer(ThreadingHTTPServer):
    """Serves the page. Requests with another ``Host`` or ``Origin`` than this server's, or without the token, are refused."""

    daemon_threads = True

    def __init__(self, table: Callable[[], str], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.table = table
        self.token, self.nonce = secrets.token_urlsafe(24), secrets.token_urlsafe(12)
        self.hosts = [f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")]
        self.url = f"http://{self.hosts[0]}/?token={self.token}"

    def refusal(self, host: str | None, origin: str | None, query: str) -> str:
        """Return why a request is refused, or ``""``."""
        # a page of another site can reach this address, also under a name of its own (DNS rebinding)
        if host not in self.hosts or (origin is not None and origin not in [f"http://{name}" for name in self.hosts]):
            return "this page is served to its own address only"
        given = parse_qs(query).get("token", [""])[0]
        return "" if compare_digest(given.encode(), self.token.encode()) else "the address needs the token that `qreward top --web` printed"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 60.0

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if refusal := self.server.refusal(self.headers.get("Host"), self.headers.get("Origin"), place.query):
            self._answer(403, refusal)
        elif place.path == "/":
            self._answer(200, PAGE.replace("NONCE", self.server.nonce))
        else:
            self._answer(*((200, self.server.table()) if place.path == "/table" else (404, "there are / and /table")))

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": f"{POLICY}; script-src 'nonce-{self.server.nonce}'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the address has the token."""


POLICY = "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>qreward</title>
<style>
:root { color-scheme: light dark }
body { font: 14px/1.5 system-ui, sans-serif; margin: 1rem clamp(.5rem, 3vw, 3rem); background: Canvas; color: CanvasText }
table { font-variant-numeric: tabular-nums }
#lost { color: #d1242f; font-weight: 600 }
</style></head><body>
<div id="lost" role="status"></div><main id="table">...</main>
<script nonce="NONCE">
const main = document.getElementById("table"), lost = document.getElementById("lost");
async function update() {
  try {
    const answer = await fetch("/table" + location.search);
    if (!answer.ok) throw new Error(await answer.text());
    const text = await answer.text(), sides = [...main.querySelectorAll("div")].map(each => each.scrollLeft);
    if (text !== update.last) {
      main.innerHTML = update.last = text;
      main.querySelectorAll("div").forEach((each, at) => { each.scrollLeft = sides[at] || 0; });
    }
    lost.textContent = "";
  } catch (error) { lost.textContent = "no news from qreward top --web: " + error.message; }
  setTimeout(update, document.hidden ? 5000 : 1000);
}
update();
</script></body></html>
"""
