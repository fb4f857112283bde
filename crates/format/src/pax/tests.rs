//! Headers read back as they were written, and no input causes harm.

use crate::{
    entry::{ByteRun, Device, Entry, EntryKind, EntryPath, Owner, Time, Xattr, is_safe},
    error::{ErrorKind, Result},
    pax::*,
};
use proptest::{collection::vec, prelude::*};

fn header(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    write_header(entry, &mut out).unwrap();
    assert_eq!(out.len() % BLOCK, 0);
    out
}

fn file(path: &[u8], size: u64) -> Entry {
    Entry {
        path: path.to_vec(),
        kind: EntryKind::File { size, map: None },
        mode: 0o644,
        ..Entry::default()
    }
}

/// A header block of another program.
fn foreign(name: &[u8], typeflag: u8, size: i64) -> field::Block {
    let mut block = [0; BLOCK];
    field::put_text(&mut block[field::NAME], name);
    field::put_number(&mut block[field::SIZE], size);
    block[field::TYPEFLAG] = typeflag;
    field::seal(&mut block);
    block
}

/// A header with content and its padding.
fn with_body(block: field::Block, body: &[u8]) -> Vec<u8> {
    let mut out = block.to_vec();
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

/// An `x` or `g` member of records without their lengths, each below 98 bytes.
fn pax(typeflag: u8, records: &[&str]) -> Vec<u8> {
    let body: String = records
        .iter()
        .map(|record| format!("{:02} {record}\n", record.len() + 4))
        .collect();
    with_body(
        foreign(b"pax", typeflag, body.len() as i64),
        body.as_bytes(),
    )
}

fn empty(name: &[u8]) -> Vec<u8> {
    foreign(name, b'0', 0).to_vec()
}

/// Reads all members and skips their content.
fn read_all(bytes: &[u8]) -> Result<(Vec<TarItem>, bool)> {
    let (mut reader, mut input, mut found) = (PaxReader::new(), bytes, Vec::new());
    while let Some(next) = reader.next(&mut input)? {
        let len = match &next {
            TarItem::Member(member) => member.stored_len,
            TarItem::Outside(unknown) | TarItem::Unknown(unknown) => unknown.stored_len,
        };
        found.push(next);
        skip(&mut input, len)?;
    }
    Ok((found, reader.has_ended()))
}

/// Reads the members, which must all have known types.
fn members(bytes: &[u8]) -> Vec<Member> {
    let known = |found| match found {
        TarItem::Member(member) => member,
        TarItem::Outside(unknown) | TarItem::Unknown(unknown) => panic!("{unknown:?}"),
    };
    read_all(bytes).unwrap().0.into_iter().map(known).collect()
}

/// Reads the only member, without its content.
fn first(bytes: &[u8]) -> Result<Member> {
    match PaxReader::new().next(&mut { bytes })? {
        Some(TarItem::Member(member)) => Ok(member),
        other => panic!("{other:?}"),
    }
}

fn refusal(bytes: &[u8]) -> String {
    let error = read_all(bytes).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    error.what
}

#[test]
fn an_entry_that_ustar_can_hold_takes_one_block() {
    let mut entry = file(
        &[[b'a'; 155].as_slice(), b"/", &[b'b'; 100]].concat(),
        0o77777777777,
    );
    entry.owner = Owner {
        uid: 0o7777777,
        gid: 0o7777777,
        user: "u".repeat(30).into(),
        group: "é".into(),
    };
    entry.mtime.seconds = 0o77777777777;
    assert!(is_plain_ustar(&entry));
    assert_eq!(header(&entry).len(), BLOCK);
}

#[test]
fn each_value_that_ustar_cannot_hold_takes_a_record_of_its_own() {
    let change = |change: fn(&mut Entry)| {
        let mut entry = file(b"f", 0);
        change(&mut entry);
        assert!(!is_plain_ustar(&entry));
        let bytes = header(&entry);
        assert_eq!(bytes.len(), 3 * BLOCK);
        String::from_utf8(field::text(&bytes[BLOCK..]).to_vec()).unwrap()
    };
    assert_eq!(
        change(|e| e.kind = EntryKind::File {
            size: 1 << 33,
            map: None
        }),
        "19 size=8589934592\n"
    );
    assert_eq!(
        change(|e| e.owner.uid = 3_000_000_000),
        "18 uid=3000000000\n"
    );
    assert_eq!(change(|e| e.owner.gid = 1 << 21), "15 gid=2097152\n");
    assert_eq!(
        change(|e| e.owner.user = "u".repeat(31).into()),
        format!("41 uname={}\n", "u".repeat(31))
    );
    assert_eq!(
        change(|e| e.owner.group = "é".repeat(16).into()),
        format!("42 gname={}\n", "é".repeat(16))
    );
    assert_eq!(
        change(|e| e.mtime = Time {
            seconds: 1,
            nanos: 500
        }),
        "19 mtime=1.0000005\n"
    );
    assert_eq!(
        change(|e| e.mtime = Time {
            seconds: -2,
            nanos: 250_000_000
        }),
        "15 mtime=-1.75\n"
    );
    assert_eq!(change(|e| e.mtime.seconds = -1), "12 mtime=-1\n");
    assert_eq!(
        change(|e| e.mtime.seconds = 1 << 33),
        "20 mtime=8589934592\n"
    );
    assert_eq!(
        change(|e| e.path = vec![b'p'; 101]),
        format!("111 path={}\n", "p".repeat(101))
    );
    assert_eq!(
        change(|e| e.kind = EntryKind::Symlink(vec![b'l'; 101])),
        format!("115 linkpath={}\n", "l".repeat(101))
    );
    assert_eq!(
        change(|e| e.xattrs = vec![(b"user.a=b".to_vec(), b"=".to_vec())]),
        "29 SCHILY.xattr.user.a%3Db==\n"
    );
}

#[test]
fn the_field_of_an_owner_holds_the_whole_name_or_nothing() {
    for (name, in_field) in [
        ("u".repeat(31), true),
        ("u".repeat(32), false),
        ("é".repeat(16), false),
    ] {
        let mut entry = file(b"f", 0);
        entry.owner = Owner {
            uid: 1,
            gid: 2,
            user: name.clone().into(),
            group: name.clone().into(),
        };
        let bytes = header(&entry);
        let block = &bytes[bytes.len() - BLOCK..];
        let expected = if in_field { name.as_bytes() } else { b"" };
        assert_eq!(
            (
                field::text(&block[field::USER]),
                field::text(&block[field::GROUP])
            ),
            (expected, expected)
        );
        assert_eq!(first(&bytes).unwrap().entry, entry);
    }
}

#[test]
fn an_owner_whose_name_another_program_may_have_cut_is_known_by_number_alone() {
    for (len, is_read) in [(30, true), (31, false), (32, false)] {
        let mut block = foreign(b"f", b'0', 0);
        field::put_text(&mut block[field::MAGIC], field::GNU);
        field::put_number(&mut block[field::UID], 70_002);
        let name = "u".repeat(len);
        field::put_text(&mut block[field::USER], name.as_bytes());
        field::put_text(&mut block[field::GROUP], name.as_bytes());
        field::seal(&mut block);
        let owner = first(&block).unwrap().entry.owner;
        let expected = if is_read { &*name } else { "" };
        assert_eq!(
            (owner.uid, &*owner.user, &*owner.group),
            (70_002, expected, expected)
        );
    }
}

#[test]
fn long_names_that_are_not_ascii_stand_in_gnu_members() {
    let mut entry = file(&[0xff; 101], 0);
    entry.kind = EntryKind::Symlink(vec![0xfe; 101]);
    let bytes = header(&entry);
    let types: Vec<u8> = bytes
        .chunks(BLOCK)
        .map(|block| block[field::TYPEFLAG])
        .collect();
    assert_eq!(
        (types[0], types[2], types[4], bytes.len()),
        (b'K', b'L', b'2', 5 * BLOCK)
    );
    assert!(!is_plain_ustar(&entry));
}

#[test]
fn device_numbers_over_octal_are_not_plain_and_come_back() {
    let device = Device {
        major: 5,
        minor: u32::MAX,
    };
    let entry = Entry {
        kind: EntryKind::BlockDevice(device),
        ..file(b"d", 0)
    };
    assert!(!is_plain_ustar(&entry));
    assert_eq!(first(&header(&entry)).unwrap().entry, entry);
}

#[test]
fn the_root_is_a_directory_of_its_own_name() {
    let root = Entry {
        kind: EntryKind::Directory,
        ..Entry::default()
    };
    let bytes = header(&root);
    assert_eq!(field::text(&bytes[field::NAME]), b"./");
    assert_eq!(first(&bytes).unwrap().entry, root);
}

#[test]
fn an_entry_that_cannot_be_stored_is_a_bug_of_the_caller() {
    let entry_of = |kind| Entry {
        kind,
        ..file(b"a", 0)
    };
    let sparse = |runs: &[ByteRun]| {
        entry_of(EntryKind::File {
            size: 2000,
            map: Some(runs.into()),
        })
    };
    for bad in [
        entry_of(EntryKind::Socket),
        entry_of(EntryKind::HardLink(b"../x".to_vec())),
        entry_of(EntryKind::HardLink(Vec::new())),
        entry_of(EntryKind::Symlink(b"\0".to_vec())),
        file(b"/a", 0),
        file(b"", 0),
        file(b"a", u64::MAX),
        sparse(&[
            ByteRun {
                offset: 0,
                len: 100,
            },
            ByteRun {
                offset: 512,
                len: 1,
            },
        ]),
        sparse(&[ByteRun {
            offset: 1999,
            len: 2,
        }]),
        sparse(&[
            ByteRun {
                offset: 512,
                len: 512,
            },
            ByteRun { offset: 0, len: 1 },
        ]),
    ] {
        let mut out = vec![7];
        assert_eq!(
            write_header(&bad, &mut out).unwrap_err().kind,
            ErrorKind::Bug,
            "{bad:?}"
        );
        assert_eq!(out, [7]);
    }
}

#[test]
fn more_records_than_are_read_are_not_written() {
    let mut entry = file(b"a", 0);
    entry.xattrs = vec![(b"user.a".to_vec(), vec![0; MAX_RECORDS])];
    let mut out = vec![7];
    assert_eq!(
        write_header(&entry, &mut out).unwrap_err().kind,
        ErrorKind::Unsupported
    );
    assert_eq!(out, [7]);
}

/// Returns whether the only member leads out.
fn leads_out(bytes: &[u8]) -> bool {
    matches!(&read_all(bytes).unwrap().0[..], [TarItem::Outside(_)])
}

#[test]
fn names_that_leave_the_archive_are_reported() {
    for bad in [
        &b"../x"[..],
        b"/../x",
        b"a/../../b",
        b"a/../b",
        b"a/..",
        b"..",
    ] {
        assert!(leads_out(&foreign(bad, b'0', 0)), "{bad:?}");
        let mut link = foreign(b"l", b'1', 0);
        field::put_text(&mut link[field::LINK], bad);
        field::seal(&mut link);
        assert!(leads_out(&link), "{bad:?}");
    }
    for bad in ["path=a\0b", "path=/..", "GNU.sparse.name=../x"] {
        assert!(leads_out(&[pax(b'x', &[bad]), empty(b"a")].concat()));
    }
    assert!(refusal(&empty(b".")).contains("no name"));
    assert_eq!(
        members(&empty(b"//etc/./passwd"))[0].entry.path,
        b"etc/passwd"
    );
}

#[test]
fn trailing_bytes_that_are_not_an_archive_are_ignored() {
    let one = [empty(b"a"), END.to_vec()].concat();
    for (tail, trailed) in [
        (vec![0; 700], false),
        (vec![7; 700], true),
        (vec![7; 20], true),
    ] {
        let (mut reader, bytes) = (PaxReader::new(), [one.clone(), tail].concat());
        let mut input = &bytes[..];
        assert!(
            reader.next(&mut input).unwrap().is_some()
                && reader.next(&mut input).unwrap().is_none()
        );
        assert_eq!(
            (reader.has_ended(), reader.has_trailing_bytes()),
            (true, trailed)
        );
    }
    for tail in [
        [vec![7; BLOCK], empty(b"b")].concat(),
        [vec![7; BLOCK], END.to_vec()].concat(),
    ] {
        assert!(refusal(&[one.clone(), tail].concat()).contains("checksum"));
    }
    assert!(refusal(&[empty(b"a"), vec![0; BLOCK], vec![7; BLOCK]].concat()).contains("checksum"));
}

#[test]
fn an_archive_that_lost_its_beginning_is_not_an_empty_one() {
    assert_eq!(members(&[0; 20 * BLOCK]), []);
    assert!(refusal(&[0; 21 * BLOCK]).contains("only zeros"));
    for tail in [20, 700, 9000] {
        let said = refusal(&[END.to_vec(), vec![7; tail]].concat());
        assert!(
            said.contains("checksum") || said.contains("cut off"),
            "{said}"
        );
    }
}

#[test]
fn names_are_freed_of_dots_and_slashes() {
    let name = |name: &[u8], typeflag| members(&foreign(name, typeflag, 0))[0].entry.clone();
    assert_eq!(name(b"././a//b/./c", b'0').path, b"a/b/c");
    assert_eq!(name(b"./a/", b'5').path, b"a");
    assert_eq!(name(b"./", b'5').path, b"");
    assert_eq!(name(b"old/", 0).kind, EntryKind::Directory);
    assert_eq!(
        name(b"contiguous", b'7').kind,
        EntryKind::File { size: 0, map: None }
    );
}

#[test]
fn records_are_for_the_next_file_and_not_for_the_long_name_between() {
    // A reader that gives the size to the `L` member takes content for headers
    // (GHSA-j5gw-2vrg-8fgx).
    let bytes = [
        pax(b'x', &["size=513"]),
        with_body(foreign(b"././@LongLink", b'L', 5), b"long\0"),
        with_body(foreign(b"short", b'0', 0), &[1; 513]),
        empty(b"after"),
    ]
    .concat();
    let read = members(&bytes);
    assert_eq!(
        (&read[0].entry.path[..], read[0].stored_len),
        (&b"long"[..], 513)
    );
    assert_eq!(
        (&read[1].entry.path[..], read[1].stored_len),
        (&b"after"[..], 0)
    );
}

#[test]
fn global_records_hold_until_a_member_says_otherwise() {
    let bytes = [
        pax(b'g', &["comment=0123", "uname=joe"]),
        empty(b"a"),
        pax(b'x', &["uname=bob"]),
        empty(b"b"),
        empty(b"c"),
    ]
    .concat();
    let users: Vec<_> = members(&bytes)
        .iter()
        .map(|member| member.entry.owner.user.to_string())
        .collect();
    assert_eq!(users, ["joe", "bob", "joe"]);
}

#[test]
fn archives_that_follow_each_other_are_one() {
    let one = [header(&file(b"a", 0)), END.to_vec()].concat();
    let two = [header(&file(b"b", 0)), END.to_vec(), vec![0; 9 * BLOCK]].concat();
    let (found, ended) = read_all(&[one, two].concat()).unwrap();
    assert!(found.len() == 2 && ended);
    assert!(!read_all(&header(&file(b"a", 0))).unwrap().1);
    assert_eq!(read_all(b"").unwrap(), (vec![], false));
}

#[test]
fn an_archive_cut_off_anywhere_but_between_members_is_refused() {
    let mut entry = file(b"a", 700);
    entry.mtime.nanos = 1;
    let mut bytes = header(&entry);
    bytes.resize(bytes.len() + 1024, 1);
    for len in 1..bytes.len() {
        refusal(&bytes[..len]);
    }
    assert_eq!(read_all(&bytes).unwrap().0.len(), 1);
}

#[test]
fn a_member_of_an_unknown_type_is_reported() {
    let bytes = [
        with_body(foreign(b"label", b'V', 5), b"12345"),
        header(&file(b"a", 0)),
    ]
    .concat();
    let (found, _) = read_all(&bytes).unwrap();
    assert_eq!(
        found[0],
        TarItem::Unknown(Unknown {
            name: b"label".to_vec(),
            typeflag: b'V',
            stored_len: 5
        })
    );
    assert!(matches!(&found[1], TarItem::Member(member) if member.entry.path == b"a"));
}

#[test]
fn a_list_of_permissions_comes_as_its_text() {
    let bytes = [
        pax(b'x', &["SCHILY.acl.access=user::rw-,user:joe:r--"]),
        empty(b"a"),
    ]
    .concat();
    let list = (
        acl::ACCESS_LIST.to_vec(),
        b"user::rw-,user:joe:r--".to_vec(),
    );
    assert_eq!(members(&bytes)[0].entry.xattrs, [list]);
}

#[test]
fn lengths_beyond_reason_are_refused_before_memory_is_taken() {
    for typeflag in *b"xgLK" {
        assert!(refusal(&foreign(b"a", typeflag, 1 << 60)).contains("the maximum is"));
    }
    let records = pax(
        b'x',
        &[
            "GNU.sparse.major=1",
            "GNU.sparse.minor=0",
            "GNU.sparse.realsize=9",
        ],
    );
    for map in [
        &b"99999999999\n"[..],
        b"1\n18446744073709551616\n0\n",
        b"1\n0\nx\n",
        b"1\n8\n2\n",
        b"1\n9\n0\n",
    ] {
        let bytes = [&records[..], &with_body(foreign(b"s", b'0', 1 << 40), map)].concat();
        assert!(refusal(&bytes).contains("map"));
    }
}

#[test]
fn a_newer_kind_of_sparse_file_is_not_called_damage() {
    let bytes = [
        pax(b'x', &["GNU.sparse.major=2", "GNU.sparse.minor=0"]),
        empty(b"a"),
    ]
    .concat();
    assert_eq!(read_all(&bytes).unwrap_err().kind, ErrorKind::Unsupported);
}

fn path() -> impl Strategy<Value = EntryPath> {
    let byte = prop_oneof![4 => 1u8..=255, 4 => b'a'..=b'z', 1 => Just(b'/')];
    let part = prop_oneof![vec(byte, 1..40), vec(b'a'..=b'z', 1..300)];
    vec(part, 1..9)
        .prop_map(|parts| parts.join(&b'/'))
        .prop_filter("safe", |path| is_safe(path))
}

fn kind() -> impl Strategy<Value = EntryKind> {
    let device = || any::<(u32, u32)>().prop_map(|(major, minor)| Device { major, minor });
    prop_oneof![
        (0u64..=1 << 60).prop_map(|size| EntryKind::File { size, map: None }),
        (0u64..2000).prop_map(|size| EntryKind::File { size, map: None }),
        (
            vec((1u64..1 << 40, 1u64..1 << 31), 0..60),
            1u64..1 << 50,
            1u64..512
        )
            .prop_map(sparse),
        Just(EntryKind::Directory),
        vec(1u8..=255, 1..300).prop_map(EntryKind::Symlink),
        path().prop_map(EntryKind::HardLink),
        Just(EntryKind::Fifo),
        device().prop_map(EntryKind::CharDevice),
        device().prop_map(EntryKind::BlockDevice),
    ]
}

fn sparse((gaps, tail, odd): (Vec<(u64, u64)>, u64, u64)) -> EntryKind {
    let mut end = 0;
    let mut runs: Vec<ByteRun> = Vec::new();
    for (gap, len) in gaps {
        runs.push(ByteRun {
            offset: end + gap,
            len: len * 512,
        });
        end += gap + len * 512;
    }
    if let Some(last) = runs.last_mut() {
        (last.len, end) = (last.len + odd, end + odd);
    }
    EntryKind::File {
        size: end + tail,
        map: Some(runs.into()),
    }
}

fn list() -> impl Strategy<Value = Xattr> {
    let word = prop_oneof![
        Just("user:".to_owned()),
        "user:[a-z]{1,8}",
        "user:[0-9]{1,9}",
        "group:[a-z.-]{1,8}",
        Just("other:".to_owned())
    ];
    let entry = (word, "[r-][w-][x-]").prop_map(|(who, rights)| format!("{who}:{rights}"));
    (any::<bool>(), vec(entry, 1..9)).prop_map(|(is_default, entries)| {
        // As a tar has it: in the order of the kernel, and numbers without zeros before them.
        let text = acl::tar_text(entries.join(",").as_bytes()).unwrap();
        (ACLS[usize::from(is_default)].0.to_vec(), text)
    })
}

fn xattrs() -> impl Strategy<Value = Vec<Xattr>> {
    let name = prop_oneof![
        "user[.][a-z%=23D5]{1,12}".prop_map(String::into_bytes),
        vec(1u8..=255, 1..20)
    ];
    let odd_acl = vec(any::<u8>(), 0..30).prop_map(|raw| (ACLS[0].0.to_vec(), raw));
    let xattr = prop_oneof![4 => (name, vec(any::<u8>(), 0..200)), 1 => list(), 1 => odd_acl];
    vec(xattr, 0..5).prop_map(|mut xattrs| {
        let mut seen = std::collections::HashSet::new();
        xattrs.retain(|(name, _)| seen.insert(name.clone()));
        xattrs
    })
}

fn time() -> impl Strategy<Value = Time> {
    let seconds = prop_oneof![any::<i64>(), -100i64..100, 0i64..1 << 34];
    (seconds, prop_oneof![Just(0), 0u32..1_000_000_000])
        .prop_map(|(seconds, nanos)| Time { seconds, nanos })
}

fn owner() -> impl Strategy<Value = Owner> {
    let name = || prop_oneof!["[a-z]{0,40}", "[^\0]{0,12}"];
    (any::<u32>(), 0u32..1 << 22, name(), name()).prop_map(|(uid, gid, user, group)| Owner {
        uid,
        gid,
        user: user.into(),
        group: group.into(),
    })
}

prop_compose! {
    fn entry()(path in path(), kind in kind(), mode in 0u32..0o10000, owner in owner(), mtime in time(), xattrs in xattrs())
        -> Entry {
        Entry { path, kind, mode, owner, mtime, xattrs, ..Entry::default() }
    }
}

/// A whole archive of these entries with their content; large ones are left out.
fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries.iter().filter(|entry| entry.data_len() < 4096) {
        write_header(entry, &mut out).unwrap();
        out.resize(out.len() + entry.data_len() as usize, b'x');
        out.resize(out.len() + padding(entry.data_len()), 0);
    }
    out.extend_from_slice(&END);
    out
}

proptest! {
    #[test]
    fn every_entry_comes_back(entry in entry()) {
        let bytes = header(&entry);
        prop_assert!(!is_plain_ustar(&entry) || bytes.len() == BLOCK);
        let mut input = &bytes[..];
        let mut reader = PaxReader::new();
        let Some(TarItem::Member(member)) = reader.next(&mut input).unwrap() else { panic!("no member") };
        prop_assert!(input.is_empty(), "the content begins where the header ends");
        prop_assert_eq!(member.stored_len, entry.data_len());
        prop_assert_eq!(member.entry, entry);
    }

    #[test]
    fn every_archive_comes_back(entries in vec(entry(), 0..12)) {
        let small: Vec<_> = entries.iter().filter(|entry| entry.data_len() < 4096).cloned().collect();
        let read: Vec<_> = members(&archive(&entries)).into_iter().map(|member| member.entry).collect();
        prop_assert_eq!(read, small);
    }

    #[test]
    fn damaged_archives_do_no_harm(entries in vec(entry(), 1..5), hits in vec((any::<usize>(), any::<u8>()), 1..6), seal: bool) {
        let mut bytes = archive(&entries);
        for (offset, value) in hits {
            let offset = offset % bytes.len();
            bytes[offset] = value;
            if seal {
                // With a right checksum the damage gets past the first check.
                let start = offset - offset % BLOCK;
                field::seal((&mut bytes[start..start + BLOCK]).try_into().unwrap());
            }
        }
        for found in read_all(&bytes).map(|(found, _)| found).unwrap_or_default() {
            let TarItem::Member(member) = found else { continue };
            prop_assert!(is_safe(&member.entry.path));
            if let EntryKind::File { .. } = member.entry.kind {
                prop_assert_eq!(member.entry.data_len(), member.stored_len);
            }
        }
    }

    #[test]
    fn bytes_of_any_kind_do_no_harm(mut bytes in vec(any::<u8>(), 0..4096), typeflag in "[0-7xgLKSDV]") {
        if let Some(block) = bytes.first_chunk_mut() {
            block[field::TYPEFLAG] = typeflag.as_bytes()[0];
            field::seal(block);
        }
        let _ = read_all(&bytes);
    }
}
