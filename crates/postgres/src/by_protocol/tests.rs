//! Servers that send what no server sends.

mod changed_blocks;

use super::{
    SentSource,
    open::{BegunBackup, sent_cluster},
};
use crate::{
    cluster_backup::{ChangedBlocks, ClusterBackup},
    control::{self, Control},
    lsn::{Lsn, segment_name},
    relation::Sizes,
    replication::{BaseBackupOptions, ReplicationClient, ServerIdentity},
    request::Wal,
};
use fullbore_format::{
    entry::{Entry, EntryKind},
    error::{Error, ErrorKind, Result},
    page::{EntryState, Record},
    pax,
    root::ClusterInfo,
};
use fullbore_pipeline::{
    frame::{Buf, FrameContent, Scanned, Slice},
    pack::pack,
    source::Source,
};
use std::{collections::BTreeMap, sync::Arc};

const WAL_BYTES: u64 = 64 << 10;
const FRAME_BYTES: u32 = 4096; // less than the control file has

/// The answer of a server, message by message.
#[derive(Clone)]
struct Script {
    major: u32,
    is_incremental: bool,
    messages: Vec<Vec<u8>>,
}

/// The path of the only segment that recovery needs.
fn segment() -> String {
    format!("pg_wal/{}", segment_name(1, Lsn(0x20_0028), WAL_BYTES))
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn row(values: &[Option<&str>]) -> Vec<u8> {
    let mut body = (values.len() as u16).to_be_bytes().to_vec();
    for value in values {
        match value {
            Some(text) => {
                body.extend((text.len() as u32).to_be_bytes());
                body.extend(text.as_bytes());
            }
            None => body.extend(u32::MAX.to_be_bytes()),
        }
    }
    message(b'D', &body)
}

fn answer(rows: &[&[Option<&str>]]) -> Vec<Vec<u8>> {
    let mut messages = vec![message(b'T', &[0, 0])];
    messages.extend(rows.iter().map(|values| row(values)));
    messages.push(message(b'C', b"SELECT\0"));
    messages
}

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry {
        path: path.as_bytes().to_vec(),
        kind,
        mode: 0o600,
        ..Entry::default()
    }
}

fn file(path: &str, content: &[u8]) -> Vec<u8> {
    let size = content.len() as u64;
    let mut tar = header(&entry(path, EntryKind::File { size, map: None }));
    tar.extend(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
    tar
}

fn header(entry: &Entry) -> Vec<u8> {
    let mut tar = Vec::new();
    pax::write_header(entry, &mut tar).unwrap();
    tar
}

fn directory(path: &str) -> Vec<u8> {
    header(&entry(path, EntryKind::Directory))
}

/// The members of a small cluster.
fn members() -> Vec<Vec<u8>> {
    vec![
        file(
            "backup_label",
            b"START WAL LOCATION: 0/200028 (file 1)\nBACKUP FROM: standby\n",
        ),
        file("tablespace_map", b""),
        directory("global"),
        file("PG_VERSION", b"18\n"),
        file("standby.signal", b"not in a backup"),
        directory("base"),
        file("base/2", &[7; 10_000]),
        file("base/1", b"small"),
        file("global/pg_control", &control::tests::made(1800)),
        directory("pg_wal"),
        file(&segment(), &[5; WAL_BYTES as usize]),
    ]
}

/// A whole backup with these members.
fn script_of(major: u32, members: &[Vec<u8>]) -> Script {
    let tar = members.concat();
    let mut messages = answer(&[&[Some("0/200028"), Some("1")]]);
    messages.extend(answer(&[&[None, None, None]]));
    messages.push(message(b'H', &[0, 0, 0]));
    let data = |kind: &[u8], bytes: &[u8]| message(b'd', &[kind, bytes].concat());
    if major >= 15 {
        messages.push(data(b"n", b"base.tar\0\0"));
        messages.extend(tar.chunks(30_000).map(|chunk| data(b"d", chunk)));
        messages.push(data(b"d", &[0; 1024]));
    } else {
        messages.extend(tar.chunks(30_000).map(|chunk| data(b"", chunk)));
    }
    messages.push(message(b'c', b""));
    messages.extend(answer(&[&[Some("0/200100"), Some("1")]]));
    messages.push(message(b'C', b"BASE_BACKUP\0"));
    messages.push(message(b'Z', b"I"));
    Script {
        major,
        is_incremental: false,
        messages,
    }
}

/// What a run took from the server: each file with its content.
#[derive(Debug)]
struct Received {
    files: BTreeMap<String, Vec<u8>>,
    source: SentSource,
}

impl std::fmt::Debug for SentSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentSource").finish_non_exhaustive()
    }
}

impl Script {
    /// Receives the backup as a run does.
    fn receive(&self) -> Result<Received> {
        self.receive_bytes(self.messages.concat())
    }

    /// The error of the comparison with a base that does not have the file.
    fn first_narrowed(&self, path: &str) -> Error {
        let source = self.open(self.messages.concat()).unwrap();
        let mut scan = source.scan().unwrap();
        let is_it = |scanned: &Scanned| scanned.entry.path == path.as_bytes();
        let mut scanned = scan.find_map(|next| next.ok().filter(is_it)).unwrap();
        source.0.narrow(&mut scanned).unwrap_err()
    }

    fn receive_bytes(&self, bytes: Vec<u8>) -> Result<Received> {
        let source = self.open(bytes)?;
        let mut files = BTreeMap::new();
        for slice in source.prepare(pack(source.scan()?, FRAME_BYTES)) {
            add_content(&source, slice?, &mut files)?;
        }
        drop(source.finish()?);
        source.0.check()?;
        Ok(Received { files, source })
    }

    fn open(&self, bytes: Vec<u8>) -> Result<SentSource> {
        let options = BaseBackupOptions {
            label: "test".into(),
            fast: true,
            includes_wal: true,
            awaits_archive: false,
            is_incremental: false,
            is_compressed: false,
        };
        let client = ReplicationClient::of_bytes(self.major, bytes);
        let stream = client.base_backup(&options)?;
        let control = Control::parse(&control::tests::made(1800)).unwrap();
        let identity = ServerIdentity {
            system_identifier: control.system_identifier.to_string(),
            timeline: 1,
            lsn: Lsn(1),
        };
        let facts = ClusterInfo {
            major: self.major,
            timeline: 1,
            checksums: true,
            wal_segment_bytes: WAL_BYTES,
            ..ClusterInfo::default()
        };
        let holder = ReplicationClient::of_bytes(self.major, Vec::new());
        let cluster = sent_cluster(BegunBackup {
            wal: Wal::Included,
            identity,
            facts,
            sizes: Sizes::default(),
            directory_mode: 0o700,
            stream,
            holder,
            params: None,
            is_incremental: self.is_incremental,
            warnings: Vec::new(),
        })?;
        Ok(SentSource(Arc::new(cluster)))
    }
}

fn add_content(
    source: &SentSource,
    slice: Slice,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Result<()> {
    let frame = source.read(slice, Buf::default())?;
    assert!(frame.data.len() <= 2 * FRAME_BYTES as usize);
    for part in &frame.parts {
        let path = match &part.what {
            FrameContent::Whole(entry, _) | FrameContent::Head(entry, _) => &entry.path,
            FrameContent::Piece { file, .. } => &file.entry.path,
        };
        let path = String::from_utf8(path.clone()).unwrap();
        let content = &frame.data[part.inner as usize..][..part.len as usize];
        files.entry(path).or_default().extend_from_slice(content);
    }
    Ok(())
}

fn refused(script: &Script) -> Error {
    script.receive().unwrap_err()
}

/// The error of a cluster with one more member.
fn refused_member(member: Vec<u8>) -> Error {
    let mut all = members();
    all.insert(6, member);
    refused(&script_of(18, &all))
}

#[test]
fn both_framings_are_received_whole() {
    for major in [13, 14, 15, 18] {
        let received = script_of(major, &members()).receive().unwrap();
        let files = received.files;
        assert_eq!(files["base/2"], vec![7; 10_000]);
        assert_eq!(files["base/1"], b"small");
        assert_eq!(files[&segment()].len() as u64, WAL_BYTES);
        assert!(files.contains_key(""), "the data directory itself");
        assert!(!files.contains_key("standby.signal") && !files.contains_key("tablespace_map"));
        let safe = control::without_checkpoint(&control::tests::made(1800)).unwrap();
        assert_eq!(files["global/pg_control"], safe);
        let facts = received.source.0.facts();
        assert_eq!(facts.stop_lsn, "0/200100");
        assert!(facts.standby);
        let warnings = received.source.0.warnings();
        assert!(warnings[0].contains("not understood"), "its WAL is none");
    }
}

#[test]
fn a_stream_that_is_cut_anywhere_is_no_backup() {
    for major in [14, 18] {
        let script = script_of(major, &members());
        let all = script.messages.concat();
        for cut in (0..all.len()).step_by(7919) {
            script.receive_bytes(all[..cut].to_vec()).unwrap_err();
        }
        for lost in 0..script.messages.len() - 1 {
            let mut cut = script.clone();
            cut.messages.truncate(lost);
            let error = refused(&cut);
            assert_eq!(error.kind, ErrorKind::Unreachable, "{lost}: {error:?}");
        }
    }
}

#[test]
fn a_message_that_is_missing_or_sent_twice_is_noticed_or_does_no_harm() {
    for major in [14, 18] {
        let script = script_of(major, &members());
        let whole = script.receive().unwrap().files;
        for offset in 0..script.messages.len() {
            let (mut without, mut twice) = (script.clone(), script.clone());
            without.messages.remove(offset);
            twice
                .messages
                .insert(offset, script.messages[offset].clone());
            for changed in [without, twice] {
                let got = changed.receive();
                assert!(
                    got.is_err() || got.is_ok_and(|got| got.files == whole),
                    "{offset}"
                );
            }
        }
    }
}

#[test]
fn names_that_leave_the_cluster_are_refused() {
    for name in ["../x", "base/../../x", "..", "a//../../b", "/../x"] {
        let mut member = file("x", b"");
        member[..name.len()].copy_from_slice(name.as_bytes());
        seal(&mut member);
        let error = refused_member(member);
        assert_eq!(error.kind, ErrorKind::Corrupt, "{name}: {error:?}");
        assert!(error.line().contains("the server sends"), "{error:?}");
    }
}

#[test]
fn absolute_names_lead_into_the_backup() {
    let mut all = members();
    all.insert(6, {
        let mut member = file("x", b"text");
        member[..11].copy_from_slice(b"/etc/passwd");
        seal(&mut member);
        member
    });
    let files = script_of(18, &all).receive().unwrap().files;
    assert_eq!(files["etc/passwd"], b"text");
}

/// Writes the checksum of a header.
fn seal(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header[..512].iter().copied().map(u32::from).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

#[test]
fn members_that_no_cluster_has_are_refused() {
    let deep = "d/".repeat(20) + "x";
    let link = |target: &str| EntryKind::Symlink(target.as_bytes().to_vec());
    for member in [
        file(&deep, b""),
        header(&entry("base/link", link("/etc"))),
        header(&entry(
            "base/hard",
            EntryKind::HardLink(b"PG_VERSION".to_vec()),
        )),
        header(&entry("base/pipe", EntryKind::Fifo)),
    ] {
        assert_eq!(refused_member(member).kind, ErrorKind::Corrupt);
    }
}

#[test]
fn a_file_that_comes_twice_is_refused() {
    // In one frame; in different ones when the records are sorted.
    let mut all = members();
    all.insert(4, file("PG_VERSION", b"18\n"));
    let error = refused(&script_of(18, &all));
    assert!(error.line().contains("twice"), "{error:?}");
}

#[test]
fn lengths_that_are_not_true_are_refused_before_memory_is_taken() {
    for size in [20_001, 1 << 30, 1 << 40, u64::MAX >> 1] {
        let kind = EntryKind::File { size, map: None };
        let mut member = header(&entry("base/large", kind));
        member.extend([9; 1024]);
        let error = refused_member(member);
        assert_eq!(error.kind, ErrorKind::Corrupt, "{size}: {error:?}");
    }
    // More bytes than the header says are no header.
    let mut member = file("base/long", b"short");
    member.extend([9; 4096]);
    assert_eq!(refused_member(member).kind, ErrorKind::Corrupt);
    let mut large = file("base/3", &[1; 512]);
    large.truncate(900);
    assert_eq!(refused_member(large).kind, ErrorKind::Corrupt);
}

#[test]
fn a_backup_without_control_file_or_wal_is_refused() {
    for (gone, words) in [
        ("global/pg_control", "no control file"),
        ("backup_label", "no backup_label"),
        (&*segment(), "lacks the WAL segment 00000001"),
    ] {
        let mut all = members();
        all.retain(|member| !member.starts_with(gone.as_bytes()));
        let error = refused(&script_of(18, &all));
        assert!(error.line().contains(words), "{error:?}");
    }
    let mut all = members();
    all[0] = file("backup_label", b"START WAL LOCATION: 0/100028 (file 1)\n");
    let error = refused(&script_of(18, &all));
    assert!(error.line().contains("names another start"), "{error:?}");
    let other = file("global/pg_control", &[0; 8192]);
    let mut all = members();
    all[8] = other;
    assert!(
        refused(&script_of(18, &all))
            .line()
            .contains("control file")
    );
}

#[test]
fn archives_that_were_not_announced_are_refused() {
    let named = |name: &[u8]| message(b'd', &[b"n", name, b"\0\0"].concat());
    let mut script = script_of(18, &members());
    for name in [&b"../base.tar"[..], b"16384.tar", b"base.tar"] {
        let end = script.messages.len() - 6;
        script.messages.insert(end, named(name));
        let error = refused(&script);
        assert!(error.line().contains("cannot understand"), "{error:?}");
    }
    let spaces = vec![row(&[Some("1"), Some("/x"), None]); 10_001];
    script.messages.splice(4..5, spaces);
    assert!(refused(&script).line().contains("cannot understand"));
}

#[test]
fn the_server_has_the_last_word_about_torn_pages() {
    let torn = || Record::without_content(Entry::default(), EntryState::BadPages(vec![1]));
    let clean = script_of(18, &members()).receive().unwrap().source;
    let mut record = torn();
    clean.settle(&mut record);
    assert_eq!(record.state, EntryState::Whole);
    let mut script = script_of(18, &members());
    let end = script.messages.len() - 2;
    script.messages[end] = message(b'E', b"SERROR\0CXX001\0Mchecksum\0\0");
    let damaged = script.receive().unwrap().source;
    let mut record = torn();
    damaged.settle(&mut record);
    assert_eq!(record, torn());
    assert_eq!(damaged.0.warnings().len(), 2, "no file was named");
}
