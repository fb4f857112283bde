//! Restores a tar stream: from standard input, or from a file of another program.
//!
//! One thread writes members as they arrive while another decodes. A stream of fullbore describes
//! its content, see [`crate::tar::self_check`]: members that disagree with the description are
//! removed again. A foreign stream has no description: only the checksums of frames and the closing
//! blocks of the tar can be checked, and a tar without closing blocks is damaged.
//!
//! A later member replaces an earlier one of the same name, as in tar. Directories get their
//! metadata at the end of the stream. Damage ends the stream too: files restored before the damage
//! are durable, and checked as far as a checksum covers them. A member that cannot be made is left
//! out, and reported as an error after the rest is restored.

use super::{
    checks::selected_paths,
    cluster,
    request::{Restore, Summary},
};
use crate::{
    report::{
        damage::{Damage, Report},
        skipped::{self, SkippedEntries},
    },
    tar::{
        members::TarMembers,
        self_check::{Mismatch, SelfCheck},
    },
};
use fullbore_format::{
    digest::Algorithm,
    entry::{self, Entry, EntryKind, EntryPath},
    error::{Error, ErrorKind, Result, quoted},
    pax::{Member, TarItem, Unknown},
    text::source_text,
};
use fullbore_pipeline::stage::thin::PARTS;
use fullbore_platform::{BlockedCalls, metrics::meter::Meter};
use fullbore_repository::archive::Selection;
use fullbore_tree::write::{
    case_folding::is_name_taken,
    deferred_dirs::DeferredDirs,
    layout::TargetLayout,
    parallel_file::ParallelFile,
    tree::{TargetOptions, TargetTree},
    writer::TargetWriter,
};
use std::{
    collections::HashSet,
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, Read},
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

/// Restores the tar on standard input.
///
/// # Errors
/// Those of [`Restore::run`].
pub(crate) fn from_stdin(restore: &Restore, meter: &Meter) -> Result<Summary> {
    let input = BlockedCalls(io::stdin());
    let input = restore.storages.opened_stream(input, "standard input")?;
    run(restore, input, meter)
}

/// Restores the tar at `path`.
///
/// # Errors
/// Those of [`Restore::run`].
pub(crate) fn from_file(restore: &Restore, path: &Path, meter: &Meter) -> Result<Summary> {
    let file = File::open(path).map_err(|e| Error::io(format!("could not open {path:?}"), e))?;
    let input = restore.storages.opened_stream(file, &format!("{path:?}"))?;
    run(restore, input, meter)
}

fn run(restore: &Restore, input: impl Read + Send + 'static, meter: &Meter) -> Result<Summary> {
    let start = Instant::now();
    let selection = Selection::new(&restore.paths)?;
    let tree = open_tree(restore)?;
    let report = Report::new(restore.keep_going);
    let mut run = TarRestore {
        members: TarMembers::of(input, SelfCheck::of(selection.clone()), meter),
        writer: TargetWriter::new(&tree),
        found: vec![false; selection.paths().len()],
        selection,
        directories: DeferredDirs::default(),
        came: restore.into.overwrites().then(RestoredPaths::default),
        refused: SkippedEntries::default(),
        trailed: false,
        report: &report,
        meter,
    };
    let read = run.restore_members();
    let finished = run.finish_directories().and_then(|()| tree.sync());
    match read.map_err(explain_cut) {
        // No data after the damage can be decoded: with `keep_going`, the damage is the end of the
        // stream.
        Err(error) if error.kind == ErrorKind::Corrupt && restore.keep_going => {
            report.add((error, Vec::new()))?
        }
        other => other?,
    }
    finished?;
    let damage = report.damage();
    if damage.is_empty() {
        run.check_complete()?;
    }
    Ok(Summary {
        seconds: start.elapsed().as_secs_f64(),
        ..run.summary(restore, damage)
    })
}

/// Opens the target. A directory without a member gets the usual permissions, because its own are
/// unknown.
fn open_tree(restore: &Restore) -> Result<Arc<TargetTree>> {
    TargetTree::create(
        &TargetLayout::plain(&restore.to),
        TargetOptions {
            overwrite: restore.into.overwrites(),
            numeric_owner: restore.numeric_owner,
            usual_parents: true,
            whole_files: false,
        },
    )
}

/// Returns whether the path clashes with another name of the same tar because the file system
/// treats both names as equal.
fn is_name_clash(error: &Error) -> bool {
    error.system().is_some_and(is_name_taken)
}

fn explain_cut(error: Error) -> Error {
    if error.kind != ErrorKind::Corrupt {
        return error;
    }
    // The checksum may be at the end of the compressed data, when everything is written already.
    let error = if error
        .system()
        .is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
    {
        error.detail("a checksum covers all data that was compressed together: if these are not frames of up to 4 MiB, files restored before the damage may be damaged too")
    } else {
        error
    };
    error.detail(
        "files before the damage are restored; files after it in the stream, if any, are not",
    )
}

struct TarRestore<'a> {
    members: TarMembers<'a>,
    writer: TargetWriter,
    selection: Selection,
    /// Whether each selected path was found.
    found: Vec<bool>,
    /// Directories that wait for their metadata. Grows by a few bytes a directory.
    directories: DeferredDirs,
    /// Paths restored from this tar; only for a target that may have held files before. Grows by
    /// about 16 bytes a path.
    came: Option<RestoredPaths>,
    /// Members that are left out.
    refused: SkippedEntries,
    /// Whether data followed the end of the tar.
    trailed: bool,
    report: &'a Report,
    meter: &'a Meter,
}

/// Hashes of the paths of restored members, except directories.
#[derive(Default)]
struct RestoredPaths {
    paths: HashSet<u64>,
    hasher: RandomState,
}

impl RestoredPaths {
    fn add(&mut self, path: &[u8]) {
        self.paths.insert(self.hasher.hash_one(path));
    }

    fn remove(&mut self, path: &[u8]) {
        self.paths.remove(&self.hasher.hash_one(path));
    }

    fn has(&self, path: &[u8]) -> bool {
        self.paths.contains(&self.hasher.hash_one(path))
    }
}

impl TarRestore<'_> {
    fn tree(&self) -> Arc<TargetTree> {
        self.writer.tree.clone()
    }

    fn restore_members(&mut self) -> Result<()> {
        while let Some(found) = self.next_item()? {
            match found {
                TarItem::Member(member) if self.is_piece(&member.entry.path) => {
                    let path = &member.entry.path;
                    self.leave_out(
                        "member",
                        "it is a piece of a file",
                        path,
                        skipped::piece_of_file(path),
                    );
                    self.members.skip(member.stored_len)?;
                }
                TarItem::Member(member) if self.selection.takes(&member.entry.path) => {
                    self.restore_member(member)?
                }
                TarItem::Member(member) => self.members.skip(member.stored_len)?,
                TarItem::Outside(Unknown {
                    name, stored_len, ..
                }) => {
                    if self.selection.paths().is_empty() {
                        let error = skipped::name_leads_out(&name);
                        self.leave_out("member", "its name leads out of the archive", &name, error);
                    }
                    self.members.skip(stored_len)?;
                }
                TarItem::Unknown(unknown) => self.skip_unknown(&unknown)?,
            }
        }
        let trailed = self.members.end();
        // Also if the end of the stream is damaged: files with a wrong digest must not stay.
        self.remove_refuted()?;
        self.trailed = trailed?;
        Ok(())
    }

    fn next_item(&mut self) -> Result<Option<TarItem>> {
        let found = self.members.next();
        self.remove_refuted()?;
        found
    }

    /// Removes members that the self-check has refuted.
    fn remove_refuted(&mut self) -> Result<()> {
        for path in self.members.self_check.take_lost() {
            self.remove_restored(&path)?;
        }
        for Mismatch { error, path, came } in self.members.self_check.take_mismatches() {
            path.iter()
                .filter(|_| came)
                .try_for_each(|path| self.remove_restored(path))?;
            self.report.add((error, path.into_iter().collect()))?;
        }
        Ok(())
    }

    fn remove_restored(&mut self, path: &[u8]) -> Result<()> {
        if self.refused.contains(path) {
            return Ok(());
        }
        self.came.iter_mut().for_each(|came| came.remove(path));
        match self.writer.remove(path) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Returns whether the member is a piece of a file that was not requested by name.
    fn is_piece(&self, path: &[u8]) -> bool {
        path.starts_with(PARTS)
            && is_named_as_piece(path)
            && self.selection.paths().is_empty()
            && self.members.self_check.may_have_pieces()
    }

    fn skip_unknown(&mut self, unknown: &Unknown) -> Result<()> {
        let Unknown {
            name,
            typeflag,
            stored_len,
        } = unknown;
        let message = format!("member of type {:?}", char::from(*typeflag));
        match skipped::unknown_type(name, *typeflag) {
            Some((error, why)) if self.selection.paths().is_empty() => {
                self.leave_out(&message, why, name, error)
            }
            _ => self
                .tree()
                .notes
                .add(&message, "its meaning is not known", name),
        }
        self.members.skip(*stored_len)
    }

    fn restore_member(&mut self, member: Member) -> Result<()> {
        let Member { entry, stored_len } = member;
        self.meter.entries.fetch_add(1, Relaxed);
        for (path, found) in self.selection.paths().iter().zip(&mut self.found) {
            *found |= entry::is_within(&entry.path, path);
        }
        let made = match &entry.kind {
            EntryKind::File { .. } => self.restore_file(&entry, stored_len)?,
            EntryKind::Directory => {
                self.members.self_check.came(&entry.path, None);
                self.make_directory(entry)?;
                return self.members.skip(stored_len);
            }
            EntryKind::HardLink(target) => self.make_link(target, &entry.path)?,
            // A socket is of use only to the process that made it.
            EntryKind::Socket => false,
            _ => self.make_replacing(&entry.path, |writer| writer.special_file(&entry))?,
        };
        if made {
            // An earlier member of this path may be a directory: its metadata would follow.
            self.directories.remove(&entry.path)?;
            self.came.iter_mut().for_each(|came| came.add(&entry.path));
        }
        match entry.kind {
            EntryKind::File { .. } => {
                let digests = self.members.digests();
                self.members.self_check.came(&entry.path, digests);
                self.members.skip_padding(stored_len)
            }
            _ => {
                self.members.self_check.came(&entry.path, None);
                self.members.skip(stored_len)
            }
        }
    }

    fn make_directory(&mut self, entry: Entry) -> Result<()> {
        // An existing directory that is only a parent of the selected paths keeps its metadata.
        let mut ours = self.selection.holds(&entry.path) || self.directories.has(&entry.path)?;
        let asked_for = ours;
        let made = self.make_replacing(&entry.path, |writer| {
            writer.directory(&entry, asked_for).map(|new| ours |= new)
        })?;
        if made && ours {
            self.directories.insert(&entry, &self.writer.tree)?;
        }
        Ok(())
    }

    fn leave_out(&self, what: &str, why: &str, path: &[u8], error: Error) {
        self.tree().notes.add(what, why, path);
        self.refused.add(path, error);
    }

    /// Makes the entry at `path`. An entry in the way is replaced: it came from this tar, or
    /// `--overwrite` allows it. Returns false if the target refuses the entry.
    fn make_replacing(
        &mut self,
        path: &[u8],
        mut create: impl FnMut(&mut TargetWriter) -> Result<()>,
    ) -> Result<bool> {
        let made = match create(&mut self.writer) {
            Err(error)
                if error.kind == ErrorKind::Exists
                    && !path.is_empty()
                    && !is_name_clash(&error) =>
            {
                self.writer
                    .remove(path)
                    .and_then(|()| create(&mut self.writer))
            }
            other => other,
        };
        self.unless_refused(path, made)
    }

    /// Returns whether the member was made; a refused member is left out and noted.
    fn unless_refused(&self, path: &[u8], done: Result<()>) -> Result<bool> {
        let done = self
            .refused
            .skip_if_single(&self.writer.tree, "member", path, done)?
            .is_some();
        if done {
            self.refused.restored(path);
        }
        Ok(done)
    }

    fn make_link(&mut self, target: &EntryPath, path: &EntryPath) -> Result<bool> {
        let asked_for = self.selection.holds(target);
        if self.refused.contains(target) {
            return self.unless_refused(path, Err(skipped::link_to_skipped_file(path, target)));
        }
        // A file at this path that does not come from this tar has other content.
        let came = match &self.came {
            Some(came) => came.has(target),
            None => target != path || self.tree().is_there(path)?,
        };
        if !came {
            return self.unless_refused(
                path,
                Err(skipped::link_without_file(path, target, asked_for)),
            );
        }
        if target == path {
            return Ok(false);
        }
        self.make_replacing(path, |writer| match writer.link(target, path) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                Err(skipped::link_without_file(path, target, asked_for))
            }
            other => other,
        })
    }

    /// Reads and writes a file; its padding follows in the stream.
    fn restore_file(&mut self, entry: &Entry, stored_len: u64) -> Result<bool> {
        let mut data = Vec::new();
        self.members.piece(stored_len, &mut data)?;
        let made = if data.len() as u64 == stored_len {
            self.make_replacing(&entry.path, |writer| writer.file(entry, &data))?
        } else {
            self.restore_large_file(entry, stored_len, data)?
        };
        self.meter.files.fetch_add(made.into(), Relaxed);
        Ok(made)
    }

    /// Writes a file piece by piece. A file that is dropped before its end is removed. The data of
    /// a refused file is read all the same.
    fn restore_large_file(
        &mut self,
        entry: &Entry,
        stored_len: u64,
        mut data: Vec<u8>,
    ) -> Result<bool> {
        let large = ParallelFile::default();
        let mut offset = 0;
        let mut made = true;
        while !data.is_empty() {
            made = made
                && self.make_replacing(&entry.path, |writer| {
                    large.write(writer, entry, offset, &data)
                })?;
            offset += data.len() as u64;
            self.members.piece(stored_len - offset, &mut data)?;
        }
        if made {
            let finished = large.finish(&mut self.writer, entry);
            made = self.unless_refused(&entry.path, finished)?;
        }
        Ok(made)
    }

    /// Applies the metadata of directories, deepest first; the last member of a directory counts.
    fn finish_directories(&mut self) -> Result<()> {
        for directory in std::mem::take(&mut self.directories).deepest_first() {
            let directory = directory?;
            let finished = self.writer.finish_directory(&directory);
            self.unless_refused(&directory.path, finished)?;
        }
        Ok(())
    }

    /// Sums up the restore.
    fn summary(&self, restore: &Restore, damage: Vec<Damage>) -> Summary {
        let lacking = self.members.self_check.lacking.clone();
        let is_complete = damage.is_empty() && lacking.is_captured() && restore.paths.is_empty();
        let root = self.members.self_check.root();
        let closing = root
            // A server does not start with a part of its files, so the next steps would mislead.
            .filter(|_| is_complete)
            .map(|root| cluster::stream_notes(root, &restore.to))
            .unwrap_or_default();
        let mut notes = lacking.lines();
        notes.extend(self.tree().notes.lines());
        if self.trailed {
            notes.push("ignored trailing data after the end of the tar".to_owned());
        }
        notes.extend(closing.notes);
        let summary = Summary {
            paths: selected_paths(&self.selection),
            entries: self.meter.entries.load(Relaxed),
            notes,
            next: closing.next,
            damage,
            lacking,
            ..Summary::default()
        };
        let Some(root) = root else {
            return summary;
        };
        Summary {
            id: root.id.clone(),
            source: source_text(&root.source),
            source_info: Some(root.source.clone()),
            time: root.time.clone(),
            digested: root.options.digest != Algorithm::None,
            ..summary
        }
    }

    /// Checks that every selected path was found and no member was refused.
    fn check_complete(&mut self) -> Result<()> {
        let missing = self
            .selection
            .paths()
            .iter()
            .zip(&self.found)
            .find(|(_, found)| !**found);
        if let Some((path, _)) = missing {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("could not find {} in the tar", quoted(path)),
            ));
        }
        std::mem::take(&mut self.refused)
            .into_error("tar", &self.writer.tree)
            .map_or(Ok(()), Err)
    }
}

/// Returns whether the last name is two numbers with a hyphen between them.
fn is_named_as_piece(path: &[u8]) -> bool {
    let (_, name) = entry::split(path);
    let parts: Vec<&[u8]> = name.split(|c| *c == b'-').collect();
    parts.len() == 2
        && parts
            .iter()
            .all(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
}
