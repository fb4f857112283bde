//! Where frames go: a local file, standard output, or nowhere. A repository as a sink is in `repo`.

pub mod commit_flag;
pub mod local_file;
pub mod stdout;

use crate::{error::Result, format::page::SegmentId, frame::Buf, platform::dir::real_path};
use std::collections::HashSet;

/// Bytes that know their place.
#[derive(Debug)]
pub struct Placed {
    /// Number of the segment, from 1; it only ever grows.
    pub segment: u32,
    /// Bytes before these: of the segment or of the manifest, as the role says.
    pub offset: u64,
    /// The bytes.
    pub data: Buf,
    /// What they are.
    pub role: Role,
}

/// What placed bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Part of the segment.
    Stream,
    /// A page of the manifest. Comes besides its copy in the stream.
    Page,
    /// The beginning of a segment again, now that it is known: fills the place that was left for it.
    Amend,
}

/// Where the frames of one stream go.
pub trait Sink: Send {
    /// Take the next bytes. They come in order, each once; they need not be durable when this returns.
    ///
    /// # Errors
    /// What makes going on impossible; nothing more is put then.
    fn put(&mut self, placed: Placed) -> Result<()>;

    /// Make durable what was put so far.
    ///
    /// # Errors
    /// The system's.
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    /// Make everything durable; nothing is visible before [`Destination::commit`].
    ///
    /// # Errors
    /// The system's, which may speak of earlier writes.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Where the streams of one backup go.
pub trait Destination: Send {
    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// Announce that these backups will be referred to; says what of them cannot be.
    ///
    /// # Errors
    /// The system's.
    fn refer(&mut self, bases: &[String]) -> Result<Referred> {
        let gone = bases.to_vec();
        Ok(Referred {
            gone,
            ..Referred::default()
        })
    }

    /// The sink of one stream, from 1.
    ///
    /// # Errors
    /// The system's.
    fn stream(&mut self, number: u32) -> Result<Box<dyn Sink>>;

    /// What it is writing to, so that a backup of what that is in leaves it out.
    fn places(&self) -> Vec<Place> {
        Vec::new()
    }

    /// Make the backup visible, after all its sinks are finished. `root` is the sealed root; the destination of a one-file
    /// archive has it already, in its stream.
    ///
    /// # Errors
    /// The system's; then nothing is visible.
    fn commit(self: Box<Self>, root: &[u8]) -> Result<()>;

    /// Where a root of what is durable so far can be stored, for a later backup to go on from.
    fn partial(&self) -> Option<Partial> {
        None
    }

    /// Remove what was stored, unless a later backup can go on from it and `keep` says that it may. Called instead of
    /// `commit`, never after it.
    fn abort(self: Box<Self>, keep: bool);
}

/// A file or directory: device and inode.
pub type Place = (u64, u64);

/// Where `path` leads.
pub fn place_of(path: &std::path::Path) -> Option<Place> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path)
        .ok()
        .map(|found| (found.dev(), found.ino()))
}

/// Is `path`, which need not be there yet, one of these places, or below one?
pub fn is_in(path: &std::path::Path, places: &[Place]) -> bool {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = whole.ancestors().find_map(|dir| real_path(dir).ok());
    there.is_some_and(|dir| {
        { dir.ancestors() }
            .filter_map(place_of)
            .any(|place| places.contains(&place))
    })
}

/// Stores a sealed root of what is durable so far, in place of the one before.
pub type Partial = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// What must not be referred to, although a backup that is a base does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Referred {
    /// Bases that are there no more.
    pub gone: Vec<String>,
    /// Segments that are about to be pruned.
    pub tombstones: HashSet<SegmentId>,
    /// Backups whose manifests are.
    pub manifests: HashSet<String>,
}

/// What a destination can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// Several streams and segments, pages and root in objects of their own; otherwise all is in one stream.
    pub objects: bool,
    /// May the beginning of a segment be written again?
    pub amends: bool,
    /// Repository; empty if it is none.
    pub repository: String,
}
