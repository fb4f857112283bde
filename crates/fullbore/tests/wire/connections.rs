//! Several connections of one session.

use super::{
    listening::{Certificates, Listening, expect},
    over_ssh::{files, kill_ssh_of, restored, scratch, segments, ssh_of, text, tree},
    sshd::{FULLBORE, program, sshd},
    suite::pattern,
};
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// A tree whose backup moves enough to be worth several connections.
fn large_tree(path: &Path) {
    tree(path);
    fs::write(path.join("larger"), pattern(60_000_000, 11)).unwrap();
}

/// Passes connections on to a port, and cuts all but the first one after so many bytes each.
struct CuttingProxy {
    port: u16,
    cuts: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

impl CuttingProxy {
    fn start(to: u16, cut_after: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cuts, accepted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, all) = (cuts.clone(), accepted.clone());
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let number = all.fetch_add(1, Relaxed);
                let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
                let left = if number == 0 { usize::MAX } else { cut_after };
                let left = Arc::new(Mutex::new(left));
                for (source, target) in [(&near, &far), (&far, &near)] {
                    let (source, target) =
                        (source.try_clone().unwrap(), target.try_clone().unwrap());
                    let (left, counted) = (left.clone(), counted.clone());
                    thread::spawn(move || pass(source, target, &left, &counted));
                }
            }
        });
        Self {
            port,
            cuts,
            accepted,
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, left: &Mutex<usize>, cuts: &AtomicUsize) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let mut left = left.lock().unwrap();
        if *left < read {
            cuts.fetch_add(usize::from(*left > 0), Relaxed);
            *left = 0;
            let _ = to.write_all(&bytes[..read / 2]);
            break;
        }
        *left -= read;
        drop(left);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn further_connections_that_are_cut_again_and_again_lose_nothing() {
    let dir = scratch();
    let source = dir.path().join("source");
    large_tree(&source);
    let src = source.to_str().unwrap();
    let certificates = Certificates::new();
    let repository = dir.path().join("r");
    let server = Listening::start(&certificates, &format!("write:{}", repository.display()));
    let run = |arguments: &[&str]| expect(0, &mut certificates.fullbore(arguments));
    for cut_after in [3_000_001, 700_003] {
        let proxy = CuttingProxy::start(server.port, cut_after);
        let there = format!("fullbore://127.0.0.1:{}", proxy.port);
        run(&[
            "backup",
            src,
            "--to",
            &there,
            "--full",
            "--connections",
            "4",
        ]);
        let cuts = proxy.cuts.load(Relaxed);
        println!("a backup: {cuts} connections were cut after {cut_after} bytes");
        assert!(cuts >= 2, "{cuts}");
        let proxy = CuttingProxy::start(server.port, cut_after);
        let there = format!("fullbore://127.0.0.1:{}", proxy.port);
        let target = dir.path().join(format!("restored-{cut_after}"));
        run(&[
            "restore",
            &there,
            "--to",
            target.to_str().unwrap(),
            "--connections",
            "4",
        ]);
        let cuts = proxy.cuts.load(Relaxed);
        println!("a restore: {cuts} connections were cut after {cut_after} bytes");
        assert!(cuts >= 2, "{cuts}");
        assert!(restored(&target, &source) == files(&source));
    }
    run(&["verify", repository.to_str().unwrap(), "--data"]);
    let near = dir.path().join("near");
    run(&["backup", src, "--to", near.to_str().unwrap()]);
    let one = segments(&near);
    let two = segments(&repository);
    assert_eq!(two.len(), 2 * one.len());
    assert!(two.iter().all(|segment| one.contains(segment)));
}

#[test]
fn a_near_server_has_one_connection_unless_more_are_asked_for() {
    let dir = scratch();
    let source = dir.path().join("source");
    large_tree(&source);
    let certificates = Certificates::new();
    let repository = dir.path().join("r");
    let server = Listening::start(&certificates, &format!("write:{}", repository.display()));
    for (connections, expected) in [("1", 1), ("3", 3)] {
        let proxy = CuttingProxy::start(server.port, usize::MAX);
        let there = format!("fullbore://127.0.0.1:{}", proxy.port);
        let backup = ["backup", source.to_str().unwrap(), "--to", &there, "--full"];
        let option = ["--connections", connections];
        expect(0, certificates.fullbore(&backup).args(option));
        assert_eq!(proxy.accepted.load(Relaxed), expected);
    }
}

/// ssh that counts its sessions and keeps what the near side says over it.
fn counting_ssh(dir: &Path, ssh: &str) -> String {
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *-G*) exec {ssh} \"$@\";; esac\n\
         said=$(mktemp {}/said-XXXXXX)\ntee $said | {ssh} \"$@\"\n",
        dir.display()
    );
    let path = dir.join("counting-ssh");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// Bytes that were said over each ssh, from the fewest on.
fn said(dir: &Path) -> Vec<u64> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let said = all.filter(|entry| entry.file_name().to_string_lossy().starts_with("said-"));
    let mut bytes: Vec<u64> = said.map(|entry| entry.metadata().unwrap().len()).collect();
    bytes.sort_unstable();
    bytes
}

#[test]
fn data_goes_beside_ssh_where_the_hosts_reach_each_other() {
    let dir = scratch();
    let source = dir.path().join("source");
    large_tree(&source);
    let ssh = counting_ssh(dir.path(), &sshd().command());
    let repository = dir.path().join("repository");
    let there = format!("ssh://far{}", repository.display());
    let mut command = sshd().fullbore(&["backup", source.to_str().unwrap(), "--to", &there]);
    let said_of_it = expect(0, command.args(["--ssh", &ssh]));
    let over_ssh = said(dir.path());
    println!("bytes over ssh: {over_ssh:?}: {said_of_it}");
    assert_eq!(over_ssh.len(), 1);
    assert!(over_ssh[0] < 45_000_000, "{over_ssh:?}");
    expect(
        0,
        sshd()
            .fullbore(&["verify", &there, "--data"])
            .args(["--ssh", &ssh]),
    );
}

/// Stands in for ssh to a host that TCP does not reach.
const OTHER_WAY: &str = r#"#!/bin/sh
case "$*" in *-G*) echo "hostname no-such-host.invalid"; exit;; esac
for command; do :; done
said=$(mktemp "$FULLBORE_SAID/said-XXXXXX")
tee "$said" | sh -c "$command"
"#;

/// Bytes that a process has read so far; 0 once it has ended.
fn read_by(process: u32) -> u64 {
    let counts = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let count = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
    count.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn a_backup_goes_on_without_its_first_connection() {
    let dir = scratch();
    let source = dir.path().join("source");
    large_tree(&source);
    let repository = dir.path().join("repository");
    let there = format!("ssh://far{}", repository.display());
    let backup = ["backup", source.to_str().unwrap(), "--to", &there];
    let mut command = sshd().fullbore(&backup);
    command.args(["--limit-upload", "8M"]);
    let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
    // Until another connection has taken its place, and each side has told what it received by ssh.
    let mut carried = 0;
    while running.try_wait().unwrap().is_none() {
        let before = carried;
        thread::sleep(Duration::from_secs(1));
        carried = ssh_of(running.id()).map_or(0, read_by);
        if before > 1_000_000 && carried.saturating_sub(before) < 100_000 {
            break;
        }
    }
    assert!(kill_ssh_of(running.id()), "it has ended");
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let repository = repository.to_str().unwrap();
    expect(0, &mut sshd().fullbore(&["verify", repository, "--data"]));
    let target = dir.path().join("to");
    let restore = ["restore", repository, "--to", target.to_str().unwrap()];
    expect(0, &mut sshd().fullbore(&restore));
    assert!(restored(&target, &source) == files(&source));
}

#[test]
fn where_hosts_do_not_reach_each_other_more_processes_of_ssh_carry_the_data() {
    let dir = scratch();
    let source = dir.path().join("source");
    large_tree(&source);
    let ssh = dir.path().join("ssh");
    fs::write(&ssh, OTHER_WAY).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let repository = dir.path().join("repository");
    let there = format!("ssh://any{}", repository.display());
    let backup = [
        "backup",
        source.to_str().unwrap(),
        "--to",
        &there,
        "--max-rate",
        "60M",
    ];
    let mut command = program();
    command
        .args(backup)
        .args(["--connections", "3", "--ssh"])
        .arg(&ssh)
        .args(["--far-program", FULLBORE])
        .env("FULLBORE_SAID", dir.path());
    expect(0, &mut command);
    let over_ssh = said(dir.path());
    println!("bytes over each ssh: {over_ssh:?}");
    assert_eq!(over_ssh.len(), 3, "{over_ssh:?}");
    assert!(over_ssh[0] > 1_000_000, "{over_ssh:?}");
    expect(0, program().args(["verify", "--data"]).arg(&repository));
}
