//! Destinations of frames: a local file, standard output, or nowhere. The sink for a repository is
//! in `repo`.
//!
//! Belongs here: the traits of destinations, and those outside of a repository. Does not belong
//! here: the layout of segments (`pipeline`).

pub mod commit_flag;

use crate::frame::Buf;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    page::SegmentId,
    root::Segment,
};
use fullbore_platform::dir::real_path;
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// Bytes with their position in the backup.
#[derive(Debug)]
pub struct Placed {
    /// Number of the segment, from 1; it only grows.
    pub segment: u32,
    /// Offset of the bytes in the segment.
    pub offset: u64,
    pub data: Buf,
    /// Kind of the bytes.
    pub role: Role,
}

/// The kind of placed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The next bytes of the segment.
    Stream,
    /// The start of a one-file archive, written again with its final content.
    Amend,
}

/// The destination of the frames of one stream.
pub trait Sink: Send {
    /// Takes the next bytes, in order and each once. The bytes need not be durable on return.
    ///
    /// # Errors
    /// An error that ends the stream; `put` is not called again.
    fn put(&mut self, placed: Placed) -> Result<()>;

    /// Takes a page of the manifest, in addition to its copy in the stream. Returns the bytes
    /// before it in the manifest, or `None` if there is no manifest.
    ///
    /// # Errors
    /// The system's error.
    fn put_page(&mut self, _page: &[u8]) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Takes the list of the contents of a page, see [`fullbore_format::content_list`].
    ///
    /// # Errors
    /// The system's error.
    fn put_contents(&mut self, _group: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Returns whether this segment, the open one or the next, can have `bytes` in all. A destination of
    /// volumes begins the next volume with the first question about it.
    ///
    /// # Errors
    /// The system's; [`ErrorKind::Full`] if there is no next volume.
    fn has_room(&mut self, _segment: u32, _bytes: u64) -> Result<bool> {
        Ok(true)
    }

    /// Returns whether this segment, the open one or the next, begins a volume, and so begins with the pages of
    /// all earlier segments. Asked of a destination of volumes alone.
    ///
    /// # Errors
    /// As [`Sink::has_room`].
    fn begins_volume(&mut self, _segment: u32) -> Result<bool> {
        Ok(true)
    }

    /// Writes into the descriptions of segments where they stand, if that is not known by their numbers.
    fn note_places(&self, _segments: &mut [Segment]) {}

    /// Returns a page that [`Sink::put_page`] took.
    ///
    /// # Errors
    /// The system's; the error of a destination that keeps no pages.
    fn earlier_page(&mut self, _offset: u64, _bytes: usize) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::Bug, "the destination keeps no pages"))
    }

    /// Ends the open segment: no more bytes of it follow. It may become durable behind this call.
    ///
    /// # Errors
    /// The system's error, also about earlier segments.
    fn end_segment(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits until all ended segments are durable. Returns those that were not returned before.
    ///
    /// # Errors
    /// The system's error.
    fn sync(&mut self) -> Result<Vec<StoredSegment>> {
        Ok(Vec::new())
    }

    /// Makes all bytes durable. Returns the segments that [`Sink::sync`] has not returned. The
    /// backup becomes visible only by [`Destination::commit`].
    ///
    /// # Errors
    /// The system's error, also about earlier writes.
    fn finish(self: Box<Self>) -> Result<Vec<StoredSegment>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSegment {
    pub number: u32,
    pub bytes: u64,
    /// CRC-64/NVME of each 8 MiB as stored.
    pub parts: Vec<u64>,
}

/// The destination of the streams of one backup.
pub trait Destination: Send {
    fn abilities(&self) -> Abilities;

    /// Announces that the new backup refers to these backups. Returns the parts of them that it
    /// must not refer to.
    ///
    /// # Errors
    /// The system's error.
    fn announce_bases(&mut self, bases: &[String]) -> Result<Referred> {
        let gone = bases.to_vec();
        Ok(Referred {
            gone,
            ..Referred::default()
        })
    }

    /// Opens the sink of one stream; numbers start at 1.
    ///
    /// # Errors
    /// The system's error.
    fn stream(&mut self, number: u32) -> Result<Box<dyn Sink>>;

    /// Files and directories that this destination writes to; a backup excludes them.
    fn places(&self) -> Vec<Place> {
        Vec::new()
    }

    /// Makes the backup visible, after all its sinks are finished. `root` is the sealed root; a
    /// one-file archive already has it in its stream.
    ///
    /// # Errors
    /// The system's error; then the backup is not visible.
    fn commit(self: Box<Self>, root: &[u8]) -> Result<()>;

    /// Returns a function that stores a root of the durable part, so that a later backup can
    /// resume. `None` if the destination cannot store one.
    fn partial(&self) -> Option<Partial> {
        None
    }

    /// Returns the error to report for a run that failed with `error`: a destination that was taken
    /// away from this run explains what failed because of that.
    fn explained(&self, error: Error) -> Error {
        error
    }

    /// Removes the stored data, unless a later backup can resume it and `keep` is set. Called
    /// instead of `commit`, never after it.
    fn abort(self: Box<Self>, keep: bool);
}

/// Device and inode of a file or directory.
pub type Place = (u64, u64);

/// Returns device and inode of `path`, following links.
pub fn place_of(path: &std::path::Path) -> Option<Place> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path)
        .ok()
        .map(|found| (found.dev(), found.ino()))
}

/// Returns whether `path`, which need not exist, is one of these places or below one.
pub fn is_in(path: &std::path::Path, places: &[Place]) -> bool {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = whole.ancestors().find_map(|dir| real_path(dir).ok());
    existing.is_some_and(|dir| {
        { dir.ancestors() }
            .filter_map(place_of)
            .any(|place| places.contains(&place))
    })
}

/// Stores a sealed root of the durable part, in place of the previous one.
pub type Partial = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// Parts of base backups that a new backup must not refer to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Referred {
    /// Base backups that no longer exist.
    pub gone: Vec<String>,
    /// Segments that are about to be pruned.
    pub tombstones: HashSet<SegmentId>,
    /// Backups whose manifests are about to be pruned.
    pub manifests: HashSet<String>,
    /// The bytes of all objects by their keys, if the storage told them all at once.
    pub sizes: Option<Arc<BTreeMap<String, u64>>>,
}

/// The default is that of a destination with one stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Abilities {
    /// Whether there can be several streams and segments, with pages and root as objects of their
    /// own. Otherwise everything is in one stream.
    pub objects: bool,
    /// Identity of the repository; empty for other destinations.
    pub repository: String,
    /// Whether this run made the repository.
    pub is_new: bool,
}
