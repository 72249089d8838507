"""A `taper serve` that ends with the program that started it. Only Python's standard library."""
import http.client
import os
import shlex
import signal
import socket
import subprocess
import time

HOST = "127.0.0.1"
START_SECONDS = 120


def patience():
    """What times are multiplied by, for a machine that is busy with other things (--patience of run.py)."""
    return float(os.environ.get("CLIENTS_PATIENCE") or 1)


class DidNotStart(Exception):
    """The server is not there; the reason is the end of its log."""


def free_port(ports):
    """Takes the first port of the list that nobody listens at."""
    while ports:
        port = ports.pop(0)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                return port
            except OSError:
                continue
    raise DidNotStart("no port of the range is free")


def port_list(text):
    """The ports of "A-B"."""
    first, last = text.split("-")
    return list(range(int(first), int(last) + 1))


class TaperServer:
    """A child that serves `model` at `port` and writes its log to `log`; use it as a context."""

    def __init__(self, taper, model, port, log, flags=()):
        self.port, self.log, self.url = port, log, f"http://{HOST}:{port}"
        self.command = [taper, "serve", "--model", model, "--host", HOST, "--port", str(port), *flags]
        # Settings of whoever runs this are not the script's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAPER_")}
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                            start_new_session=True, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def wait_until_ready(self, is_tls=False):
        """Until /health is 200; with TLS, until the port is open."""
        deadline = time.monotonic() + START_SECONDS * patience()
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if is_tls:
                    socket.create_connection((HOST, self.port), 5).close()
                    return
                connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.1)
        raise DidNotStart(f"{shlex.join(self.command)}: {self.log_end()}")

    def log_end(self):
        """The last lines of the log."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return " | ".join(file.read().splitlines()[-4:])[-600:]

    def log_errors(self):
        """Lines of level ERROR and lines of a panic."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return [line.strip() for line in file if " ERROR " in line or '"level":"ERROR"' in line or "panicked" in line]

    def signal(self, number=signal.SIGTERM):
        """Sends a signal."""
        self.process.send_signal(number)

    def stop(self, seconds=30):
        """Asks it to stop; its exit status, or None if it had to be killed."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(seconds * patience())
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
