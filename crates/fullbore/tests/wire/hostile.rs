//! A peer that keeps no rules, against processes of this program: how much memory they take, and how long they bear it.

use super::{
    TIMES,
    faults::small_socket,
    over_ssh::scratch,
    sshd::FULLBORE,
    streams,
    suite::{pattern, put},
};
use fullbore_format::error::Error;
use fullbore_storage::{
    MemoryObjects, Objects,
    wire::{Offer, OfferedObjects, Wire, WireTimes},
};
use minicbor::Encoder;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// A value of a message.
#[derive(Clone, Copy)]
pub(crate) enum Word<'a> {
    Number(u64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(&'a [Word<'a>]),
    /// A call of another service than that of objects.
    Service(u64),
}
pub(crate) use Word::Service;
use Word::{Bytes, List, Number, Text};

fn encode(word: Word<'_>, encoder: &mut Encoder<&mut Vec<u8>>) {
    match word {
        Number(number) => drop(encoder.u64(number).unwrap()),
        Text(text) => drop(encoder.str(text).unwrap()),
        Bytes(bytes) => drop(encoder.bytes(bytes).unwrap()),
        List(words) => {
            encoder.array(words.len() as u64).unwrap();
            words.iter().for_each(|word| encode(*word, encoder));
        }
        Service(number) => encode(List(&[Number(number), Bytes(b"")]), encoder),
    }
}

fn encoded(word: Word<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(word, &mut Encoder::new(&mut bytes));
    bytes
}

const PART: u64 = 1;
const CALL: u64 = 2;
const ANSWER: u64 = 4;
const APPEND: u64 = 5;
const CREATE: u64 = 10;

pub(crate) const OPEN: Word<'_> = List(&[Number(0), List(&[Bytes(b"")])]);
pub(crate) const LIST: Word<'_> = List(&[Number(1), List(&[Text("")])]);
pub(crate) const GET_LARGE: Word<'_> = List(&[Number(3), List(&[Text("backups/x/root.json")])]);
const DELETE: Word<'_> = List(&[Number(9), List(&[])]);

/// One side of a session, which says what it likes. Its numbers begin far from those of the other side.
pub(crate) struct HostilePeer<S> {
    stream: S,
    last: u64,
    /// Headers and data of answers that came before they were waited for; without a header, those that are not whole.
    answers: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
}

impl<S: Read + Write> HostilePeer<S> {
    pub(crate) fn greet(mut stream: S) -> io::Result<Self> {
        stream.write_all(b"fullbore wire 1 0.1.0\n")?;
        let mut byte = [0];
        while byte[0] != b'\n' {
            stream.read_exact(&mut byte)?;
        }
        Ok(Self {
            stream,
            last: 1 << 40,
            answers: BTreeMap::new(),
        })
    }

    pub(crate) fn send(&mut self, kind: u64, fields: &[Word<'_>], data: &[u8]) -> io::Result<()> {
        let header = encoded(List(&[Number(kind), List(fields)]));
        let lengths = [header.len() as u32, data.len() as u32].map(u32::to_le_bytes);
        self.stream
            .write_all(&[&lengths.concat()[..], &header, data].concat())?;
        self.stream.flush()
    }

    /// Sends a call whose data is here as a whole, or goes on in parts.
    pub(crate) fn call(&mut self, call: Word<'_>, data: &[u8]) -> io::Result<u64> {
        let question = encoded(call);
        let of_objects = [Number(0), Bytes(&question)];
        let call = match call {
            Service(_) => call,
            _ => List(&of_objects),
        };
        self.call_in_words(&[call], data)
    }

    /// Sends a call in any words.
    fn call_in_words(&mut self, words: &[Word<'_>], data: &[u8]) -> io::Result<u64> {
        self.last += 1;
        let id = self.last;
        let (first, rest) = data.split_at(data.len().min(1 << 20));
        let mut fields = [&[Number(id)], words].concat();
        if !rest.is_empty() {
            fields.push(Number(rest.len() as u64));
        }
        self.send(CALL, &fields, first)?;
        for part in rest.chunks(1 << 20) {
            self.send(PART, &[Number(id)], part)?;
        }
        Ok(id)
    }

    /// The header and the data of the next frame.
    pub(crate) fn receive(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let mut lengths = [0; 8];
        self.stream.read_exact(&mut lengths)?;
        let length =
            |offset: usize| u32::from_le_bytes(lengths[offset..offset + 4].try_into().unwrap());
        let mut read = |bytes: u32| {
            let mut all = vec![0; bytes as usize];
            self.stream.read_exact(&mut all).map(|()| all)
        };
        Ok((read(length(0))?, read(length(4))?))
    }

    /// Waits for the answer to a call, in any order of them; returns its header, and the data of its parts.
    pub(crate) fn answer(&mut self, id: u64) -> io::Result<(Vec<u8>, Vec<u8>)> {
        loop {
            let is_whole = |(header, _): &(Vec<u8>, Vec<u8>)| !header.is_empty();
            if self.answers.get(&id).is_some_and(is_whole) {
                return Ok(self.answers.remove(&id).unwrap_or_default());
            }
            let (header, data) = self.receive()?;
            // An answer or a part of one is `[kind, [number, …]]`.
            if let [0x82, kind @ (3 | 4), _, number @ ..] = &header[..] {
                let number = minicbor::Decoder::new(number).u64().unwrap();
                let (answer, all) = self.answers.entry(number).or_default();
                all.extend(data);
                if u64::from(*kind) == ANSWER {
                    *answer = header;
                }
            }
        }
    }

    /// Makes a call that must be refused, in words that have this text.
    fn is_refused(&mut self, call: Word<'_>, data: &[u8], text: &str) {
        let id = self.call(call, data).unwrap();
        self.is_answered_with(id, text);
    }

    fn is_answered_with(&mut self, id: u64, text: &str) {
        let (header, _) = self.answer(id).unwrap();
        let said = String::from_utf8_lossy(&header);
        assert!(said.contains(text), "{said}");
    }
}

/// Standard input and output of a process.
pub(crate) struct Pipes(Child);

impl Read for Pipes {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.stdout.as_mut().unwrap().read(bytes)
    }
}

impl Write for Pipes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.stdin.as_mut().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session with `fullbore serve --stdio`, limited to this.
pub(crate) fn serve_stdio(allow: Option<&str>) -> HostilePeer<Pipes> {
    let mut command = Command::new(FULLBORE);
    command.args(["serve", "--stdio"]);
    if let Some(allow) = allow {
        command.args(["--allow", allow]);
    }
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    HostilePeer::greet(Pipes(child.unwrap())).unwrap()
}

impl HostilePeer<Pipes> {
    fn open(allow: &str) -> Self {
        let mut peer = serve_stdio(Some(allow));
        let id = peer.call(OPEN, b"").unwrap();
        peer.answer(id).unwrap();
        peer
    }

    pub(crate) fn peak(&self) -> u64 {
        peak_mib(self.stream.0.id()).expect("the server has ended")
    }
}

/// The most memory that a process had, in MiB.
pub(crate) fn peak_mib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib = line.trim().split(' ').next()?.parse::<u64>().ok()?;
    Some(kib >> 10)
}

/// Memory that an attack may take beyond that of an honest host.
pub(crate) const MORE_MIB: u64 = 64;

fn repository(dir: &Path) -> String {
    let (source, repository) = (dir.join("source"), dir.join("repository"));
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("a"), "one").unwrap();
    let backup = Command::new(FULLBORE)
        .arg("backup")
        .arg(&source)
        .arg("--to")
        .arg(&repository)
        .output()
        .unwrap();
    assert!(backup.status.success(), "{backup:?}");
    repository.display().to_string()
}

#[test]
fn data_of_calls_that_a_host_may_not_make_takes_no_memory() {
    let dir = scratch();
    let mut peer = HostilePeer::open(&format!("read:{}", repository(dir.path())));
    let before = peer.peak();
    // A list of empty texts, each of which would take 24 bytes.
    let texts = |count: u32| {
        let mut bytes = vec![0x9a];
        bytes.extend(count.to_be_bytes());
        bytes.resize(5 + count as usize, 0x60);
        bytes
    };
    for _ in 0..24 {
        peer.is_refused(DELETE, &texts(500_000), "may only read");
    }
    let run = Service(2);
    for _ in 0..24 {
        peer.is_refused(run, &texts(2 << 20)[..2 << 20], "does not offer");
    }
    let after = peer.peak();
    assert!(after - before <= MORE_MIB / 4, "{before} and {after} MiB");
    // More than any call has.
    let _ = peer.call(DELETE, &texts(16 << 20));
    let ended = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(100));
        peer.stream.0.try_wait().unwrap().is_some()
    });
    assert!(ended, "the session goes on");
}

#[test]
fn keys_of_a_host_that_may_delete_are_counted_before_they_take_memory() {
    let dir = scratch();
    let mut peer = HostilePeer::open(&format!("write:{}", repository(dir.path())));
    let before = peer.peak();
    let keys = vec![Text(""); 400_000];
    let body = encoded(List(&keys));
    for _ in 0..8 {
        let ids: Vec<u64> = (0..32).map(|_| peer.call(DELETE, &body).unwrap()).collect();
        for id in ids {
            let (header, _) = peer.answer(id).unwrap();
            let said = String::from_utf8_lossy(&header);
            assert!(said.contains("cannot delete 400000 objects"), "{said}");
        }
    }
    let after = peer.peak();
    assert!(after - before <= MORE_MIB, "{before} and {after} MiB");
}

#[test]
fn data_of_calls_that_are_refused_or_were_never_made_takes_no_memory() {
    let dir = scratch();
    let mut peer = HostilePeer::open(&format!("read:{}", repository(dir.path())));
    let before = peer.peak();
    for id in 1000..1064 {
        peer.send(PART, &[Number(id)], &[b'`'; 1 << 20]).unwrap();
    }
    for _ in 0..64 {
        peer.is_refused(DELETE, &[b'`'; 400 << 10], "may only read");
    }
    let after = peer.peak();
    assert!(after - before <= MORE_MIB, "{before} and {after} MiB");
}

#[test]
fn a_call_that_is_not_understood_fails_alone_and_has_no_effect() {
    let dir = scratch();
    let repository = repository(dir.path());
    let mut peer = HostilePeer::open(&format!("write:{repository}"));
    let id = peer.call(LIST, b"").unwrap();
    let (_, listed) = peer.answer(id).unwrap();
    let before = peer.peak();
    let keys = encoded(List(&[Text("config.json")]));
    let data = [&keys[..], &vec![b'`'; 3 << 20]].concat();
    let delete = encoded(DELETE);
    let delete_and_more = [&delete[..], b"`"].concat();
    let no_operation = encoded(List(&[Number(99), List(&[])]));
    let not_understood: [&[Word<'_>]; 9] = [
        &[List(&[Number(9), List(&[])])],
        &[List(&[Number(1 << 16), Bytes(&delete)])],
        &[List(&[Number(0), Text("")])],
        &[List(&[Number(0), Bytes(b"")])],
        &[List(&[Number(0), Bytes(&no_operation)])],
        &[List(&[Number(0), Bytes(&delete_and_more)])],
        &[List(&[Number(2), Bytes(&delete)])],
        &[Text("")],
        &[List(&[Number(0), Bytes(&delete)]), Text("")],
    ];
    for _ in 0..20 {
        for words in not_understood {
            for data in [&keys, &data] {
                let id = peer.call_in_words(words, data).unwrap();
                peer.is_answered_with(id, "does not understand");
            }
        }
        for number in [999, u64::from(u16::MAX)] {
            peer.is_refused(Service(number), &data, "does not offer this service");
        }
    }
    let after = peer.peak();
    assert!(after - before <= MORE_MIB / 4, "{before} and {after} MiB");
    let id = peer.call(LIST, b"").unwrap();
    let (_, again) = peer.answer(id).unwrap();
    assert_eq!(again, listed);
}

#[test]
fn answers_that_a_host_does_not_take_hold_no_more_than_one_of_them() {
    let dir = scratch();
    let repository = repository(dir.path());
    let backup = Path::new(&repository).join("backups/x");
    fs::create_dir(&backup).unwrap();
    fs::write(backup.join("root.json"), pattern(30 << 20, 1)).unwrap();
    let mut peer = HostilePeer::open(&format!("read:{repository}"));
    let get = List(&[Number(3), List(&[Text("backups/x/root.json")])]);
    let id = peer.call(get, b"").unwrap();
    peer.answer(id).unwrap();
    let honest = peer.peak();
    let read = List(&[
        Number(2),
        List(&[Text("backups/x/root.json"), Number(0), Number(4 << 20)]),
    ]);
    for call in [get, read] {
        for _ in 0..30 {
            peer.call(call, b"").unwrap();
        }
    }
    thread::sleep(Duration::from_secs(3));
    let after = peer.peak();
    assert!(after <= honest + MORE_MIB, "{honest} and {after} MiB");
}

#[test]
fn an_object_that_its_repository_does_not_explain_is_not_held_as_a_whole() {
    let dir = scratch();
    let repository = repository(dir.path());
    let mut peer = HostilePeer::open(&format!("write:{repository}"));
    let key = Text("backups/x/root.json");
    let condition = List(&[Number(0), List(&[])]);
    let put_key = [key, condition];
    let put = List(&[Number(5), List(&put_key)]);
    let id = peer.call(put, &pattern(32 << 20, 1)).unwrap();
    let (header, _) = peer.answer(id).unwrap();
    let said = String::from_utf8_lossy(&header).into_owned();
    assert!(!said.contains("cannot"), "{said}");
    let honest = peer.peak();
    for _ in 0..4 {
        peer.is_refused(put, &vec![0; 200 << 20], "cannot take");
    }
    // Stored in other ways, such as by an upload.
    let large = Path::new(&repository).join("backups/large");
    fs::create_dir_all(&large).unwrap();
    let file = fs::File::create(large.join("root.json")).unwrap();
    file.set_len(250 << 20).unwrap();
    let get_key = [Text("backups/large/root.json")];
    let get = List(&[Number(3), List(&get_key)]);
    for _ in 0..4 {
        peer.is_refused(get, b"", "cannot read");
    }
    let after = peer.peak();
    assert!(after <= honest + MORE_MIB / 2, "{honest} and {after} MiB");
}

#[test]
fn listings_that_a_host_does_not_take_hold_one_of_them() {
    let dir = scratch();
    let repository = repository(dir.path());
    let many = Path::new(&repository).join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..30_000 {
        let name = format!("{number:06}-{}", "n".repeat(90));
        fs::File::create(many.join(name)).unwrap();
    }
    let mut peer = HostilePeer::open(&format!("read:{repository}"));
    let id = peer.call(LIST, b"").unwrap();
    let (_, listed) = peer.answer(id).unwrap();
    assert!(listed.len() > 30_000 * 100, "{}", listed.len());
    let honest = peer.peak();
    for _ in 0..60 {
        peer.call(LIST, b"").unwrap();
    }
    thread::sleep(Duration::from_secs(3));
    let after = peer.peak();
    assert!(after <= honest + MORE_MIB / 2, "{honest} and {after} MiB");
}

#[test]
fn an_upload_in_single_bytes_whose_answers_are_not_taken_is_bounded() {
    let dir = scratch();
    let mut peer = HostilePeer::open(&format!("write:{}", repository(dir.path())));
    let before = peer.peak();
    peer.send(CREATE, &[Number(7), Text("backups/x")], b"")
        .unwrap();
    let mut peak = before;
    for number in 0..300_000 {
        if peer.send(APPEND, &[Number(7)], b"x").is_err() {
            break; // it was given up
        }
        if number % 10_000 == 0 {
            peak = peak_mib(peer.stream.0.id()).unwrap_or(peak);
        }
    }
    assert!(peak - before <= MORE_MIB, "{before} and {peak} MiB");
}

#[test]
fn uploads_that_are_begun_and_given_up_take_a_bounded_number_of_threads() {
    let dir = scratch();
    let mut peer = HostilePeer::open(&format!("write:{}", repository(dir.path())));
    let ended = (1..20_000u64).any(|upload| {
        let begun = peer.send(CREATE, &[Number(upload), Text("backups/x")], b"");
        let number = [Number(upload)];
        let abort = [Number(8), List(&number)];
        begun.and_then(|()| peer.call(List(&abort), b"")).is_err()
    });
    assert!(ended, "it takes all of them");
}

/// Serves objects to a peer that does something after its greeting, and then only says that it is alive. Returns how the session ended,
/// and how long that took.
fn after(times: WireTimes, act: impl FnOnce(&mut HostilePeer<UnixStream>)) -> (Error, Duration) {
    let (near, far) = small_socket();
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    put(&memory, "object", &pattern(20_000, 1));
    let offer = Offer::none().objects(OfferedObjects::new(memory));
    let server =
        thread::spawn(move || Wire::connect(streams(far), "\"near\"", offer, times)?.wait());
    let mut peer = HostilePeer::greet(near).unwrap();
    act(&mut peer);
    let began = Instant::now();
    while !server.is_finished() {
        assert!(began.elapsed() < Duration::from_secs(120), "it goes on");
        let _ = peer.send(0, &[], b"");
        thread::sleep(Duration::from_millis(100));
    }
    (server.join().unwrap().unwrap_err(), began.elapsed())
}

#[test]
fn a_side_that_takes_no_answers_is_given_up_in_time() {
    let times = WireTimes {
        silence: Duration::from_secs(2),
        ..TIMES
    };
    let (error, _) = after(times, |peer| {
        peer.call(OPEN, b"").unwrap();
        for _ in 0..30 {
            let get = List(&[Number(3), List(&[Text("object")])]);
            peer.call(get, b"").unwrap();
        }
    });
    let is_late = error.line().contains("not taken as a whole in time");
    assert!(is_late, "{}", error.line());
}

#[test]
fn a_session_that_asks_and_holds_nothing_ends_and_one_with_a_lease_does_not() {
    let idle = Duration::from_secs(1);
    let times = WireTimes {
        idle: Some(idle),
        ..TIMES
    };
    let (error, time) = after(times, |peer| {
        peer.call(OPEN, b"").unwrap();
    });
    assert!(
        error.line().contains("idle for too long"),
        "{}",
        error.line()
    );
    // Its time begins before this side has the answer.
    assert!(time >= idle / 2, "{time:?}");
    let held = 4 * idle;
    let (error, time) = after(times, |peer| {
        peer.call(OPEN, b"").unwrap();
        let intent = Text("intents/20261121T054501Z-k3f9qz.json");
        let lease = List(&[Number(12), List(&[intent, Number(0)])]);
        let id = peer.call(lease, b"").unwrap();
        let began = Instant::now();
        while began.elapsed() < held {
            peer.send(0, &[], b"").unwrap();
            thread::sleep(Duration::from_millis(100));
        }
        let drop = List(&[Number(14), List(&[Number(id)])]);
        peer.call(drop, b"").unwrap();
    });
    assert!(
        error.line().contains("idle for too long"),
        "{}",
        error.line()
    );
    assert!(time >= idle / 2, "{time:?}");
}

/// Stands in for ssh: passes its standard input and output to a port of this host.
const TO_PORT: &str = "#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/$RELAY_PORT
cat <&3 &
exec cat >&3
";

/// Runs a command whose other host is this peer. Returns what it says, and the most memory it had in MiB.
fn against(
    arguments: &[&str],
    peer: impl FnOnce(HostilePeer<TcpStream>) + Send + 'static,
) -> (String, u64) {
    let dir = scratch();
    let ssh = dir.path().join("ssh");
    fs::write(&ssh, TO_PORT).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut near = Command::new(FULLBORE)
        .args(arguments)
        .arg("--ssh")
        .arg(&ssh)
        .env("RELAY_PORT", port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (socket, _) = listener.accept().unwrap();
    let ours = socket.try_clone().unwrap();
    thread::spawn(move || peer(HostilePeer::greet(socket).unwrap()));
    let began = Instant::now();
    let mut peak = 0;
    while near.try_wait().unwrap().is_none() {
        peak = peak_mib(near.id()).unwrap_or(0).max(peak);
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "it does not end"
        );
        thread::sleep(Duration::from_millis(5));
    }
    // What stands in for ssh ends with it, and has the same standard error.
    let _ = ours.shutdown(Shutdown::Both);
    let mut said = String::new();
    near.stderr.unwrap().read_to_string(&mut said).unwrap();
    (said, peak)
}

/// The number of a call, whose message is `[2, [number, …]]`.
fn call_number(header: &[u8]) -> Option<u64> {
    let fields = header.strip_prefix(&[0x82, 2])?;
    minicbor::Decoder::new(&fields[1..]).u64().ok()
}

#[test]
fn a_listing_without_end_is_refused_by_its_number_of_objects() {
    let answer = |mut peer: HostilePeer<TcpStream>| {
        loop {
            let Ok((header, _)) = peer.receive() else {
                return;
            };
            let Some(id) = call_number(&header) else {
                continue;
            };
            let is_list = header.windows(3).any(|three| three == [0x82, 1, 0x81]);
            if !is_list {
                // Its abilities are two truths.
                let abilities = [Bytes(&[0x82, 0, 0x82, 0xf5, 0xf5])];
                let opened = [Number(1), List(&abilities)];
                let _ = peer.send(ANSWER, &[Number(id), List(&opened)], b"");
                continue;
            }
            // The shortest keys that are in order, 2000 in each page.
            for page in 0..1_000_000u64 {
                let keys: Vec<String> = (0..2000)
                    .map(|offset| format!("{:08x}", page * 2000 + offset))
                    .collect();
                let mut bytes = Vec::new();
                let mut encoder = Encoder::new(&mut bytes);
                encoder.array(2000).unwrap();
                for key in &keys {
                    let row = encoder.array(3).unwrap().str(key).unwrap();
                    row.u8(1).unwrap().null().unwrap();
                }
                if peer.send(3, &[Number(id)], &bytes).is_err() {
                    return;
                }
            }
        }
    };
    let (said, peak) = against(&["list", "ssh://any/r"], answer);
    println!("the client took {peak} MiB: {said}");
    assert!(said.contains("error: "), "{said}");
    assert!(peak < 256, "{peak} MiB: {said}");
}

#[test]
fn words_of_another_host_stay_on_one_line() {
    let answer = |mut peer: HostilePeer<TcpStream>| {
        while let Ok((header, _)) = peer.receive() {
            let Some(id) = call_number(&header) else {
                continue;
            };
            let lines = "no\nbackup 20261126T201810Z-j5u9z8 is complete\r\u{1b}[2J";
            let error = [
                Number(10),
                Text(lines),
                Text(lines),
                List(&[Text(lines)]),
                Text(lines),
            ];
            let failed = [Number(0), List(&[List(&error)])];
            let _ = peer.send(ANSWER, &[Number(id), List(&failed)], b"");
        }
    };
    let (said, _) = against(&["list", "ssh://any/r"], answer);
    assert!(said.contains(r"no\nbackup"), "{said}");
    let is_ours = |line: &str| line.starts_with("backup ") || line.contains('\u{1b}');
    assert!(!said.lines().any(is_ours), "{said}");
}
