#!/usr/bin/env python3
"""WAL: a backlog, one segment alone, a fetch, a replay and a server that archives, against bare programs and pgBackRest.

    bench/wal.py FULLBORE [SEGMENTS] [ROUNDS]

Makes a cluster below TMPDIR with Debian's PostgreSQL, lets pgbench write SEGMENTS of WAL, stops it, and pushes the
same files with each side in turn.  Prints medians of seconds and of processor seconds, and their ratios to fullbore.
Run it as root: servers and pgBackRest run as user postgres.  Repositories are below TMPDIR too: put it into memory.
"""

import glob
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BIN = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
PGBACKREST = shutil.which("pgbackrest")
PUSH = ["--compress-type=zst", "--compress-level=1"]


def as_postgres(command, **more):
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    return subprocess.run([*user, *command], check=True, capture_output=True, cwd="/", **more)


def timed(act):
    """Seconds, and processor seconds of the children."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    act()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begun, cpu


class Bench:
    def __init__(self, fullbore, segments):
        self.fullbore = fullbore
        self.dir = tempfile.mkdtemp(prefix="fullbore-wal-")
        shutil.chown(self.dir, "postgres", "postgres")
        self.data = f"{self.dir}/data"
        self.make_cluster(segments)
        self.names = sorted(
            name for name in os.listdir(f"{self.data}/pg_wal")
            if len(name) == 24 and os.path.exists(f"{self.data}/pg_wal/archive_status/{name}.ready")
        )[:segments]

    def make_cluster(self, segments):
        as_postgres([f"{BIN}/initdb", "-D", self.data, "--no-sync"])
        with open(f"{self.data}/postgresql.conf", "a") as conf:
            conf.write("fsync=off\narchive_mode=on\narchive_command='false'\nmax_wal_size=64GB\n"
                       f"listen_addresses=''\nunix_socket_directories='{self.dir}'\n")
        # What a replay begins with.
        as_postgres(["cp", "-r", self.data, f"{self.dir}/base"])
        self.start(self.data)
        as_postgres([f"{BIN}/pgbench", "-h", self.dir, "-i", "-s", str(max(segments, 4)), "postgres"])
        as_postgres([f"{BIN}/pgbench", "-h", self.dir, "-c", "2", "-T", "5", "postgres"])
        self.stop(self.data)

    def start(self, data, *settings):
        as_postgres([f"{BIN}/pg_ctl", "-D", data, "-l", f"{self.dir}/log", "-w", "-o",
                     " ".join(f"-c {setting}" for setting in settings), "start"], stdin=subprocess.DEVNULL)

    def stop(self, data):
        as_postgres([f"{BIN}/pg_ctl", "-D", data, "-m", "fast", "-w", "stop"])

    def replay(self, restore_command):
        """Seconds from the start of a server until it is open, with all segments replayed."""
        data = tempfile.mkdtemp(dir=self.dir)
        os.rmdir(data)
        as_postgres(["cp", "-r", f"{self.dir}/base", data])
        with open(f"{data}/postgresql.conf", "a") as conf:
            conf.write(f"restore_command = '{restore_command}'\n")
        open(f"{data}/recovery.signal", "w").close()

        def act():
            self.start(data, "archive_mode=off")
            ask = [f"{BIN}/psql", "-h", self.dir, "-Atc", "select pg_is_in_recovery()", "postgres"]
            while as_postgres(ask).stdout.strip() != b"f":
                time.sleep(0.02)
        took = timed(act)
        self.stop(data)
        shutil.rmtree(data)
        return took

    def replay_from_archive(self):
        if not hasattr(self, "archive"):
            self.archive = self.repository()
            self.push_all(self.archive)
        state = f"FULLBORE_STATE_DIR={self.archive}/state"
        return self.replay(f"{state} {self.fullbore} wal get %f %p --from {self.archive}/r")

    def replay_from_files(self):
        return self.replay(f"cp {self.data}/pg_wal/%f %p")

    def transactions(self, archive_command):
        """Seconds a thousand transactions of pgbench."""
        self.start(self.data, f"archive_command='{archive_command}'")
        ran = as_postgres([f"{BIN}/pgbench", "-h", self.dir, "-c", "2", "-T", "15", "postgres"])
        self.stop(self.data)
        tps = next(float(line.split()[2]) for line in ran.stdout.decode().splitlines() if line.startswith("tps"))
        return 1000 / tps, 0

    def archived_transactions(self):
        place = self.repository()
        return self.transactions(f"FULLBORE_STATE_DIR={place}/state {self.fullbore} wal push %p --to {place}/r")

    def compressed_transactions(self):
        place = tempfile.mkdtemp(dir=self.dir)
        shutil.chown(place, "postgres", "postgres")
        # Durable, as an archive must be.
        return self.transactions(f"zstd -q -1 -f %p -o {place}/%f && sync {place}/%f {place}")

    def commits(self, receiver):
        """Seconds a commit of one session, which is answered when `receiver` (words, or none) has made it durable."""
        settings = ["archive_mode=off", "fsync=on", f"synchronous_standby_names='{'rx' if receiver else ''}'"]
        self.start(self.data, *settings)
        process = None
        try:
            if receiver:
                user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
                process = subprocess.Popen([*user, *receiver], cwd="/", stderr=subprocess.DEVNULL)
                ask = [f"{BIN}/psql", "-h", self.dir, "-Atc", "select sync_state from pg_stat_replication", "postgres"]
                while as_postgres(ask).stdout.strip() != b"sync":
                    time.sleep(0.05)
            ran = as_postgres([f"{BIN}/pgbench", "-h", self.dir, "-N", "-c", "1", "-T", "5", "postgres"])
            told = ran.stdout.decode().split("latency average = ")[1]
            return float(told.split()[0]) / 1000, 0
        finally:
            if process:
                process.terminate()
                process.wait()
            self.stop(self.data)

    def received_commits(self):
        place = self.repository()
        url = f"postgres://postgres@/postgres?host={self.dir}"
        return self.commits(["env", f"FULLBORE_STATE_DIR={place}/state", self.fullbore, "wal", "receive", url, "--to", f"{place}/r",
                             "--slot", "rx", "--create-slot", "--sync"])

    def streamed_commits(self):
        place = tempfile.mkdtemp(dir=self.dir)
        shutil.chown(place, "postgres", "postgres")
        return self.commits([f"{BIN}/pg_receivewal", "-d", f"host={self.dir} application_name=rx", "-D", place, "--synchronous"])

    def path(self, name):
        return f"{self.data}/pg_wal/{name}"

    def repository(self):
        place = tempfile.mkdtemp(dir=self.dir)
        shutil.chown(place, "postgres", "postgres")
        as_postgres([self.fullbore, "init", f"{place}/r"])
        return place

    def push_all(self, place, *more):
        state = {**os.environ, "FULLBORE_STATE_DIR": f"{place}/state"}
        for name in self.names:
            as_postgres([self.fullbore, "wal", "push", self.path(name), "--to", f"{place}/r", "-j", "2", *more], env=state)

    def backlog(self):
        place = self.repository()
        return timed(lambda: self.push_all(place))

    def fast_backlog(self):
        place = self.repository()
        return timed(lambda: self.push_all(place, "--level=-5"))

    def zstd(self):
        place = tempfile.mkdtemp(dir=self.dir)
        files = "\n".join(self.path(name) for name in self.names)
        act = ["xargs", "-P2", "-I{}", "sh", "-c", f"zstd -q -1 -c {{}} > {place}/$(basename {{}})"]
        return timed(lambda: subprocess.run(act, input=files.encode(), check=True))

    def backrest_words(self, place):
        words = ["--stanza=x", f"--pg1-path={self.data}", f"--repo1-path={place}/repo", f"--log-path={place}",
                 f"--lock-path={place}/lock", "--log-level-console=off", "--log-level-file=off"]
        for name in ("repo", "spool", "lock"):
            os.makedirs(f"{place}/{name}")
            shutil.chown(f"{place}/{name}", "postgres", "postgres")
        as_postgres([PGBACKREST, *words, "--no-online", "stanza-create"])
        return words

    def backrest_backlog(self):
        place = tempfile.mkdtemp(dir=self.dir)
        shutil.chown(place, "postgres", "postgres")
        words = self.backrest_words(place)

        def act():
            for name in self.names:
                as_postgres([PGBACKREST, *words, *PUSH, f"--spool-path={place}/spool", "--process-max=2",
                             "--archive-async", "archive-push", self.path(name)])
        return timed(act)

    def alone(self):
        place = self.repository()
        self.place = place
        name = self.names[0]
        return timed(lambda: as_postgres([self.fullbore, "wal", "push", self.path(name), "--to", f"{place}/r",
                                          "--alone"]))

    def fetch(self):
        name = self.names[0]
        return timed(lambda: as_postgres([self.fullbore, "wal", "get", name, f"{self.dir}/fetched", "--from",
                                          f"{self.place}/r", "--alone", "--system", self.system()]))

    def system(self):
        told = as_postgres([f"{BIN}/pg_controldata", self.data]).stdout.decode()
        return next(line.split()[-1] for line in told.splitlines() if "system identifier" in line)

    def backrest_alone(self):
        place = tempfile.mkdtemp(dir=self.dir)
        shutil.chown(place, "postgres", "postgres")
        self.words = self.backrest_words(place)
        return timed(lambda: as_postgres([PGBACKREST, *self.words, *PUSH, "archive-push", self.path(self.names[0])]))

    def backrest_fetch(self):
        return timed(lambda: as_postgres([PGBACKREST, *self.words, "archive-get", self.names[0],
                                          f"{self.dir}/got"]))

    def copy(self):
        return timed(lambda: as_postgres(["cp", self.path(self.names[0]), f"{self.dir}/copied"]))


def main():
    fullbore = os.path.abspath(sys.argv[1])
    segments, rounds = (int(word) for word in (sys.argv[2:] + ["100", "5"][len(sys.argv) - 2:]))
    bench = Bench(fullbore, segments)
    rows = [("backlog", [("fullbore", bench.backlog), ("fullbore, level -5", bench.fast_backlog), ("zstd -1, two", bench.zstd)]),
            ("push alone", [("fullbore", bench.alone)]), ("get alone", [("fullbore", bench.fetch), ("cp", bench.copy)]),
            ("replay", [("fullbore", bench.replay_from_archive), ("cp", bench.replay_from_files)]),
            ("transactions", [("fullbore", bench.archived_transactions), ("zstd -1 and sync", bench.compressed_transactions),
                              ("/bin/true", lambda: bench.transactions("/bin/true"))]),
            ("commit", [("fullbore", bench.received_commits), ("pg_receivewal", bench.streamed_commits),
                        ("nobody", lambda: bench.commits(None))])]
    if PGBACKREST:
        rows[0][1].append(("pgBackRest async", bench.backrest_backlog))
        rows[1][1].append(("pgBackRest", bench.backrest_alone))
        rows[2][1].append(("pgBackRest", bench.backrest_fetch))
    print(f"{len(bench.names)} segments, {rounds} rounds, alternating; medians")
    try:
        for title, sides in rows:
            runs = {name: [] for name, _ in sides}
            for _ in range(rounds):
                for name, act in sides:
                    runs[name].append(act())
            base = [statistics.median(run[at] for run in runs["fullbore"]) for at in (0, 1)]
            for name, _ in sides:
                wall, cpu = (statistics.median(run[at] for run in runs[name]) for at in (0, 1))
                print(f"{title:12} {name:18} {wall:8.3f} s {cpu:8.3f} s of processors   fullbore / it: "
                      f"{base[0] / wall:5.2f} {base[1] / max(cpu, 0.001):5.2f}")
    finally:
        # The process that pushes ahead ends by itself when the cluster is gone.
        shutil.rmtree(bench.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
