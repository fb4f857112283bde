//! A backup between two hosts that are network namespaces with a wire between them. Where they cannot be made, it says so.

use super::{
    over_ssh::{files, restored, scratch, text, tree},
    sshd::{FULLBORE, sshd},
};
use std::{
    fs,
    net::Ipv4Addr,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 231, 8, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 231, 8, 2);

/// Two namespaces with a veth pair, and sshd in the far one.
struct TwoHosts {
    near: String,
    far: String,
    server: Option<Child>,
}

fn ip(words: &str) -> Output {
    Command::new("ip").args(words.split(' ')).output().unwrap()
}

impl TwoHosts {
    /// `None`, said, if that is not permitted.
    fn new() -> Option<Self> {
        let number = std::process::id();
        let [near, far] = ["near", "far"].map(|name| format!("fullbore-{number}-{name}"));
        let hosts = Self {
            near: near.clone(),
            far: far.clone(),
            server: None,
        };
        for words in [
            format!("netns add {near}"),
            format!("netns add {far}"),
            format!("link add near netns {near} type veth peer name far netns {far}"),
            format!("-n {near} addr add {NEAR}/24 dev near"),
            format!("-n {far} addr add {FAR}/24 dev far"),
            format!("-n {near} link set lo up"),
            format!("-n {far} link set lo up"),
            format!("-n {near} link set near up"),
            format!("-n {far} link set far up"),
        ] {
            let done = ip(&words);
            if !done.status.success() {
                eprintln!(
                    "skipped: no network namespaces can be made here: {}",
                    text(&done)
                );
                return None;
            }
        }
        Some(hosts)
    }

    fn on(host: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host, program]);
        command
    }

    /// Starts the far sshd, as the one of the loopback interface is.
    fn serve(&mut self) {
        let mut server = Self::on(&self.far, "/usr/sbin/sshd");
        server
            .args(["-D", "-e", "-o", &format!("ListenAddress={FAR}"), "-f"])
            .arg(sshd().server_config())
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        self.server = Some(server.spawn().unwrap());
        let began = Instant::now();
        while self
            .fullbore(&["list", "ssh://far/none/such"])
            .1
            .contains("could not reach")
        {
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "sshd does not answer"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs fullbore on the near host. Returns its exit code, and what it said.
    fn fullbore(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let ssh = format!("{} -o HostName={FAR}", sshd().command());
        let output = Self::on(&self.near, FULLBORE)
            .args(arguments)
            .args(["--far-program", FULLBORE])
            .env("FULLBORE_SSH", ssh)
            .output()
            .unwrap();
        (output.status.code(), text(&output))
    }

    /// Bytes and packets that the near host has sent so far.
    fn sent(&self) -> [u64; 2] {
        ["bytes", "packets"].map(|word| {
            let path = format!("/sys/class/net/near/statistics/tx_{word}");
            let read = Self::on(&self.near, "cat").arg(path).output().unwrap();
            String::from_utf8(read.stdout)
                .unwrap()
                .trim()
                .parse()
                .unwrap()
        })
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill(); // it may have ended
            let _ = server.wait();
        }
        for host in [&self.near, &self.far] {
            ip(&format!("netns del {host}"));
        }
    }
}

#[test]
fn a_backup_crosses_the_wire_between_two_hosts() {
    let Some(mut hosts) = TwoHosts::new() else {
        return;
    };
    hosts.serve();
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let (src, repository) = (source.to_str().unwrap(), dir.path().join("repository"));
    let there = format!("ssh://far{}", repository.display());
    let push = || {
        let before = hosts.sent();
        let (code, said) = hosts.fullbore(&["backup", src, "--to", &there]);
        assert_eq!(code, Some(0), "{said}");
        let after = hosts.sent();
        [after[0] - before[0], after[1] - before[1]]
    };
    let first = push();
    let again = push();
    println!("bytes and packets sent: {first:?}, and without changes {again:?}");
    assert!(
        first[0] > 100_000 && again[0] < 100_000,
        "{first:?} {again:?}"
    );
    assert!(again[1] <= 200, "{again:?}");
    let target = dir.path().join("restored");
    let (code, said) = hosts.fullbore(&["restore", &there, "--to", target.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(restored(&target, &source) == files(&source));
    // And pulled: the far host reads, and this one stores.
    let pulled = dir.path().join("pulled");
    let far_source = format!("ssh://far{src}");
    let (code, said) = hosts.fullbore(&["backup", &far_source, "--to", pulled.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    let roots = fs::read_dir(pulled.join("backups")).unwrap().count();
    assert_eq!(roots, 1);
}
