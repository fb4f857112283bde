"""The rows of backups after the first: fullbore against restic, borg, rsync and pgBackRest.

Every side has made its first backup of the corpus before anything is measured.
"""

import glob
import json
import os
import random
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import corpora
from measure import MIB, Failed, Side, bytes_read_below, run
from server import PORT, Cluster, own
from table import Line, ratio_line, wall_line

DAYS = 20
CHANGED_SHARE = 0.02        # of the files, each day; of the pages of a cluster, CHANGED_PAGES
CHANGED_PAGES = 0.05


def backups_of(repo):
    return sorted(os.listdir(f"{repo}/backups"))


def root_of(repo, backup):
    with open(f"{repo}/backups/{backup}/root.json") as file:
        return json.load(file)


def size_of(path):
    return corpora.count_tree(path)["bytes"]


class Incremental:
    """The rows, for a Bench."""

    def __init__(self, bench):
        self.bench = bench

    # ------------------------------------------------------------- ingredients

    def place(self, name, corpus, times=1.2):
        """A place in memory for a repository."""
        room = int(corpus.bytes * times) + corpus.files * 5000 + 256 * MIB
        return self.bench.work.fresh(name, room)

    def fullbore(self, source, to, *options):
        return Side([self.bench.fullbore, "backup", source, "--to", f"{to}/repo", *options])

    def restic(self, source, to):
        env = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": f"{to}/cache"}
        run(["restic", "init", "-q", "-r", f"{to}/repo"], env)
        return Side(["restic", "backup", "-q", "-r", f"{to}/repo", source], env=env)

    def borg(self, source, to):
        env = {"BORG_BASE_DIR": f"{to}/base", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
        os.mkdir(f"{to}/base")
        run(["borg", "init", "--encryption", "none", f"{to}/repo"], env)
        return Side(["borg", "create", "--compression", "zstd,1", f"{to}/repo::{{now:%Y-%m-%dT%H:%M:%S.%f}}", source],
                    env=env)

    def rsync(self, source, to):
        return Side(["rsync", "-a", f"{source}/", f"{to}/copy"])

    # ------------------------------------------------------------- nothing new

    def unchanged(self, row, name, target):
        corpus = self.bench.corpus(name)
        ours = self.fullbore(corpus.path, self.place("fullbore", corpus))
        peers = [self.restic(corpus.path, self.place("restic", corpus)),
                 self.borg(corpus.path, self.place("borg", corpus)),
                 self.rsync(corpus.path, self.place("rsync", corpus))]
        for side in [ours, *peers]:
            side()
            side()
        for peer in peers:
            pairs = self.bench.alternate(ours, peer)
            yield wall_line(row, f"wall, nothing changed, against {peer.command[0]}", target, pairs)
        look = Side(["find", corpus.path, "-newermt", "2100-01-01"])      # at every file, and nothing else
        seconds = min(look().cpu for _ in range(5))
        yield self.bench.floor(row, "to look at each file once", seconds, pairs, look.command)

    def unchanged_million(self, row, seconds, rss):
        corpus = self.bench.corpus("million")
        ours = self.fullbore(corpus.path, self.place("fullbore", corpus))
        ours()
        runs = [ours() for _ in range(self.bench.pairs)]
        walls = [took.wall for took in runs]
        yield Line(row, "wall, nothing changed, 1,000,000 files", median(walls), seconds, unit=" s",
                   commands=[ours.command], raw=walls)
        yield Line(row, "peak memory of it", max(took.rss for took in runs) / MIB, rss, unit=" MiB",
                   commands=[ours.command], raw=[took.rss for took in runs])
        repo = ours.command[4]
        for verb in ("list", "show"):
            command = [self.bench.fullbore, verb, repo]
            walls = [run(command).wall * 1000 for _ in range(self.bench.pairs)]
            yield Line(row, f"{verb} of it", median(walls), 50, unit=" ms", commands=[command], raw=walls)

    # ---------------------------------------------------------------- clusters

    @contextmanager
    def copied(self, corpus, settings={}):
        """A copy of the corpus cluster in memory, running."""
        copy = own(self.bench.work.fresh("cluster", int(corpus.bytes * 1.5) + 512 * MIB))
        run(["cp", "-a", f"{corpus.path}/.", copy])
        with Cluster(copy).running({"fsync": "off", **settings}) as cluster:
            yield cluster

    def touch(self, cluster, pages):
        """As many accounts as pages are to be touched, each by a transaction of its own."""
        run([cluster.tool("pgbench"), *cluster.client(), "-n", "-c", "4", "-j", "2", "-M", "prepared",
             "-b", "simple-update", "-t", str(pages // 4), "postgres"])
        cluster.warm()

    def cluster(self, row, wall_target, size_target):
        """Both against their first backup, again and again."""
        corpus, postgres = self.bench.corpus("cluster"), self.bench.postgres
        with self.copied(corpus) as cluster:
            cluster.warm()
            ours = Side([self.bench.fullbore, "backup", cluster.url(), "--wal", "none",
                         "--to", f"{self.place('fullbore', corpus, 2.5)}/repo"])
            theirs = postgres.backrest_into(corpus, cluster, place="pgbackrest", blocks=True)
            ours()
            theirs()
            repo = ours.command[-1]
            self.touch(cluster, int(corpus.bytes / 8192 * CHANGED_PAGES))
            ours = replace(ours, command=[*ours.command, "--base", backups_of(repo)[0]])
            theirs = Side([word.replace("--type=full", "--type=diff") for word in theirs.command])
            pairs = self.bench.alternate(ours, theirs)
            yield wall_line(row, "wall, 5 % of the pages touched; pgBackRest by blocks", wall_target, pairs)
            folder, _ = self.bench.place("pgbackrest", corpus)
            last = max(path for path in glob.glob(f"{folder}/backup/bench/*_*D") if os.path.isdir(path))
            stored = root_of(repo, backups_of(repo)[-1])["totals"]["stored_bytes"]
            yield ratio_line(row, "stored bytes of it", size_target, [(stored / 1e6, size_of(last) / 1e6)],
                             [ours.command, theirs.command], unit="MB")

    def summaries(self, row, target):
        """A server of version 17, which knows which blocks changed."""
        servers = os.environ.get("FULLBORE_POSTGRES") or os.path.join(os.path.dirname(__file__), "../target/postgres")
        bin_dir = os.path.realpath(f"{servers}/17/bin")
        if not os.path.isdir(bin_dir):
            raise Failed("no server of version 17: scripts/postgres-servers 17")
        data = own(self.bench.work.fresh("cluster", 3 << 30))
        cluster = Cluster(data, server_bin=bin_dir)
        cluster.make({"fsync": "off", "shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "off",
                      "summarize_wal": "on", "listen_addresses": "''"}, "--data-checksums")
        with cluster.running():
            cluster.run("pgbench", *cluster.client(), "-i", "-q", "-s", "50", "postgres")
            cluster.warm()
            to = self.bench.work.fresh("out", 3 << 30)
            command = [self.bench.fullbore, "backup", cluster.url(), "--wal", "none", "--to", f"{to}/repo"]
            run(command)
            self.touch(cluster, int(corpora.count_tree(data)["bytes"] / 8192 * CHANGED_PAGES))
            read = bytes_read_below(command, data)
            first, last = (root_of(f"{to}/repo", backup)["postgres"]["start_lsn"] for backup in backups_of(f"{to}/repo"))
            blocks = int(cluster.ask(f"""SELECT count(DISTINCT (s.relfilenode, s.reldatabase, s.relforknumber, s.relblocknumber))
                FROM pg_available_wal_summaries() w, pg_wal_summary_contents(w.tli, w.start_lsn, w.end_lsn) s
                WHERE w.end_lsn > '{first}' AND w.start_lsn < '{last}' AND NOT s.is_limit_block"""))
            yield Line(row, "bytes read of the data directory / bytes of changed blocks", read / (blocks * 8192), target,
                       a=f"{read / 1e6:.4g} MB", b=f"{blocks * 8192 / 1e6:.4g} MB",
                       commands=[["strace", "-ff", "-y", *command]], raw=[read, blocks])

    # -------------------------------------------------------------- many days

    def days(self, row, restore_target, size_target):
        corpus = self.bench.corpus("sync")
        source = self.place("days", corpus)
        run(["cp", "-a", f"{corpus.path}/.", source])
        ours = self.fullbore(source, self.place("fullbore", corpus, 3))
        # restic compresses as zstd does at 3, borg as it is told to, at 1.
        denser = self.fullbore(source, self.place("denser", corpus, 3), "--compress", "zstd:3")
        peers = [self.restic(source, self.place("restic", corpus, 3)), self.borg(source, self.place("borg", corpus, 3))]
        rng = random.Random(corpora.SEED)
        files = sorted(os.path.join(d, n) for d, _, names in os.walk(source) for n in names)
        for day in range(DAYS + 1):
            for path in rng.sample(files, int(len(files) * CHANGED_SHARE)) if day else []:
                edit(path, rng)
            for side in [ours, denser, *peers]:
                side()
        repo = ours.command[4]
        sizes = [size_of(repo), *(size_of(f"{self.bench.work.path(peer)}/repo")
                                  for peer in ("restic", "borg"))]
        folder = lambda: self.bench.work.fresh("restored", corpus.room)
        ids = backups_of(repo)
        restore = lambda backup: Side([self.bench.fullbore, "restore", f"{repo}@{backup}", "--to",
                                       self.bench.place("restored", corpus)[0]], folder)
        pairs = self.bench.alternate(restore(ids[-1]), restore(ids[0]))
        yield wall_line(row, f"wall, restore of the last of {DAYS} days / of the first", restore_target, pairs)
        for peer, size in zip(("restic", "borg"), sizes[1:]):
            yield ratio_line(row, f"repository after {DAYS} days, against {peer}", size_target,
                             [(sizes[0] / 1e6, size / 1e6)], [ours.command], unit="MB")
        yield ratio_line(row, f"repository after {DAYS} days, both at zstd:3, against restic", size_target,
                         [(size_of(denser.command[4]) / 1e6, sizes[1] / 1e6)], [denser.command], unit="MB")


def edit(path, rng):
    """Writes a tenth of the file anew, somewhere in it."""
    size = os.path.getsize(path)
    count = max(1, size // 10)
    with open(path, "r+b") as file:
        file.seek(rng.randrange(max(1, size - count + 1)))
        file.write(bytes(rng.choices(b"abcdefghijklmnop qrstuvw\n", k=count)))
