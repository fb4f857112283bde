#!/usr/bin/env python3
"""Times an instant restore of a cluster against a plain one: to the server, to the first row of a table, to all.

    bench/instant.py REPO DIR --query 'select count(*) from cold' [--rounds 3] [--late 20] [--pgbench 300] [--bindir DIR]

As root, on ext4, xfs or btrfs. DIR gets both restores in turn, and must belong to the user of servers. The table of the query should
be one that recovery does not read. With --late the repository is served by an S3 server whose answers come so many milliseconds
late. With --pgbench both restores are followed by pgbench, on a cluster that `pgbench -i` made, until so many seconds after the
command, and its transactions are counted.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

from cloud import BUCKET, KEYS, Store, delayed

PORT = "5877"


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo")
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--query", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--late", type=int, metavar="MILLISECONDS")
    parser.add_argument("--pgbench", type=int, metavar="SECONDS")
    parser.add_argument("--fullbore", default="fullbore")
    parser.add_argument("--bindir", type=pathlib.Path, default=pathlib.Path("/usr/lib/postgresql/15/bin"))
    return parser.parse_args()


class Beside:
    """Makes directories beside a repository, as Store wants them."""

    def __init__(self, repo):
        self.dir = os.path.dirname(os.path.abspath(repo))

    def fresh(self, name):
        return tempfile.mkdtemp(prefix=name, dir=self.dir)


@contextlib.contextmanager
def late_store(repo, milliseconds):
    """Serves a repository of this host by S3, with late answers."""
    store = Store(Beside(repo))
    try:
        bucket = os.path.join(store.root, BUCKET)
        shutil.copytree(repo, os.path.join(bucket, "repo"))
        for above, _, names in os.walk(bucket):
            for name in names:      # as the server notes the version of an object
                os.setxattr(os.path.join(above, name), "user.etag", name.encode())
        with store, delayed(store.port, milliseconds / 1000) as late:
            os.environ.update(KEYS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{late}", AWS_REGION="us-east-1")
            yield f"s3://{BUCKET}/repo"
    finally:
        shutil.rmtree(store.root)


class PostgresUser:
    """Runs programs of PostgreSQL as the user of servers, against the server whose socket is in a directory."""

    def __init__(self, bindir, socket_dir):
        self.bindir = bindir
        self.dir = socket_dir

    def popen(self, program, *words):
        line = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", self.bindir / program, *words]
        line = [str(word) for word in line]
        return subprocess.Popen(line, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, program, *words):
        running = self.popen(program, *words)
        out, errors = running.communicate()
        if running.returncode:
            raise SystemExit(f"{program}: {errors}")
        return out

    def query(self, sql):
        return self.run("psql", "-h", self.dir, "-p", PORT, "-U", "postgres", "-Atqc", sql, "postgres")

    def start(self, target):
        # pg_ctl would leave the server with the pipes of this program.
        words = [self.bindir / "pg_ctl", "-D", target, "-s", "-w", "-l", self.dir / "log", "start"]
        words = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *map(str, words)]
        subprocess.run(words, check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def end(self, target):
        self.run("pg_ctl", "-D", target, "-s", "-m", "immediate", "stop")
        subprocess.run(["rm", "-r", target], check=True)


class Bench:
    def __init__(self, asked):
        self.asked = asked
        self.repo = asked.repo
        self.dir = asked.dir.resolve()
        self.user = PostgresUser(asked.bindir, self.dir)

    def restore(self, target, *more):
        # What an earlier round removed is not measured here.
        os.sync()
        begun = time.monotonic()
        words = ["restore", self.repo, "--to", target, *more]
        words += ["--set", f"unix_socket_directories={self.dir}", "--set", f"port={PORT}"]
        ran = subprocess.run([self.asked.fullbore, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True)
        return begun, ran.stdout

    def transactions(self, begun):
        left = max(1, int(self.asked.pgbench - (time.monotonic() - begun)))
        out = self.user.run("pgbench", "-h", self.dir, "-p", PORT, "-U", "postgres", "-n", "-c", "4", "-j", "2", "-T", left, "postgres")
        return int(re.search(r"actually processed: (\d+)", out)[1])

    def plain(self):
        target = self.dir / "plain"
        begun, _ = self.restore(target, "--quiet")
        figures = {"plain restore": time.monotonic() - begun}
        if self.asked.pgbench:
            self.user.start(target)
            figures["transactions after a plain restore"] = self.transactions(begun)
            self.user.end(target)
        else:
            subprocess.run(["rm", "-r", target], check=True)
        return figures

    def instant(self):
        target, state = self.dir / "instant", self.dir / ".instant.fullbore-instant"
        begun, said = self.restore(target, "--instant", "--start", "--bindir", self.asked.bindir, "--json")
        served = json.loads(said.splitlines()[-1])
        figures = {"served": served["served_seconds"], "accepting": served["accepting_seconds"]}
        self.user.query(self.asked.query)
        figures["first query"] = time.monotonic() - begun
        if self.asked.pgbench:
            figures["transactions while the rest follows"] = self.transactions(begun)
        else:
            while state.exists():
                time.sleep(0.02)
            figures["all"] = time.monotonic() - begun
        while state.exists():
            time.sleep(0.1)
        self.user.end(target)
        return figures

    def run(self):
        rounds = [{**self.plain(), **self.instant()} for _ in range(self.asked.rounds)]
        for name in rounds[0]:
            print(f"{name:40}", *(f"{figures[name]:9.2f}" for figures in rounds))
        if "all" in rounds[0]:
            ratios = [figures["all"] / figures["plain restore"] for figures in rounds]
            print(f"all against a plain restore: {statistics.median(ratios):.2f}")


def main():
    bench = Bench(options())
    with contextlib.ExitStack() as stack:
        if bench.asked.late is not None:
            bench.repo = stack.enter_context(late_store(bench.repo, bench.asked.late))
        bench.run()


if __name__ == "__main__":
    main()
