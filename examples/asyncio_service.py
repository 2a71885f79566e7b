# SPDX-License-Identifier: Apache-2.0
"""An asyncio service that works on as many requests at a time as it has CPUs, with clients of its own on the loopback.

    python asyncio_service.py [--clients N] [--requests K] [--rounds R]

A request is a password, the answer its PBKDF2 hash after R rounds, computed in a thread without Python's lock. All
answers together give one checksum. Exit 0: right. 1: wrong. 2: wrong usage.
"""

import argparse
import asyncio
import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import dromlib  # malleable


class Workers:
    """At most `size` requests are worked on at a time; the others wait for their turn."""

    def __init__(self, session: dromlib.Session, rounds: int) -> None:  # malleable
        self.size = session.grant.ncpus if session.grant else len(os.sched_getaffinity(0))  # malleable
        self.session, self.rounds, self.busy, self.done = session, rounds, 0, 0  # malleable
        self.changed, self.threads = asyncio.Condition(), ThreadPoolExecutor(os.cpu_count())

    async def hash(self, password: bytes) -> bytes:
        """Return the hash of a password, computed when a worker is free."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.busy < self.size)
            self.busy += 1
        work = (hashlib.pbkdf2_hmac, "sha256", password, b"salt", self.rounds)
        digest = await asyncio.get_running_loop().run_in_executor(self.threads, *work)
        async with self.changed:
            self.busy, self.done = self.busy - 1, self.done + 1
            self.session.progress(self.done)  # malleable
            self.changed.notify_all()
        return digest

    # malleable begin
    async def follow(self) -> None:
        """Have as many workers as the newest grant has CPUs."""
        async for grant in self.session:
            async with self.changed:
                self.size = grant.ncpus
                self.changed.notify_all()
            self.session.apply(grant)

    # malleable end
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each line of a client with a line."""
        while line := await reader.readline():
            writer.write((await self.hash(line.strip())).hex().encode() + b"\n")
        writer.close()


async def client(port: int, number: int, requests: int) -> dict[bytes, bytes]:
    """Return the answer to each of some requests, made one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = {}
    for password in (b"%d of client %d" % (request, number) for request in range(requests)):
        writer.write(password + b"\n")
        answers[password] = bytes.fromhex((await reader.readline()).decode())
    writer.close()
    return answers


async def run(clients: int, requests: int, rounds: int) -> dict[bytes, bytes]:
    """Serve all clients and return all answers."""
    with dromlib.attach() as session:  # malleable
        workers = Workers(session, rounds)  # malleable
        follower = asyncio.create_task(workers.follow())  # malleable
        async with await asyncio.start_server(workers.serve, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            answers = await asyncio.gather(*(client(port, number, requests) for number in range(clients)))
    await follower  # malleable: it ends when the session is closed
    return {password: digest for some in answers for password, digest in some.items()}


def main() -> int:
    """Run the service and its clients, look at the answers, and return the exit code."""
    parser = argparse.ArgumentParser(prog="asyncio_service")
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")  # one sentence
    for option, default in (("--clients", 8), ("--requests", 40), ("--rounds", 50000)):
        parser.add_argument(option, type=int, default=default)
    asked = parser.parse_args()
    if min(vars(asked).values()) < 1:
        parser.error("each option takes a whole number from 1.")
    answers = asyncio.run(run(**vars(asked)))
    some = list(answers.items())[:: asked.requests]  # the first of each client
    right = all(hashlib.pbkdf2_hmac("sha256", word, b"salt", asked.rounds) == digest for word, digest in some)
    checksum = hashlib.sha256(b"".join(answers.values())).hexdigest()[:16]
    print(f"asyncio_service: {len(answers)} answers, checksum {checksum} {'ok' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
