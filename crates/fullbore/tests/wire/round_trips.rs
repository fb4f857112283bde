//! How many round trips a command makes to another host: calls that follow the answers of others, through a relay that holds up each
//! direction. What is counted is the order of the messages, not the time.

use super::{over_ssh::scratch, sshd::program};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    process::Stdio,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Stands in for ssh: passes its standard input and output to a port of this host.
const RELAYED_SSH: &str = r#"#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/$RELAY_PORT
cat <&3 &
exec cat >&3
"#;

/// Time that each direction is held up: longer than a command thinks between two calls that do not depend on each other.
const LATE: Duration = Duration::from_millis(150);

/// The calls of the near side.
#[derive(Debug, Default)]
struct CallOrder {
    calls: usize,
    /// How many calls, one after the answer of another, led to each call that waits.
    depths: BTreeMap<u64, usize>,
    /// The same of all calls that were answered.
    answered: usize,
}

/// What a frame says: whether it is a call or an answer, and its number.
fn call_number(header: &[u8]) -> Option<(bool, u64)> {
    // A message is [kind, [number, …]]; kind 2 is a call and 4 an answer.
    let is_call = match header {
        [0x82, 2, 0x82, ..] => true,
        [0x82, 4, 0x82, ..] => false,
        _ => return None,
    };
    let number = match header[3..] {
        [small @ ..24, ..] => u64::from(small),
        [24, byte, ..] => u64::from(byte),
        [25, high, low, ..] => u64::from(u16::from_be_bytes([high, low])),
        _ => panic!("{header:?}"),
    };
    Some((is_call, number))
}

/// Reads a greeting, or a frame and its header.
fn read_piece(input: &mut impl Read, is_greeting: bool) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut piece = Vec::new();
    if is_greeting {
        while piece.last() != Some(&b'\n') {
            let mut byte = [0];
            input.read_exact(&mut byte)?;
            piece.extend(byte);
        }
        return Ok((piece, Vec::new()));
    }
    piece.resize(8, 0);
    input.read_exact(&mut piece)?;
    let length =
        |offset: usize| u32::from_le_bytes(piece[offset..offset + 4].try_into().unwrap()) as usize;
    let (header, data) = (length(0), length(4));
    piece.resize(8 + header + data, 0);
    input.read_exact(&mut piece[8..])?;
    let header = piece[8..8 + header].to_vec();
    Ok((piece, header))
}

/// Passes frames on, each after [`LATE`].
fn relay(
    mut input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
    order: Arc<Mutex<CallOrder>>,
) {
    let (sender, late) = mpsc::channel::<(Instant, Vec<u8>, Option<u64>)>();
    let at_end = order.clone();
    thread::spawn(move || {
        for (time, piece, answered) in late {
            thread::sleep(time.saturating_duration_since(Instant::now()));
            let mut order = at_end.lock().unwrap();
            let depth = answered.and_then(|number| order.depths.remove(&number));
            order.answered = order.answered.max(depth.unwrap_or(0));
            drop(order);
            if output
                .write_all(&piece)
                .and_then(|()| output.flush())
                .is_err()
            {
                return;
            }
        }
    });
    thread::spawn(move || {
        let mut is_greeting = true;
        while let Ok((piece, header)) = read_piece(&mut input, is_greeting) {
            is_greeting = false;
            let mut answered = None;
            match call_number(&header) {
                Some((true, number)) => {
                    let mut order = order.lock().unwrap();
                    order.calls += 1;
                    let depth = order.answered + 1;
                    order.depths.insert(number, depth);
                }
                Some((false, number)) => answered = Some(number),
                None => {}
            }
            if sender
                .send((Instant::now() + LATE, piece, answered))
                .is_err()
            {
                return;
            }
        }
    });
}

/// Runs a command whose other host answers late. Returns its calls, and its round trips after the greeting.
fn late(dir: &std::path::Path, arguments: &[&str]) -> (usize, usize) {
    let ssh = dir.join("ssh");
    fs::write(&ssh, RELAYED_SSH).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let order: Arc<Mutex<CallOrder>> = Arc::default();
    let near = program()
        .args(arguments)
        .arg("--ssh")
        .arg(&ssh)
        .env("RELAY_PORT", port.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (socket, _): (TcpStream, _) = listener.accept().unwrap();
    let mut far = program()
        .args(["serve", "--stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (to_far, from_far) = (far.stdin.take().unwrap(), far.stdout.take().unwrap());
    // The answers are counted where they reach the near side.
    relay(socket.try_clone().unwrap(), to_far, order.clone());
    relay(from_far, socket.try_clone().unwrap(), order.clone());
    let output = near.wait_with_output().unwrap();
    let _ = socket.shutdown(Shutdown::Both);
    far.wait().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let order = order.lock().unwrap();
    assert!(order.depths.is_empty(), "{order:?}");
    (order.calls, order.answered)
}

#[test]
fn a_backup_without_changes_takes_eight_round_trips() {
    let dir = scratch();
    let source = dir.path().join("source");
    fs::create_dir_all(&source).unwrap();
    for number in 0..20 {
        fs::write(source.join(number.to_string()), number.to_string()).unwrap();
    }
    let there = format!("ssh://any{}/repository", dir.path().display());
    let backup = || {
        let source = source.to_str().unwrap();
        late(dir.path(), &["backup", source, "--to", &there])
    };
    let first = backup();
    thread::sleep(Duration::from_secs(3)); // a file as young as a backup is read again
    backup();
    // A machine that does much else may think for longer between two calls of one round trip.
    let mut runs = (0..3).map(|_| backup());
    let few = runs.find(|(_, trips)| *trips <= 8);
    let (calls, trips) = few.expect("three backups took more than 8 round trips");
    println!(
        "calls and round trips: {first:?} of a first backup, {calls} and {trips} without changes"
    );
    assert!(calls <= 16, "{calls}");
    assert!(trips > 4, "{trips}");
}
