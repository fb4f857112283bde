"""The rows of running PostgreSQL clusters: fullbore against pg_basebackup and pgBackRest.

A row starts the server of its corpus, idle and in the page cache, and stops it before
it ends.  No side stores WAL: what is compared is the copy of the data directory.
"""

import glob
import os
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from statistics import quantiles

import corpora
from measure import CORES, MIB, Failed, Side, run
from server import PORT, Cluster, as_postgres, own
from table import Line, ratio_line, wall_line

WITHOUT_WAL = ["--wal", "none"]
LATENCY_SECONDS = 30
LATENCY_RATE = 400      # transactions a second, a quarter of what four clients reach on two busy cores


def relations_of(root):
    """Files and bytes below `base`, without the caches the server makes for itself."""
    found = corpora.count_tree(os.path.join(root, "base"))
    caches = glob.glob(f"{glob.escape(root)}/base/*/pg_internal.init")
    return found["files"] - len(caches), found["bytes"] - sum(map(os.path.getsize, caches))


def p95(command, folder):
    """Runs pgbench; returns milliseconds, from when a transaction was due."""
    run([*command, f"--log-prefix={folder}/log"])
    micros = []
    for name in glob.glob(f"{folder}/log.*"):   # one of each thread
        with open(name) as log:
            micros += [int(line.split()[2]) for line in log]
    return quantiles(micros, n=20)[-1] / 1000


@contextmanager
def repeated(side):
    """Runs the side again and again, until the block has ended and a last run is over."""
    ended, errors = threading.Event(), []

    def loop():
        try:
            while not ended.is_set():
                side()
        except (Failed, OSError, subprocess.SubprocessError) as error:
            errors.append(error)
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


class Postgres:
    """The rows, for a Bench."""

    def __init__(self, bench):
        self.bench = bench

    # ------------------------------------------------------------- ingredients

    @contextmanager
    def running(self, name):
        corpus = self.bench.corpus(name)
        with Cluster(corpus.path).running() as cluster:
            cluster.warm()
            yield corpus, cluster

    def fullbore(self, corpus, cluster, *options, place="out"):
        return self.bench.backup(corpus, *WITHOUT_WAL, *options, source=cluster.url(), place=place)

    def basebackup(self, corpus, cluster, *options, place="out"):
        folder, prepare = self.bench.place(place, corpus)
        return Side([cluster.tool("pg_basebackup"), *cluster.client(), "-D", folder, "-Ft", "-X", "none",
                     "-c", "fast", "--no-sync", *options], prepare, source=corpus.cached)

    def zstd_basebackup(self, corpus, cluster, place="out"):
        return self.basebackup(corpus, cluster, f"--compress=server-zstd:level=1,workers={CORES}", place=place)

    def backrest(self, verb, repo, root, *options):
        return as_postgres(["pgbackrest", "--no-config", "--stanza=bench", f"--repo1-path={repo}",
                            f"--lock-path={repo}/lock", "--log-level-console=warn", "--log-level-file=off",
                            f"--pg1-path={root}", *options, verb])

    def backrest_into(self, corpus, cluster, place="out", blocks=False):
        """pgBackRest's full backup into a fresh repository, whose making is not counted; `blocks`: for an increment by blocks."""
        folder, prepare = self.bench.place(place, corpus)
        reach = [f"--pg1-socket-path={cluster.sockets}", f"--pg1-port={PORT}", "--pg1-user=postgres"]

        def init():
            prepare()
            own(folder)
            run(self.backrest("stanza-create", folder, cluster.root, *reach))
        return Side(self.backrest("backup", folder, cluster.root, *reach, "--type=full",
                                  f"--process-max={CORES}", "--compress-type=zst", "--compress-level=1",
                                  "--repo1-bundle", *(["--repo1-block"] if blocks else []), "--start-fast",
                                  "--no-archive-check"),
                    init, source=corpus.cached)

    def restored(self, corpus, command):
        """A restore of the cluster into a fresh place, checked by the files of its relations."""
        side = self.bench.into(corpus, command)
        folder, _ = self.bench.place("restored", corpus)

        def prepare():
            side.prepare()
            own(folder)

        def check():
            found, wanted = relations_of(folder), relations_of(corpus.path)
            if found != wanted:
                raise Failed("restored {} files, {} bytes of relations; ".format(*found)
                             + "there were {}, {}".format(*wanted))
        return replace(side, prepare=prepare, check=check)

    # ----------------------------------------------------------------- backups

    def basebackup_zstd(self, row, target):
        yield from self.compressed(row, target, self.zstd_basebackup)

    def basebackup_plain(self, row, codec, target):
        """A repository: one FILE.tar takes as long."""
        with self.running("cluster") as (corpus, cluster):
            pairs = self.bench.alternate(self.fullbore(corpus, cluster, "--compress", codec),
                                         self.basebackup(corpus, cluster))
        yield wall_line(row, "wall", target, pairs)

    def backrest_backup(self, row, target):
        yield from self.compressed(row, target, self.backrest_into)

    def compressed(self, row, target, peer):
        """Against a peer that compresses with zstd level 1 as well, and what that alone takes."""
        with self.running("cluster") as (corpus, cluster):
            pairs = self.bench.alternate(self.fullbore(corpus, cluster, "--compress", "zstd:1"),
                                         peer(corpus, cluster))
        yield wall_line(row, "wall", target, pairs)
        yield self.bench.zstd_floor(row, "cluster", pairs)

    # ---------------------------------------------------------------- restores

    def backrest_restore(self, row, target):
        with self.running("cluster") as (corpus, cluster):
            ours = self.fullbore(corpus, cluster, place="source")
            theirs = self.backrest_into(corpus, cluster, place="source.pgbackrest")
            ours()
            theirs()
        repo, _ = self.bench.place("source.pgbackrest", corpus)
        pairs = self.bench.alternate(
            self.ours_restored(corpus, ours),
            self.restored(corpus, lambda to: self.backrest("restore", repo, to, f"--process-max={CORES}")))
        yield wall_line(row, "wall", target, pairs)
        yield self.restore_floor(row, corpus, pairs)

    def restore_floor(self, row, corpus, pairs):
        """To decompress the cluster, and to write as many zeros into fresh memory."""
        alone = self.bench.zstd_alone(corpus.name)
        place, prepare = self.bench.place("restored", corpus)
        each = corpus.bytes // CORES >> 20
        write = Side(f"seq {CORES} | xargs -P{CORES} -I@ dd if=/dev/zero of={place}/@ bs=1M count={each} status=none",
                     prepare)
        wall = min(write().wall for _ in range(3))
        return self.bench.floor(row, "to decompress and to write as many zeros", alone.decompress + wall * CORES,
                                pairs, write.command)

    def tar_restore(self, row, target):
        with self.running("cluster") as (corpus, cluster):
            ours = self.fullbore(corpus, cluster, place="source")
            theirs = self.zstd_basebackup(corpus, cluster, place="source.tar")
            ours()
            theirs()
        packed, _ = self.bench.place("source.tar", corpus)
        pairs = self.bench.alternate(
            self.ours_restored(corpus, ours),
            self.restored(corpus, lambda to: f"zstd -dc {packed}/base.tar.zst | tar -xf - -C {to}"))
        yield wall_line(row, "wall", target, pairs)

    def ours_restored(self, corpus, backup):
        return self.restored(corpus, lambda to: [self.bench.fullbore, "restore", backup.command[4], "--to", to])

    # --------------------------------------------------------- memory, latency

    def relations(self, row, target):
        with self.running("relations") as (corpus, cluster):
            side = self.fullbore(corpus, cluster, "--memory", "128M")
            took = side()
            files, _ = relations_of(corpus.path)
            yield Line(row, "peak memory; seconds; files", took.rss / MIB, target, unit=" MiB",
                       a=f"{took.wall:.4g} s", b=f"{files} files", commands=[side.command],
                       raw=[took.rss, took.wall, files])

    def latency(self, row):
        """Of a copy of the cluster, since pgbench changes what it runs on."""
        corpus = self.bench.corpus("cluster")
        copy = own(self.bench.work.fresh("cluster"))
        run(["cp", "-a", f"{corpus.path}/.", copy])
        with Cluster(copy).running({"fsync": "off"}) as cluster:    # the disk would be all that is seen
            cluster.warm()
            backup = self.fullbore(corpus, cluster, "--workers", "1")
            command = [cluster.tool("pgbench"), *cluster.client(), "-n", "-c", "4", "-j", "2",
                       "-T", str(LATENCY_SECONDS), "--rate", str(LATENCY_RATE), "-l", "postgres"]

            def alone():
                return p95(command, self.bench.work.fresh("log", 256 * MIB))

            def beside():
                with repeated(backup):
                    return alone()
            beside()
            alone()
            yield ratio_line(row, f"p95 latency during backups / without, {LATENCY_RATE} transactions/s", None,
                             [(beside(), alone()) for _ in range(self.bench.pairs)],
                             [backup.command, command], unit="ms")
