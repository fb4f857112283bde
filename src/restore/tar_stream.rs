//! Restore a tar that comes as a stream: from standard input, or written by some other program.
//!
//! Members are written as they come, by one thread, while another decodes. Streams of ours say of themselves what is in them, see
//! [`crate::tar::self_check`]: what does not agree with that is removed again. Of others nothing says what is missing: only the checksums of
//! frames and the closing blocks of the tar are there to be checked, and a tar without them is damaged. A later member replaces an earlier one of the same name, as `tar` has it. Directories get their metadata
//! at the end, which damage is too: what came before it is durable, and whole as far as a checksum says so. A member that
//! cannot be made, and is no sign that others cannot, is left out; that is an error when the rest is restored.

use super::{Restore, Summary, asked_for, cluster, deferred_dirs::DeferredDirs};
use crate::{
    archive::Selection,
    error::{Error, ErrorKind, Result, quoted},
    format::{
        digest::Algorithm,
        entry::{self, Entry, EntryKind, EntryPath},
        pax::{Member, NamedAcl, TarItem, Unknown},
    },
    metrics::meter::Meter,
    platform::BlockedCalls,
    report::{
        damage::Report,
        skipped::{self, SkippedEntries},
    },
    stage::thin::PARTS,
    tar::{
        members::Members,
        self_check::{Mismatch, SelfCheck},
    },
    target::{
        case_folding::is_taken,
        layout::TargetLayout,
        parallel_file::ParallelFile,
        tree::{TargetOptions, TargetTree},
        writer::TargetWriter,
    },
    text::source_text,
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

/// Restore the tar on standard input.
///
/// # Errors
/// As [`Restore::run`].
pub(crate) fn from_stdin(restore: &Restore, meter: &Meter) -> Result<Summary> {
    run(restore, BlockedCalls(io::stdin()), meter)
}

/// Restore the tar at `path`.
///
/// # Errors
/// As [`Restore::run`].
pub(crate) fn from_file(restore: &Restore, path: &Path, meter: &Meter) -> Result<Summary> {
    let file = File::open(path).map_err(|e| Error::io(format!("could not open {path:?}"), e))?;
    run(restore, file, meter)
}

fn run(restore: &Restore, input: impl Read + Send + 'static, meter: &Meter) -> Result<Summary> {
    let start = Instant::now();
    let selection = Selection::new(&restore.paths)?;
    let found = vec![false; selection.paths().len()];
    let tree = open_tree(restore)?;
    let report = Report::new(restore.keep_going);
    let writer = TargetWriter::new(&tree);
    let directories = DeferredDirs::default();
    let refused = SkippedEntries::default();
    let members = Members::of(input, SelfCheck::of(selection.clone()), meter);
    let came = restore.overwrite.then(Came::default);
    let mut run = TarRestore {
        members,
        writer,
        selection,
        found,
        directories,
        came,
        refused,
        trailed: false,
        report: &report,
        meter,
    };
    let read = run.members();
    let finished = run.finish_directories().and_then(|()| tree.sync());
    match read.map_err(cut_short) {
        // Nothing behind damage can be had: to go on is to take it for an end.
        Err(error) if error.kind == ErrorKind::Corrupt && restore.keep_going => {
            report.add((error, Vec::new()))?
        }
        other => other?,
    }
    finished?;
    let damage = report.damage();
    if damage.is_empty() {
        run.must_be_complete()?;
    }
    let trailed = run
        .trailed
        .then(|| "what comes after the end of the tar is none, and was passed over".to_owned());
    let (lacking, root) = (
        run.members.ledger.lacking.clone(),
        run.members.ledger.root(),
    );
    let is_whole = damage.is_empty() && lacking.is_captured() && restore.paths.is_empty();
    let cluster = root
        .and_then(|root| root.postgres.as_ref())
        .filter(|_| is_whole);
    let last = cluster
        .map(|cluster| cluster::streamed(cluster, &restore.to))
        .unwrap_or_default();
    Ok(Summary {
        id: root.map(|root| root.id.clone()).unwrap_or_default(),
        source: root
            .map(|root| source_text(&root.source))
            .unwrap_or_default(),
        time: root.map(|root| root.time.clone()).unwrap_or_default(),
        paths: asked_for(&run.selection),
        digested: root.is_some_and(|root| root.options.digest != Algorithm::None),
        entries: meter.entries.load(Relaxed),
        notes: { lacking.lines() }
            .into_iter()
            .chain(tree.notes.lines())
            .chain(trailed)
            .chain(last.notes)
            .collect(),
        next: last.next,
        damage,
        lacking,
        seconds: start.elapsed().as_secs_f64(),
        ..Summary::default()
    })
}

/// Nothing is known of a directory without a member, so it is no more private than others.
fn open_tree(restore: &Restore) -> Result<Arc<TargetTree>> {
    let Restore {
        overwrite,
        numeric_owner,
        tricks,
        ..
    } = *restore;
    TargetTree::create(
        &TargetLayout::plain(&restore.to),
        TargetOptions {
            overwrite,
            numeric_owner,
            tricks,
            usual_parents: true,
        },
    )
}

/// Does what this very tar has under another name stand in the way, which the file system takes for the same?
fn is_of_another_name(error: &Error) -> bool {
    error.system().is_some_and(is_taken)
}

fn cut_short(error: Error) -> Error {
    if error.kind != ErrorKind::Corrupt {
        return error;
    }
    // A decoder's error may be that of a checksum at the end, when all is written.
    let error = match error.system().is_some_and(|error| error.kind() == io::ErrorKind::InvalidData) {
        true => {
            error.detail("a checksum is of all that was compressed together: unless that were frames of up to 4 MiB, what came before it may be damaged too")
        }
        false => error,
    };
    error.detail(
        "what came before is restored; what comes after it in the stream, if anything, is not",
    )
}

struct TarRestore<'a> {
    members: Members<'a>,
    writer: TargetWriter,
    selection: Selection,
    /// Which of the selected paths have been seen.
    found: Vec<bool>,
    /// Directories that want their metadata. Grows with the archive, by a few bytes for each.
    directories: DeferredDirs,
    /// What came from this tar, where the target may have held something before. Grows with the archive, by some 16 bytes for each.
    came: Option<Came>,
    /// Members that are left out.
    refused: SkippedEntries,
    /// Was there something behind the tar?
    trailed: bool,
    report: &'a Report,
    meter: &'a Meter,
}

/// Paths of what a tar has brought and that is no directory, as hashes.
#[derive(Default)]
struct Came {
    paths: HashSet<u64>,
    hasher: RandomState,
}

impl Came {
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

    fn members(&mut self) -> Result<()> {
        while let Some(found) = self.next()? {
            match found {
                TarItem::Member(member) if self.is_piece(&member.entry.path) => {
                    let path = &member.entry.path;
                    self.refuse(
                        "member",
                        "it is a piece of a file",
                        path,
                        skipped::piece_of_file(path),
                    );
                    self.members.skip(member.stored_len)?;
                }
                TarItem::Member(member) if self.selection.takes(&member.entry.path) => {
                    self.member(member)?
                }
                TarItem::Member(member) => self.members.skip(member.stored_len)?,
                TarItem::Outside(Unknown {
                    name, stored_len, ..
                }) => {
                    if self.selection.paths().is_empty() {
                        let error = skipped::name_leads_out(&name);
                        self.refuse("member", "its name leads out of the archive", &name, error);
                    }
                    self.members.skip(stored_len)?;
                }
                TarItem::Unknown(unknown) => self.unknown(&unknown)?,
            }
        }
        let trailed = self.members.end();
        self.settle()?;
        self.trailed = trailed?;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<TarItem>> {
        let found = self.members.next();
        self.settle()?;
        found
    }

    /// What has turned out not to be what it was is removed.
    fn settle(&mut self) -> Result<()> {
        for path in self.members.ledger.lost() {
            self.unmake(&path)?;
        }
        for Mismatch { error, path, came } in self.members.ledger.flaws() {
            path.iter()
                .filter(|_| came)
                .try_for_each(|path| self.unmake(path))?;
            self.report.add((error, path.into_iter().collect()))?;
        }
        Ok(())
    }

    fn unmake(&mut self, path: &[u8]) -> Result<()> {
        if self.refused.contains(path) {
            return Ok(());
        }
        self.came.iter_mut().for_each(|came| came.remove(path));
        match self.writer.remove(path) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Is it a piece of a file that nobody asked for by its name?
    fn is_piece(&self, path: &[u8]) -> bool {
        let is_named_so = |path: &[u8]| {
            let (_, name) = entry::split(path);
            let parts: Vec<&[u8]> = name.split(|c| *c == b'-').collect();
            parts.len() == 2
                && parts
                    .iter()
                    .all(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
        };
        path.starts_with(PARTS)
            && is_named_so(path)
            && self.selection.paths().is_empty()
            && self.members.ledger.may_have_pieces()
    }

    fn unknown(&mut self, unknown: &Unknown) -> Result<()> {
        let Unknown {
            name,
            typeflag,
            stored_len,
        } = unknown;
        let what = format!("member of type {:?}", char::from(*typeflag));
        match skipped::unknown_type(name, *typeflag) {
            Some((error, why)) if self.selection.paths().is_empty() => {
                self.refuse(&what, why, name, error)
            }
            _ => self
                .tree()
                .notes
                .add(&what, "its meaning is not known", name),
        }
        self.members.skip(*stored_len)
    }

    fn member(&mut self, member: Member) -> Result<()> {
        let Member {
            mut entry,
            stored_len,
            named_acls,
        } = member;
        self.meter.entries.fetch_add(1, Relaxed);
        for (path, found) in self.selection.paths().iter().zip(&mut self.found) {
            *found |= entry::is_within(&entry.path, path);
        }
        named_acls
            .iter()
            .for_each(|acl| self.permit(acl, &mut entry));
        let made = match &entry.kind {
            EntryKind::File { .. } => self.file(&entry, stored_len)?,
            EntryKind::Directory => {
                self.members.ledger.came(&entry.path, None);
                self.directory(entry)?;
                return self.members.skip(stored_len);
            }
            EntryKind::HardLink(target) => self.link(target, &entry.path)?,
            EntryKind::Socket => false,
            _ => self.replacing(&entry.path, |writer| writer.other(&entry))?,
        };
        if made {
            self.directories.remove(&entry.path)?;
            self.came.iter_mut().for_each(|came| came.add(&entry.path));
        }
        match entry.kind {
            EntryKind::File { .. } => {
                let digests = self.members.digests();
                self.members.ledger.came(&entry.path, digests);
                self.members.skip_padding(stored_len)
            }
            _ => {
                self.members.ledger.came(&entry.path, None);
                self.members.skip(stored_len)
            }
        }
    }

    fn directory(&mut self, entry: Entry) -> Result<()> {
        // One that was there is not ours to change if it is only above what was asked for.
        let mut ours = self.selection.holds(&entry.path) || self.directories.has(&entry.path)?;
        let asked_for = ours;
        let made = self.replacing(&entry.path, |writer| {
            writer.directory(&entry, asked_for).map(|new| ours |= new)
        })?;
        if made && ours {
            self.directories.insert(&entry, &self.writer.tree)?;
        }
        Ok(())
    }

    /// Permissions by name are restored where all names are known here. Else nobody gets what only the list gave.
    fn permit(&self, acl: &NamedAcl, entry: &mut Entry) {
        let tree = &self.writer.tree;
        match tree.named(acl) {
            Ok(xattr) => entry.xattrs.push(xattr),
            Err(why) => {
                entry.mode = acl.mode_without(entry.mode);
                tree.notes
                    .add(&format!("permissions {acl}"), why, &entry.path);
            }
        }
    }

    fn refuse(&self, what: &str, why: &str, path: &[u8], error: Error) {
        self.tree().notes.add(what, why, path);
        self.refused.add(path, error);
    }

    /// Make what is at `path`, in place of what stands in the way: that came from this very tar, or may be replaced
    /// anyway. Was it made? If it cannot be, it is refused.
    fn replacing(
        &mut self,
        path: &[u8],
        mut create: impl FnMut(&mut TargetWriter) -> Result<()>,
    ) -> Result<bool> {
        let made = match create(&mut self.writer) {
            Err(error)
                if error.kind == ErrorKind::Exists
                    && !path.is_empty()
                    && !is_of_another_name(&error) =>
            {
                self.writer
                    .remove(path)
                    .and_then(|()| create(&mut self.writer))
            }
            other => other,
        };
        self.unless_refused(path, made)
    }

    /// Was it done? If not, it is left out.
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

    fn link(&mut self, target: &EntryPath, path: &EntryPath) -> Result<bool> {
        let asked_for = self.selection.holds(target);
        if self.refused.contains(target) {
            return self.unless_refused(path, Err(skipped::link_to_skipped_file(path, target)));
        }
        // What stands there from before has some other content.
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
        self.replacing(path, |writer| match writer.link(target, path) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                Err(skipped::link_without_file(path, target, asked_for))
            }
            other => other,
        })
    }

    /// Read and write a file; its padding follows.
    fn file(&mut self, entry: &Entry, stored_len: u64) -> Result<bool> {
        let mut data = Vec::new();
        self.members.piece(stored_len, &mut data)?;
        let made = if data.len() as u64 == stored_len {
            self.replacing(&entry.path, |writer| writer.file(entry, &data))?
        } else {
            self.large(entry, stored_len, data)?
        };
        self.meter.files.fetch_add(made.into(), Relaxed);
        Ok(made)
    }

    /// A file that is dropped before its end is removed. One that cannot be made is read all the same.
    fn large(&mut self, entry: &Entry, stored_len: u64, mut data: Vec<u8>) -> Result<bool> {
        let large = ParallelFile::default();
        let (mut at, mut made) = (0, true);
        while !data.is_empty() {
            made = made
                && self.replacing(&entry.path, |writer| large.write(writer, entry, at, &data))?;
            at += data.len() as u64;
            self.members.piece(stored_len - at, &mut data)?;
        }
        if made {
            let finished = large.finish(&mut self.writer, entry);
            made = self.unless_refused(&entry.path, finished)?;
        }
        Ok(made)
    }

    /// Deepest first; of several members for one directory the last counts.
    fn finish_directories(&mut self) -> Result<()> {
        for directory in std::mem::take(&mut self.directories).deepest_first() {
            let directory = directory?;
            let finished = self.writer.finish_directory(&directory);
            self.unless_refused(&directory.path, finished)?;
        }
        Ok(())
    }

    /// What was asked for is restored, all of it.
    fn must_be_complete(&mut self) -> Result<()> {
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
