"""One exchange of `soak.py` with the server: a request with a deadline, an answer read whole, or a client that leaves."""
import collections
import http.client
import json
import socket
import struct
import time

from serving import HOST
from soak_requests import Answer


class Complaint(Exception):
    """Something that a server must not do."""


class Exchange:
    """One request on one connection, to be over by its deadline."""

    def __init__(self, port, request, seconds):
        self.request, self.deadline = request, time.monotonic() + seconds
        self.connection = http.client.HTTPConnection(HOST, port, timeout=seconds)

    def send(self, share=1.0):
        """Sends the request, or only the first `share` of its body."""
        body = self.request.body if isinstance(self.request.body, str) else json.dumps(self.request.body)
        self.connection.putrequest(self.request.method, self.request.path)
        self.connection.putheader("Content-Type", "application/json")
        self.connection.putheader("Content-Length", str(len(body)))
        self.connection.endheaders()
        self.socket = self.connection.sock
        self.connection.send(body[:int(share * len(body))].encode())

    def lines(self, response):
        """The answer's lines; comments of a silent stream do not lengthen the deadline."""
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            line = response.readline()
            if not line:
                return
            yield line

    def close(self, abruptly=False):
        if abruptly and self.connection.sock:
            # What the peer sees is a reset and not an end.
            self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def count_logprobs(choice):
    told = choice.get("logprobs") or {}
    return len(told.get("tokens") or told.get("content") or [])


def read_whole(response):
    body = json.loads(response.read())
    texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in body["choices"]]
    return Answer(texts, [c["finish_reason"] for c in body["choices"]], [count_logprobs(c) for c in body["choices"]], body["usage"])


def read_stream(lines, leave_after):
    """The whole answer, or None when the client leaves after so many events."""
    texts, reasons, logprobs = collections.defaultdict(str), {}, collections.Counter()
    usage, is_done, events = None, False, 0
    for line in lines:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            is_done = True
            continue
        events += 1
        if leave_after is not None and events > leave_after:
            return None
        event = json.loads(line[6:])
        if "error" in event:
            raise Complaint(f"an error in the stream: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            index = choice["index"]
            texts[index] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            logprobs[index] += count_logprobs(choice)
            reasons[index] = choice["finish_reason"] or reasons.get(index)
    if not is_done or usage is None:
        raise Complaint("the stream ended without usage and [DONE]")
    order = sorted(texts)
    return Answer([texts[i] for i in order], [reasons[i] for i in order], [logprobs[i] for i in order], usage)


def perform(port, request, rng, deadline, leave_share):
    """Sends `request` and gives its outcome: answered, refused, busy or left. `leave_share` of the clients leave."""
    leaves = rng.choice(["unsent", "silent", "reading"]) if request.status == 200 and rng.random() < leave_share else None
    exchange = Exchange(port, request, deadline)
    try:
        exchange.send(rng.random() if leaves == "unsent" else 1.0)
        if leaves in ("unsent", "silent"):
            time.sleep(rng.random() ** 2)
            return "left"
        response = exchange.connection.getresponse()
        if response.status == 429 or response.status == 503:
            text = response.read()
            if response.getheader("Retry-After") is None:
                raise Complaint(f"{response.status} without Retry-After: {text[:200]!r}")
            return "busy"
        if response.status != request.status:
            raise Complaint(f"status {response.status} instead of {request.status}: {response.read()[:300]!r}")
        if request.status != 200:
            json.loads(response.read())["error"]["message"]
            return "refused"
        if request.body.get("stream"):
            leave_after = rng.randrange(1, 24) if leaves else None
            answer = read_stream(exchange.lines(response), leave_after)
        else:
            answer = read_whole(response)
        if answer is None:
            return "left"
        wrong = request.check(answer) or (None if set(answer.reasons) <= {"stop", "length"} else f"ended with {answer.reasons}")
        if wrong:
            raise Complaint(wrong)
        return "answered"
    finally:
        exchange.close(abruptly=bool(leaves) and rng.random() < 0.5)
