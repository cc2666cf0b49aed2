"""Tests of client.py with what can happen to its identity and to the server. They run in a task:

    mkdir DIR && echo '{"faults": []}' > DIR/faults.json
    DATA=DIR taskapi dev --data-dir DIR --faults DIR/faults.json -o limits.off=true -- python3 -m unittest -v test_client
"""

import json
import os
import subprocess
import time
import unittest

import client

DATA = os.environ["DATA"]
ALLOCATIONS = "/v1/allocations"


def taskapi(*args):
    """Returns what a taskapi command prints. Tokens go through pipes alone."""
    return subprocess.run(["taskapi", *args, "--data-dir", DATA], check=True, capture_output=True, text=True, timeout=60).stdout


def fail(*faults):
    """Has the next requests fail."""
    with open(os.path.join(DATA, "faults.json"), "w", encoding="ascii") as file:
        json.dump({"faults": faults}, file)


def replace_key():
    """Replaces the key, as after a leak, and waits until the task's token file has a token of the new one."""
    before = client.Client().token()
    old = next(key["KeyID"] for key in json.loads(taskapi("keyring", "list", "--json")) if key["State"] == "active")
    taskapi("keyring", "rotate")
    taskapi("keyring", "remove", old)
    deadline = time.monotonic() + 60
    while client.Client().token() == before:
        if time.monotonic() > deadline:
            raise AssertionError("the token file is not renewed")
        time.sleep(0.01)


class StaleClient(client.Client):
    """A client that is wrong: it reads its token once."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first = super().token()

    def token(self):
        return self.first


class ImpatientClient(client.Client):
    """Another one: it does not wait."""

    def __init__(self, **options):
        super().__init__(**(options | {"sleep": lambda seconds: None}))


class BadClient(client.Client):
    """A client with a bad token."""

    def __init__(self, token):
        super().__init__(sleep=lambda seconds: None)
        self.bad = token

    def token(self):
        return self.bad


class Promises:
    """What a good client does. make makes the client under test."""

    make = client.Client

    def setUp(self):
        fail()

    def waiting(self, **options):
        """Returns a client, and the waits that it would have made."""
        waits = []
        return self.make(sleep=waits.append, **options), waits

    def test_survives_a_rotation(self):
        under_test, _ = self.waiting()
        self.assertEqual(len(under_test.get(ALLOCATIONS)), 1)
        replace_key()
        self.assertEqual(len(under_test.get(ALLOCATIONS)), 1)

    def test_comes_back_when_the_server_says(self):
        under_test, waits = self.waiting()
        fail({"path": ALLOCATIONS, "times": 2, "status": 429, "retry_after": "3s"})
        self.assertEqual(len(under_test.get(ALLOCATIONS)), 1)
        self.assertEqual(waits, [3, 3])

    def test_survives_a_server_in_trouble(self):
        for fault in ({"status": 503}, {"cut": True}, {"tear": True}):
            under_test, _ = self.waiting()
            fail(fault | {"times": 2})
            self.assertEqual(len(under_test.get(ALLOCATIONS)), 1, fault)

    def test_waits_for_no_server_that_does_not_answer(self):
        under_test, waits = self.waiting(timeout=0.3)
        fail({"hang": True})
        self.assertEqual(len(under_test.get(ALLOCATIONS)), 1)
        self.assertEqual(waits, [1])

    def test_gives_up_in_the_end(self):
        under_test, waits = self.waiting()
        fail({"status": 503, "always": True})
        with self.assertRaises(client.Refused) as refused:
            under_test.get(ALLOCATIONS)
        self.assertEqual((refused.exception.status, len(waits)), (503, client.ATTEMPTS - 1))


class TestClient(Promises, unittest.TestCase):
    """The client keeps its promises."""


class TestWrongClients(unittest.TestCase):
    """A client that does not keep a promise fails its test."""

    def assert_fails(self, wrong, promise, why):
        result = unittest.TestResult()
        type(wrong.__name__, (Promises, unittest.TestCase), {"make": wrong})(promise).run(result)
        self.assertIn(why, "".join(text for _, text in result.failures + result.errors), f"{wrong.__name__} passes {promise}")

    def test_a_client_that_reads_its_token_once(self):
        self.assert_fails(StaleClient, "test_survives_a_rotation", "client.Refused: 403: Forbidden")

    def test_a_client_that_does_not_wait(self):
        self.assert_fails(ImpatientClient, "test_comes_back_when_the_server_says", "[] != [3, 3]")


class TestRefusals(unittest.TestCase):
    """The whole catalogue of bad tokens, each with the answer that it names."""

    def setUp(self):
        fail()

    def test_every_bad_token(self):
        kinds = [json.loads(line) for line in taskapi("token", "mint", "--all").splitlines()]
        sent = 0
        for kind in kinds:
            token = kind.get("Token", "")  # those that are not UTF-8 are elsewhere
            if not kind.get("InHeader") or kind["Foreign"] or not token or not token.isascii() or len(token) > 8000:
                continue  # no header carries it, or it is bad under another issuer's key alone
            sent += 1
            with self.subTest(kind["Name"]), self.assertRaises(client.Refused) as refused:
                BadClient(token).get(ALLOCATIONS)
            self.assertEqual(refused.exception.status, kind["Status"], kind)
        self.assertGreater(sent, 100)


if __name__ == "__main__":
    unittest.main()
