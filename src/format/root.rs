//! The root of a backup: everything about it but its entries, as JSON a person can read.
//!
//! It is stored last; a backup without a root does not exist. It is sealed, see [`seal`](crate::format::seal), so that damage to it is
//! found like any other.

pub use super::name::EntryName;
use super::{digest::Algorithm, layout::is_backup_id, page::SegmentId, seal::open_sealed, sizes};
use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::AddAssign};

/// The format of everything that is stored. A reader refuses a higher number.
pub const FORMAT: u32 = 1;

/// Everything about a backup but its entries.
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
    /// End.
    pub finished: String,
    /// The boot of the host that was backed up, as the kernel names it; not of every backup.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// What was backed up.
    pub source: SourceInfo,
    /// The PostgreSQL cluster, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<ClusterInfo>,
    /// How it was stored.
    pub options: BackupOptions,
    /// The options by which something of it was left out, as they were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// What the operator called it.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Counts and sizes.
    pub totals: BackupTotals,
    /// The backups it was compared with, see [`Live`] for what it refers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<String>,
    /// Its own segments, in order of stream and number.
    pub segments: Vec<Segment>,
    /// Pages, in order of stream and path.
    pub pages: Vec<PageAt>,
    /// For each segment that is referred to, its own and those of other backups, how much of it is live. The manifest of
    /// every backup named here is referred to as well.
    #[serde(default)]
    pub liveness: Vec<Live>,
    /// The first [`MAX_NOT_CAPTURED`] entries that were not captured as they were; the pages have them all.
    #[serde(default)]
    pub not_captured: Vec<NotCaptured>,
    /// What limited the run.
    #[serde(default)]
    pub run: RunStats,
}

/// Entries the root itself lists as not captured; their count is in [`Totals`].
pub const MAX_NOT_CAPTURED: usize = 1000;

/// What was backed up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct SourceInfo {
    /// Name of the host.
    pub host: String,
    /// Absolute paths, or `stdin:NAME`.
    pub paths: Vec<EntryName>,
    /// Is the root of the backup the contents of the one path?
    #[serde(default)]
    pub contents: bool,
}

/// What is known of a PostgreSQL cluster that was backed up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ClusterInfo {
    /// As the server says it: `15.18`, `18beta1`.
    pub version: String,
    /// Major version: 13 to 18.
    pub major: u32,
    /// Identifies the cluster; text, as JSON's numbers do not hold 64 bits everywhere.
    pub system_identifier: String,
    /// Timeline at the end.
    pub timeline: u32,
    /// Was it running?
    pub online: bool,
    /// Was it a standby?
    pub standby: bool,
    /// Do its pages have checksums?
    pub checksums: bool,
    /// Where recovery begins, as `0/2000028`; empty if it was not running.
    pub start_lsn: String,
    /// Where it is consistent; empty in older roots if it was not running.
    pub stop_lsn: String,
    /// When the server was there by its own clock, as RFC 3339 in UTC; empty if it was not running, and in older roots.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stopped: String,
    /// `included`, `archived` or `none`: where the WAL between the two is.
    pub wal: String,
    /// Names of the WAL segments that recovery needs, first and last; empty if none.
    pub wal_segments: Vec<String>,
    /// Bytes of a WAL segment.
    pub wal_segment_bytes: u64,
    /// Did it archive its WAL? Not in older roots, nor if it was not running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archives: bool,
    /// Had it a `restore_command`? False if it was not running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_restore_command: bool,
    /// Its data directory.
    pub data_directory: EntryName,
    /// Files of its configuration that are outside of the data directory, and so not in the backup.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configuration: Vec<EntryName>,
    /// Its tablespaces, in order of their numbers. What is in one is stored below `pg_tblspc/OID`.
    pub tablespaces: Vec<Tablespace>,
    /// Those that were made while the backup ran: recovery makes them anew, where they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tablespaces_meanwhile: Vec<Tablespace>,
    /// Links, pipes and devices, which PostgreSQL's manifest cannot describe, the first 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<EntryName>,
    /// Its databases, in order of their numbers.
    pub databases: Vec<DatabaseInfo>,
    /// By which a later backup knows that the server has the same past; not of every cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub witness: Option<Witness>,
}

/// What no other past of a cluster has: a copy, or the same after it was set back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Witness {
    /// When the server was started, in seconds since 1970 as it says them.
    pub server_start: String,
    /// Name of the last summary of its WAL that it had at the end of the backup.
    pub summary: String,
    /// Inode number of that file.
    pub inode: u64,
    /// When its inode was last changed, in seconds since 1970, with nine digits behind the point.
    pub ctime: String,
}

/// A tablespace that is not in the data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Tablespace {
    /// Its number.
    pub oid: u32,
    /// Its name, in whatever encoding.
    pub name: EntryName,
    /// The directory it is in.
    pub location: EntryName,
}

impl Tablespace {
    /// The path that what is in it is stored below.
    pub fn path(&self) -> Vec<u8> {
        format!("pg_tblspc/{}", self.oid).into_bytes()
    }
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct DatabaseInfo {
    /// Its number.
    pub oid: u32,
    /// Its name, in whatever encoding.
    pub name: EntryName,
    /// Is it a template?
    pub template: bool,
    /// Logical subscriptions that it has; not in older roots, nor if the cluster was not running.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub subscriptions: u32,
}

/// How it was stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct BackupOptions {
    /// `zstd`, `lz4`, `gzip` or `none`.
    pub codec: String,
    /// Level of the codec.
    pub level: i32,
    /// Plain bytes of a frame.
    pub frame_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of a block, the unit of comparison.
    pub block_bytes: u64,
    /// How files are digested.
    pub digest: Algorithm,
    /// Are large files cut in chunks by their content, too?
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
    /// Files of which nothing had to be stored, as an earlier backup has them.
    #[serde(default)]
    pub kept: u64,
    /// Bytes of content that an earlier backup has.
    #[serde(default)]
    pub kept_bytes: u64,
}

impl BackupTotals {
    /// Was all of the source captured, and right?
    pub fn is_complete(&self) -> bool {
        self.unreadable == 0 && self.bad_pages == 0
    }
}

impl AddAssign<&BackupTotals> for BackupTotals {
    fn add_assign(&mut self, more: &BackupTotals) {
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
    /// CRC-64/NVME of each 8 MiB of the stored bytes, 16 hexadecimal digits each, one after the other.
    pub parts: String,
}

/// Stored bytes that one CRC of [`Segment::parts`] covers.
pub const PART_BYTES: u64 = 8 << 20;

/// Where a page is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct PageAt {
    /// Backup whose manifest and segments hold it; empty for this one. What the page says of segments, it says as that
    /// backup would.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backup: String,
    /// Stream it describes.
    pub stream: u32,
    /// Does it describe what came after all else, out of order? Such pages are in order among themselves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// Path of its first record.
    pub first: EntryName,
    /// Records in it.
    pub entries: u64,
    /// Bytes before it in the manifest of the backup; absent in a one-file archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_offset: Option<u64>,
    /// Number of the segment its copy is in.
    pub segment: u32,
    /// Bytes before the copy in that segment.
    pub offset: u64,
    /// Its stored bytes.
    pub bytes: u64,
    /// BLAKE3 of its stored bytes.
    pub digest: String,
}

/// How much of a segment a backup refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Live {
    /// Backup the segment belongs to; empty for this one.
    pub backup: String,
    /// Stream.
    pub stream: u32,
    /// Number in the stream.
    pub number: u32,
    /// Frames referred to.
    pub frames: u64,
    /// Stored bytes of those frames; of one that is used in part, that part.
    pub bytes: u64,
    /// Stored bytes of the whole segment.
    #[serde(default)]
    pub of_bytes: u64,
    /// So much of it is referred to by a backup that keeps all that the segment's own has in it: without copies of pages, and
    /// headers of what has no content. 0 if that is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub data_bytes: u64,
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

impl Root {
    /// When all of it was captured. Of a cluster that ran, waiting for its WAL to be archived may come after that.
    pub fn captured(&self) -> &str {
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

    /// The other backups whose objects it refers to, each once, ascending.
    pub fn others(&self) -> Vec<&str> {
        let live = self.liveness.iter().map(|live| &live.backup[..]);
        let pages = self.pages.iter().map(|page| &page.backup[..]);
        let mut others: Vec<_> = live
            .chain(pages)
            .filter(|id| !id.is_empty() && *id != self.id)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }
}

impl Segment {
    /// That all of it is referred to, by the backup it belongs to.
    pub fn live(&self) -> Live {
        let (stream, number, bytes) = (self.stream, self.number, self.bytes);
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
    /// The segment spoken of.
    pub fn id(&self) -> SegmentId {
        SegmentId {
            backup: self.backup.clone(),
            stream: self.stream,
            number: self.number,
        }
    }
}

/// An entry that is not in the backup as it was on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NotCaptured {
    /// Its path.
    pub path: EntryName,
    /// Why.
    pub reason: String,
}

/// The reason of a file that was written to while it was read.
pub const CHANGED: &str = "changed while it was read";
/// How the reason begins of one whose pages have wrong checksums.
pub const BAD_PAGES: &str = "it is stored, but page checksums are wrong";

impl NotCaptured {
    /// Is it in the backup, torn or wrong?
    pub fn is_there(&self) -> bool {
        self.reason == CHANGED || self.reason.starts_with(BAD_PAGES)
    }
}

/// What limited the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct RunStats {
    /// Wall-clock seconds.
    pub seconds: f64,
    /// `source`, `workers` or `sink`.
    pub limit: String,
    /// Busy, starved and blocked shares of the three.
    pub shares: BTreeMap<String, [f64; 3]>,
}

impl Root {
    /// As [`Root::open`], of what stands in the directory of backup `id`.
    ///
    /// # Errors
    /// As [`Root::open`]; [`Kind::Corrupt`] if it is the root of another.
    pub fn of_backup(id: &str, bytes: &[u8], name: &str) -> Result<Self> {
        let root = Self::open(bytes, name)?;
        if root.id == id {
            return Ok(root);
        }
        Err(Error::corrupt(format!("{name} is damaged"))
            .because(format!("it is that of backup {:?}", root.id)))
    }

    /// Read a root; `name` is what messages call it.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if it is damaged, [`Kind::Unsupported`] if a newer program wrote it.
    pub fn open(bytes: &[u8], name: &str) -> Result<Self> {
        let root: Self = open_sealed(bytes, name)?;
        if root.format > FORMAT {
            let what = format!(
                "cannot read {name}: it has format {}, this program knows up to {FORMAT}",
                root.format
            );
            return Err(Error::new(ErrorKind::Unsupported, what).hint("use a newer fullbore"));
        }
        // They are printed as they are.
        if [&root.time, &root.finished, &root.tool]
            .iter()
            .any(|text| text.chars().any(char::is_control))
        {
            return Err(Error::corrupt(format!("{name} is damaged")).because("a time is none"));
        }
        // They become parts of paths.
        if !is_backup_id(&root.id)
            || !root
                .others()
                .into_iter()
                .chain(root.bases.iter().map(String::as_str))
                .all(is_backup_id)
        {
            return Err(Error::corrupt(format!("{name} is damaged"))
                .because("the name of a backup is none"));
        }
        Ok(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::seal::seal;

    fn root() -> Root {
        Root {
            format: 1,
            id: "20261121T054501Z-k3f9qz".into(),
            source: SourceInfo {
                host: "h".into(),
                paths: vec![EntryName(b"/a\xff".to_vec())],
                contents: true,
            },
            segments: vec![Segment {
                stream: 1,
                number: 1,
                parts: "ab".into(),
                ..Default::default()
            }],
            tags: [("a".into(), "b \"c\"".into())].into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_sealed_root_reads_back_as_it_was_written() {
        let bytes = seal(&root()).unwrap();
        assert_eq!(Root::open(&bytes, "the root").unwrap(), root());
        assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
    }

    #[test]
    fn every_flipped_bit_of_a_root_is_found() {
        let bytes = seal(&root()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                Root::open(&bytes, "the root").unwrap_err().kind,
                ErrorKind::Corrupt,
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_root_whose_name_would_speak_to_the_terminal_is_none() {
        for bad in ["\u{1b}[2J", "a\nb"] {
            for root in [
                Root {
                    id: bad.into(),
                    ..root()
                },
                Root {
                    time: bad.into(),
                    ..root()
                },
            ] {
                assert_eq!(
                    Root::open(&seal(&root).unwrap(), "the root")
                        .unwrap_err()
                        .kind,
                    ErrorKind::Corrupt
                );
            }
        }
    }

    #[test]
    fn a_root_that_names_what_is_no_backup_is_none() {
        let page = |backup: &str| PageAt {
            backup: backup.into(),
            ..PageAt::default()
        };
        let live = |backup: &str| Live {
            backup: backup.into(),
            ..Live::default()
        };
        for (bad, is_none) in [
            ("../../x", true),
            ("..", true),
            ("/x", true),
            ("20261121T054501Z-aaaaaa", false),
        ] {
            for root in [
                Root {
                    id: bad.into(),
                    ..root()
                },
                Root {
                    bases: vec![bad.into()],
                    ..root()
                },
                Root {
                    pages: vec![page(""), page(bad)],
                    ..root()
                },
                Root {
                    liveness: vec![live(""), live(bad)],
                    ..root()
                },
            ] {
                let opened =
                    Root::open(&seal(&root).unwrap(), "the root").map_err(|error| error.kind);
                assert_eq!(opened.err(), is_none.then_some(ErrorKind::Corrupt), "{bad}");
            }
        }
    }

    #[test]
    fn every_cut_of_a_root_is_found() {
        let bytes = seal(&root()).unwrap();
        for len in 0..bytes.len() {
            assert!(
                Root::open(&bytes[..len], "the root").is_err(),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn a_newer_format_is_unsupported_not_corrupt() {
        let bytes = seal(&Root {
            format: FORMAT + 1,
            ..root()
        })
        .unwrap();
        assert_eq!(
            Root::open(&bytes, "the root").unwrap_err().kind,
            ErrorKind::Unsupported
        );
    }
}
