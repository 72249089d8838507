#!/usr/bin/env python3
"""Clients that mean harm, beside one that does not. Only Python's standard library.

    run.py hostile       (the server `tls` is one with --tls-cert and --tls-key)

A healthy client, a process of its own, streams short answers on one connection all the time. First it is measured alone,
then during each attack, and alone again for a while before each. An attack passes if it was answered as it should be (never by a 5xx), the healthy client got all
of its answers, the p99 of its time to the first token is at most `--factor` times that of its last answers alone, and the server's
memory (RssAnon) stays below `--memory` MiB more than before. The attackers run at the lowest priority of processes, so
that it is the server that they cost and not the machine that a distant attacker does not share. On a machine of few cores
a system's scheduler gives them whole ticks of one all the same: a note says what a program costs the healthy client that
only computes at that priority.
"""
import collections
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import re
import resource
import select
import socket
import ssl
import struct
import tempfile
import threading
import time

from checks import check, equal, expect, main, memory_kib, other_server, percentile, place, request, settle

# How long the server waits for headers, for a handshake and for the next bytes of a body, and a margin.
HEADER_SECONDS, MARGIN_SECONDS = 30, 15
# Of an attack: samples of the healthy client, at least.
SAMPLES = 100
# Alone: those that an attack is compared with.
LAST_ALONE = 1000
COMPLETION = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}


def healthy_client(url, samples, leave):
    """Streams short answers until told to leave; appends `[begun, seconds to the first token or None, complaint or None]` to a file.

    It has one thread: another one that it waits for would want a core of its own, and that is not what is measured.
    """
    connection, number = http.client.HTTPConnection(*place(url), timeout=60), 0
    samples = os.open(samples, os.O_WRONLY | os.O_APPEND)
    while not leave.is_set():
        number += 1
        begun, first, complaint = time.monotonic(), None, None
        try:
            body = json.dumps({"prompt": f"Question {number}:", "max_tokens": 6, "temperature": 0, "stream": True, "ignore_eos": True})
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            lines = []
            for line in response:
                if first is None and line.startswith(b"data: {"):
                    first = time.monotonic() - begun
                lines.append(line.strip())
            # The connection is kept only when the end has been read.
            response.read()
            if response.status != 200 or b"data: [DONE]" not in lines or first is None:
                complaint = f"status {response.status}, the end is {lines[-2:]!r}"
        except Exception as error:  # noqa: BLE001
            complaint = f"{type(error).__name__}: {error}"
            connection.close()
        os.write(samples, json.dumps([begun, first, complaint]).encode() + b"\n")


class Arena:
    """The server, the healthy client and what it saw."""

    def __init__(self, args):
        self.args, self.url, self.pid = args, args.base_url, args.pid
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.samples, self.rest, self.leave = tempfile.NamedTemporaryFile(), b"", multiprocessing.Event()
        self.healthy = multiprocessing.Process(target=healthy_client, args=(self.url, self.samples.name, self.leave), daemon=True)
        self.healthy.start()
        os.nice(19)
        time.sleep(2)
        # The speed of a machine that others use changes within minutes.
        self.last_alone, self.all_alone, self.all_attacked = collections.deque(maxlen=LAST_ALONE), [], []
        self.be_alone(args.alone)
        beside = percentile(self.without_attack(args.seconds, lambda: sum(range(10_000))), 0.99)
        self.memory = memory_kib(self.pid)
        print(f"note {len(self.all_alone)} answers alone: p99 of the first token after {self.alone() * 1e3:.1f} ms; RssAnon {self.memory / 1024:.0f} MiB", flush=True)
        print(f"note beside a program that only computes, at the attackers' priority: {beside * 1e3:.1f} ms ({beside / self.alone():.2f} times)", flush=True)

    def taken(self):
        """The samples that have come."""
        # A line that crosses a page is seen half written.
        *lines, self.rest = (self.rest + self.samples.read()).split(b"\n")
        return [json.loads(line) for line in lines]

    def without_attack(self, seconds, meanwhile):
        """The healthy client's times to the first token."""
        self.taken()
        samples, deadline = [], time.monotonic() + seconds
        while time.monotonic() < deadline or len(samples) < SAMPLES:
            meanwhile()
            samples += self.taken()
        complaints = [complaint for _, _, complaint in samples if complaint]
        if complaints:
            raise SystemExit(f"the healthy client without an attack: {complaints[0]}")
        return [first for _, first, _ in samples]

    def be_alone(self, seconds):
        """Measures the healthy client alone."""
        samples = self.without_attack(seconds, lambda: time.sleep(0.1))
        self.last_alone += samples
        self.all_alone += samples

    def alone(self):
        """The p99 of its time to the first token, of its last answers alone."""
        return percentile(self.last_alone, 0.99)

    def under(self, attack):
        """Repeats the attack for its time; figures, or the failure of the healthy client."""
        self.be_alone(self.args.between)
        begun, worst, samples, rounds = time.monotonic(), 0, [], 0
        watching = threading.Event()

        def watch():
            nonlocal worst
            while not watching.wait(0.05):
                worst = max(worst, memory_kib(self.pid))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            while time.monotonic() - begun < self.args.seconds or len(samples) < SAMPLES:
                attack()
                rounds += 1
                samples += self.taken()
        finally:
            watching.set()
            thread.join()
        samples = [sample for sample in samples if sample[0] > begun]
        complaints = [complaint for _, _, complaint in samples if complaint]
        expect(not complaints, f"{len(complaints)} of the healthy client's {len(samples)} answers failed, the first: {complaints[:1]}")
        self.all_attacked += [first for _, first, _ in samples]
        grown = (worst - self.memory) / 1024
        expect(grown < self.args.memory, f"RssAnon grew by {grown:.0f} MiB")
        p99 = percentile([first for _, first, _ in samples], 0.99)
        alone = self.alone()
        figures = f"{rounds} rounds, first token p99 {p99 * 1e3:.1f} ms ({p99 / alone:.2f} times {alone * 1e3:.1f}), RssAnon {grown:+.0f} MiB"
        expect(p99 <= self.args.factor * alone, figures)
        return figures


def attack(name, seconds=300):
    """Registers an attack, a function of the address: a check under which the healthy client is watched."""
    def register(function):
        check(name, seconds)(lambda t: t.under(lambda: function(t)))
        return function
    return register


def connect(url, timeout=20):
    sock = socket.create_connection(place(url), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_all(sock, seconds=20):
    """What the server says until it closes or is silent for so long."""
    said = b""
    sock.settimeout(seconds)
    try:
        while chunk := sock.recv(65536):
            said += chunk
    except (TimeoutError, ConnectionError, ssl.SSLError):
        pass
    return said


def talk(url, data, seconds=20, half_close=False):
    """Sends bytes and reads until the end. A server may answer and close before it has read everything."""
    with connect(url) as sock:
        # A full answer may wait while the rest cannot be sent any more, or nothing at all (ENOTCONN is no ConnectionError).
        with contextlib.suppress(OSError):
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        return read_all(sock, seconds)


def statuses(said):
    """The statuses of all answers in these bytes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3})", said)]


def post(body, path="/v1/completions", headers="", length=None):
    """The bytes of a request."""
    length = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n".encode() + body


def answered(said, allowed, what):
    """All statuses are of these; no answer at all (a closed connection) is allowed where 0 is."""
    got = statuses(said) or [0]
    expect(all(status in allowed for status in got), f"{what} is answered with {got}, not one of {sorted(allowed)}: {said[:200]!r}")
    return got


def tls_client():
    """What a TLS client needs that trusts everybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# Made once: it is not the attackers that are to be busy.
TLS_CLIENT = tls_client()
CLOSING = "Connection: close\r\n"
GOOD = post(json.dumps(COMPLETION).encode(), headers=CLOSING)


def in_threads(count, call):
    """Runs call(index) in so many threads; raises the first failure."""
    failures = []

    def guarded(index):
        try:
            call(index)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def wait_for_ends(sockets, seconds, each_second=lambda sock: None):
    """Waits until the server has ended all of them; what it said on each."""
    said, waiting = {sock: b"" for sock in sockets}, set(sockets)
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        ready = select_readable(waiting, 1)
        for sock in ready:
            try:
                chunk = sock.recv(65536)
            except ConnectionError:
                chunk = b""
            said[sock] += chunk
            if not chunk:
                waiting.discard(sock)
        if not ready:
            for sock in list(waiting):
                try:
                    each_second(sock)
                except OSError:
                    waiting.discard(sock)
    expect(not waiting, f"{len(waiting)} of {len(said)} connections are still open after {seconds} s")
    return list(said.values())


def select_readable(sockets, seconds):
    poll = select.poll()
    by_number = {sock.fileno(): sock for sock in sockets}
    for number in by_number:
        poll.register(number, select.POLLIN | select.POLLHUP)
    return [by_number[number] for number, _ in poll.poll(seconds * 1000)]


@contextlib.contextmanager
def connections(url, count):
    """Open connections."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(url)) for _ in range(count)]


@attack("slow_headers")
def _(t):
    # A byte a second of a header that never ends, on 200 connections.
    with connections(t.url, 200) as sockets:
        for sock in sockets:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        said = wait_for_ends(sockets, HEADER_SECONDS + MARGIN_SECONDS, lambda sock: sock.send(b"a"))
    for one in said:
        answered(one, {0, 408}, "a header that never ends")


@attack("stalled_bodies")
def _(t):
    # Ten bytes of a thousand, then nothing.
    with connections(t.url, 200) as sockets:
        for sock in sockets:
            sock.sendall(post(b'{"prompt":', length=1000))
        said = wait_for_ends(sockets, HEADER_SECONDS + MARGIN_SECONDS)
    for one in said:
        answered(one, {0, 408}, "a body that does not come")


@attack("slow_bodies")
def _(t):
    # A byte at a time, then leaving.
    with connections(t.url, 200) as sockets:
        for sock in sockets:
            sock.sendall(post(b"", length=1 << 20))
        for _ in range(10):
            for sock in sockets:
                sock.send(b" ")
            time.sleep(0.3)


@attack("silent_connections")
def _(t):
    # Not a byte: they must go some time.
    with connections(t.url, 200) as sockets:
        wait_for_ends(sockets, HEADER_SECONDS + MARGIN_SECONDS)


@attack("half_closed")
def _(t):
    def one(_):
        answered(talk(t.url, GOOD, half_close=True), {0, 200}, "a whole request on a half-closed connection")
        answered(talk(t.url, GOOD[:-10], half_close=True), {0, 400, 408}, "half a request on a half-closed connection")
    in_threads(8, one)


@attack("body_of_100_mb")
def _(t):
    filler = b" " * (1 << 20)

    def one(index):
        chunked = index % 2
        with connect(t.url) as sock:
            head = post(b"", length=100 << 20)
            if chunked:
                head = head.replace(b"Content-Length: 104857600", b"Transfer-Encoding: chunked")
            with contextlib.suppress(ConnectionError, TimeoutError):
                sock.sendall(head)
                for _ in range(100):
                    sock.sendall(b"100000\r\n" + filler + b"\r\n" if chunked else filler)
            answered(read_all(sock), {0, 413, 503}, "a body of 100 MB")
    in_threads(4, one)


@attack("body_of_100_mb_is_told_413")
def _(t):
    # Announced and not sent: the answer does not wait for it.
    equal(answered(talk(t.url, post(b"", length=100 << 20), seconds=10), {413}, "a body of 100 MB that is announced"), [413], "statuses")


@attack("bodies_to_nowhere")
def _(t):
    # Much that nobody asked for, by those who leave before it is thrown away.
    head = post(b"", path="/nowhere", length=100 << 20)

    def one(_):
        for _ in range(5):
            with connect(t.url) as sock, contextlib.suppress(ConnectionError, TimeoutError):
                sock.sendall(head + b" " * (1 << 20))
    in_threads(4, one)


@attack("tiny_chunks_to_nowhere")
def _(t):
    head = post(b"", path="/nowhere", headers=CLOSING).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")

    def one(_):
        answered(talk(t.url, head + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n", seconds=5), {0, 404}, "a body of 100,000 chunks")
    in_threads(4, one)


@attack("many_headers")
def _(t):
    headers = "".join(f"X-H{index}: a\r\n" for index in range(10_000))
    answered(talk(t.url, post(b"{}", headers=headers + CLOSING)), {0, 400, 431}, "10,000 headers")


@attack("large_headers")
def _(t):
    for size in (1 << 20, 10 << 20):
        answered(talk(t.url, post(b"{}", headers=f"X-H: {'a' * size}\r\n")), {0, 400, 431}, f"a header of {size >> 20} MiB")
        answered(talk(t.url, post(b"{}", path="/v1/" + "a" * size)), {0, 400, 414, 431}, f"a path of {size >> 20} MiB")


@attack("large_headers_for_ever")
def _(t):
    # 50 connections with headers that go on and on, 1 MiB each as long as the server reads.
    def one(_):
        with connect(t.url) as sock:
            with contextlib.suppress(ConnectionError, TimeoutError):
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
                for index in range(256):
                    sock.sendall(f"X-{index}: {'a' * 4000}\r\n".encode())
            answered(read_all(sock, 5), {0, 400, 431}, "headers without an end")
    in_threads(50, one)


@attack("invalid_utf8")
def _(t):
    for body in (b'{"prompt": "\xff\xfe"}', b"\xff" * 1000, b'{"\xc3\x28": 1, "prompt": "a"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\\ud800"}'):
        answered(talk(t.url, post(body, headers=CLOSING)), {400}, f"the body {body[:20]!r}")
    answered(talk(t.url, b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), {0, 400, 404}, "a path of no characters")
    answered(talk(t.url, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: \xff\xfe\r\nx-request-id: \xff\r\nConnection: close\r\n\r\n"), {200, 400}, "a header of no characters")


@attack("deep_json")
def _(t):
    levels = 100_000
    deep = b"[" * levels + b"]" * levels
    objects = b'{"a":' * levels + b"1" + b"}" * levels
    bodies = [deep, b"[" * levels, objects, b'{"prompt": ' + deep + b"}", b'{"prompt": "a", "unknown": ' + objects + b"}"]
    schema = b'{"type":"array","items":' * levels + b"{}" + b"}" * levels
    bodies.append(b'{"prompt": "a", "max_tokens": 1, "guided_json": ' + schema + b"}")
    for body in bodies:
        answered(talk(t.url, post(body, headers=CLOSING)), {400}, f"100,000 levels of {body[:30]!r}")
    answered(talk(t.url, post(b'{"messages": ' + deep + b"}", "/v1/chat/completions", CLOSING)), {400}, "100,000 levels of messages")


@attack("strange_json")
def _(t):
    for body in (b"", b"null", b"[]", b"1e999999", b'{"prompt": "a", "max_tokens": 1e400}', b'{"prompt": "a", "n": -9223372036854775809}',
                 b'{"prompt": "a", "prompt": "b", "max_tokens": 1', b'{"prompt": "' + b"a" * 1000, b'{"prompt": NaN}', b"\x00" * 1000,
                 b'{"prompt": ' + b"[1," * 1000 + b"1" + b"]" * 1000 + b"}", b'{"temperature": ' + b"9" * 100_000 + b"}"):
        answered(talk(t.url, post(body, headers=CLOSING)), {400}, f"the body {body[:30]!r}")


@attack("wrong_content_length")
def _(t):
    body = json.dumps(COMPLETION).encode()
    answered(talk(t.url, post(body, length=len(body) + 100), half_close=True), {0, 400}, "a body that ends too soon")
    answered(talk(t.url, post(body + b"garbage\r\n\r\n", length=len(body), headers="")), {200, 400}, "a body that is longer than announced")
    answered(talk(t.url, post(body, length=5, headers="")), {400}, "a body of which five bytes are announced")
    for length in ("-1", "five", "18446744073709551616", "1, 2", "+5", "0x10"):
        answered(talk(t.url, post(body, length=length)), {0, 400, 413}, f"Content-Length: {length}")
    answered(talk(t.url, post(body, headers="Content-Length: 3\r\n")), {0, 400}, "two lengths")
    both = post(b"0\r\n\r\n", headers="Transfer-Encoding: chunked\r\n" + CLOSING, length=5)
    answered(talk(t.url, both), {0, 400}, "a length and chunks")


@attack("bad_chunks")
def _(t):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    for body in (b"ZZZ\r\nabc\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFFF\r\nabc", b"-5\r\nabc\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n", b"5" * 10_000, b"\r\n" * 100,
                 b"1;" + b"a" * 100_000 + b"\r\na\r\n0\r\n\r\n", b"3\r\n{}}\r\n0\r\n" + b"X: a\r\n" * 10_000 + b"\r\n", os.urandom(2000)):
        answered(talk(t.url, head + body, seconds=10, half_close=True), {0, 400, 408, 413, 431}, f"the chunks {body[:20]!r}")
    with connect(t.url) as sock:
        # A body of one-byte chunks is odd and right.
        sock.sendall(head + b"".join(b"1\r\n%c\r\n" % byte for byte in json.dumps(COMPLETION).encode()) + b"0\r\n\r\n")
        answered(read_all(sock), {200}, "a body of chunks of one byte")


@attack("pipelining")
def _(t):
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    said = talk(t.url, ask * 99 + b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    equal(statuses(said), [200] * 99 + [404], "the statuses of 100 requests at once")
    # Completions one behind the other, by someone who leaves without reading.
    with connect(t.url) as sock:
        sock.sendall(GOOD.replace(CLOSING.encode(), b"") * 50)


@attack("not_http")
def _(t):
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(506)
    for data in (hello, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 1000, os.urandom(1000), b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n", b"\r\n" * 1000,
                 b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /health HTTP/1.1\r\nHost : t\r\n\r\n",
                 b"GET /health HTTP/1.1\nHost: localhost\n\n", "SSH-2.0-OpenSSH_9.9\r\n".encode(), b"*1\r\n$4\r\nPING\r\n"):
        answered(talk(t.url, data, seconds=5, half_close=True), {0, 200, 400, 404, 405, 505}, f"{data[:20]!r}")


@attack("tls_client_to_plain_port")
def _(t):
    with connect(t.url) as sock, contextlib.suppress(ssl.SSLError, OSError):
        TLS_CLIENT.wrap_socket(sock)
        expect(False, "the plain port speaks TLS")


@attack("resets")
def _(t):
    # Connections that are reset: at once, in the middle of a request, in the middle of an answer.
    stream = post(json.dumps({**COMPLETION, "max_tokens": 200, "stream": True, "ignore_eos": True}).encode())
    for data in (b"", GOOD[: len(GOOD) // 2], GOOD, stream):
        for _ in range(25):
            sock = connect(t.url)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(data)
            sock.close()


@attack("methods_and_paths")
def _(t):
    rng = random.Random(1)
    for _ in range(50):
        method = rng.choice(["TRACE", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW", "A" * 500])
        path = rng.choice(["/v1/completions", "/v1/models/../../etc/passwd", "/%00", "/%2e%2e/%2e%2e", "//", "/v1/models/" + "%25" * 500, "/metrics", "*"])
        said = talk(t.url, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{CLOSING}Content-Length: 0\r\n\r\n".encode(), seconds=10)
        got = statuses(said) or [0]
        expect(all(status < 500 for status in got), f"{method[:10]} {path[:40]} is answered with {got}")


@attack("bursts_of_connections")
def _(t):
    in_threads(16, lambda _: [connect(t.url).close() for _ in range(50)])


@check("idle_connections", seconds=600)
def _(t):
    held = []

    def hold():
        if held:
            time.sleep(0.5)
            return
        for _ in range(t.args.idle):
            try:
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(place(t.url))
                held.append(sock)
            except OSError:
                break
            # The backlog of a listening socket is short.
            if len(held) % 100 == 0:
                time.sleep(0.02)
        time.sleep(1)

    figures = None
    try:
        figures = t.under(hold)
        poll = select.poll()
        for sock in held:
            poll.register(sock.fileno(), select.POLLOUT | select.POLLIN | select.POLLHUP)
        events = poll.poll(0)
        is_open = sum(1 for _, event in events if event & select.POLLOUT and not event & (select.POLLHUP | select.POLLERR | select.POLLIN))
        expect(len(held) >= min(1000, t.args.idle), f"this process may only have {len(held)} sockets")
        return f"{len(held)} asked for, {is_open} are held open; {figures}"
    finally:
        for sock in held:
            sock.close()


# TLS

def tls_health(url):
    """The status of /health over TLS."""
    with TLS_CLIENT.wrap_socket(connect(url), server_hostname="localhost") as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return statuses(read_all(sock, 10))


@check("tls.healthy")
def _(t):
    equal(tls_health(other_server(t.args, "tls")), [200], "the status of /health over TLS")


@check("tls.plain_bytes")
def _(t):
    url = other_server(t.args, "tls")

    def attack():
        for data in (GOOD, b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000), b"\x00" * 1000, b"\x16\x03\x01\xff\xff" + b"a" * 100):
            answered(talk(url, data, seconds=5, half_close=True), {0, 400}, f"{data[:20]!r} to the TLS port")
        equal(tls_health(url), [200], "the status of /health over TLS")
    return t.under(attack)


@check("tls.broken_handshakes")
def _(t):
    url = other_server(t.args, "tls")
    # A true ClientHello, to be broken.
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        TLS_CLIENT.wrap_bio(incoming, outgoing).do_handshake()
    hello, rng = outgoing.read(), random.Random(1)

    def attack():
        for _ in range(20):
            cut = rng.randrange(1, len(hello))
            talk(url, hello[:cut], seconds=2, half_close=True)
            broken = bytearray(hello)
            for _ in range(5):
                broken[rng.randrange(5, len(hello))] = rng.randrange(256)
            talk(url, bytes(broken), seconds=2, half_close=True)
        equal(tls_health(url), [200], "the status of /health over TLS")
    return t.under(attack)


@check("tls.stalled_handshakes", seconds=300)
def _(t):
    url = other_server(t.args, "tls")

    def attack():
        with connections(url, 200) as sockets:
            for sock in sockets:
                sock.sendall(b"\x16\x03\x01")
            equal(tls_health(url), [200], "the status of /health beside them")
            wait_for_ends(sockets, HEADER_SECONDS + MARGIN_SECONDS)
    return t.under(attack)


# After all of that

@check("after.first_token_over_all_attacks")
def _(t):
    expect(t.all_attacked, "no attack was run")
    p99, alone = percentile(t.all_attacked, 0.99), percentile(t.all_alone, 0.99)
    figures = f"{len(t.all_attacked)} answers, p99 {p99 * 1e3:.1f} ms, {p99 / alone:.2f} times that of {len(t.all_alone)} alone, {alone * 1e3:.1f} ms"
    expect(p99 <= t.args.factor * alone, figures)
    return figures


@check("after.at_rest")
def _(t):
    t.leave.set()
    t.healthy.join(30)
    settle(t.url, 60)
    equal(request(t.url, "POST", "/v1/completions", COMPLETION)[0], 200, "the status of a request")


@check("after.memory")
def _(t):
    grown = (memory_kib(t.pid) - t.memory) / 1024
    expect(grown < t.args.memory / 4, f"RssAnon is {grown:.0f} MiB more than before")
    return f"RssAnon {grown:+.1f} MiB"


def add(parser):
    parser.add_argument("--seconds", type=float, default=10, help="the shortest time of an attack: some 700 answers, of whose times the p99 is the seventh longest [default: %(default)s]")
    parser.add_argument("--alone", type=float, default=15, help="how long the healthy client is measured alone at first [default: %(default)s]")
    parser.add_argument("--between", type=float, default=4, help="and again before each attack [default: %(default)s]")
    parser.add_argument("--factor", type=float, default=2, help="how much later the first token may come [default: %(default)s]")
    parser.add_argument("--memory", type=float, default=512, metavar="MIB", help="how much memory attacks may cost [default: %(default)s]")
    parser.add_argument("--idle", type=int, default=10_000, help="idle connections [default: %(default)s]")


if __name__ == "__main__":
    main(__doc__, Arena, add)
