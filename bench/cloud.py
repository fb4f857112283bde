"""The rows of object stores: fullbore against restic, to the same S3 server on the loopback interface.

The server is versitygw, as the tests have it (scripts/object-stores), with its objects on disk: it keeps metadata in extended
attributes, which not every tmpfs has.
"""

import json
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

from measure import Failed, Side, run
from table import Line, wall_line

KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "benchbenchbench"}
BUCKET = "bench"
HERE = os.path.dirname(os.path.abspath(__file__))
SERVER = os.path.join(os.environ.get("FULLBORE_OBJECT_STORES") or os.path.join(HERE, "..", "target", "object-stores"),
                      "bin", "versitygw")
BARE = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(HERE, "bare-store", "target"), "release", "bare-store")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Store:
    """A server for the time of a row."""

    def __init__(self, work):
        self.root = work.fresh("store")
        os.mkdir(os.path.join(self.root, BUCKET))
        self.port = free_port()

    def __enter__(self):
        if not os.access(SERVER, os.X_OK):
            raise Failed(f"no server at {SERVER}: run scripts/object-stores")
        self.server = subprocess.Popen(
            [SERVER, "--port", f"127.0.0.1:{self.port}", "--access", KEYS["AWS_ACCESS_KEY_ID"], "--secret",
             KEYS["AWS_SECRET_ACCESS_KEY"], "--keep-alive", "--quiet", "posix", self.root],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.02)
        raise Failed("the server does not listen")

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()

    def empty(self):
        """Deletes all objects."""
        bucket = os.path.join(self.root, BUCKET)
        while os.path.exists(bucket):       # the server may still clear away an upload
            shutil.rmtree(bucket, ignore_errors=True)
        os.mkdir(bucket)

    def url(self):
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def delayed(port, seconds, host="127.0.0.1", own=0):
    """The port of a proxy that holds back what a server sends for so long; any that is free, or `own`."""
    listener = socket.create_server(("127.0.0.1", own))

    def carry(source, target, pause):
        held = []       # what came, and when it may go
        try:
            while True:
                left = max(0, held[0][0] - time.monotonic()) if held else None
                if select.select([source], [], [], left)[0]:
                    data = source.recv(1 << 18)
                    if not data:
                        break
                    held.append((time.monotonic() + pause, data))
                while held and held[0][0] <= time.monotonic():
                    target.sendall(held.pop(0)[1])
            for due, data in held:
                time.sleep(max(0, due - time.monotonic()))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass        # either end is gone

    def accept():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((host, port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=carry, args=(client, server, 0), daemon=True).start()
            threading.Thread(target=carry, args=(server, client, seconds), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


class Cloud:
    """The rows, for a Bench."""

    def __init__(self, bench):
        self.bench = bench

    # ------------------------------------------------------------- ingredients

    def env(self, store, port=None):
        return {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or store.port}",
                "XDG_CACHE_HOME": os.path.join(store.root, "cache")}

    def fullbore(self, store, *args, port=None):
        return Side([self.bench.fullbore, *args], env=self.env(store, port))

    def restic(self, store, *args):
        env = {**self.env(store), "RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": os.path.join(store.root, "restic")}
        return Side(["restic", "-q", "-r", f"s3:{store.url()}/{BUCKET}/restic", *args], env=env)

    def first_backups(self, store, corpus):
        """Backups into an empty store."""
        ours = self.fullbore(store, "backup", corpus.path, "--to", f"s3://{BUCKET}/ours", "--no-encryption")
        theirs = self.restic(store, "backup", corpus.path)

        def init():
            store.empty()
            shutil.rmtree(os.path.join(store.root, "restic"), ignore_errors=True)
            run(self.restic(store, "init").command, theirs.env)
        return (replace(ours, prepare=store.empty, source=corpus.cached),
                replace(theirs, prepare=init, source=corpus.cached))

    def counts(self, side):
        """What a run of fullbore says of the store."""
        done = subprocess.run([*side.command, "--json"], env={**os.environ, **side.env}, check=True, text=True,
                              stdout=subprocess.PIPE)
        return json.loads(done.stdout.splitlines()[-1])["store"]

    def requests(self, row, what, side, target):
        counts = self.counts(side)
        return Line(row, f"requests, {what}", counts["requests"], target, unit="", commands=[side.command],
                    raw=[counts["requests"]])

    # -------------------------------------------------------------------- rows

    def backup(self, row, name, target):
        corpus = self.bench.corpus(name)
        with Store(self.bench.work) as store:
            ours, theirs = self.first_backups(store, corpus)
            yield wall_line(row, "wall, to S3 on loopback, restic", target, self.bench.alternate(ours, theirs))
            store.empty()
            side = replace(ours, prepare=lambda: None)
            yield self.requests(row, "first backup", side, None)
            time.sleep(3)       # what is as young as a backup is read again
            self.counts(side)
            yield self.requests(row, "no change", side, 13)

    def restore(self, row, name, target):
        corpus = self.bench.corpus(name)
        with Store(self.bench.work) as store:
            ours, theirs = self.first_backups(store, corpus)
            theirs()
            replace(ours, prepare=lambda: None)()
            back = self.bench.into(corpus, lambda to: [
                self.bench.fullbore, "restore", f"s3://{BUCKET}/ours", "--to", to])
            restic = self.restic(store, "restore", "latest", "--target")

            def from_restic(to):
                return [*restic.command, to]
            # restic restores below the whole path of the source, so its count is that of the tree itself.
            peer = replace(self.bench.into(corpus, from_restic), env=restic.env)
            back = replace(back, env=ours.env)
            yield wall_line(row, "wall, from S3 on loopback, restic", target, self.bench.alternate(back, peer))

    def bare(self, store, port, *args):
        return Side([BARE, *args], env={**self.env(store, port), "AWS_REGION": "us-east-1",
                                              "AWS_CHECKSUM_ALGORITHM": "crc64nvme"})

    def large(self, row, milliseconds, size, target):
        """One large file to the store and back, each answer so late, against a client that does nothing else."""
        if not os.access(BARE, os.X_OK):
            raise Failed(f"no client at {BARE}: cargo build --release in bench/bare-store")
        image = os.path.join(self.bench.corpus("huge").path, "huge.img")
        folder = self.bench.work.fresh("source")
        file = os.path.join(folder, "large.img")
        run(f"head -c {size} {image} > {file}")
        late = f"{milliseconds} ms late, " if milliseconds else ""
        with Store(self.bench.work) as store, delayed(store.port, milliseconds / 1000) as proxy:
            port = proxy if milliseconds else store.port
            there = f"s3://{BUCKET}/ours"
            ours = self.fullbore(store, "backup", folder, "--to", there, "--no-encryption", "--compress", "none", port=port)
            bare = self.bare(store, port, "up", BUCKET, "bare", file)
            up = self.bench.alternate(replace(ours, prepare=store.empty), replace(bare, prepare=store.empty))
            yield wall_line(row, f"wall, {late}upload of {size >> 30} GiB, a bare client", target, up)
            store.empty()
            ours()
            bare()
            to = self.bench.work.path("restored", on_disk=True)

            def fresh():
                self.bench.work.fresh("restored")
            back = replace(self.fullbore(store, "restore", there, "--to", to, port=port), prepare=fresh)
            down = replace(self.bare(store, port, "down", BUCKET, "bare", os.path.join(to, "large.img")), prepare=fresh)
            yield wall_line(row, f"wall, {late}download of {size >> 30} GiB, a bare client", target,
                            self.bench.alternate(back, down))
