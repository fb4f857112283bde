#!/usr/bin/env python3
"""Kills the processes of an instant restore of a cluster by -9 while pgbench runs on it, and looks for wrong rows.

    bench/instant_kills.py REPO DIR [--worker 200] [--both 20] [--all 5] [--rest-rate 30M] [--fullbore BIN] [--bindir DIR]

As root. The cluster is one that `pgbench -i` made, with a table `cold` that has columns id and t, and DIR belongs to the user of
servers. --worker kills the worker so many times, --both worker and guardian, which a resume takes over while the server waits,
--all the server too. Rows are compared by content with those of a plain restore, since checksums do not see zeros; what
pgbench changed, by its sums.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import time

from instant import PORT, PostgresUser

CONTENT = """
select count(*), sum(hashtextextended(t::text, 47)) from cold t union all
select count(*), sum(hashtextextended(aid || ' ' || bid || filler, 47)) from pgbench_accounts union all
select count(*), sum(hashtextextended(tid || ' ' || bid, 47)) from pgbench_tellers union all
select count(*), sum(hashtextextended(bid::text, 47)) from pgbench_branches"""
SUMS = """
select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
    (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)"""


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo")
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--worker", type=int, default=200)
    parser.add_argument("--both", type=int, default=20)
    parser.add_argument("--all", type=int, default=5)
    parser.add_argument("--rest-rate", default="30M")
    parser.add_argument("--fullbore", default="fullbore")
    parser.add_argument("--bindir", type=pathlib.Path, default=pathlib.Path("/usr/lib/postgresql/15/bin"))
    parser.add_argument("--seed", type=int, default=47)
    return parser.parse_args()


class Kills:
    def __init__(self, asked):
        self.asked = asked
        self.dir = asked.dir.resolve()
        self.target = self.dir / "killed"
        self.state = self.dir / ".killed.fullbore-instant"
        self.user = PostgresUser(asked.bindir, self.dir)
        self.chance = random.Random(asked.seed)

    def restore(self, *more, target=None):
        words = [self.asked.fullbore, "restore", self.asked.repo, "--to", target or self.target, *more]
        words += ["--set", f"unix_socket_directories={self.dir}", "--set", f"port={PORT}"]
        words = [str(word) for word in words]
        return subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout

    def serve(self, *more):
        self.restore("--instant", "--start", "--bindir", self.asked.bindir, "--rest-rate", self.asked.rest_rate, "--json", *more)

    def kill(self, *names):
        try:
            status = json.loads(self.restore("--instant", "--status", "--json").splitlines()[-1])
            numbers = [status[name] for name in names]
        except (subprocess.CalledProcessError, KeyError):
            return False            # it has just ended
        killed = False
        for number in numbers:
            try:
                if b"--instant" in pathlib.Path(f"/proc/{number}/cmdline").read_bytes():
                    os.kill(number, signal.SIGKILL)
                    killed = True
            except (FileNotFoundError, ProcessLookupError):
                pass                # the worker ends before the guardian
        return killed

    def content(self):
        return self.user.query(CONTENT), self.user.query(SUMS)

    def plain(self):
        target = self.dir / "whole"
        self.restore("--quiet", target=target)
        self.user.start(target)
        found = self.content()
        self.user.end(target)
        return found[0]

    def round(self, kill, most, pause):
        """One restore; returns the kills and what pgbench counted."""
        self.serve()
        bench = self.user.popen("pgbench", "-h", self.dir, "-p", PORT, "-U", "postgres", "-n", "-c", "4", "-R", "300", "-T", "3600", "postgres")
        kills = 0
        while self.state.exists() and kills < most:
            time.sleep(self.chance.uniform(*pause))
            kills += kill()
        while self.state.exists():
            time.sleep(0.1)
        found = self.content()      # pgbench still runs: what it changes together is seen together
        done = int(self.user.query("select count(*) from pgbench_history"))
        bench.send_signal(signal.SIGTERM)
        errors = bench.communicate()[1]
        self.user.end(self.target)
        return kills, done, errors, found

    def worker(self):
        return self.kill("worker")

    def both(self):
        is_done = self.kill("guardian", "worker")
        time.sleep(self.chance.uniform(0, 1))
        return is_done and self.resume()

    def resume(self, *more):
        try:
            self.restore("--instant", "--resume", "--quiet", "--rest-rate", self.asked.rest_rate, *more)
        except subprocess.CalledProcessError:
            if self.state.exists():
                raise
        return True

    def everything(self):
        server = int((self.target / "postmaster.pid").read_text().split()[0])
        is_done = self.kill("guardian", "worker")
        if not is_done:
            return False
        backends = subprocess.run(["pgrep", "-P", str(server)], stdout=subprocess.PIPE, text=True).stdout.split()
        for number in [server, *map(int, backends)]:
            os.kill(number, signal.SIGKILL)
        while os.path.exists(f"/proc/{server}"):
            time.sleep(0.1)
        return self.resume("--start", "--bindir", self.asked.bindir)

    def run(self):
        wanted = self.plain()
        wrong = 0
        for name, kill, total, pause in [
            ("worker", self.worker, self.asked.worker, (0.02, 0.8)),
            ("worker and guardian", self.both, self.asked.both, (0.5, 2)),
            ("worker, guardian and server", self.everything, self.asked.all, (1, 3)),
        ]:
            kills = done = 0
            restores = 0
            while kills < total:
                more, transactions, errors, (content, sums) = self.round(kill, total - kills, pause)
                kills, done, restores = kills + more, done + transactions, restores + 1
                is_right = content == wanted and len(set(sums.strip().split("|"))) == 1
                wrong += not is_right
                if not is_right:
                    print(f"wrong rows:\n{wanted}{content}{sums}")
                # Only a server that is killed ends its clients.
                if "aborted" in errors and kill != self.everything:
                    wrong += 1
                    print(errors[-500:])
            print(f"{name:30} {kills:5} kills in {restores} restores, {done} transactions", flush=True)
        print(f"{wrong} wrong")
        return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(Kills(options()).run())
