"""A client of Nomad's API in a task, with Python's standard library alone.

It survives what happens to identities and to servers: the token is read for each attempt, since its file is replaced, and a server that is
busy is asked again after the time that it says. It knows nothing of taskapi: it would run unchanged as a task of a Nomad client.
"""

import http.client
import json
import os
import socket
import time

ATTEMPTS = 5


class Refused(Exception):
    """The server has said no. status is that of HTTP."""

    def __init__(self, status, words):
        super().__init__(f"{status}: {words}")
        self.status = status


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path, timeout):
        super().__init__("task", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Client:
    """Asks the task's socket, as the task."""

    def __init__(self, env=os.environ, timeout=10.0, sleep=time.sleep):
        self.socket = env["NOMAD_UNIX_ADDR"].removeprefix("unix://")
        self.token_file = os.path.join(env["NOMAD_SECRETS_DIR"], "nomad_token")
        self.timeout, self.sleep = timeout, sleep

    def token(self):
        """Returns the token as it is now."""
        with open(self.token_file, encoding="ascii") as file:
            return file.read().strip()

    def get(self, path):
        """Returns what is at a path. Raises Refused, OSError, http.client.HTTPException."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                status, pause, body = self.ask(path)
            except (OSError, http.client.HTTPException):
                if attempt == ATTEMPTS:
                    raise
                self.sleep(1)
                continue
            if status == 200:
                return json.loads(body)
            if status not in (429, 502, 503, 504) or attempt == ATTEMPTS:
                raise Refused(status, body.decode(errors="replace"))
            self.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def ask(self, path):
        """Returns the status, the seconds after which to ask again, and the body."""
        connection = UnixConnection(self.socket, self.timeout)
        try:
            connection.request("GET", path, headers={"X-Nomad-Token": self.token()})
            response = connection.getresponse()
            pause = response.getheader("Retry-After", "1")
            return response.status, min(int(pause), 60) if pause.isdigit() else 1, response.read()
        finally:
            connection.close()


if __name__ == "__main__":
    for alloc in Client().get("/v1/allocations"):
        print(alloc["ID"], alloc["JobID"], alloc["ClientStatus"])
