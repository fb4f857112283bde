//! The questions that the side which reads asks the side which writes, and the answers.
//!
//! Both sides may be one process: then nothing is encoded. Entries are tar headers, so that the
//! reader of headers checks each path, wherever it comes from.

use super::rules::{CopyPlace, CopyRules};
use fullbore_format::{
    cbor::{count_values, decode_bounded},
    entry::{Entry, Owner},
    error::{Error, ErrorKind, Result, one_line},
    page::Record,
    pax::{PaxReader, TarItem, write_header},
};
use fullbore_pipeline::frame::Frame;
use fullbore_platform as platform;
use fullbore_platform::{
    owner::OwnerNames,
    queue::{ByteBudget, ByteRoom},
};
use fullbore_tree::write::deletion_limit::DeletionLimit;
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::{
    borrow::Cow,
    ops::{Deref, Range},
};

/// Bytes of the content of a large file that are compared by one digest.
pub(crate) const BLOCK: usize = 64 << 10;

/// Bytes of content that is decompressed at most. An honest tar has up to 8 MiB, and the attributes of
/// one file.
pub(super) const MAX_TAR: usize = 16 << 20;

/// Values in a question or in an answer at most, its body aside.
const MAX_VALUES: usize = 1 << 18;

/// Room for all bodies that this process has decompressed: some 7 honest ones, or two of the largest size.
static DECOMPRESSED: ByteBudget = ByteBudget::new(2 * MAX_TAR);

/// Room for the questions themselves, by the bytes that a list takes for each value.
static DECODED: ByteBudget = ByteBudget::new(16 << 20);
const VALUE_BYTES: usize = 48;

/// Bytes of a digest of content.
pub(super) const DIGEST_BYTES: usize = 32;

/// A question. Its bytes, such as content, are its body.
#[derive(Debug, Clone, Encode, Decode)]
pub enum CopyCall {
    /// Opens the tree at this path; an empty path is the one that this side chose. The first
    /// question.
    #[n(0)]
    Open(#[n(0)] OpenTarget),
    /// The next entries of the tree, in archive order, and whether others follow.
    #[n(1)]
    List,
    /// Makes the members of a tar, which is the body.
    #[n(2)]
    Put {
        /// Whether the body is compressed, as one zstd frame.
        #[n(0)]
        is_compressed: bool,
    },
    /// Makes the directories of these headers now.
    #[n(3)]
    Directories,
    /// Gives the files of these headers their metadata if their content has these digests. Answers
    /// with the others.
    #[n(4)]
    Check {
        /// A digest for each header.
        #[n(0)]
        digests: ByteVec,
    },
    /// Gives the files of these headers their metadata. Answers with those that cannot have it.
    #[n(5)]
    Describe,
    /// Opens a large file, whose header is the body. Answers whether there is content to compare.
    #[n(6)]
    Begin {
        /// A file that is no longer needed and may have the same content.
        #[n(0)]
        from: Option<ByteVec>,
    },
    /// Compares blocks of an open file with digests, which are the body. Answers with those that
    /// differ.
    #[n(7)]
    Compare {
        /// The file.
        #[n(0)]
        path: ByteVec,
        /// Bytes of data before the first block.
        #[n(1)]
        offset: u64,
        /// Bytes of all blocks; only the last one may be short.
        #[n(2)]
        len: u32,
    },
    /// Writes the body to an open file.
    #[n(8)]
    Write {
        /// The file.
        #[n(0)]
        path: ByteVec,
        /// Bytes of data before each piece of the body, and its length.
        #[n(1)]
        pieces: Vec<(u64, u32)>,
    },
    /// Completes an open file, or gives it up.
    #[n(9)]
    End {
        /// The file.
        #[n(0)]
        path: ByteVec,
        /// Whether the whole file was written.
        #[n(1)]
        is_complete: bool,
        /// Its size, if it has shrunk since its header was made.
        #[n(2)]
        shrunk: Option<u64>,
    },
    /// Makes hard links; the body has the path of each, then that of its file, each closed by a NUL.
    #[n(10)]
    Link,
    /// Removes the paths in the body, each closed by a NUL; with everything below them, if no rule
    /// can leave out a part of it. Only with [`OpenTarget::delete`].
    #[n(11)]
    Remove,
    /// Gives directories their metadata, and makes everything durable. The last question.
    #[n(12)]
    Finish,
    /// Begins the list of entries again, before anything is written.
    #[n(13)]
    Rewind,
}

impl CopyCall {
    /// Returns whether the source brings entries by it.
    pub(super) fn brings_entries(&self) -> bool {
        matches!(
            self,
            Self::Put { .. }
                | Self::Directories
                | Self::Check { .. }
                | Self::Describe
                | Self::Begin { .. }
                | Self::Link
        )
    }
}

/// The tree to write to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct OpenTarget {
    /// Its path, or nothing.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// What is left out on both sides.
    #[n(1)]
    pub rules: CopyRules,
    /// Whether owners are set by number.
    #[n(2)]
    pub numeric_owner: bool,
    /// Whether this is a dry run.
    #[n(3)]
    pub dry_run: bool,
    /// Whether the content of all files is compared.
    #[n(4)]
    pub checksum: bool,
    /// Whether files are deleted that only the target has.
    #[n(5)]
    pub delete: bool,
    /// Whether files are deleted that patterns and marks leave out.
    #[n(6)]
    pub delete_excluded: bool,
    /// How much may be deleted.
    #[n(7)]
    pub limit: DeletionLimit,
    /// Whether the source is one file. If `path` is no directory, it is the path of that file.
    #[n(8)]
    pub may_be_file: bool,
}

impl OpenTarget {
    /// Returns whether this asks for no more than is granted. The paths may differ, and the names of
    /// the sources: the side that chose the target uses its own. Of a whole target, a part may be
    /// asked for: only the other side knows whether its source is a file.
    pub(super) fn has_rights_of(&self, granted: &Self) -> bool {
        let mut rights = self.rights();
        if granted.rules.only().is_none() {
            rights.rules.places.clear();
        }
        let may_be_file = granted.may_be_file && self.may_be_file;
        self.may_be_file == may_be_file
            && Self {
                may_be_file: granted.may_be_file,
                ..rights
            } == granted.rights()
    }

    fn rights(&self) -> Self {
        Self {
            path: Vec::new(),
            rules: self.rules.without_names(),
            ..self.clone()
        }
    }

    /// Returns what was granted, as far as it is asked for.
    pub(super) fn narrowed(granted: &Self, wanted: &Self) -> Self {
        let names = granted.rules.places.first().map(|place| &place.names);
        let mut narrowed = granted.clone();
        if granted.rules.only().is_none() && wanted.rules.only().is_some() {
            let places = wanted.rules.places.iter().map(|place| CopyPlace {
                at: place.at.clone(),
                names: names.cloned().unwrap_or_default(),
            });
            narrowed.rules.places = places.collect();
        }
        narrowed.may_be_file &= wanted.may_be_file;
        narrowed
    }

    /// The rules for what is deleted.
    pub(super) fn deletion_rules(&self) -> CopyRules {
        self.rules.of_deletion(self.delete_excluded)
    }
}

/// An answer.
#[derive(Debug, Clone, Default, Encode, Decode)]
pub struct CopyAnswer {
    /// Numbers of the entries or blocks that are wanted, from 0, ascending.
    #[n(0)]
    pub wanted: Vec<u32>,
    /// Whether there is something to compare with: more entries of the tree, or content of the
    /// file.
    #[n(1)]
    pub has_content: bool,
    /// Paths that the tree does not take, and why.
    #[n(2)]
    pub refused: RefusedPaths,
    /// Metadata that could not be set, a line a reason.
    #[n(3)]
    pub warnings: Vec<String>,
    /// Pages with entries.
    #[n(4)]
    pub pages: Vec<ByteVec>,
    /// The answer to [`CopyCall::Open`].
    #[n(5)]
    pub opened: OpenedTarget,
}

/// What the side that writes tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct OpenedTarget {
    /// The name that the only source gets, if the target is a file and no directory.
    #[n(0)]
    pub name: Option<ByteVec>,
    /// The owners that can be set; `None` if all can.
    #[n(1)]
    pub owners: Option<OwnerRights>,
}

/// The owners that a user can give to a file: the user, with a group of theirs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct OwnerRights {
    #[n(0)]
    pub(super) uid: u32,
    /// Empty if it is not known.
    #[n(1)]
    pub(super) user: String,
    /// Numbers and names of the groups.
    #[n(2)]
    pub(super) groups: Vec<(u32, String)>,
}

impl OwnerRights {
    /// Returns the rights of this process.
    pub(super) fn own() -> Option<Self> {
        let uid = platform::user_id();
        if uid == 0 {
            return None;
        }
        let names = OwnerNames::default();
        let groups = platform::group_ids().into_iter();
        let groups = groups.map(|gid| (gid, names.group(gid).to_string()));
        Some(Self {
            uid,
            user: names.user(uid).to_string(),
            groups: groups.collect(),
        })
    }

    /// Returns whether a file can get this owner and group: by name, if both have one and numbers are
    /// not asked for.
    pub(super) fn may_set(&self, owner: &Owner, is_numeric: bool) -> bool {
        let is_same = |number: u32, name: &str, wanted: u32, wanted_name: &str| match !is_numeric
            && !name.is_empty()
            && !wanted_name.is_empty()
        {
            true => name == wanted_name,
            false => number == wanted,
        };
        is_same(self.uid, &self.user, owner.uid, &owner.user)
            && self
                .groups
                .iter()
                .any(|(gid, name)| is_same(*gid, name, owner.gid, &owner.group))
    }
}

/// Bytes of the paths and reasons of one answer.
const NAMED_BYTES: usize = 256 << 10;

/// Paths that the tree does not take: the first ones by name, since a question may have a million.
#[derive(Debug, Clone, Default, Encode, Decode)]
pub struct RefusedPaths {
    /// Each with the reason.
    #[n(0)]
    pub named: Vec<(ByteVec, String)>,
    /// How many others there are.
    #[n(1)]
    pub unnamed: u64,
    #[n(2)]
    named_bytes: u64,
}

impl RefusedPaths {
    /// Adds a path.
    pub(super) fn add(&mut self, path: &[u8], why: String) {
        if self.named_bytes >= NAMED_BYTES as u64 {
            self.unnamed += 1;
            return;
        }
        // 64 bytes of lengths and pointers.
        self.named_bytes += (path.len() + why.len() + 64) as u64;
        self.named.push((path.to_vec().into(), why));
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.unnamed.saturating_add(self.named.len() as u64)
    }
}

/// Entries of a tree, in archive order.
#[derive(Debug, Default)]
pub struct TargetPage {
    /// The entries.
    pub records: Vec<Record>,
    /// Whether others follow.
    pub has_more: bool,
}

/// The side that writes. Questions may come from any thread.
pub trait CopyTarget: Send + Sync {
    /// Asks a question.
    ///
    /// # Errors
    /// Those that end the copy; refused entries are in the answer.
    fn ask(&self, call: CopyCall, body: &[u8]) -> Result<CopyAnswer>;

    /// The next entries of the tree. Asked by one thread.
    ///
    /// # Errors
    /// As [`CopyTarget::ask`].
    fn list(&self) -> Result<TargetPage>;

    /// Makes members of a frame: those of these parts.
    ///
    /// # Errors
    /// As [`CopyTarget::ask`].
    fn put(&self, frame: &Frame, parts: &[usize]) -> Result<CopyAnswer>;

    /// Questions that are worth asking at the same time.
    fn depth(&self, cores: usize) -> usize;

    /// Bytes of content that one question is about.
    fn frame_bytes(&self) -> u32;
}

/// The place of the member of each part in the bytes of a frame: header, content and padding.
pub(super) fn member_ranges(frame: &Frame) -> Vec<Range<usize>> {
    let mut start = 0;
    let range = |part: &fullbore_pipeline::frame::FrameEntry| {
        let content = part.inner as usize + part.len as usize;
        let end = content + fullbore_format::pax::padding(part.len.into());
        std::mem::replace(&mut start, end)..end
    };
    frame.parts.iter().map(range).collect()
}

/// The headers of entries, one after the other.
///
/// # Errors
/// Those of [`write_header`].
pub(super) fn headers<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    for entry in entries {
        write_header(entry, &mut body)?;
    }
    Ok(body)
}

/// Reads the headers of [`headers`].
///
/// # Errors
/// [`ErrorKind::Corrupt`] if there is anything else.
pub(super) fn read_headers(mut body: &[u8]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut reader = PaxReader::new();
    while !body.is_empty() {
        match reader.next(&mut body)? {
            Some(TarItem::Member(member)) => entries.push(member.entry),
            _ => return Err(not_understood()),
        }
    }
    Ok(entries)
}

/// Reads paths that are closed by NULs, one by one.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the last one is not closed. In place of a path, for one that leaves the tree.
pub(super) fn read_paths(body: &[u8]) -> Result<impl Iterator<Item = Result<&[u8]>>> {
    if !matches!(body.last(), None | Some(0)) {
        return Err(not_understood());
    }
    let closed = body.split_inclusive(|c| *c == 0);
    Ok(closed.map(|path| checked_path(&path[..path.len() - 1])))
}

/// Returns the path of an object below the root.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for another one.
pub(super) fn checked_path(path: &[u8]) -> Result<&[u8]> {
    let is_below = !path.is_empty() && fullbore_format::entry::is_safe(path);
    is_below.then_some(path).ok_or_else(not_understood)
}

/// The error for a question or an answer that the other side should not send.
pub(super) fn not_understood() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "cannot go on with the copy: the other side says something that is not understood",
    )
}

/// The error for a question that asks for more than this side allows.
pub(super) fn not_allowed() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "cannot go on with the copy: the other side asks for a change that is not allowed here",
    )
    .because("the options of the command on this host do not include it")
}

/// Marks the length of a question whose body is one zstd frame.
const PACKED: u32 = 1 << 31;

/// Shorter bodies are sent as they are.
const LEAST_PACKED: usize = 1 << 10;

/// As [`encode_call`], with a body that is compressed if that is worth it.
///
/// # Errors
/// [`ErrorKind::Bug`] if zstd fails.
pub(super) fn encode_packed_call(call: &CopyCall, body: &[u8], level: i32) -> Result<Vec<u8>> {
    if !(LEAST_PACKED..MAX_TAR).contains(&body.len()) {
        return Ok(encode_call(call, body));
    }
    let mut bytes = encode_call(call, &compressed(body, level)?);
    bytes[3] |= (PACKED >> 24) as u8;
    Ok(bytes)
}

/// Compresses bytes into one zstd frame, which has their number.
///
/// # Errors
/// [`ErrorKind::Bug`] if zstd fails.
pub(super) fn compressed(plain: &[u8], level: i32) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    let done = zstd_safe::compress(&mut out, plain, level);
    done.map_err(|code| {
        let why = zstd_safe::get_error_name(code);
        Error::new(ErrorKind::Bug, "could not compress content").because(why)
    })?;
    Ok(out)
}

/// The body of a question, and the room that it takes if it was decompressed.
#[derive(Debug)]
pub(super) struct QuestionBody<'b> {
    bytes: Cow<'b, [u8]>,
    room: Option<ByteRoom<'static>>,
    /// That of the question.
    _decoded: Option<ByteRoom<'static>>,
}

impl Deref for QuestionBody<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl QuestionBody<'_> {
    /// Is it in the bytes of the question itself?
    fn is_plain(&self) -> bool {
        self.room.is_none()
    }
}

/// Decompresses a frame of at most [`MAX_TAR`] bytes. Waits while other questions take the room that all have together; a question that
/// has room must not ask for more.
///
/// # Errors
/// [`ErrorKind::Corrupt`].
pub(super) fn decompressed(body: &[u8]) -> Result<QuestionBody<'static>> {
    let size = zstd_safe::get_frame_content_size(body).ok().flatten();
    let size = size.filter(|size| *size <= MAX_TAR as u64);
    let size = size.ok_or_else(not_understood)? as usize;
    let room = DECOMPRESSED.take(size);
    let mut plain = Vec::with_capacity(size);
    zstd_safe::decompress(&mut plain, body).map_err(|_| not_understood())?;
    Ok(QuestionBody {
        bytes: Cow::Owned(plain),
        room: Some(room),
        _decoded: None,
    })
}

/// A question and its body in bytes: the length of the question in 4 bytes, the question, the body.
pub fn encode_call(call: &CopyCall, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    // A `Vec` takes all bytes.
    let _ = minicbor::encode(call, &mut bytes);
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Reads a question and its body.
///
/// # Errors
/// [`ErrorKind::Corrupt`].
pub(super) fn decode_call(bytes: &[u8]) -> Result<(CopyCall, QuestionBody<'_>)> {
    let (word, rest) = bytes.split_first_chunk().ok_or_else(not_understood)?;
    let word = u32::from_le_bytes(*word);
    let len = (word & !PACKED) as usize;
    let (call, body) = rest.split_at_checked(len).ok_or_else(not_understood)?;
    let values = count_values(call, MAX_VALUES);
    let values = values.map_err(|error| not_understood().because(error))?;
    let decoded = DECODED.take(values * VALUE_BYTES);
    let call = decode_bounded(call, MAX_VALUES).map_err(|error| not_understood().because(error))?;
    let body = match word & PACKED {
        0 => QuestionBody {
            bytes: Cow::Borrowed(body),
            room: None,
            _decoded: None,
        },
        _ => decompressed(body)?,
    };
    let body = QuestionBody {
        _decoded: Some(decoded),
        ..body
    };
    // Its tar is compressed by itself.
    if matches!(call, CopyCall::Put { .. }) && !body.is_plain() {
        return Err(not_understood());
    }
    Ok((call, body))
}

/// An answer in bytes.
pub(super) fn encode_answer(answer: &CopyAnswer) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A `Vec` takes all bytes.
    let _ = minicbor::encode(answer, &mut bytes);
    bytes
}

/// Reads an answer. Its words are those of another host.
///
/// # Errors
/// [`ErrorKind::Corrupt`].
pub(super) fn decode_answer(bytes: &[u8]) -> Result<CopyAnswer> {
    let answer = decode_bounded(bytes, MAX_VALUES);
    let mut answer: CopyAnswer = answer.map_err(|error| not_understood().because(error))?;
    for line in &mut answer.warnings {
        *line = one_line(line);
    }
    for (_, line) in &mut answer.refused.named {
        *line = one_line(line);
    }
    Ok(answer)
}
