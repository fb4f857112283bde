//! The side that writes: answers the questions of a copy, for a tree of this machine.
//!
//! Whoever asks is not trusted: each path is resolved beneath the root, without following links, and
//! what is open or waits is bounded by what the tree holds. A target that this side chose is opened
//! only as the command line of this side says. Paths that it leaves out are not written, and removal
//! exists only with `--delete` (`removal.rs`). Files get their names when they are
//! complete. Only large files that are there are changed in place, block by block: until one is
//! finished it may hold old and new blocks, and its time is that of the change, so that the next copy
//! goes on with it.

use super::{
    call::{
        CopyAnswer, CopyCall, CopyTarget, DIGEST_BYTES, OpenTarget, OpenedTarget, OwnerRights,
        TargetPage, checked_path, decompressed, not_allowed, not_understood, read_headers,
        read_paths,
    },
    large::LargeTargets,
    listing::{ListedFiles, TreeListing},
    members::{MemberWriter, WriterPool},
    options::LARGE_FILE,
    removal::TreeRemoval,
    rules::LeftOutPatterns,
    sources::{is_of_copy, last_name},
};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath},
    error::{Error, ErrorKind, Result},
    page::{MAX_RECORDS, ManifestPage},
    pax::{PaxReader, TarItem, skip_padding},
};
use fullbore_pipeline::frame::{Frame, FrameContent};
use fullbore_platform::{
    place::{check_parent_exists, dir_of},
    queue::Locked,
};
use fullbore_tree::write::{
    layout::TargetLayout,
    tree::{TargetOptions, TargetTree},
    writer::TargetWriter,
};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

/// Entries of a page, and bytes of their texts.
const PAGE_ENTRIES: usize = MAX_RECORDS;
const PAGE_TEXT: usize = 1 << 20;

/// A tree of this machine. Opened by the first question.
#[derive(Debug, Default)]
pub struct NearTarget {
    /// How it may be opened, if this side chooses that.
    granted: Option<OpenTarget>,
    open: OnceLock<OpenTree>,
    /// Held while it is opened, which happens once.
    opening: Mutex<()>,
}

struct OpenTree {
    path: PathBuf,
    opened_as: OpenTarget,
    /// `None` if nothing is written.
    tree: Option<Arc<TargetTree>>,
    /// Patterns of paths that are not written.
    left_out: LeftOutPatterns,
    /// The names in the root that may be written; `None` if all may.
    only: Option<Vec<EntryPath>>,
    /// `None` if nothing is deleted.
    removal: Option<TreeRemoval>,
    listing: Mutex<Option<TreeListing>>,
    /// Listed files whose content may be compared.
    listed: Mutex<ListedFiles>,
    writers: WriterPool,
    large: LargeTargets,
}

impl std::fmt::Debug for OpenTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenTree").finish_non_exhaustive()
    }
}

impl NearTarget {
    /// A tree that this side chooses: whoever asks has these rights, and no others.
    pub fn granted(granted: OpenTarget) -> Self {
        Self {
            granted: Some(granted),
            ..Self::default()
        }
    }

    fn open(&self, wanted: &OpenTarget) -> Result<CopyAnswer> {
        let opened_as = match &self.granted {
            Some(granted) if !wanted.has_rights_of(granted) => return Err(not_allowed()),
            Some(granted) => OpenTarget::narrowed(granted, wanted),
            None => wanted.clone(),
        };
        let _alone = self.opening.locked();
        if self.open.get().is_some() {
            return Err(not_understood());
        }
        let path = Path::new(OsStr::from_bytes(&opened_as.path));
        if self.granted.is_none() && !path.is_absolute() {
            return Err(not_understood());
        }
        let is_part = opened_as.rules.only().is_some();
        if !opened_as.rules.has_valid_places() || (opened_as.may_be_file && !is_part) {
            return Err(not_understood());
        }
        let name = name_of_file(path, &opened_as).map(<[u8]>::to_vec);
        let opened = OpenTree::open(path, opened_as.clone(), name.as_deref())?;
        let has_content = opened.listing.locked().is_some();
        self.open.set(opened).map_err(|_| not_understood())?;
        Ok(CopyAnswer {
            has_content,
            opened: OpenedTarget {
                name: name.map(Into::into),
                owners: OwnerRights::own(),
            },
            ..CopyAnswer::default()
        })
    }

    fn tree(&self) -> Result<&OpenTree> {
        self.open.get().ok_or_else(not_understood)
    }
}

impl CopyTarget for NearTarget {
    fn ask(&self, call: CopyCall, body: &[u8]) -> Result<CopyAnswer> {
        if let CopyCall::Open(wanted) = &call {
            return self.open(wanted);
        }
        let tree = self.tree()?;
        // Entries that are listed from now on may be those of the copy: they must not raise the
        // number of permitted deletions.
        if call.brings_entries() {
            tree.close_list();
        }
        match call {
            CopyCall::Open(_) => Err(not_understood()),
            CopyCall::List => {
                let TargetPage { records, has_more } = tree.list()?;
                let page = ManifestPage {
                    records,
                    ..ManifestPage::default()
                };
                Ok(CopyAnswer {
                    pages: vec![page.encode()?.into()],
                    has_content: has_more,
                    ..CopyAnswer::default()
                })
            }
            CopyCall::Put { is_compressed } => tree.put_tar(is_compressed, body),
            CopyCall::Directories => tree.put_headers(body),
            CopyCall::Check { digests } => tree.check(&digests, body),
            CopyCall::Describe => tree.describe(body),
            CopyCall::Begin { from } => tree.begin(body, from.as_deref().map(|source| &source[..])),
            CopyCall::Compare { path, offset, len } => {
                tree.large.compare(checked_path(&path)?, offset, len, body)
            }
            CopyCall::Write { path, pieces } => {
                tree.large
                    .write(tree.written()?, checked_path(&path)?, &pieces, body)
            }
            CopyCall::End {
                path,
                is_complete,
                shrunk,
            } => {
                let end = is_complete.then_some(shrunk);
                tree.large.end(tree.written()?, checked_path(&path)?, end)
            }
            CopyCall::Link => tree.link(body),
            CopyCall::Remove => tree.remove(body),
            CopyCall::Finish => tree.finish(),
            CopyCall::Rewind => tree.rewind(),
        }
    }

    fn list(&self) -> Result<TargetPage> {
        self.tree()?.list()
    }

    fn put(&self, frame: &Frame, parts: &[usize]) -> Result<CopyAnswer> {
        let tree = self.tree()?;
        tree.close_list();
        let mut members = tree.members()?;
        for part in parts.iter().map(|index| &frame.parts[*index]) {
            if let FrameContent::Whole(entry, _) = &part.what {
                tree.note_made(&entry.path);
                let content = &frame.data[part.inner as usize..][..part.len as usize];
                members.put(entry, content)?;
            }
        }
        Ok(members.answer())
    }

    fn depth(&self, cores: usize) -> usize {
        cores
    }

    fn frame_bytes(&self) -> u32 {
        LARGE_FILE
    }
}

impl OpenTree {
    /// Opens the tree at `path`, or the directory of the file at `path` if that has this `name`.
    fn open(path: &Path, wanted: OpenTarget, name: Option<&[u8]>) -> Result<Self> {
        let mut wanted = wanted;
        let mut root = path;
        if let Some(name) = name {
            wanted.rules = wanted.rules.renamed(name);
            root = dir_of(path);
        }
        let wanted = &wanted;
        let only = wanted.rules.only();
        if !wanted.dry_run {
            check_parent_exists(path)?;
        }
        let is_vacant = is_vacant(root)?;
        let tree = if wanted.dry_run {
            None
        } else {
            if only.is_some() && is_vacant {
                make_directory(root)?;
            }
            let options = TargetOptions {
                overwrite: !is_vacant,
                numeric_owner: wanted.numeric_owner,
                usual_parents: false,
                whole_files: true,
            };
            Some(TargetTree::create(&TargetLayout::plain(root), options)?)
        };
        let path = root;
        let is_there = |name: &EntryPath| {
            path.join(OsStr::from_bytes(name))
                .symlink_metadata()
                .is_ok()
        };
        let has_any = only.is_none_or(|names| names.iter().any(is_there));
        let listing = match is_vacant || !has_any {
            true => None,
            false => Some(TreeListing::open(path, wanted)?),
        };
        let removal = match wanted.delete && !wanted.dry_run {
            true => Some(TreeRemoval::open(path, wanted)?),
            false => None,
        };
        Ok(Self {
            path: path.to_owned(),
            opened_as: wanted.clone(),
            tree,
            left_out: wanted.rules.patterns()?,
            only: wanted.rules.only(),
            removal,
            listing: Mutex::new(listing),
            listed: Mutex::default(),
            writers: WriterPool::default(),
            large: LargeTargets::default(),
        })
    }

    fn written(&self) -> Result<&Arc<TargetTree>> {
        self.tree.as_ref().ok_or_else(not_understood)
    }

    fn members(&self) -> Result<MemberWriter<'_>> {
        Ok(MemberWriter::new(self.written()?, &self.writers))
    }

    /// Entries that are listed from now on may be those of the source.
    fn close_list(&self) {
        if let Some(removal) = &self.removal {
            removal.budget.close();
        }
    }

    fn note_made(&self, path: &[u8]) {
        if let Some(removal) = &self.removal {
            removal.budget.note_made(path);
        }
    }

    fn rewind(&self) -> Result<CopyAnswer> {
        self.close_list();
        *self.listing.locked() = Some(TreeListing::open(&self.path, &self.opened_as)?);
        Ok(CopyAnswer {
            has_content: true,
            ..CopyAnswer::default()
        })
    }

    /// Reads headers of entries that may be written.
    fn headers(&self, body: &[u8]) -> Result<Vec<Entry>> {
        let entries = read_headers(body)?;
        entries
            .iter()
            .try_for_each(|entry| self.check_entry(entry))?;
        Ok(entries)
    }

    /// Checks that no pattern leaves an entry out, and notes it.
    fn check_entry(&self, entry: &Entry) -> Result<()> {
        let is_directory = entry.kind == EntryKind::Directory;
        self.note_made(&entry.path);
        self.check_path(&entry.path, is_directory)
    }

    /// Checks that an object at this path belongs to the copy.
    fn check_path(&self, path: &[u8], is_directory: bool) -> Result<()> {
        match !is_of_copy(self.only.as_deref(), path) || self.left_out.leave_out(path, is_directory)
        {
            true => Err(not_allowed()),
            false => Ok(()),
        }
    }

    fn list(&self) -> Result<TargetPage> {
        let mut listing = self.listing.locked();
        let Some(there) = listing.as_mut() else {
            return Ok(TargetPage::default());
        };
        let mut records = Vec::new();
        let mut listed = self.listed.locked();
        let mut text = 0;
        while records.len() < PAGE_ENTRIES && text < PAGE_TEXT {
            let Some(record) = there.next().transpose()? else {
                *listing = None;
                break;
            };
            text += record.entry.text_bytes();
            if let Some(removal) = &self.removal {
                removal.budget.note_listed(&record.entry.path);
            }
            if there.attributes.is_none() {
                listed.note(&record.entry);
            }
            records.push(record);
        }
        Ok(TargetPage {
            records,
            has_more: listing.is_some(),
        })
    }

    fn put_headers(&self, body: &[u8]) -> Result<CopyAnswer> {
        let mut members = self.members()?;
        for entry in self.headers(body)? {
            members.put(&entry, b"")?;
        }
        Ok(members.answer())
    }

    fn put_tar(&self, is_compressed: bool, body: &[u8]) -> Result<CopyAnswer> {
        let plain = is_compressed.then(|| decompressed(body)).transpose()?;
        let mut tar = plain.as_deref().unwrap_or(body);
        let mut members = self.members()?;
        let mut reader = PaxReader::new();
        while !tar.is_empty() {
            let Some(TarItem::Member(member)) = reader.next(&mut tar)? else {
                return Err(not_understood());
            };
            let len = usize::try_from(member.stored_len).map_err(|_| not_understood())?;
            let (content, rest) = tar.split_at_checked(len).ok_or_else(not_understood)?;
            if content.len() as u64 != member.entry.data_len() {
                return Err(not_understood());
            }
            self.check_entry(&member.entry)?;
            members.put(&member.entry, content)?;
            tar = rest;
            skip_padding(&mut tar, member.stored_len)?;
        }
        Ok(members.answer())
    }

    fn check(&self, expected: &[u8], body: &[u8]) -> Result<CopyAnswer> {
        let entries = self.headers(body)?;
        let (expected, rest) = expected.as_chunks::<DIGEST_BYTES>();
        if expected.len() != entries.len() || !rest.is_empty() {
            return Err(not_understood());
        }
        let mut members = self.members()?;
        let mut content = Vec::new();
        let entries = self.with_listed(entries, &mut members.writer);
        for (index, ((entry, is_listed), digest)) in entries.iter().zip(expected).enumerate() {
            members.open_together(&entries[index..]);
            let is_same = members.take_if_same(entry, *is_listed, digest, &mut content);
            members.note(index, &entry.path, is_same)?;
        }
        Ok(members.answer())
    }

    /// Adds to each entry whether it was listed with its metadata.
    fn with_listed(&self, entries: Vec<Entry>, writer: &mut TargetWriter) -> Vec<(Entry, bool)> {
        let mut listed = self.listed.locked();
        let entries = entries.into_iter().map(|entry| {
            let owner = writer.owner_ids(&entry.owner);
            let is_listed = listed.take(&entry, owner);
            (entry, is_listed)
        });
        entries.collect()
    }

    fn describe(&self, body: &[u8]) -> Result<CopyAnswer> {
        let mut members = self.members()?;
        for (index, entry) in self.headers(body)?.iter().enumerate() {
            let is_done = members.describe(entry);
            members.note(index, &entry.path, is_done)?;
        }
        Ok(members.answer())
    }

    fn begin(&self, body: &[u8], from: Option<&[u8]>) -> Result<CopyAnswer> {
        let entries = self.headers(body)?;
        let [entry] = &entries[..] else {
            return Err(not_understood());
        };
        checked_path(&entry.path)?;
        // The other file loses its name.
        if let Some(source) = from {
            let removal = self.removal.as_ref().ok_or_else(not_allowed)?;
            removal.check(checked_path(source)?)?;
            removal.begin_rename(self.written()?, source)?;
        }
        let mut members = self.members()?;
        let begun = self.large.begin(&mut members.writer, entry, from);
        if let (Some(source), Some(removal)) = (from, &self.removal) {
            removal.end_rename(self.written()?, source);
        }
        members.answer.has_content = members.unless_refused(&entry.path, begun)?.unwrap_or(false);
        Ok(members.answer())
    }

    fn link(&self, body: &[u8]) -> Result<CopyAnswer> {
        let mut paths = read_paths(body)?;
        let mut members = self.members()?;
        for path in read_paths(body)?.step_by(2) {
            self.check_path(path?, false)?;
        }
        while let Some(path) = paths.next() {
            let path = path?;
            self.note_made(path);
            let (path, target) = (path, paths.next().ok_or_else(not_understood)??);
            let linked = members.writer.link(target, path);
            members.unless_refused(path, linked)?;
        }
        Ok(members.answer())
    }

    fn remove(&self, body: &[u8]) -> Result<CopyAnswer> {
        let removal = self.removal.as_ref().ok_or_else(not_allowed)?;
        let mut members = self.members()?;
        // No writer may go on in a directory that is removed.
        self.writers.leave_directories();
        removal.remove(self.written()?, &mut members, body)?;
        members.writer.leave();
        Ok(members.answer())
    }

    fn finish(&self) -> Result<CopyAnswer> {
        let mut members = self.members()?;
        self.large.give_up_all();
        let directories = self.writers.take_directories();
        for entry in directories.deepest_first() {
            let entry = entry?;
            let finished = members.writer.finish_directory(&entry);
            members.unless_refused(&entry.path, finished)?;
        }
        let tree = self.written()?;
        tree.sync()?;
        members.answer.warnings = tree.notes.lines();
        Ok(members.answer())
    }
}

/// Returns the name of the file that is to be written at `path`, if that is no directory and may be a
/// file.
fn name_of_file<'a>(path: &'a Path, wanted: &OpenTarget) -> Option<&'a [u8]> {
    let is_directory = path.is_dir() || path.as_os_str().as_bytes().ends_with(b"/");
    let is_file = wanted.may_be_file && !is_directory;
    is_file.then(|| last_name(path))?
}

/// Makes a directory that gets no metadata of the source, unless it is there.
fn make_directory(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|e| Error::io(format!("could not create {path:?}"), e)),
    }
}

/// Returns whether nothing is at `path`, or an empty directory.
///
/// # Errors
/// [`ErrorKind::Exists`] if something else is there; the system's.
fn is_vacant(path: &Path) -> Result<bool> {
    let failed = |e| Error::io(format!("could not open {path:?}"), e);
    let names = match std::fs::File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        opened => fullbore_platform::dir::read_dir(opened.map_err(failed)?, &mut Vec::new()),
    };
    match names {
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            let message = format!("cannot copy to {path:?}: it is not a directory");
            Err(Error::new(ErrorKind::Exists, message))
        }
        names => Ok(names.map_err(failed)?.is_empty()),
    }
}
