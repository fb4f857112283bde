//! One file, directory or other object of a source: its path, kind and metadata.

use std::sync::Arc;

/// A path relative to the root of the backup.
///
/// Components are joined by single `/` and have any bytes but `/` and NUL. No component is empty,
/// `.` or `..`. The empty path is the root itself.
pub type EntryPath = Vec<u8>;

/// One object of a source, at the time of the scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// Path in the backup.
    pub path: EntryPath,
    /// Kind, with the properties that only this kind has.
    pub kind: EntryKind,
    /// Permission bits, setuid, setgid and sticky: at most `0o7777`.
    pub mode: u32,
    /// Owner and group.
    pub owner: Owner,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode; zero if unknown.
    pub ctime: Time,
    /// Inode number; zero if unknown.
    pub inode: u64,
    /// Extended attributes as the system names them (`user.x`, `security.capability`,
    /// `system.posix_acl_access` raw).
    pub xattrs: Vec<Xattr>,
}

/// Kinds of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File {
        /// Logical bytes, holes included.
        size: u64,
        /// The places of the data if the file has holes; `None` if it has no holes.
        map: Option<SparseMap>,
    },
    /// A directory.
    Directory,
    /// A symbolic link and its target, any bytes but NUL.
    Symlink(Vec<u8>),
    /// Another name of an object (usually a regular file) that comes earlier in the same stream, by
    /// its path.
    HardLink(EntryPath),
    /// A named pipe.
    Fifo,
    /// A character device.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// A socket: listed, not stored.
    Socket,
}

impl Default for EntryKind {
    fn default() -> Self {
        Self::File { size: 0, map: None }
    }
}

/// An extended attribute: name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// A run of data in a sparse file, in bytes. Runs are ascending, not empty, and do not touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRun {
    /// Where it starts in the file.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// The data runs of a sparse file, and the bytes of data before each run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseMap(Arc<(Vec<ByteRun>, Vec<u64>)>);

impl From<Vec<ByteRun>> for SparseMap {
    fn from(runs: Vec<ByteRun>) -> Self {
        let preceding = runs
            .iter()
            .scan(0u64, |sum, run| {
                Some(std::mem::replace(sum, sum.saturating_add(run.len)))
            })
            .collect();
        Self(Arc::new((runs, preceding)))
    }
}

impl From<&[ByteRun]> for SparseMap {
    fn from(runs: &[ByteRun]) -> Self {
        runs.to_vec().into()
    }
}

impl FromIterator<ByteRun> for SparseMap {
    fn from_iter<T: IntoIterator<Item = ByteRun>>(runs: T) -> Self {
        runs.into_iter().collect::<Vec<_>>().into()
    }
}

impl std::ops::Deref for SparseMap {
    type Target = [ByteRun];
    fn deref(&self) -> &[ByteRun] {
        &self.0.0
    }
}

impl SparseMap {
    /// Returns the bytes of all runs.
    fn data_len(&self) -> u64 {
        let last = self.last().zip(self.0.1.last());
        last.map_or(0, |(run, preceding)| preceding.saturating_add(run.len))
    }

    /// Returns the bytes of data before byte `place` of the file; `None` if `place` is in a hole.
    pub fn data_before(&self, place: u64) -> Option<u64> {
        let index = self
            .partition_point(|run| run.offset <= place)
            .checked_sub(1)?;
        let inner = place - self[index].offset;
        (inner < self[index].len).then(|| self.0.1[index] + inner)
    }

    /// Returns the runs from the one that holds byte `offset` of the data, with the bytes of data
    /// before each.
    fn placed(&self, offset: u64) -> impl Iterator<Item = (u64, ByteRun)> {
        let first = self
            .0
            .1
            .partition_point(|preceding| *preceding <= offset)
            .saturating_sub(1);
        self.0.1[first..]
            .iter()
            .copied()
            .zip(self[first..].iter().copied())
    }
}

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// Owner and group, by number and by name. A name is empty if the system does not know it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Owner {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
    /// User name.
    pub user: Arc<str>,
    /// Group name.
    pub group: Arc<str>,
}

/// A time since 1970: whole seconds (negative before) and nanoseconds added to them, 0 to
/// 999,999,999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Whole seconds, rounded towards the past.
    pub seconds: i64,
    /// The rest.
    pub nanos: u32,
}

impl Entry {
    /// Returns roughly the bytes that the entry takes in memory: names, attributes, the map of a
    /// sparse file.
    pub fn text_bytes(&self) -> usize {
        let map = match &self.kind {
            EntryKind::File { map: Some(map), .. } => map.len() * 16,
            EntryKind::Symlink(target) | EntryKind::HardLink(target) => target.len(),
            _ => 0,
        };
        self.path.len() + map + xattr_bytes(&self.xattrs)
    }

    /// Returns whether this is a regular file; false for another name of one.
    pub fn is_file(&self) -> bool {
        matches!(self.kind, EntryKind::File { .. })
    }

    /// Logical bytes of content; 0 if this is not a regular file.
    pub fn size(&self) -> u64 {
        match &self.kind {
            EntryKind::File { size, .. } => *size,
            _ => 0,
        }
    }

    /// Bytes of content that are stored: `size` without the holes.
    pub fn data_len(&self) -> u64 {
        match &self.kind {
            EntryKind::File { map: Some(map), .. } => map.data_len(),
            EntryKind::File { size, .. } => *size,
            _ => 0,
        }
    }

    /// Returns whether this is a file with holes.
    pub fn is_sparse(&self) -> bool {
        matches!(self.kind, EntryKind::File { map: Some(_), .. })
    }

    /// Returns the places in the file of `len` bytes of its data, as ascending runs. The first of
    /// these bytes has `offset` bytes of data before it.
    pub fn runs(&self, offset: u64, len: u64) -> impl Iterator<Item = ByteRun> {
        let map = match &self.kind {
            EntryKind::File { map: Some(map), .. } => Some(map.placed(offset)),
            _ => None,
        };
        // A file without a map is one run without end, so both kinds take one way below.
        let whole = map.is_none().then_some((
            0,
            ByteRun {
                offset: 0,
                len: u64::MAX,
            },
        ));
        let placed = map.into_iter().flatten().chain(whole);
        let end = offset + len;
        placed
            .take_while(move |(preceding, _)| *preceding < end)
            .filter_map(move |(preceding, run)| {
                let start = offset.max(preceding);
                let stop = end.min(preceding + run.len);
                (start < stop).then(|| ByteRun {
                    offset: run.offset + start - preceding,
                    len: stop - start,
                })
            })
    }

    /// Turns a file into one of no content: size 0, no map. Other kinds of entries do not change.
    pub fn clear_content(&mut self) {
        if self.is_file() {
            self.kind = EntryKind::File { size: 0, map: None };
        }
    }
}

/// Compares paths in the order of an archive: a directory comes before its contents, names are
/// sorted by bytes.
///
/// This is byte order with `/` less than every other byte, so `a`, `a/b`, `a.txt` is ascending.
pub fn order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    a.iter()
        .map(path_byte_rank)
        .cmp(b.iter().map(path_byte_rank))
}

fn path_byte_rank(c: &u8) -> u8 {
    if *c == b'/' { 0 } else { *c }
}

/// Returns whether `path` is `top` or below it. Every path is below the empty path.
pub fn is_within(path: &[u8], top: &[u8]) -> bool {
    top.is_empty()
        || path
            .strip_prefix(top)
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Splits a path into directory and name; both are empty for the root.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|c| *c == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Returns the component of `path` that follows `dir`. `path` must be below `dir`.
pub fn child_component<'a>(dir: &[u8], path: &'a [u8]) -> &'a [u8] {
    let below = path.get(dir.len()..).unwrap_or_default();
    below
        .strip_prefix(b"/")
        .unwrap_or(below)
        .split(|c| *c == b'/')
        .next()
        .unwrap_or_default()
}

/// Returns the path of `name` in a directory.
pub fn join(dir: &[u8], name: &[u8]) -> EntryPath {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend(dir);
    if !dir.is_empty() {
        path.push(b'/');
    }
    path.extend(name);
    path
}

/// Returns the bytes of all names and values of attributes.
pub fn xattr_bytes(xattrs: &[Xattr]) -> usize {
    xattrs
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum()
}

/// Returns whether both lists hold the same attributes. The order depends on the file system and
/// does not count.
pub fn same_xattrs(a: &[Xattr], b: &[Xattr]) -> bool {
    a == b || a.len() == b.len() && sorted(a) == sorted(b)
}

fn sorted(list: &[Xattr]) -> Vec<Xattr> {
    let mut list = list.to_vec();
    list.sort_unstable();
    list
}

/// Returns whether an archive may hold this path, by the rules of [`EntryPath`]. Every path that is
/// read from outside is checked.
pub fn is_safe(path: &[u8]) -> bool {
    path.is_empty()
        || (!path.contains(&0)
            && path
                .split(|c| *c == b'/')
                .all(|part| !part.is_empty() && part != b"." && part != b".."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_the_same_in_any_order() {
        let list = |text: &str| {
            text.bytes()
                .map(|name| (vec![name], vec![name & 1]))
                .collect::<Vec<Xattr>>()
        };
        assert!(same_xattrs(&list("abc"), &list("cab")) && same_xattrs(&[], &[]));
        assert!(
            !same_xattrs(&list("ab"), &list("abc")) && !same_xattrs(&list("aab"), &list("abb"))
        );
    }

    #[test]
    fn data_of_a_sparse_file_is_where_its_runs_are() {
        let run = |offset, len| ByteRun { offset, len };
        let file = |map: Option<&[ByteRun]>| Entry {
            kind: EntryKind::File {
                size: 900,
                map: map.map(Into::into),
            },
            ..Entry::default()
        };
        let sparse = file(Some(&[run(100, 10), run(300, 20), run(800, 30)]));
        let found = |offset, len| sparse.runs(offset, len).collect::<Vec<_>>();
        assert_eq!(found(0, 60), [run(100, 10), run(300, 20), run(800, 30)]);
        assert_eq!(found(5, 10), [run(105, 5), run(300, 5)]);
        assert_eq!(found(30, 1), [run(800, 1)]);
        assert_eq!((found(60, 5), found(10, 0)), (vec![], vec![]));
        assert_eq!(file(None).runs(7, 5).collect::<Vec<_>>(), [run(7, 5)]);
        assert_eq!(file(Some(&[])).runs(0, 5).collect::<Vec<_>>(), []);
    }

    #[test]
    fn a_directory_comes_right_before_its_contents() {
        let mut paths = [&b"a.txt"[..], b"a/b", b"a", b"", b"a/b/c", b"a-b", b"b"];
        paths.sort_by(|a, b| order(a, b));
        assert_eq!(
            paths,
            [&b""[..], b"a", b"a/b", b"a/b/c", b"a-b", b"a.txt", b"b"]
        );
    }

    #[test]
    fn paths_that_leave_the_root_are_not_safe() {
        for bad in [
            &b"/etc"[..],
            b"../x",
            b"a/../b",
            b"a//b",
            b"./a",
            b"a/",
            b"a\0b",
            b"..",
        ] {
            assert!(!is_safe(bad), "{bad:?}");
        }
        for good in [&b""[..], b"a", b"a/b", b"..a", b"a/...", b"\xff\xfe"] {
            assert!(is_safe(good), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn order_is_the_order_of_components(a in "([a-c][a-c.]{0,2}(/[a-c][a-c.]{0,2}){0,3})?", b in "([a-c][a-c.]{0,2}(/[a-c][a-c.]{0,2}){0,3})?") {
            prop_assert!(is_safe(a.as_bytes()) && is_safe(b.as_bytes()));
            let parts = |s: &str| s.split('/').map(str::to_owned).filter(|p| !p.is_empty()).collect::<Vec<_>>();
            prop_assert_eq!(order(a.as_bytes(), b.as_bytes()), parts(&a).cmp(&parts(&b)));
        }
    }
}
