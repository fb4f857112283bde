//! A peer that keeps no rules and asks for trees: the files of a backup, and the target of a copy. Questions that take much memory wait
//! for each other.

use super::{
    hostile::{HostilePeer, MORE_MIB, Pipes, Service, Word, serve_stdio},
    over_ssh::scratch,
    suite::pattern,
};
use fullbore_format::{
    entry::{Entry, EntryKind},
    page::{EntryState, encode_entries},
};
use minicbor::{Encode, bytes::ByteVec};
use std::{fs, os::unix::ffi::OsStrExt, path::Path, thread, time::Duration};

const ASK_FILES: Word<'_> = Service(5);
const ASK_COPY: Word<'_> = Service(6);

fn cbor<T: Encode<()>>(value: T) -> Vec<u8> {
    minicbor::to_vec(value).unwrap()
}

fn path_bytes(path: &Path) -> ByteVec {
    path.as_os_str().as_bytes().to_vec().into()
}

fn nothing() -> Vec<ByteVec> {
    Vec::new()
}

impl HostilePeer<Pipes> {
    /// Asks a question, and returns what the header of the answer says.
    fn ask(&mut self, topic: Word<'_>, question: &[u8]) -> String {
        let id = self.call(topic, question).unwrap();
        let (header, _) = self.answer(id).unwrap();
        String::from_utf8_lossy(&header).into_owned()
    }

    /// Asks a question many times, takes the answers late, and checks how much memory that took.
    fn ask_often(&mut self, topic: Word<'_>, question: &[u8], times: usize) {
        let before = self.peak();
        let ids: Vec<u64> = (0..times)
            .map(|_| self.call(topic, question).unwrap())
            .collect();
        thread::sleep(Duration::from_secs(2));
        for id in ids {
            self.answer(id).unwrap();
        }
        let after = self.peak();
        println!("{before} and {after} MiB");
        assert!(after - before <= MORE_MIB, "{before} and {after} MiB");
    }
}

/// Rules that leave no file out: patterns, files of patterns, a flag, marks, and a flag.
fn file_rules() -> (Vec<ByteVec>, Vec<ByteVec>, bool, Vec<ByteVec>, bool) {
    (nothing(), nothing(), false, nothing(), false)
}

/// A session that has opened the files of a directory.
fn files_of(directory: &Path) -> HostilePeer<Pipes> {
    let mut peer = serve_stdio(None);
    let scope = cbor((
        vec![path_bytes(directory)],
        file_rules(),
        None::<ByteVec>,
        false,
        false,
        false,
        false,
    ));
    let open = cbor((0u8, (ByteVec::from(scope),)));
    let said = peer.ask(ASK_FILES, &open);
    assert!(
        !said.contains("could not") && !said.contains("cannot"),
        "{said}"
    );
    peer
}

/// A question that reads files of these names and sizes into a frame.
fn read_files(capacity: u32, files: &[(String, u64)]) -> Vec<u8> {
    let entries: Vec<Entry> = files
        .iter()
        .map(|(name, size)| {
            let kind = EntryKind::File {
                size: *size,
                map: None,
            };
            Entry {
                path: name.clone().into_bytes(),
                kind,
                ..Entry::default()
            }
        })
        .collect();
    let whole = EntryState::Whole;
    let page = encode_entries(entries.iter().map(|entry| (entry, &whole))).unwrap();
    read_page(capacity, page, files.len())
}

/// A question that reads the entries of a page, with so many facts.
fn read_page(capacity: u32, page: Vec<u8>, entries: usize) -> Vec<u8> {
    let no_facts = (
        None::<(i64, u32)>,
        None::<(u64, u64)>,
        false,
        false,
        None::<u8>,
    );
    let listed = (ByteVec::from(page), vec![no_facts; entries]);
    let members = (0u8, (listed, None::<u8>));
    cbor((2u8, (0u32, capacity, members)))
}

#[test]
fn frames_of_a_tree_share_one_room() {
    let dir = scratch();
    let mut files = Vec::new();
    for number in 0..14 {
        let name = format!("{number:02}");
        fs::write(dir.path().join(&name), pattern(1 << 20, number)).unwrap();
        files.push((name, 1 << 20));
    }
    let mut peer = files_of(dir.path());
    let read = read_files(16 << 20, &files);
    let id = peer.call(ASK_FILES, &read).unwrap();
    let (header, data) = peer.answer(id).unwrap();
    let said = String::from_utf8_lossy(&header);
    assert!(data.len() > 14 << 20, "{} {said}", data.len());
    peer.ask_often(ASK_FILES, &read, 40);
    let said = peer.ask(ASK_FILES, &read_files(200 << 20, &files));
    assert!(said.contains("a frame is too large"), "{said}");
    let said = peer.ask(ASK_FILES, &read_files(1 << 19, &files));
    assert!(said.contains("a file is larger than its frame"), "{said}");
}

#[test]
fn questions_of_many_values_share_one_room() {
    let dir = scratch();
    fs::write(dir.path().join("a"), "one").unwrap();
    let mut peer = files_of(dir.path());
    let files: Vec<_> = (0..20_000)
        .map(|index| (format!("a{index:05}"), 1))
        .collect();
    peer.ask_often(ASK_FILES, &read_files(1 << 16, &files), 40);
}

#[test]
fn pages_that_become_large_share_one_room() {
    let dir = scratch();
    let mut peer = files_of(dir.path());
    let long = "x".repeat(248);
    let files = |count: usize| -> Vec<_> {
        let name = |index| (format!("{long}{index:05}"), 1);
        (0..count).map(name).collect()
    };
    // 7 MiB, and some 40 MiB as entries.
    let read = read_files(1 << 16, &files(30_000));
    assert!(read.len() < 1 << 20, "{}", read.len());
    peer.ask_often(ASK_FILES, &read, 20);
    let said = peer.ask(ASK_FILES, &read_files(1 << 16, &files(65_500)));
    assert!(said.contains("it is too large"), "{said}");
}

#[test]
fn members_that_an_archive_may_not_hold_are_refused() {
    let dir = scratch();
    fs::write(dir.path().join("a"), "one").unwrap();
    let mut peer = files_of(dir.path());
    let names = |names: &[&str]| -> Vec<_> {
        let name = |name: &&str| (String::from(*name), 3);
        names.iter().map(name).collect()
    };
    for wrong in [
        &["../a"][..],
        &["/etc/passwd"],
        &["b", "a"],
        &["a", "a"],
        &["x/../../a"],
    ] {
        let said = peer.ask(ASK_FILES, &read_files(1 << 16, &names(wrong)));
        assert!(
            said.contains("could not read a source of another host"),
            "{wrong:?}: {said}"
        );
    }
    let said = peer.ask(ASK_FILES, &read_page(1 << 16, b"no page".to_vec(), 1));
    assert!(said.contains("it is not a page"), "{said}");
    let whole = EntryState::Whole;
    let one = encode_entries([(&Entry::default(), &whole)]).unwrap();
    let said = peer.ask(ASK_FILES, &read_page(1 << 16, one, 2));
    assert!(said.contains("do not match"), "{said}");
    let id = peer
        .call(ASK_FILES, &read_files(1 << 16, &names(&["a"])))
        .unwrap();
    let (_, data) = peer.answer(id).unwrap();
    assert!(data.windows(3).any(|bytes| bytes == b"one"));
}

/// A session that has opened this directory as the target of a copy.
fn target_at(directory: &Path) -> HostilePeer<Pipes> {
    let mut peer = serve_stdio(None);
    let names = nothing();
    let rules = (file_rules(), names);
    let target = (
        path_bytes(directory),
        rules,
        true,
        false,
        false,
        false,
        false,
        (None::<u64>, false),
        false,
    );
    let said = peer.ask_copy((0u8, (target,)), b"");
    assert!(
        !said.contains("could not") && !said.contains("cannot"),
        "{said}"
    );
    peer
}

fn copy_question<T: Encode<()>>(call: T, body: &[u8]) -> Vec<u8> {
    let call = cbor(call);
    let length = (call.len() as u32).to_le_bytes();
    [&length[..], &call, body].concat()
}

impl HostilePeer<Pipes> {
    fn ask_copy<T: Encode<()>>(&mut self, call: T, body: &[u8]) -> String {
        self.ask(ASK_COPY, &copy_question(call, body))
    }
}

#[test]
fn content_of_a_copy_that_becomes_large_shares_one_room() {
    let dir = scratch();
    let mut peer = target_at(&dir.path().join("to"));
    let bomb = |bytes: usize| {
        let mut bomb = Vec::with_capacity(1 << 20);
        zstd_safe::compress(&mut bomb, &vec![0; bytes], 3).unwrap();
        copy_question((2u8, (true,)), &bomb)
    };
    peer.ask_often(ASK_COPY, &bomb(16 << 20), 48);
    let said = peer.ask(ASK_COPY, &bomb((16 << 20) + 1));
    assert!(
        said.contains("cannot") || said.contains("could not"),
        "{said}"
    );
}

#[test]
fn many_paths_that_cannot_be_linked_are_counted_and_not_named() {
    let dir = scratch();
    let mut peer = target_at(&dir.path().join("to"));
    let body = b"x\0y\0".repeat(20_000);
    peer.ask_often(ASK_COPY, &copy_question((10u8, nothing()), &body), 8);
}

#[test]
fn blocks_of_a_large_file_are_compared_piece_by_piece() {
    let dir = scratch();
    let target = dir.path().join("to");
    fs::create_dir(&target).unwrap();
    let size = 60 << 20;
    fs::File::create(target.join("large"))
        .unwrap()
        .set_len(size)
        .unwrap();
    let mut peer = target_at(&target);
    let header = tar_header("large", size);
    let said = peer.ask_copy((6u8, (None::<ByteVec>,)), &header);
    assert!(
        !said.contains("could not") && !said.contains("cannot"),
        "{said}"
    );
    let path = ByteVec::from(b"large".to_vec());
    let compare = (7u8, (path, 0u64, size as u32));
    let digests = vec![0; size as usize / (64 << 10) * 32];
    peer.ask_often(ASK_COPY, &copy_question(compare, &digests), 48);
}

/// A header of the kind that every tar has.
fn tar_header(name: &str, size: u64) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut put = |position: usize, text: &str| {
        header[position..position + text.len()].copy_from_slice(text.as_bytes())
    };
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
