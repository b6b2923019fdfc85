"""An OpenAI-compatible endpoint on loopback that answers from a script."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

TEXT = "text"


@dataclass
class Reply:
    """One answer: text, structured data, broken JSON, a refusal, or an HTTP failure."""

    text: str = ""
    data: Any = None
    refusal: str | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    code: str | None = None
    delay: float = 0.0
    finish: str = "stop"
    hang_up_after: int | None = None
    as_text: bool = False

    @property
    def content(self) -> str:
        return json.dumps(self.data) if self.data is not None else self.text


def say(text: str, **more: Any) -> Reply:
    return Reply(text=text, **more)


def give(data: Any, **more: Any) -> Reply:
    return Reply(data=data, **more)


def fail(status: int, code: str | None = None, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, code=code, headers=named)


class OpenAIServer:
    """The running endpoint: its address, what to answer and what it was asked."""

    def __init__(self, url: str, kind_of: Callable[[dict[str, Any]], str]) -> None:
        self.url = url
        self._kind_of = kind_of
        self.replies: dict[str, list[Reply]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.times: list[float] = []
        self._lock = threading.Lock()

    def on(self, kind: str, *replies: Reply) -> OpenAIServer:
        """Answer the next requests for this schema (or for ``text``) so, in order."""
        self.replies.setdefault(kind, []).extend(replies)
        return self

    def asked(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [body for name, body in self.requests if kind in (None, name)]

    def prompt(self, kind: str, call: int = -1) -> str:
        """The whole prompt of one request as text."""
        return "\n\n".join(str(m.get("content")) for m in self.asked(kind)[call]["messages"])

    def answer(self, body: dict[str, Any]) -> Reply:
        kind = self._kind_of(body)
        with self._lock:
            self.requests.append((kind, body))
            self.times.append(time.monotonic())
            waiting = self.replies.get(kind)
            if not waiting:
                return Reply(status=418, code=f"nothing_prepared_for_{kind}")
            return waiting.pop(0)


ServerT = TypeVar("ServerT", bound=OpenAIServer)


def kind_of(body: dict[str, Any]) -> str:
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return str(form["json_schema"]["name"])
    if body.get("tools"):
        return str(body["tools"][0]["function"]["name"])
    return TEXT


@contextmanager
def openai_server() -> Iterator[OpenAIServer]:
    """Serve until the block ends."""
    with serve(OpenAIHandler, "/v1", kind_of, OpenAIServer) as server:
        yield server


@contextmanager
def serve(
    handler: type[BaseHTTPRequestHandler],
    path: str,
    kind_of: Callable[[dict[str, Any]], str],
    script: Callable[[str, Callable[[dict[str, Any]], str]], ServerT],
) -> Iterator[ServerT]:
    """Serve one wire format until the block ends."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    httpd.daemon_threads = True
    server = script(f"http://127.0.0.1:{httpd.server_address[1]}{path}", kind_of)
    httpd.script = server  # type: ignore[attr-defined]
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


class WireHandler(BaseHTTPRequestHandler):
    """Answers requests from the script; a subclass knows how a provider writes them down."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Keep the terminal quiet."""

    def serves(self) -> bool:
        """Tell whether the path is the provider's."""
        raise NotImplementedError

    def error(self, reply: Reply) -> dict[str, Any]:
        """Write a failure down."""
        return {"error": {"message": f"scripted {reply.status} {reply.code}", "code": reply.code}}

    def whole(self, body: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Write an answer down in one piece."""
        raise NotImplementedError

    def pieces(self, body: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
        """Write an answer down as a stream."""
        raise NotImplementedError

    def streams(self, body: dict[str, Any]) -> bool:
        """Tell whether the answer is wanted as a stream."""
        return bool(body.get("stream"))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if not self.serves():
            self._send(404, json.dumps({"error": {"message": f"no {self.path}"}}), {})
            return
        body = json.loads(raw)
        reply: Reply = self.server.script.answer(body)  # type: ignore[attr-defined]
        if reply.delay:
            time.sleep(reply.delay)
        try:
            if reply.status != 200:
                self._send(reply.status, json.dumps(self.error(reply)), reply.headers)
            elif self.streams(body):
                self._stream(body, reply)
            else:
                self._send(200, json.dumps(self.whole(body, reply)), reply.headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, status: int, text: str, headers: dict[str, str]) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("connection", "close")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def _stream(self, body: dict[str, Any], reply: Reply) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for count, chunk in enumerate(self.pieces(body, reply)):
            if reply.hang_up_after is not None and count >= reply.hang_up_after:
                if reply.code:
                    failed = self.error(reply)
                    self._event(json.dumps(failed), failed.get("type"))
                return
            self._event(json.dumps(chunk), chunk.get("type"))
        self.finish_stream()
        self.wfile.write(b"0\r\n\r\n")

    def finish_stream(self) -> None:
        """Write what ends a stream, if anything does."""

    def _event(self, data: str, name: object = None) -> None:
        head = f"event: {name}\n" if isinstance(name, str) else ""
        piece = f"{head}data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.flush()


class OpenAIHandler(WireHandler):
    def serves(self) -> bool:
        return self.path.endswith("/chat/completions")

    def whole(self, body: dict[str, Any], reply: Reply) -> dict[str, Any]:
        return _completion(body, reply)

    def pieces(self, body: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
        return _chunks(body, reply)

    def finish_stream(self) -> None:
        self._event("[DONE]")


def _usage(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    asked = len(json.dumps(body["messages"]).split())
    told = len(reply.content.split())
    return {
        "prompt_tokens": asked,
        "completion_tokens": told,
        "total_tokens": asked + told,
        "prompt_tokens_details": {"cached_tokens": 7},
    }


def _is_tool_call(body: dict[str, Any], reply: Reply) -> bool:
    return bool(body.get("tools")) and reply.refusal is None and not reply.as_text


def _completion(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.refusal is not None:
        message |= {"content": None, "refusal": reply.refusal}
    elif _is_tool_call(body, reply):
        function = {"name": kind_of(body), "arguments": reply.content}
        message["content"] = None
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish}],
        "usage": _usage(body, reply),
    }


def _chunks(body: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    yield chunk({"role": "assistant", "content": ""})
    if reply.refusal is not None:
        yield chunk({"refusal": reply.refusal})
    elif _is_tool_call(body, reply):
        head = {"id": "call_1", "type": "function", "function": {"name": kind_of(body)}}
        head["function"]["arguments"] = ""  # type: ignore[index]
        yield chunk({"tool_calls": [{"index": 0, **head}]})
        for piece in re.findall(r".{1,20}", reply.content, re.DOTALL):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    else:
        for piece in re.findall(r"\S+\s*|\s+", reply.content):
            yield chunk({"content": piece})
    yield chunk({}, reply.finish)
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**chunk({}), "choices": [], "usage": _usage(body, reply)}
