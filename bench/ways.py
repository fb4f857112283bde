#!/usr/bin/env python3
"""The ways to a running cluster of PostgreSQL: its files, SQL and the protocol, against pg_basebackup and bare sessions.

    ways.py --fullbore BINARY --bin DIR [--scale 65] [--rounds 5] [--peer-bin DIR]

Makes a cluster with pgbench in /dev/shm, and lets the sides take turns. A side reads everything and throws it away. Prints for each side the median of its
seconds, its ratio to a reference in the same round, the server's processor seconds a GB, and the most memory of one process of the client. `--peer-bin` has a
pg_basebackup, if `--bin` has none. Sides that the server compresses are left out if it has no zstd.
"""

import argparse
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from statistics import median

ROOT = "/dev/shm/fullbore-ways"
SETTINGS = ["fsync=off", "shared_buffers=256MB", "listen_addresses=''", "max_wal_size=4GB", "autovacuum=off"]
TICK = os.sysconf("SC_CLK_TCK")
PIPE, SERVER_ZSTD, COPY_FIRST = "pg_basebackup -Ft, to a pipe", "pg_basebackup -Ft, server-zstd:1, workers 2", "pg_basebackup -Fp, then fullbore of it, zstd:1"


def as_postgres(command):
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command] if os.geteuid() == 0 else command


class Ways:
    def __init__(self, options):
        self.options = options
        self.data = f"{ROOT}/data"

    def tool(self, name):
        own = os.path.join(self.options.bin, name)
        return own if os.path.exists(own) else os.path.join(self.options.peer_bin, name)

    def run(self, name, *args):
        done = subprocess.run(as_postgres([self.tool(name), *args]), check=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return done.stdout.strip()

    def ask(self, sql):
        return self.run("psql", "-h", ROOT, "-U", "postgres", "-Atc", sql, "b")

    @contextmanager
    def cluster(self):
        shutil.rmtree(ROOT, ignore_errors=True)
        os.makedirs(ROOT)
        if os.geteuid() == 0:
            shutil.chown(ROOT, "postgres", "postgres")
        self.run("initdb", "-D", self.data, "--no-sync", "-U", "postgres", "-A", "trust", "-k")
        with open(f"{self.data}/postgresql.conf", "a") as conf:
            conf.write("\n".join(SETTINGS) + "\n")
        subprocess.run(as_postgres([self.tool("pg_ctl"), "-D", self.data, "-w", "-s", "-l", f"{ROOT}/log", "-o", f"-k {ROOT}", "start"]), check=True, cwd=ROOT)
        try:
            self.run("createdb", "-h", ROOT, "-U", "postgres", "b")
            self.run("pgbench", "-h", ROOT, "-U", "postgres", "-i", "-s", str(self.options.scale), "-q", "b")
            self.run("psql", "-h", ROOT, "-U", "postgres", "-c", "vacuum", "-c", "checkpoint", "b")
            yield
        finally:
            self.run("pg_ctl", "-D", self.data, "-w", "-s", "-m", "immediate", "stop")
            shutil.rmtree(ROOT)

    def server_seconds(self):
        """Of the processes that have ended, which the first process of the server has counted."""
        with open(f"{self.data}/postmaster.pid") as file:
            pid = file.readline().strip()
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(") ", 1)[1].split()
        return (int(fields[13]) + int(fields[14])) / TICK

    def fullbore(self, way, *more, codec="none"):
        url = f"postgres:///b?user=postgres&host={ROOT}"
        return [[self.options.fullbore, "backup", url, "--to", "null:", "--compress", codec, "--wal", "none", "--via", way, "--quiet", *more]]

    def bare(self, sessions):
        """Sessions that read the files of the largest tables in rows of 64 KiB, and throw them away."""
        files = [line.split("|") for line in self.ask(
            "select path || suffix, (pg_stat_file(path || suffix)).size from (select pg_relation_filepath(oid) path from pg_class"
            " where relkind in ('r', 'i', 't', 'm') and pg_relation_filenode(oid) is not null) f,"
            " (values (''), ('.1'), ('.2')) s (suffix) where (pg_stat_file(path || suffix, true)).size > 0").splitlines()]
        values = ", ".join(f"('{path}', {size})" for path, size in files)
        sql = (f"copy (select pg_read_binary_file(path, o, 65536, true) from (values {values}) f (path, size),"
               " generate_series(0::bigint, size - 1, 65536) o where (o / 65536) % {0} = {1}) to stdout (format binary)")
        psql = [self.tool("psql"), "-h", ROOT, "-U", "postgres", "-c"]
        return [[*psql, sql.format(sessions, number), "b"] for number in range(sessions)]

    def sides(self):
        """Each with its name, the name of its reference, and its commands."""
        basebackup = [self.tool("pg_basebackup"), "-h", ROOT, "-U", "postgres", "-X", "none", "-c", "fast"]
        pipe = [*basebackup, "-Ft", "-D", "-"]
        yield PIPE, None, [pipe]
        yield "files", PIPE, self.fullbore("files")
        yield "protocol", PIPE, self.fullbore("protocol")
        for sessions in (1, 2, 4, 8):
            bare = f"bare sessions, {sessions}"
            yield bare, PIPE, self.bare(sessions)
            yield f"SQL, {sessions} sessions", bare, self.fullbore("sql", "--readers", str(sessions))
        compressed = [*pipe, "--no-manifest", "--compress=server-zstd:level=1,workers=2"]
        reference = PIPE
        if subprocess.run(compressed, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            yield SERVER_ZSTD, PIPE, [compressed]
            reference = SERVER_ZSTD
        copied = f"{ROOT}/copied"
        after = f"rm -rf {copied}; {' '.join(basebackup)} -Fp -D {copied} && {self.options.fullbore} backup {copied} --to null: --compress zstd:1 --quiet"
        yield COPY_FIRST, reference, [["sh", "-c", after]]
        yield "files, zstd:1", reference, self.fullbore("files", codec="zstd:1")
        yield "protocol, zstd:1", reference, self.fullbore("protocol", codec="zstd:1")
        yield "protocol, zstd:1, again", COPY_FIRST, self.fullbore("protocol", codec="zstd:1")
        yield "SQL, 4 sessions, zstd:1", reference, self.fullbore("sql", "--readers", "4", codec="zstd:1")

    def measure(self, commands):
        """Seconds, the server's processor seconds, and the most KiB of memory of one process."""
        before, begun = self.server_seconds(), time.monotonic()
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) for command in commands]
        ends = [os.wait4(one.pid, 0) for one in running]
        if any(status for _, status, _ in ends):
            raise SystemExit(f"failed: {commands}")
        seconds = time.monotonic() - begun
        time.sleep(0.5)     # the server notices the end of a session
        return seconds, self.server_seconds() - before, max(usage.ru_maxrss for _, _, usage in ends)

    def table(self):
        gigabytes = int(subprocess.check_output(["du", "-sb", "--exclude=pg_wal", self.data]).split()[0]) / 1e9
        sides = list(self.sides())
        taken = {name: [] for name, _, _ in sides}
        for number in range(self.options.rounds + 1):
            for name, _, commands in sides:
                figures = self.measure(commands)
                if number > 0:      # the first round fills caches
                    taken[name].append(figures)
        print(f"{self.run('postgres', '--version')}, {gigabytes:.2f} GB, {self.options.rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
        print("| side | seconds | against | ratio | server's processor s a GB | peak memory |\n|---|---|---|---|---|---|")
        for name, reference, _ in sides:
            ratio = f"{median(mine[0] / other[0] for mine, other in zip(taken[name], taken[reference])):.2f}" if reference else ""
            seconds, server, memory = (median(column) for column in zip(*taken[name]))
            print(f"| {name} | {seconds:.2f} | {reference or ''} | {ratio} | {server / gigabytes:.2f} | {memory // 1024} MiB |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fullbore", required=True)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--peer-bin", default="")
    parser.add_argument("--scale", type=int, default=65)
    parser.add_argument("--rounds", type=int, default=5)
    ways = Ways(parser.parse_args())
    with ways.cluster():
        ways.table()


if __name__ == "__main__":
    main()
