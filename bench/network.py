"""The rows of other hosts: two network namespaces with a veth pair between them, and a real sshd in the far one.

The MTU is 1500 and all offloads are off, so a packet is what a wire would carry. `tc tbf` limits the rate. The kernel of these
figures has no netem: a proxy in user space makes answers late. TCP connections to sshd pass it, and those beside ssh too: the
far host listens on few ports, and the proxy on the same ones.

    network.py --proxy HOST MILLISECONDS PORT…      the proxy alone, for as long as its input is open
    network.py --plain INTERFACE                    turns the offloads of an interface off
    network.py --stream push|pull BYTES SSH…        starts the next line by ssh, and moves zeros over a TCP connection
    network.py --end push|pull BYTES                the other end of it
"""

import ctypes
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from cloud import delayed
from measure import Failed, Side, count_syscalls, run
from server import PORT, Cluster, as_postgres
from table import Line, ratio_line, wall_line

SSHD = "/usr/sbin/sshd"
NEAR_ADDRESS, FAR_ADDRESS = "10.231.7.1", "10.231.7.2"
GIGABIT = 10**9
FAR_PORTS = range(50000, 50032)     # those of connections beside ssh
OFFLOADS = {"tso": 0x1f, "gso": 0x24, "gro": 0x2c, "sg": 0x19, "tx checksums": 0x17}


def plain(interface):
    """Turns offloads off, as ethtool -K does: what is sent is packets of the MTU."""
    class Value(ctypes.Structure):
        _fields_ = [("command", ctypes.c_uint32), ("data", ctypes.c_uint32)]

    class Request(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char * 16), ("value", ctypes.POINTER(Value)), ("rest", ctypes.c_char * 16)]

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for command in OFFLOADS.values():
            request = Request(interface.encode(), ctypes.pointer(Value(command, 0)), b"")
            fcntl.ioctl(asked, 0x8946, request)     # SIOCETHTOOL


def stream(way, size, ssh):
    """What a copy over a TCP connection beside ssh cannot do without: a login, and the bytes."""
    command = [*ssh, sys.executable, os.path.abspath(__file__), "--end", way, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as end:
        end.stdout.readline()
        with socket.create_connection((near_name(ssh), FAR_PORTS[-1])) as connection:
            move(connection, size, sends=way == "push")
    if end.returncode:
        sys.exit(end.returncode)


def near_name(ssh):
    """Where ssh reaches the host `far`."""
    words = subprocess.check_output([*ssh[:-1], "-G", ssh[-1]], text=True).split()
    return words[words.index("hostname") + 1]


def stream_end(way, size):
    with socket.create_server((FAR_ADDRESS, FAR_PORTS[-1])) as listener:
        print(flush=True)
        connection, _ = listener.accept()
        with connection:
            move(connection, size, sends=way == "pull")


def move(connection, size, sends):
    """Sends so many zeros, or receives them and says so."""
    piece = bytearray(1 << 18)
    left = size
    while left > 0:
        moved = connection.send(piece[:left]) if sends else connection.recv_into(piece)
        if not moved:
            raise Failed("the other end has gone")
        left -= moved
    if sends:
        connection.recv(1)
    else:
        connection.sendall(b".")


class Hosts:
    """Two hosts for the time of a row: `near` runs the commands, `far` has sshd."""

    def __init__(self, bench):
        self.bench = bench
        number = os.getpid()
        self.near, self.far = f"fullbore-{number}-near", f"fullbore-{number}-far"
        self.interfaces = {self.near: "fbnear", self.far: "fbfar"}

    def __enter__(self):
        if os.geteuid() != 0:
            raise Failed("only root can make network namespaces")
        work = self.bench.work
        self.dir = work.fresh("ssh")
        for name in (self.near, self.far):
            work.do(["ip", "netns", "add", name], undo=["ip", "netns", "del", name])
        run(["ip", "link", "add", "fbnear", "netns", self.near, "type", "veth", "peer", "name", "fbfar", "netns", self.far])
        for name, address in ((self.near, NEAR_ADDRESS), (self.far, FAR_ADDRESS)):
            interface = self.interfaces[name]
            run(self.on(name, ["ip", "addr", "add", f"{address}/24", "dev", interface]))
            run(self.on(name, [sys.executable, os.path.abspath(__file__), "--plain", interface]))
            for device in ("lo", interface):
                run(self.on(name, ["ip", "link", "set", device, "mtu", "1500", "up"]))
        self.start_sshd()
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()
        for name in (self.near, self.far):
            self.bench.work.undone(["ip", "netns", "del", name])

    def on(self, name, command):
        return ["ip", "netns", "exec", name, *command]

    def start_sshd(self):
        os.makedirs("/run/sshd", exist_ok=True)     # sshd wants it, and only a started service makes it
        for key in ("host", "user"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self.dir}/{key}"])
        shutil.copy(f"{self.dir}/user.pub", f"{self.dir}/authorized")
        with open(f"{self.dir}/sshd_config", "w") as file:
            file.write(f"Port 22\nListenAddress {FAR_ADDRESS}\nHostKey {self.dir}/host\nPidFile none\nUsePAM no\n"
                       "StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
                       f"AuthorizedKeysFile {self.dir}/authorized\nSubsystem sftp internal-sftp\nMaxStartups 100\n")
        self.point_to(FAR_ADDRESS, 22)
        self.server = subprocess.Popen(self.on(self.far, [SSHD, "-D", "-e", "-f", f"{self.dir}/sshd_config"]),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(250):
            if subprocess.run(self.on(self.near, [*self.ssh(), "far", "true"]), stderr=subprocess.DEVNULL).returncode == 0:
                return
            time.sleep(0.02)
        raise Failed("sshd does not answer")

    def point_to(self, address, port):
        """Where ssh reaches the host `far`."""
        with open(f"{self.dir}/ssh_config", "w") as file:
            file.write(f"Host far\nHostName {address}\nPort {port}\nUser root\nIdentityFile {self.dir}/user\n"
                       "IdentitiesOnly yes\nIdentityAgent none\nBatchMode yes\nLogLevel ERROR\n"
                       f"StrictHostKeyChecking no\nUserKnownHostsFile {self.dir}/known_hosts\n")

    def ssh(self):
        return ["ssh", "-F", f"{self.dir}/ssh_config"]

    @contextmanager
    def rate(self, bits):
        """Limits both directions; with None, neither."""
        if bits is None:
            yield
            return
        limits = [(name, ["tc", "qdisc", verb, "dev", interface, "root"])
                  for name, interface in self.interfaces.items() for verb in ("add",)]
        for name, command in limits:
            run(self.on(name, [*command, "tbf", "rate", f"{bits}bit", "burst", "256kb", "latency", "100ms"]))
        try:
            yield
        finally:
            for name, command in limits:
                run(self.on(name, [word if word != "add" else "del" for word in command]))

    @contextmanager
    def late(self, milliseconds):
        """Makes what the far host sends late by so much; it is reached through the proxy only."""
        if not milliseconds:
            yield
            return
        own = f"echo {FAR_PORTS[0]} {FAR_PORTS[-1]} > /proc/sys/net/ipv4/ip_local_port_range"
        run(self.on(self.far, ["sh", "-c", own]))
        command = [sys.executable, os.path.abspath(__file__), "--proxy", FAR_ADDRESS, str(milliseconds), *map(str, (22, *FAR_PORTS))]
        with subprocess.Popen(self.on(self.near, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
            proxy.stdout.readline()     # it listens
            self.point_to("127.0.0.1", 22)
            try:
                yield
            finally:
                self.point_to(FAR_ADDRESS, 22)
                proxy.stdin.close()
                proxy.wait()

    def packets(self):
        """Packets of both directions so far."""
        total = 0
        for kind in ("rx", "tx"):
            path = f"/sys/class/net/fbnear/statistics/{kind}_packets"
            total += int(subprocess.check_output(self.on(self.near, ["cat", path])))
        return total


class Network:
    """The rows, for a Bench."""

    def __init__(self, bench):
        self.bench = bench

    # ------------------------------------------------------------- ingredients

    def side(self, hosts, command, **more):
        env = {"FULLBORE_SSH": " ".join(hosts.ssh()), "BORG_RSH": " ".join(hosts.ssh()),
               "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes", "RESTIC_PASSWORD": "bench",
               "RESTIC_CACHE_DIR": f"{hosts.dir}/restic", "BORG_BASE_DIR": f"{hosts.dir}/borg"}
        return Side(hosts.on(hosts.near, command), env=env, **more)

    def fullbore(self, hosts, *args, **more):
        return self.side(hosts, [self.bench.fullbore, *args, "--far-program", self.bench.fullbore], **more)

    def push(self, hosts, corpus, *options):
        folder, prepare = self.bench.place("out", corpus)
        return self.fullbore(hosts, "backup", corpus.path, "--to", f"ssh://far{folder}/repo", *options,
                             prepare=prepare, source=corpus.cached)

    def pull(self, hosts, corpus, *options):
        folder, prepare = self.bench.place("out", corpus)
        return self.fullbore(hosts, "backup", f"ssh://far{corpus.path}", "--to", f"{folder}/repo", *options,
                             prepare=prepare, source=corpus.cached)

    def rsync(self, hosts, corpus, is_pull=False):
        folder, prepare = self.bench.place("out", corpus)
        ends = [f"{corpus.path}/", f"far:{folder}/tree/"]
        if is_pull:
            ends = [f"far:{corpus.path}/", f"{folder}/tree/"]
        return self.side(hosts, ["rsync", "-aHAX", "-e", " ".join(hosts.ssh()), *ends],
                         prepare=prepare, source=corpus.cached)

    def restic(self, hosts, corpus):
        folder, place = self.bench.place("out", corpus)
        command = ["restic", "-q", "-o", f"sftp.command={' '.join(hosts.ssh())} far -s sftp", "-r", f"sftp:far:{folder}/restic"]

        def prepare():
            place()
            shutil.rmtree(f"{hosts.dir}/restic", ignore_errors=True)
            self.side(hosts, [*command, "init"])()
        return self.side(hosts, [*command, "backup", corpus.path], prepare=prepare, source=corpus.cached)

    def borg(self, hosts, corpus):
        folder, place = self.bench.place("out", corpus)
        repo = f"ssh://far{folder}/borg"

        def prepare():
            place()
            shutil.rmtree(f"{hosts.dir}/borg", ignore_errors=True)
            self.side(hosts, ["borg", "init", "--encryption", "none", repo])()
        return self.side(hosts, ["borg", "create", "--compression", "zstd,1", f"{repo}::{{now:%f}}", corpus.path],
                         prepare=prepare, source=corpus.cached)

    def packets(self, row, what, hosts, sides, target):
        """The packets of one run each of two sides."""
        counts = []
        for side in sides:
            side.prepare()
            before = hosts.packets()
            replace(side, prepare=lambda: None)()
            counts.append(hosts.packets() - before)
        return ratio_line(row, f"packets, {what}", target, [tuple(counts)], [side.command for side in sides], unit="")

    def calls(self, row, what, side, corpus):
        """System calls of the near side, with its ssh."""
        side.prepare()
        os.environ.update(side.env)
        calls = count_syscalls(side.command)
        return Line(row, f"system calls a file, near side, {what}", calls / corpus.files, None, a=f"{calls} calls",
                    b=f"{corpus.files} files", commands=[["strace", "-f", "-c", *side.command]], raw=[calls])

    # -------------------------------------------------------------------- rows

    def backup(self, row, name, target):
        """First backups, and backups of what did not change, against restic and borg; and rsync for comparison."""
        corpus = self.bench.corpus(name)
        with Hosts(self.bench) as hosts:
            ours = self.push(hosts, corpus)
            for peer, theirs in (("restic over sftp", self.restic(hosts, corpus)), ("borg over ssh", self.borg(hosts, corpus))):
                yield wall_line(row, f"wall, push, {peer}", target, self.bench.alternate(ours, theirs))
                yield self.packets(row, peer, hosts, (ours, theirs), None)
                again = [replace(side, prepare=lambda: None) for side in (ours, theirs)]
                ours.prepare()
                again[0]()
                place, self.bench.work.fresh = self.bench.work.fresh, lambda *_: None     # both repositories stay
                try:
                    theirs.prepare()
                finally:
                    self.bench.work.fresh = place
                yield wall_line(row, f"wall, push, no change, {peer}", target, self.bench.alternate(*again))
                yield self.packets(row, f"no change, {peer}", hosts, again, None)
                login = self.side(hosts, [*hosts.ssh(), "far", "true"])
                yield wall_line(row, "wall, push, no change, a login by ssh", None, self.bench.alternate(again[0], login))
            yield wall_line(row, "wall, push, rsync", None, self.bench.alternate(ours, self.rsync(hosts, corpus)))
            pull, rsync = self.pull(hosts, corpus), self.rsync(hosts, corpus, is_pull=True)
            yield wall_line(row, "wall, pull, rsync", None, self.bench.alternate(pull, rsync))
            yield self.packets(row, "pull, rsync", hosts, (pull, rsync), None)
            for what, side in (("push", ours), ("pull", pull), ("rsync, pull", rsync)):
                yield self.calls(row, what, side, corpus)

    def plain_stream(self, hosts, corpus, way):
        command = [sys.executable, os.path.abspath(__file__), "--stream", way, corpus.bytes, *hosts.ssh(), "far"]
        return self.side(hosts, list(map(str, command)))

    def late(self, row, name, milliseconds, share):
        """A backup without compression over 1 Gbit/s and late answers: how much of the link is used."""
        corpus = self.bench.corpus(name)
        with Hosts(self.bench) as hosts, hosts.rate(GIGABIT), hosts.late(milliseconds):
            plainly = ("--compress", "none")
            for way, ours in (("push", self.push(hosts, corpus, *plainly)), ("pull", self.pull(hosts, corpus, *plainly))):
                on = f"{way}, 1 Gbit/s, {milliseconds} ms"
                pairs = self.bench.alternate(ours, self.plain_stream(hosts, corpus, way))
                yield wall_line(row, f"wall, {on}, a login and a plain stream", 1.11, pairs)
                walls = [wall for wall, _ in pairs.of("wall")]
                used = [corpus.bytes * 8 / wall / GIGABIT for wall in walls]
                yield Line(row, f"share of the link, {on}", sorted(used)[len(used) // 2], share,
                           sign=">=", commands=[ours.command], raw=used)
                rsync = self.rsync(hosts, corpus, is_pull=way == "pull")
                yield ratio_line(row, f"wall, {on}, rsync, once", None, [(walls[-1], rsync().wall)],
                                 [ours.command, rsync.command], unit="s")

    def copy(self, row, name, target):
        """Copies of a tree to the far host: a new one, and one of which every file is read and nothing differs."""
        corpus = self.bench.corpus(name)
        with Hosts(self.bench) as hosts:
            folder, prepare = self.bench.place("out", corpus)
            ends = ("copy", corpus.path, f"ssh://far{folder}/tree")
            ours = self.fullbore(hosts, *ends, prepare=prepare, source=corpus.cached)
            unpack = f"{' '.join(hosts.ssh())} far 'mkdir {folder}/tree && tar -C {folder}/tree -xf -'"
            tar = self.side(hosts, ["sh", "-c", f"tar -C {corpus.path} -cf - . | {unpack}"], prepare=prepare, source=corpus.cached)
            for peer, theirs in (("rsync", self.rsync(hosts, corpus)), ("tar, ssh, tar", tar)):
                yield wall_line(row, f"wall, new copy, {peer}", target, self.bench.alternate(ours, theirs))
            yield from self.both_calls(row, "new copy", hosts, ours, corpus, (5, 6))
            same = replace(ours, command=[*ours.command, "--checksum"], prepare=lambda: None)
            theirs = self.rsync(hosts, corpus)
            theirs = replace(theirs, command=[*theirs.command, "--ignore-times"], prepare=lambda: None)
            yield self.packets(row, "identical, every file read, rsync", hosts, (same, theirs), None)
            yield wall_line(row, "wall, identical, every file read, rsync", None, self.bench.alternate(same, theirs))
            yield from self.both_calls(row, "identical, every file read", hosts, same, corpus, (5, 45_000 / 7_800))
            unchanged = replace(ours, prepare=lambda: None)
            with hosts.late(100):
                theirs = replace(self.rsync(hosts, corpus), prepare=lambda: None)
                yield wall_line(row, "wall, no change, 100 ms, rsync", None, self.bench.alternate(unchanged, theirs))

    def both_calls(self, row, what, hosts, side, corpus, targets):
        """System calls of both sides of fullbore, by strace, without those of ssh."""
        side.prepare()
        tables = [f"{hosts.dir}/near.calls", f"{hosts.dir}/far.calls"]
        trace = [["strace", "-f", "-b", "execve", "-c", "-o", table] for table in tables]
        program = f"{hosts.dir}/traced"
        with open(program, "w") as file:
            file.write(f"#!/bin/sh\nexec {' '.join(trace[1])} {self.bench.fullbore} \"$@\"\n")
        os.chmod(program, 0o755)
        at = side.command.index(self.bench.fullbore)
        command = [program if word == self.bench.fullbore else word for word in side.command[at + 1:]]
        os.environ.update(side.env)
        run([*side.command[:at], *trace[0], self.bench.fullbore, *command])
        time.sleep(1)   # the far strace writes its table after the session
        for name, table, target in zip(("near", "far"), tables, targets):
            with open(table) as file:
                calls = [int(line.split()[3]) for line in file if line.rstrip().endswith(" total")][-1]
            yield Line(row, f"system calls a file, {name} side, {what}", calls / corpus.files, target, a=f"{calls} calls",
                       b=f"{corpus.files} files", commands=[[*trace[0], self.bench.fullbore, *command]], raw=[calls])

    def cluster(self, row, target):
        """A cluster pulled over 1 Gbit/s and compressed where it is, against pg_basebackup that compresses in the server."""
        corpus = self.bench.corpus("cluster")
        with Hosts(self.bench) as hosts, FarCluster(corpus.path, hosts).listening() as cluster, hosts.rate(GIGABIT):
            cluster.warm()
            folder, prepare = self.bench.place("out", corpus)
            ours = self.fullbore(hosts, "backup", "--on", "ssh://far", cluster.url(), "--to", f"{folder}/repo", "--wal", "none",
                                 "--compress", "zstd:1", prepare=prepare, source=corpus.cached)
            theirs = self.side(hosts, [cluster.tool("pg_basebackup"), "-h", FAR_ADDRESS, "-p", PORT, "-U", "postgres", "-D",
                                       f"{folder}/base", "-Ft", "-X", "none", "-c", "fast", "--no-sync",
                                       "--compress=server-zstd:level=1"], prepare=prepare, source=corpus.cached)
            yield wall_line(row, "wall, pull, 1 Gbit/s, pg_basebackup", target, self.bench.alternate(ours, theirs))
            yield self.packets(row, "pull, pg_basebackup", hosts, (ours, theirs), None)


class FarCluster(Cluster):
    """A cluster whose server is on the far host, and listens there."""

    def __init__(self, root, hosts):
        super().__init__(root)
        self.hosts = hosts

    def run(self, name, *args, text=None):
        env = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        command = self.hosts.on(self.hosts.far, as_postgres([self.tool(name), *args]))
        subprocess.run(command, check=True, cwd="/", env=env, input=text and text.encode(), stdout=subprocess.DEVNULL)

    @contextmanager
    def listening(self):
        """Runs it, open to the near host; what it may be asked by is put back at the end."""
        rules = os.path.join(self.root, "pg_hba.conf")
        with open(rules) as file:
            before = file.read()
        try:
            with open(rules, "a") as file:
                file.writelines(f"host {what} all {NEAR_ADDRESS}/32 trust\n" for what in ("all", "replication"))
            with self.running({"listen_addresses": FAR_ADDRESS}):
                yield self
        finally:
            with open(rules, "w") as file:
                file.write(before)


def main():
    if sys.argv[1:2] == ["--plain"]:
        plain(sys.argv[2])
    elif sys.argv[1:2] == ["--stream"]:
        stream(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    elif sys.argv[1:2] == ["--end"]:
        stream_end(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["--proxy"]:
        host, milliseconds = sys.argv[2], float(sys.argv[3])
        with ExitStack() as proxies:
            for port in map(int, sys.argv[4:]):
                proxies.enter_context(delayed(port, milliseconds / 1000, host, own=port))
            print(flush=True)
            sys.stdin.read()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
