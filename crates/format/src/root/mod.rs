//! The root of a backup: everything about it but its entries, as JSON that a person can read.
//!
//! The root is stored last; a backup without a root does not exist. The root is
//! [sealed](crate::seal), so that damage to it is detected.

mod cluster;
mod gate;
mod level;
mod lists;
#[cfg(test)]
mod tests;

pub use cluster::{ClusterInfo, DatabaseInfo, Tablespace, Witness};
pub use gate::{FREE_ROOT_BYTES, RootGate, RootOwner, check_new_root, root_limit};
pub use level::CodecLevel;
pub use lists::{Lists, ListsAt, ListsName};

pub use super::name::EntryName;
use super::{
    digest::Algorithm,
    layout::is_backup_id,
    page::SegmentId,
    root_parts::PSEUDONYM,
    seal::{open_sealed, seal},
    sizes,
};
use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::AddAssign};

/// The format of everything that is stored. A reader refuses a higher number.
pub const FORMAT: u32 = 1;

/// The root document. Its fields are described in doc/format.md; field order is the order in the
/// file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Root {
    /// Version of the format.
    pub format: u32,
    /// Name of the backup: sorts by time, never reused.
    pub id: String,
    /// Program that wrote it.
    pub tool: String,
    /// Start, as RFC 3339 in UTC.
    pub time: String,
    /// End, as RFC 3339 in UTC.
    pub finished: String,
    /// Boot ID of the host that was backed up, as the kernel names it; empty in some backups.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// The host and the paths that were backed up.
    pub source: SourceInfo,
    /// The PostgreSQL cluster, if the source is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<ClusterInfo>,
    /// Codec, sizes and digest of the stored data.
    pub options: BackupOptions,
    /// The options that excluded something, as they were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Tags that the operator set.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Counts and sizes.
    pub totals: BackupTotals,
    /// The backups this one was compared with. See [`Live`] for the segments it refers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<String>,
    /// Its own segments, in order of stream and number.
    pub segments: Vec<Segment>,
    /// Pages, in order of stream and path.
    pub pages: Vec<PageAt>,
    /// The live part of each referenced segment, of this backup and of others. The manifest of
    /// every backup named here is referenced too.
    #[serde(default)]
    pub liveness: Vec<Live>,
    /// The backup whose manifest has a page with the lists of this one, which are the pages and the liveness; empty if there is none.
    /// A root of which another backup has the lists is [short](Root::is_short).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lists_of: String,
    /// Digest of the lists, see [`Lists::clear_digest`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lists_digest: String,
    /// The place of that page; absent in the clear head of an encrypted root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists_at: Option<ListsAt>,
    /// Where the segments of other backups stand, if the backup is on tapes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_places: Vec<EarlierPlace>,
    /// The first [`MAX_NOT_CAPTURED`] entries that were not captured as they were on disk. The
    /// pages list all of them.
    #[serde(default)]
    pub not_captured: Vec<NotCaptured>,
    /// Timing of the run and its limit.
    #[serde(default)]
    pub run: RunStats,
    /// The volume that the root stands in, if the backup is a series of volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeFacts>,
}

/// The place of a root in a series of volumes. The root describes this volume and all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct VolumeFacts {
    /// Number of the volume, from 1.
    pub number: u32,
    /// Whether the backup ends with this volume.
    pub is_last: bool,
    /// Whether the volumes are encrypted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_sealed: bool,
}

/// Maximum number of uncaptured entries that the root itself lists; [`BackupTotals`] counts all of
/// them.
pub const MAX_NOT_CAPTURED: usize = 1000;

/// The host and the paths that were backed up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct SourceInfo {
    /// Name of the host.
    pub host: String,
    /// Absolute paths, or `stdin:NAME`.
    pub paths: Vec<EntryName>,
    /// Whether the root of the backup is the content of the only path.
    #[serde(default)]
    pub contents: bool,
}

impl SourceInfo {
    /// Returns whether the source was lost with the original root. A rebuilt root names neither
    /// host nor path.
    pub fn is_unknown(&self) -> bool {
        self.host.is_empty() && self.paths.is_empty()
    }
}

/// Returns whether it is the pseudonym in the clear head of a root, where no key opens the rest.
pub fn is_pseudonym(source: &SourceInfo) -> bool {
    source.paths.is_empty() && source.host.starts_with(PSEUDONYM)
}

/// Codec, sizes and digest of the stored data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct BackupOptions {
    /// `zstd`, `lz4`, `gzip` or `none`.
    pub codec: String,
    /// Level of the codec.
    pub level: CodecLevel,
    /// Bytes of a frame before compression.
    pub frame_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of a block, the unit of comparison.
    pub block_bytes: u64,
    /// Digest of files.
    pub digest: Algorithm,
    /// Whether large files are also cut in chunks by their content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chunks: bool,
}

/// Counts and sizes of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct BackupTotals {
    /// All entries.
    pub entries: u64,
    /// Regular files, each counted once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Logical bytes of the files, holes included.
    pub bytes: u64,
    /// Bytes of the tar stream.
    pub plain_bytes: u64,
    /// Bytes stored: segments and pages.
    pub stored_bytes: u64,
    /// Entries that could not be read.
    pub unreadable: u64,
    /// Entries that changed while they were read.
    pub changed: u64,
    /// Files with pages whose checksums are wrong.
    #[serde(default)]
    pub bad_pages: u64,
    /// Entries that vanished before they were read.
    pub vanished: u64,
    /// Sockets.
    pub sockets: u64,
    /// Files that needed no storage because an earlier backup has all of their content.
    #[serde(default)]
    pub kept: u64,
    /// Bytes of content that an earlier backup holds.
    #[serde(default)]
    pub kept_bytes: u64,
}

impl BackupTotals {
    /// Returns whether the whole source was captured without errors.
    pub fn is_complete(&self) -> bool {
        self.unreadable == 0 && self.bad_pages == 0
    }
}

impl AddAssign<&BackupTotals> for BackupTotals {
    fn add_assign(&mut self, more: &BackupTotals) {
        // These sums saturate: the numbers of a damaged page must not end a run.
        sizes::add(&mut self.entries, more.entries);
        sizes::add(&mut self.files, more.files);
        sizes::add(&mut self.directories, more.directories);
        sizes::add(&mut self.bytes, more.bytes);
        sizes::add(&mut self.plain_bytes, more.plain_bytes);
        sizes::add(&mut self.stored_bytes, more.stored_bytes);
        sizes::add(&mut self.unreadable, more.unreadable);
        sizes::add(&mut self.changed, more.changed);
        sizes::add(&mut self.bad_pages, more.bad_pages);
        sizes::add(&mut self.vanished, more.vanished);
        sizes::add(&mut self.sockets, more.sockets);
        sizes::add(&mut self.kept, more.kept);
        sizes::add(&mut self.kept_bytes, more.kept_bytes);
    }
}

/// One segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Segment {
    /// Stream, from 1.
    pub stream: u32,
    /// Number in the stream, from 1.
    pub number: u32,
    /// Stored bytes.
    pub bytes: u64,
    /// Frames of data.
    pub frames: u64,
    /// Bytes of the tar stream.
    pub plain_bytes: u64,
    /// CRC-64/NVME of each 8 MiB of the stored bytes: 16 hexadecimal digits each, concatenated.
    pub parts: String,
    /// The place of the segment on tapes; absent if it is not on tapes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tape: Option<TapePlace>,
}

/// The place of a segment on tapes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct TapePlace {
    /// Length of all records of the segment but the last, which may be shorter.
    pub record_bytes: u32,
    /// Whether the pages of all earlier segments stand behind its label.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_catalog: bool,
    /// The header of an encrypted segment, in hexadecimal digits: with it no read is needed to open the segment.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub header: String,
    /// Its records, in order. There are several extents only if a tape ended within the segment.
    pub extents: Vec<TapeExtent>,
}

/// The place on tapes of a segment of an earlier backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct EarlierPlace {
    /// The ID of its backup.
    pub backup: String,
    /// The number of the segment there.
    pub number: u32,
    /// Where it stands.
    pub tape: TapePlace,
}

/// Records of a segment on one tape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct TapeExtent {
    /// The name of the tape.
    pub tape: String,
    /// The number of the tape in the backup, from 1.
    pub volume: u32,
    /// The number of the first record; the tape counts records and marks from 0.
    pub block: u64,
    /// Stored bytes; 0 in the root that stands in this segment.
    pub bytes: u64,
}

impl Root {
    /// Returns the tapes that the backup stands on, by number; none if it is not on tapes.
    pub fn tapes(&self) -> BTreeMap<u32, &str> {
        let places = self
            .segments
            .iter()
            .filter_map(|segment| segment.tape.as_ref());
        places
            .flat_map(|place| &place.extents)
            .map(|extent| (extent.volume, &extent.tape[..]))
            .collect()
    }
}

/// Stored bytes that one CRC of [`Segment::parts`] covers.
pub const PART_BYTES: u64 = 8 << 20;

/// Place and digest of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct PageAt {
    /// Backup whose manifest and segments hold the page; empty for this backup. Segment names in
    /// the page are relative to that backup.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backup: String,
    /// Stream that the page describes.
    pub stream: u32,
    /// Whether the page describes late entries, which come after all other entries and are ordered
    /// only among themselves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// Path of the first record.
    pub first: EntryName,
    /// Number of records.
    pub entries: u64,
    /// Bytes before it in the manifest of the backup; absent in a one-file archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_offset: Option<u64>,
    /// Number of the segment that holds the copy of the page.
    pub segment: u32,
    /// Bytes before the copy in that segment.
    pub offset: u64,
    /// Stored bytes of the page.
    pub bytes: u64,
    /// BLAKE3 of the stored bytes.
    pub digest: String,
}

/// The part of a segment that a backup refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Live {
    /// Backup that the segment belongs to; empty for this one.
    pub backup: String,
    /// Stream.
    pub stream: u32,
    /// Number in the stream.
    pub number: u32,
    /// Number of referenced frames.
    pub frames: u64,
    /// Stored bytes of those frames. A frame that is used in part counts in part.
    pub bytes: u64,
    /// Stored bytes of the whole segment.
    #[serde(default)]
    pub of_bytes: u64,
    /// Bytes that a backup would reference if it kept all data of the segment: without copies of
    /// pages and without headers of entries that have no content. 0 if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub data_bytes: u64,
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// Stands in the place of a root that must not come any more: the writer of that backup was taken
/// for dead, and what it refers to may be gone.
#[derive(Debug, Serialize, Deserialize)]
struct VoidRoot {
    void: bool,
}

/// The document that keeps a root from being written if-absent, sealed.
///
/// # Errors
/// [`ErrorKind::Bug`].
pub fn void_root() -> Result<Vec<u8>> {
    seal(&VoidRoot { void: true })
}

/// Bytes of [`void_root`]: a root is longer.
pub const VOID_ROOT_BYTES: u64 = 95;

/// Is this what [`void_root`] gives?
pub fn is_void(bytes: &[u8]) -> bool {
    bytes.len() as u64 == VOID_ROOT_BYTES && void_root().is_ok_and(|void| void == bytes)
}

impl Root {
    /// Returns the time at which everything was captured. For a running cluster, the wait for WAL
    /// archiving may end later.
    pub fn captured_at(&self) -> &str {
        let stopped = self
            .postgres
            .as_ref()
            .map_or("", |cluster| &cluster.stopped);
        if stopped.is_empty() {
            &self.finished
        } else {
            stopped
        }
    }

    /// Returns the other backups whose objects this one refers to, each once, ascending.
    pub fn referenced_backups(&self) -> Vec<&str> {
        let live = self.liveness.iter().map(|live| &live.backup[..]);
        let pages = self.pages.iter().map(|page| &page.backup[..]);
        let mut others: Vec<_> = live
            .chain(pages)
            .chain([&self.lists_of[..]])
            .filter(|id| !id.is_empty() && *id != self.id)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }
}

impl Segment {
    /// Returns the liveness of a segment that its own backup references in full.
    pub fn fully_live(&self) -> Live {
        let stream = self.stream;
        let number = self.number;
        let bytes = self.bytes;
        Live {
            backup: String::new(),
            stream,
            number,
            frames: self.frames,
            bytes,
            of_bytes: bytes,
            data_bytes: 0,
        }
    }
}

impl Live {
    /// Returns the ID of the segment.
    pub fn id(&self) -> SegmentId {
        SegmentId {
            backup: self.backup.clone(),
            stream: self.stream,
            number: self.number,
        }
    }
}

/// An entry that the backup does not hold as it was on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NotCaptured {
    /// Path of the entry.
    pub path: EntryName,
    /// Reason, as it is printed.
    pub reason: String,
}

/// Reason for a file that was written to while it was read.
pub const CHANGED: &str = "changed while it was read";
/// Start of the reason for a file whose pages have wrong checksums.
pub const BAD_PAGES: &str = "it is stored, but page checksums are wrong";

impl NotCaptured {
    /// Returns whether the entry is in the backup all the same, torn or with wrong pages.
    pub fn is_stored_anyway(&self) -> bool {
        self.reason == CHANGED || self.reason.starts_with(BAD_PAGES)
    }
}

/// Timing of the run and its limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct RunStats {
    /// Wall-clock seconds.
    pub seconds: f64,
    /// `source`, `workers` or `sink`.
    pub limit: String,
    /// Busy, starved and blocked shares of these three.
    pub shares: BTreeMap<String, [f64; 3]>,
    /// With adaptive compression, the plain bytes that were compressed at each level.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub levels: BTreeMap<i32, u64>,
}

impl Root {
    /// Reads the root of backup `id`, like [`Root::open`].
    ///
    /// # Errors
    /// As [`Root::open`]; [`ErrorKind::Corrupt`] if it is the root of another backup.
    pub fn of_backup(id: &str, bytes: &[u8], name: &str) -> Result<Self> {
        Self::open(bytes, name)?.checked_id(id, name)
    }

    /// As [`Root::of_backup`]; the root may be [short](Root::is_short).
    ///
    /// # Errors
    /// As there.
    pub fn of_backup_as_stored(id: &str, bytes: &[u8], name: &str) -> Result<Self> {
        Self::open_as_stored(bytes, name)?.checked_id(id, name)
    }

    fn checked_id(self, id: &str, name: &str) -> Result<Self> {
        if self.id == id {
            return Ok(self);
        }
        Err(Error::corrupt(format!("{name} is damaged"))
            .because(format!("it belongs to backup {:?}", self.id)))
    }

    /// Reads a root; error messages call it `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged, [`ErrorKind::Unsupported`] if a newer program wrote
    /// it, [`ErrorKind::Bug`] if it is short: the caller must read the lists, too.
    pub fn open(bytes: &[u8], name: &str) -> Result<Self> {
        let root = Self::open_as_stored(bytes, name)?;
        if root.is_short() {
            let message = format!("cannot read {name} without the lists that it shares");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        Ok(root)
    }

    /// As [`Root::open`]; the root may be [short](Root::is_short), and then its lists are empty.
    ///
    /// # Errors
    /// As [`Root::open`], but for short roots.
    pub fn open_as_stored(bytes: &[u8], name: &str) -> Result<Self> {
        let root: Self = open_sealed(bytes, name)?;
        if root.format > FORMAT {
            let message = format!(
                "cannot read {name}: it has format {}, this program knows up to {FORMAT}",
                root.format
            );
            return Err(Error::new(ErrorKind::Unsupported, message).hint("use a newer fullbore"));
        }
        // These texts are printed as they are, and could otherwise control the terminal.
        if [&root.time, &root.finished, &root.tool]
            .iter()
            .any(|text| text.chars().any(char::is_control))
        {
            return Err(Error::corrupt(format!("{name} is damaged"))
                .because("a time or the program name has control characters"));
        }
        root.check_ids(name)?;
        Ok(root)
    }

    /// Backup IDs become parts of paths.
    fn check_ids(&self, name: &str) -> Result<()> {
        let bases = self.bases.iter().map(String::as_str);
        let others = self.referenced_backups().into_iter().chain(bases);
        if is_backup_id(&self.id) && { others }.all(is_backup_id) {
            return Ok(());
        }
        Err(Error::corrupt(format!("{name} is damaged")).because("a backup ID is not valid"))
    }
}
