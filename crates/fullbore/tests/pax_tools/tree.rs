//! Trees on disk and what is seen of them, as entries and bytes.

use fullbore_format::{
    acl,
    entry::{ByteRun, Device, Entry, EntryKind, EntryPath, Owner, Time, Xattr},
    pax::{END, PaxReader, TarItem, padding, skip, skip_padding, write_header},
};
use fullbore_platform::owner::OwnerNames;
use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsStr,
    io::Read,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileExt, FileTypeExt, MetadataExt},
    },
};

/// Largest content that is compared as a whole.
const SMALL: u64 = 4 << 20;

/// What is seen of one object, in a form in which a tree and an archive can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Without inode, times of change, names of owners and map; attributes sorted; a hard link as what it points to.
    pub(crate) entry: Entry,
    /// The digest of what a regular file holds, holes as zeros; of nothing if it is large.
    pub(crate) content: String,
    /// The first name of the object.
    pub(crate) first: EntryPath,
}

/// Objects by path.
pub(crate) type Tree = BTreeMap<EntryPath, Seen>;

/// The byte at `offset` of every file that has data there: never zero, and different in neighbouring blocks.
pub(crate) fn byte(offset: u64) -> u8 {
    (offset % 251) as u8 + 1
}

/// A whole archive of these entries.
pub(crate) fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        write_header(entry, &mut out).unwrap();
        out.extend(
            runs(entry)
                .iter()
                .flat_map(|run| run.offset..run.offset + run.len)
                .map(byte),
        );
        out.resize(out.len() + padding(entry.data_len()), 0);
    }
    out.extend_from_slice(&END);
    out
}

/// Where the data of an entry is.
pub(crate) fn runs(entry: &Entry) -> Vec<ByteRun> {
    match &entry.kind {
        EntryKind::File { map: Some(map), .. } => map.to_vec(),
        EntryKind::File { size, .. } => vec![ByteRun {
            offset: 0,
            len: *size,
        }],
        _ => Vec::new(),
    }
}

/// The tree that an archive of `entries` should give.
pub(crate) fn expected(entries: &[Entry]) -> Tree {
    read(&archive(entries))
}

/// The tree that an archive describes, read with our reader.
pub(crate) fn read(bytes: &[u8]) -> Tree {
    let (mut reader, mut input) = (PaxReader::new(), bytes);
    let mut found = Vec::new();
    while let Some(next) = reader.next(&mut input).unwrap() {
        let TarItem::Member(mut member) = next else {
            panic!("{next:?}")
        };
        // As the system has them, for a comparison with a tree.
        let names = OwnerNames::default();
        let lists = member.entry.xattrs.iter_mut();
        for (_, value) in lists.filter(|(name, _)| acl::is_list(name)) {
            *value = acl::local_list(value, &names, false).unwrap().raw;
        }
        let content = content(&member.entry, &mut input);
        match member.entry.kind {
            EntryKind::File { .. } => skip_padding(&mut input, member.stored_len).unwrap(),
            _ => skip(&mut input, member.stored_len).unwrap(),
        }
        found.push((member.entry, content));
    }
    assert!(reader.has_ended());
    tree(found)
}

fn content(entry: &Entry, input: &mut dyn Read) -> Vec<u8> {
    let mut content = vec![
        0;
        if entry.size() <= SMALL {
            entry.size() as usize
        } else {
            0
        }
    ];
    for run in runs(entry) {
        let mut data = vec![0; run.len as usize];
        input.read_exact(&mut data).unwrap();
        if !content.is_empty() {
            content[run.offset as usize..][..data.len()].copy_from_slice(&data);
        }
    }
    content
}

/// Put members in a form that does not depend on which name of an object came first.
fn tree(found: Vec<(Entry, Vec<u8>)>) -> Tree {
    let mut targets: HashMap<EntryPath, (EntryKind, Vec<u8>, Vec<Xattr>)> = HashMap::new();
    let mut groups: HashMap<EntryPath, Vec<EntryPath>> = HashMap::new();
    let mut seen = Vec::new();
    for (mut entry, mut content) in found {
        let mut top = entry.path.clone();
        if let EntryKind::HardLink(target) = &entry.kind {
            top.clone_from(target);
            // Other tools do not repeat attributes, and need not.
            (entry.kind, content, entry.xattrs) = targets[target].clone();
        }
        targets.insert(
            entry.path.clone(),
            (entry.kind.clone(), content.clone(), entry.xattrs.clone()),
        );
        groups
            .entry(top.clone())
            .or_default()
            .push(entry.path.clone());
        seen.push((top, plain(entry), content));
    }
    seen.into_iter()
        .map(|(top, entry, content)| {
            let first = groups[&top].iter().min().unwrap().clone();
            (
                entry.path.clone(),
                Seen {
                    entry,
                    content: blake3::hash(&content).to_string(),
                    first,
                },
            )
        })
        .collect()
}

fn plain(mut entry: Entry) -> Entry {
    entry.ctime = Time::default();
    entry.inode = 0;
    (entry.owner.user, entry.owner.group) = Default::default();
    entry.xattrs.sort();
    if let EntryKind::File { map, .. } = &mut entry.kind {
        *map = None;
    }
    entry
}

/// The tree below `top`, which is the root.
pub(crate) fn scan(top: &std::path::Path) -> Tree {
    let mut found = Vec::new();
    let mut inodes = HashMap::new();
    scan_into(top, EntryPath::new(), &mut inodes, &mut found);
    tree(found)
}

fn scan_into(
    top: &std::path::Path,
    path: EntryPath,
    inodes: &mut HashMap<u64, EntryPath>,
    found: &mut Vec<(Entry, Vec<u8>)>,
) {
    let place = top.join(OsStr::from_bytes(&path));
    let mut entry = stat(&place);
    entry.path.clone_from(&path);
    if entry.kind == EntryKind::Directory {
        let mut names: Vec<_> = std::fs::read_dir(&place)
            .unwrap()
            .map(|item| item.unwrap().file_name())
            .collect();
        names.sort();
        found.push((entry, Vec::new()));
        for name in names {
            let sub = if path.is_empty() {
                name.into_vec()
            } else {
                [&path[..], b"/", name.as_bytes()].concat()
            };
            scan_into(top, sub, inodes, found);
        }
        return;
    }
    let first = inodes
        .entry(std::mem::take(&mut entry.inode))
        .or_insert_with(|| path.clone());
    if *first != path {
        entry.kind = EntryKind::HardLink(first.clone());
    }
    let is_small = matches!(entry.kind, EntryKind::File { size, .. } if size <= SMALL);
    let content = if is_small {
        std::fs::read(&place).unwrap()
    } else {
        Vec::new()
    };
    found.push((entry, content));
}

fn stat(at: &std::path::Path) -> Entry {
    let meta = std::fs::symlink_metadata(at).unwrap();
    let (kind, rdev) = (meta.file_type(), meta.rdev());
    let device = Device {
        major: rustix::fs::major(rdev),
        minor: rustix::fs::minor(rdev),
    };
    let kind = match kind {
        kind if kind.is_dir() => EntryKind::Directory,
        kind if kind.is_symlink() => {
            EntryKind::Symlink(std::fs::read_link(at).unwrap().into_os_string().into_vec())
        }
        kind if kind.is_fifo() => EntryKind::Fifo,
        kind if kind.is_char_device() => EntryKind::CharDevice(device),
        kind if kind.is_block_device() => EntryKind::BlockDevice(device),
        _ => EntryKind::File {
            size: meta.len(),
            map: None,
        },
    };
    Entry {
        kind,
        mode: meta.mode() & 0o7777,
        owner: Owner {
            uid: meta.uid(),
            gid: meta.gid(),
            ..Owner::default()
        },
        mtime: Time {
            seconds: meta.mtime(),
            nanos: meta.mtime_nsec() as u32,
        },
        inode: meta.ino(),
        xattrs: xattrs(at),
        ..Entry::default()
    }
}

fn xattrs(at: &std::path::Path) -> Vec<Xattr> {
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(at, &mut names[..]).unwrap();
    let names = names[..len]
        .split(|c| *c == 0)
        .filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 65536];
            let len = rustix::fs::lgetxattr(at, OsStr::from_bytes(name), &mut value[..]).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

/// Check the data, the holes around it, and the size of a large sparse file.
pub(crate) fn assert_sparse(at: &std::path::Path, entry: &Entry) {
    let file = std::fs::File::open(at).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!(meta.len(), entry.size(), "{at:?}");
    assert!(
        meta.blocks() * 512 < 2 << 20,
        "{at:?} takes {} blocks",
        meta.blocks()
    );
    for run in runs(entry) {
        let mut data = vec![7; run.len as usize + 1];
        let len = file.read_at(&mut data, run.offset).unwrap();
        let want = (0..run.len)
            .map(|offset| byte(run.offset + offset))
            .chain([0])
            .take(len);
        assert!(
            data[..len].iter().copied().eq(want),
            "{at:?} at {}",
            run.offset
        );
        let mut before = [7];
        if run.offset > 0 {
            file.read_exact_at(&mut before, run.offset - 1).unwrap();
            assert_eq!(before, [0], "{at:?} before {}", run.offset);
        }
    }
}
