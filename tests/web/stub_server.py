"""A server that plays Taper's part for the page: the page's own files, and answers that are written down.

What the last message of a request says decides what happens; see `Stub.chat`. Alone it serves until it is ended:

    python3 tests/web/stub_server.py [PORT]
"""

import http.server
import json
import pathlib
import re
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "server" / "web"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "mjs": "text/javascript", "svg": "image/svg+xml"}
MODELS = ["stub:1m", "stub:2m"]

MARKDOWN = """# Three things

1. A list with **strong**, *other* and `code`
2. A [link](https://example.org/there)

| left | right |
|:-----|------:|
| 1    | 2     |

- [x] done
- [ ] to do

> Somebody said so.

```rust
fn main() {
    println!("A line that is long enough to need more room than a narrow window has for it, so that it is scrolled");
}
```

And so on."""

# What a page must not do for an answer, each in its own way.
HOSTILE = """<script>window.hurt = "script"</script>

<img src=x onerror="window.hurt = 'image'"> inline <b onclick="window.hurt = 'click'">bold</b>

[a link](javascript:window.hurt='link') and ![an image](http://127.0.0.1:1/spy.png) and [data](data:text/html,x)

<iframe src="/health"></iframe><style>body { display: none }</style><form action="/v1"><input name=a></form>

```html"onmouseover="window.hurt='language'
</code></pre><script>window.hurt = "code"</script>
```

<svg><a xlink:href="javascript:window.hurt='svg'">x</a></svg> the end"""


def policy():
    """The policy that the real server sends with these files."""
    source = (ROOT / "server" / "src" / "web.rs").read_text()
    literal = re.search(r'const POLICY: &str = "((?:[^"\\]|\\.|\\\n)*)"', source).group(1)
    return re.sub(r"\\\n\s*", "", literal)


class Stub:
    """A stub on a port of its own, in threads of this process; what the page sent is kept for a test to look at."""

    def __init__(self, port=0):
        self.requests = []
        self.authorizations = []
        self.left = threading.Event()
        self.go_on = threading.Event()
        self.is_ended = False
        self.is_loading = False
        self.has_metrics = True
        self.has_two_models = False
        self.key = None
        self.generated = 0
        self._lock = threading.Lock()
        self._started = time.monotonic()
        stub = self

        class Handler(_Handler):
            server_stub = stub

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        # A browser that leaves is no fault of ours.
        self._server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def start(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def serve_forever(self):
        self._server.serve_forever()

    def stop(self):
        self.is_ended = True
        self._server.shutdown()
        self._server.server_close()

    def chat(self, request):
        """The pieces of an answer: texts, `{"reasoning": text}`, `wait` for the test, `forever`, `length`, `break` and `error`."""
        said = request["messages"][-1]["content"]
        if request.get("continue_final_message"):
            return ["wer", " that is whole."]
        if said == "cut":
            return ["an ans", ("length",)]
        if said == "markdown":
            return [MARKDOWN[at : at + 7] for at in range(0, len(MARKDOWN), 7)]
        if said == "hostile":
            return [HOSTILE[at : at + 5] for at in range(0, len(HOSTILE), 5)]
        if said == "wait":
            return ["first half, ", ("wait",), "second half"]
        if said == "forever":
            return [("forever",)]
        if said == "think":
            return [{"reasoning": "Let me *see*. "}, {"reasoning": "Yes."}, "It is so."]
        if said == "break off":
            return ["half an ans", ("break",)]
        if said == "fail midway":
            return ["half an ans", ("error",)]
        if said == "system?":
            systems = [message["content"] for message in request["messages"] if message["role"] == "system"]
            return [f"system prompt: {systems}"]
        with self._lock:
            count = len(self.requests)
        return ["Answer ", f"number {count} ", "to “", said, "”."]

    def metrics(self):
        """Numbers that move, with the labels and escapes that the real ones have."""
        with self._lock:
            now = time.monotonic() - self._started
            generated = int(now * 90) + self.generated
        lines = []
        for model, share in [('stub:\\"1m\\"', 1), ("stub:2m", 0.5)][: 1 + self.has_two_models]:
            lines += self.metrics_of(f'engine="0",model_name="{model}"', now * share, generated * share)
        return "\n".join(lines) + "\n"

    def metrics_of(self, labels, now, generated):
        """Those of one model."""
        lines = []
        for name, value in [
            ("vllm:num_requests_running", int(now) % 4),
            ("vllm:num_requests_waiting", int(now) // 3 % 2),
            ("vllm:kv_cache_usage_perc", 0.3 + 0.2 * (int(now) % 3) / 2),
            ("vllm:prompt_tokens_total", int(now * 210)),
            ("vllm:generation_tokens_total", generated),
            ("vllm:prefix_cache_queries_total", int(now * 200)),
            ("vllm:prefix_cache_hits_total", int(now * 130)),
            ("vllm:spec_decode_num_draft_tokens_total", int(now * 50)),
            ("vllm:spec_decode_num_accepted_tokens_total", int(now * 31)),
        ]:
            lines += [f"# HELP {name} Help.", f"# TYPE {name} counter", f"{name}{{{labels}}} {value}"]
        for name, bounds in [
            ("vllm:time_to_first_token_seconds", [0.1, 0.25, 0.5, 1.0]),
            ("vllm:inter_token_latency_seconds", [0.01, 0.025, 0.05, 0.1]),
            ("vllm:request_queue_time_seconds", [0.3, 0.5, 0.8, 1.0]),
            ("vllm:e2e_request_latency_seconds", [0.3, 0.5, 0.8, 1.0]),
        ]:
            shares = [0.2, 0.7, 0.96, 1.0]
            for bound, share in zip(bounds, shares):
                lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {int(now * 40 * share)}')
            lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {int(now * 40)}')
            lines += [f"{name}_sum{{{labels}}} {now}", f"{name}_count{{{labels}}} {int(now * 40)}"]
        return lines


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_stub = None

    def log_message(self, *_):
        pass

    def parse_request(self):
        # Threads outlive the listening socket as long as their connections do.
        self.close_connection = True
        return not self.server_stub.is_ended and super().parse_request()

    def send(self, status, kind, body, headers=()):
        self.send_response(status)
        for name, value in [("Content-Type", kind), ("Content-Length", str(len(body))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, status, value, headers=()):
        self.send(status, "application/json", json.dumps(value).encode(), headers)

    def refuse(self, status, message, code, headers=()):
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        self.send_json(status, {"error": error}, headers)

    def is_refused(self):
        """Whether the request lacks the key, which is answered then."""
        stub = self.server_stub
        stub.authorizations.append(self.headers.get("Authorization"))
        if stub.key is None or self.headers.get("Authorization") == f"Bearer {stub.key}":
            return False
        self.refuse(401, "this server wants an API key", "invalid_api_key")
        return True

    def do_GET(self):
        stub = self.server_stub
        path = self.path.split("?")[0]
        if path == "/" or path.startswith("/web/"):
            return self.send_file("index.html" if path == "/" else path.removeprefix("/web/"))
        if self.is_refused():
            return None
        if path == "/v1/models":
            if stub.is_loading:
                return self.refuse(503, "the model is loading: reading the file", "model_loading", [("Retry-After", "2")])
            return self.send_json(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]})
        if path == "/metrics" and stub.has_metrics:
            return self.send(200, "text/plain; version=0.0.4; charset=utf-8", stub.metrics().encode())
        return self.refuse(404, f"there is nothing at {path}", "unknown_url")

    def send_file(self, name):
        path = (PAGE / name).resolve()
        if not path.is_relative_to(PAGE) or not path.is_file():
            return self.refuse(404, f"there is nothing at {self.path}", "unknown_url")
        kind = TYPES.get(path.suffix.removeprefix("."), "text/plain") + "; charset=utf-8"
        headers = [("Content-Security-Policy", policy()), ("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-cache")]
        return self.send(200, kind, path.read_bytes(), headers)

    def do_POST(self):
        stub = self.server_stub
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.is_refused():
            return
        request = json.loads(body)
        stub.requests.append(request)
        if request["messages"][-1]["content"] == "refuse":
            self.refuse(429, "the queue is full; ask again after the time in Retry-After", "queue_full", [("Retry-After", "3")])
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        # Chunks would tell a broken answer from a complete one; the close of the connection ends this one.
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.stream(stub.chat(request))
        except OSError:
            stub.left.set()

    def frame(self, value):
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def chunk(self, delta, reason=None):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        self.frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], "usage": None})

    def stream(self, pieces):
        stub = self.server_stub
        self.chunk({"role": "assistant", "content": ""})
        reason = "stop"
        for piece in pieces:
            match piece:
                case ("wait",):
                    stub.go_on.wait()
                case ("forever",):
                    for count in range(100_000):
                        self.chunk({"content": f"word{count} "})
                        time.sleep(0.01)
                case ("length",):
                    reason = "length"
                case ("break",):
                    return
                case ("error",):
                    self.frame({"error": {"message": "the request had its time", "code": "request_timeout"}})
                    return
                case {"reasoning": text}:
                    self.chunk({"reasoning_content": text})
                case text:
                    self.chunk({"content": text})
        self.chunk({}, reason)
        usage = {"prompt_tokens": 200, "completion_tokens": len(pieces), "prompt_tokens_details": {"cached_tokens": 64}}
        timings = {"predicted_per_second": 123.4, "draft_n": 4, "draft_n_accepted": 3}
        self.frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage, "timings": timings})
        self.wfile.write(b"data: [DONE]\n\n")


if __name__ == "__main__":
    server = Stub(int(sys.argv[1]) if len(sys.argv) > 1 else 8081)
    print(server.url)
    server.serve_forever()
