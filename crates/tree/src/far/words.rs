//! Entries, slices and frames as they are sent between hosts, as CBOR. Nothing that comes is trusted: paths are checked, and numbers where
//! they are used.

use fullbore_format::{
    cbor::decode_bounded,
    entry::{ByteRun, Device, Entry, EntryKind, Owner, SparseMap, Time, is_safe},
    error::{Error, Result, quoted},
    page::EntryState,
};
use fullbore_pipeline::known::{BaseEntry, StoredRun, Trust};
use minicbor::{Decode, Encode, bytes::ByteVec};

pub(super) fn encoded<T: Encode<()>>(value: &T) -> Vec<u8> {
    encoded_in(value, 0)
}

/// A value as CBOR, which has about so many bytes.
pub(super) fn encoded_in<T: Encode<()>>(value: &T, bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(bytes);
    let _ = minicbor::encode(value, &mut bytes); // a `Vec` takes all bytes
    bytes
}

/// Values in a question or an answer at most. A large file with a map of half a million pieces has 1.5 million.
pub(super) const MAX_VALUES: usize = 1 << 21;

/// The value that all of the bytes are.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt).
pub(super) fn decoded<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T> {
    decode_bounded(bytes, MAX_VALUES).map_err(|fault| wrong_words(&fault.to_string()))
}

/// The error for what the other host says of a source.
pub(super) fn wrong_words(reason: &str) -> Error {
    Error::corrupt("could not read a source of another host").because(reason.to_owned())
}

fn bytes(source: &[u8]) -> ByteVec {
    source.to_vec().into()
}

/// Bytes of a file at most, as of the systems.
const MAX_SIZE: u64 = i64::MAX as u64;

/// A run: its beginning and its length.
type RunWords = (u64, u64);

fn run_words(runs: &[ByteRun]) -> Vec<RunWords> {
    runs.iter().map(|run| (run.offset, run.len)).collect()
}

/// Runs that are ascending, not empty, do not touch, and end within `size`.
fn runs(words: Vec<RunWords>, size: u64) -> Result<Vec<ByteRun>> {
    let mut end = None;
    let mut runs = Vec::with_capacity(words.len());
    for (offset, len) in words {
        let is_behind = end.is_none_or(|end| offset > end);
        let next = offset.checked_add(len).filter(|next| *next <= size);
        let Some(next) = next.filter(|_| is_behind && len > 0) else {
            return Err(wrong_words("the map of a file is wrong"));
        };
        end = Some(next);
        runs.push(ByteRun { offset, len });
    }
    Ok(runs)
}

#[derive(Debug, Encode, Decode)]
enum KindWords {
    #[n(0)]
    File(#[n(0)] u64, #[n(1)] Option<Vec<RunWords>>),
    #[n(1)]
    Directory,
    #[n(2)]
    Symlink(#[n(0)] ByteVec),
    #[n(3)]
    HardLink(#[n(0)] ByteVec),
    #[n(4)]
    Fifo,
    #[n(5)]
    CharDevice(#[n(0)] u32, #[n(1)] u32),
    #[n(6)]
    BlockDevice(#[n(0)] u32, #[n(1)] u32),
    #[n(7)]
    Socket,
}

/// An [`Entry`].
#[derive(Debug, Encode, Decode)]
pub(super) struct EntryWords {
    #[n(0)]
    path: ByteVec,
    #[n(1)]
    kind: KindWords,
    #[n(2)]
    mode: u32,
    #[n(3)]
    owner: (u32, u32, String, String),
    #[n(4)]
    mtime: (i64, u32),
    #[n(5)]
    ctime: (i64, u32),
    #[n(6)]
    inode: u64,
    #[n(7)]
    xattrs: Vec<(ByteVec, ByteVec)>,
}

fn time_words(time: Time) -> (i64, u32) {
    (time.seconds, time.nanos)
}

fn time((seconds, nanos): (i64, u32)) -> Result<Time> {
    if nanos >= 1_000_000_000 {
        return Err(wrong_words("a time is wrong"));
    }
    Ok(Time { seconds, nanos })
}

impl EntryWords {
    pub(super) fn of(entry: &Entry) -> Self {
        // Every kind by name, no catch-all: a new kind must not cross the connection as something
        // else.
        let kind = match &entry.kind {
            EntryKind::File { size, map } => {
                KindWords::File(*size, map.as_ref().map(|map| run_words(map)))
            }
            EntryKind::Directory => KindWords::Directory,
            EntryKind::Symlink(target) => KindWords::Symlink(bytes(target)),
            EntryKind::HardLink(path) => KindWords::HardLink(bytes(path)),
            EntryKind::Fifo => KindWords::Fifo,
            EntryKind::CharDevice(device) => KindWords::CharDevice(device.major, device.minor),
            EntryKind::BlockDevice(device) => KindWords::BlockDevice(device.major, device.minor),
            EntryKind::Socket => KindWords::Socket,
        };
        let Owner {
            uid,
            gid,
            user,
            group,
        } = &entry.owner;
        let xattrs = entry.xattrs.iter();
        Self {
            path: bytes(&entry.path),
            kind,
            mode: entry.mode,
            owner: (*uid, *gid, user.to_string(), group.to_string()),
            mtime: time_words(entry.mtime),
            ctime: time_words(entry.ctime),
            inode: entry.inode,
            xattrs: xattrs
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
        }
    }

    pub(super) fn entry(self) -> Result<Entry> {
        let kind = match self.kind {
            // The words are those of another host: each limit that the format has is checked here
            // once.
            KindWords::File(size, _) if size > MAX_SIZE => {
                return Err(wrong_words("a file is too large"));
            }
            KindWords::File(size, map) => EntryKind::File {
                size,
                map: map
                    .map(|words| runs(words, size).map(SparseMap::from))
                    .transpose()?,
            },
            KindWords::Directory => EntryKind::Directory,
            KindWords::Symlink(target) if target.contains(&0) => {
                return Err(wrong_words("the target of a link is wrong"));
            }
            KindWords::Symlink(target) => EntryKind::Symlink(target.into()),
            KindWords::HardLink(path) => EntryKind::HardLink(safe(path.into())?),
            KindWords::Fifo => EntryKind::Fifo,
            KindWords::CharDevice(major, minor) => EntryKind::CharDevice(device(major, minor)),
            KindWords::BlockDevice(major, minor) => EntryKind::BlockDevice(device(major, minor)),
            KindWords::Socket => EntryKind::Socket,
        };
        let (uid, gid, user, group) = self.owner;
        let xattrs = self.xattrs.into_iter();
        Ok(Entry {
            path: safe(self.path.into())?,
            kind,
            mode: self.mode & 0o7777,
            owner: Owner {
                uid,
                gid,
                user: user.into(),
                group: group.into(),
            },
            mtime: time(self.mtime)?,
            ctime: time(self.ctime)?,
            inode: self.inode,
            xattrs: xattrs
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        })
    }
}

fn device(major: u32, minor: u32) -> Device {
    Device { major, minor }
}

fn safe(path: Vec<u8>) -> Result<Vec<u8>> {
    if is_safe(&path) {
        return Ok(path);
    }
    Err(wrong_words(&format!("its path {} is wrong", quoted(&path))))
}

/// An [`EntryState`].
#[derive(Debug, Encode, Decode)]
pub(super) enum StateWords {
    #[n(0)]
    Whole,
    #[n(1)]
    Changed,
    #[n(2)]
    Unreadable(#[n(0)] String),
    #[n(3)]
    Vanished,
    #[n(4)]
    Noted,
    #[n(5)]
    BadPages(#[n(0)] Vec<u32>),
}

impl StateWords {
    pub(super) fn of(state: &EntryState) -> Self {
        match state {
            EntryState::Whole => Self::Whole,
            EntryState::Changed => Self::Changed,
            EntryState::Unreadable(why) => Self::Unreadable(why.clone()),
            EntryState::Vanished => Self::Vanished,
            EntryState::Noted => Self::Noted,
            EntryState::BadPages(pages) => Self::BadPages(pages.clone()),
        }
    }

    pub(super) fn state(self) -> EntryState {
        match self {
            Self::Whole => EntryState::Whole,
            Self::Changed => EntryState::Changed,
            Self::Unreadable(why) => EntryState::Unreadable(why),
            Self::Vanished => EntryState::Vanished,
            Self::Noted => EntryState::Noted,
            Self::BadPages(pages) => EntryState::bad_pages(pages),
        }
    }
}

/// How much is certain about a file in an earlier backup: as much of a [`BaseEntry`] as reading needs.
#[derive(Debug, Encode, Decode)]
pub(super) struct KnownWords {
    #[n(0)]
    trust: u8,
    #[n(1)]
    changed: Option<Vec<RunWords>>,
}

const TRUSTS: [Trust; 4] = [
    Trust::Same,
    Trust::Content,
    Trust::Unverified,
    Trust::Nothing,
];

impl KnownWords {
    pub(super) fn of(known: &BaseEntry) -> Self {
        let trust = TRUSTS.iter().position(|trust| *trust == known.trust);
        Self {
            trust: trust.unwrap_or(TRUSTS.len()) as u8,
            changed: known.changed.as_ref().map(|runs| run_words(runs)),
        }
    }

    /// The known state of a file, without the places of its content.
    pub(super) fn known(self, entry: &Entry) -> Result<BaseEntry> {
        let trust = TRUSTS.get(usize::from(self.trust));
        let trust = *trust.ok_or_else(|| wrong_words("its trust is wrong"))?;
        let mut known = BaseEntry::without_places(entry, trust);
        let changed = self
            .changed
            .map(|words| runs(words, u64::MAX))
            .transpose()?;
        known.changed = changed.map(Into::into);
        Ok(known)
    }
}

/// A [`StoredRun`]: is it here, where, and how long?
pub(super) type StoredWords = (bool, u64, u32);

pub(super) fn stored_words(run: &StoredRun) -> StoredWords {
    match *run {
        StoredRun::Here { inner, len } => (true, inner.into(), len),
        StoredRun::Kept { at, len } => (false, at, len),
    }
}

pub(super) fn stored_run((is_here, at, len): StoredWords) -> Result<StoredRun> {
    if !is_here {
        return Ok(StoredRun::Kept { at, len });
    }
    let inner = u32::try_from(at).map_err(|_| wrong_words("a run is wrong"))?;
    Ok(StoredRun::Here { inner, len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(kind: EntryKind) -> Entry {
        Entry {
            path: b"a/\xff".to_vec(),
            kind,
            mode: 0o4755,
            owner: Owner {
                uid: 1,
                gid: 2,
                user: "u".into(),
                group: "".into(),
            },
            mtime: Time {
                seconds: -5,
                nanos: 7,
            },
            ctime: Time::default(),
            inode: 9,
            xattrs: vec![(b"user.x".to_vec(), vec![0, 255])],
        }
    }

    fn sparse(runs: &[(u64, u64)]) -> EntryKind {
        let runs = runs.iter().map(|&(offset, len)| ByteRun { offset, len });
        EntryKind::File {
            size: 100,
            map: Some(runs.collect()),
        }
    }

    fn sent(entry: &Entry) -> Result<Entry> {
        let words: EntryWords = decoded(&encoded(&EntryWords::of(entry)))?;
        words.entry()
    }

    #[test]
    fn entries_of_all_kinds_arrive_as_they_were() {
        let device = Device { major: 8, minor: 1 };
        for kind in [
            EntryKind::File { size: 7, map: None },
            sparse(&[(0, 10), (50, 50)]),
            sparse(&[]),
            EntryKind::Directory,
            EntryKind::Symlink(b"../x".to_vec()),
            EntryKind::HardLink(b"a/b".to_vec()),
            EntryKind::Fifo,
            EntryKind::CharDevice(device),
            EntryKind::BlockDevice(device),
            EntryKind::Socket,
        ] {
            let entry = entry(kind);
            assert_eq!(sent(&entry).unwrap(), entry);
        }
    }

    #[test]
    fn entries_that_an_archive_may_not_hold_are_refused() {
        let with_path = |path: &[u8]| Entry {
            path: path.to_vec(),
            ..entry(EntryKind::Fifo)
        };
        let nanos = Time {
            seconds: 0,
            nanos: 1_000_000_000,
        };
        for bad in [
            with_path(b"../x"),
            with_path(b"/x"),
            with_path(b"a//b"),
            with_path(b"a\0"),
            entry(EntryKind::HardLink(b"a/../../x".to_vec())),
            entry(EntryKind::Symlink(b"a\0b".to_vec())),
            entry(EntryKind::File {
                size: u64::MAX,
                map: None,
            }),
            entry(sparse(&[(10, 10), (20, 5)])),
            entry(sparse(&[(50, 5), (10, 5)])),
            entry(sparse(&[(90, 11)])),
            entry(sparse(&[(0, 0)])),
            Entry {
                mtime: nanos,
                ..entry(EntryKind::Fifo)
            },
        ] {
            assert!(sent(&bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_entry_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decoded::<EntryWords>(&bytes).and_then(EntryWords::entry);
        }
    }
}
