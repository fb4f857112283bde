//! Prints the backups of a repository, or the entries of a backup.
//!
//! Backups are listed in three passes: complete ones, the oldest first, then those whose root is lost, then interrupted ones.

mod backups;
pub(super) mod entries;
mod taped;

pub(super) use backups::{BackupLine, TableBackup};
pub(in crate::cli) use entries::EntryForm;
pub(super) use entries::kind_parts;

use super::{stats::drill_line, wal_report::print_system};
use crate::cli::{output::aside, report};
use backups::BackupTable;
use entries::{EntryLine, shown_entry};
use fullbore_engine::{
    drill::record::DrillRecord,
    report::damage::missing_end,
    verify::stream::{self, InspectedInput, look},
    wal::system_reports,
};
use fullbore_format::{
    entry::{EntryPath, is_within},
    error::{Error, ErrorKind, Result, quoted},
    layout::NOTES,
    page::Record,
    root::Root,
    text,
};
use fullbore_platform::queue::run_both;
use fullbore_repository::archive::not_there;
use fullbore_repository::{
    annotations::Annotations,
    archive::{Archive, Selection, source_paths::selection_in},
    open::{cut_off, ids_of, is_repository, named, open, read_repository},
    root_index::IndexPlace,
    root_reader::DocumentReader,
    roots::{BackupFiles, BackupState, RootFacts, backup_files},
    scan::lost_roots_of,
    select::BackupFilter,
    verify_memory::VerifyMemory,
    wal::WalNeeds,
};
use fullbore_storage::{Objects, Storages};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io::{Read, Write},
    os::unix::ffi::OsStrExt,
};

/// Hint for a lost root.
const LOST: &str = "`fullbore repair` rebuilds it, or tells how to proceed";

/// The backups or entries to list.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct List {
    /// How storages are reached.
    pub(in crate::cli) storages: Storages,
    /// `FROM[@BACKUP]`, or `-` for standard input.
    pub(in crate::cli) from: OsString,
    /// Selects the backups to list, or those of which the latest is listed.
    pub(in crate::cli) filter: BackupFilter,
    /// Paths in the backup; empty for everything.
    pub(in crate::cli) paths: Vec<Vec<u8>>,
    /// Whether directories among the paths are listed with everything below them.
    pub(in crate::cli) recursive: bool,
    /// How entries are printed.
    pub(in crate::cli) form: EntryForm,
    /// Whether to round sizes of entries.
    pub(in crate::cli) human: bool,
    /// Whether to print all details of backups.
    pub(in crate::cli) long: bool,
    /// Whether to print neither a header nor a last line.
    pub(in crate::cli) quiet: bool,
    /// Columns of the terminal, into which lines are fitted; `None` for whole lines.
    pub(in crate::cli) columns: Option<usize>,
    /// Whether to print JSON, one object a line.
    pub(in crate::cli) json: bool,
}

/// Prints the newest drill of each cluster that has backups.
fn print_drills(objects: &dyn Objects, needs: &[WalNeeds], out: &mut dyn Write) -> Result<()> {
    let systems: BTreeSet<&String> = needs.iter().map(|needs| &needs.system).collect();
    for system in systems {
        if let Some(drill) = DrillRecord::newest(objects, system).ok().flatten() {
            let line = drill_line(&drill);
            text::line(out, &format!("drill of system {system}  {line}"))?;
        }
    }
    Ok(())
}

impl List {
    /// Returns whether the command lists the backups of a repository, instead of the entries of
    /// one.
    pub(in crate::cli) fn is_of_backups(&self) -> bool {
        is_repository(&self.from) && self.paths.is_empty()
    }

    /// Prints the list to `out`. Returns the exit code: 4 if something is damaged, 1 if a root
    /// cannot be read for another reason; the list names that root.
    ///
    /// # Errors
    /// Those of opening FROM, of reading pages, and of `out`.
    pub(in crate::cli) fn run(&self, out: &mut dyn Write) -> Result<u8> {
        if self.is_of_backups() {
            return self.print_backups(out);
        }
        if self.from == taped::ALL_TAPES && self.paths.is_empty() {
            return taped::print(&self.storages, &self.filter, self.json, out);
        }
        match look(&self.storages, &self.from, &self.filter)? {
            InspectedInput::Backup(archive) => {
                let selection = selection_in(&archive, &self.paths)?;
                self.print_entries(&archive, &selection, out)?;
                if let Some(error) = missing_end(&archive.root) {
                    aside(report::error(&error));
                    return Ok(error.exit_code());
                }
            }
            InspectedInput::Stream(input) => {
                self.print_members(input, &Selection::new(&self.paths)?, out)?;
            }
        }
        Ok(0)
    }

    fn print_backups(&self, out: &mut dyn Write) -> Result<u8> {
        let repository = &self.storages.repository_at(&self.from)?;
        let mut code = 0;
        let mut is_any = self.filter.is_empty();
        let mut table = BackupTable::new(self);
        read_repository(&**repository)?;
        // One look serves for all that is listed.
        let is_far = repository.answers_late();
        let list_files = || backup_files(&**repository);
        let read_memory = || VerifyMemory::read(&**repository);
        let (files, memory) = run_both(is_far, list_files, read_memory);
        let files = files?;
        let place = IndexPlace::new(self.storages.index_dir());
        let mut reader = DocumentReader::new(&**repository, &place);
        let mut needs = Vec::new();
        reader.visit_listed(&files, &mut |id, facts| {
            let put_key = facts.as_ref().ok().and_then(|facts| facts.put_key.clone());
            let mut root = facts.and_then(RootFacts::root);
            if self.long
                && let Ok(root) = &root
            {
                needs.extend(WalNeeds::of(root));
            }
            // The source of a damaged backup is unknown, so it is always listed.
            if root
                .as_mut()
                .is_ok_and(|root| !self.filter.selects_in(repository, root))
            {
                return Ok(());
            }
            is_any = true;
            let has_notes = files.get(id).is_some_and(|files| files.has(NOTES));
            let noted = match has_notes {
                true => root.and_then(|root| annotated(&**repository, id, root)),
                false => root.map(|root| (root, false)),
            };
            code = noted.as_ref().err().map_or(0, Error::exit_code).max(code);
            let noted = noted.map(|(root, pinned)| TableBackup {
                root,
                pinned,
                loss: memory.loss(id),
                put_key,
            });
            match (self.json, noted) {
                (true, noted) => text::json(out, &BackupLine::new(id, &noted)),
                (false, Ok(backup)) => table.print(&backup, out),
                (false, Err(error)) => table.print_damaged(id, &error.line(), out),
            }
        })?;
        if self.long && !self.json {
            for report in system_reports(repository, &needs)? {
                print_system(&report, out)?;
            }
            print_drills(&**repository, &needs, out)?;
        }
        for id in lost_roots_of(repository, files.clone())? {
            code = 4;
            if self.json {
                let lost = Err(Error::corrupt("its root is lost").hint(LOST));
                text::json(out, &BackupLine::new(&id, &lost))?;
            } else {
                table.print_damaged(&id, &format!("its root is lost: {LOST}"), out)?;
            }
        }
        // JSON lists only complete backups.
        if !self.json {
            is_any |= self.print_interrupted(&mut table, &**repository, &files, out)?;
            let all = self.filter.is_empty().then(|| stored_bytes(&files));
            table.finish(all, out)?;
        }
        if !is_any && code == 0 {
            return Err(self.filter.none_selected(repository)?);
        }
        // Not on standard output, where the list goes.
        if code == 0 && ids_of(&files, BackupState::Listed).is_empty() {
            aside(format_args!("{:?} holds no backup", self.from));
        }
        Ok(code)
    }

    /// Prints interrupted backups. Returns whether there are any.
    fn print_interrupted(
        &self,
        table: &mut BackupTable<'_>,
        objects: &dyn Objects,
        files: &BTreeMap<String, BackupFiles>,
        out: &mut dyn Write,
    ) -> Result<bool> {
        let mut is_any = false;
        for root in cut_off(objects, files) {
            if self.filter.selects(&root) {
                is_any = true;
                table.print_interrupted(&root, out)?;
            }
        }
        Ok(is_any)
    }

    fn print_entries(
        &self,
        archive: &Archive,
        selection: &Selection,
        out: &mut dyn Write,
    ) -> Result<()> {
        for path in selection.paths() {
            if !archive.has(path)? {
                let error = not_there(archive, path);
                let backup = named(&self.from, OsStr::from_bytes(path));
                let is_backup = is_repository(&self.from)
                    && open(&self.storages, &backup, &BackupFilter::default()).is_ok();
                let hint = || format!("to list a backup, write {backup:?}");
                return Err(if is_backup { error.hint(hint()) } else { error });
            }
        }
        for item in archive.records(selection, false) {
            let item = item?;
            // A file that spans several pages is listed once, by the part with its digest.
            if item.more || !self.wants(selection, &item.entry.path) {
                continue;
            }
            self.print_entry(&item, out)?;
        }
        Ok(())
    }

    fn print_members(
        &self,
        input: impl Read + Send + 'static,
        selection: &Selection,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut missing: Vec<_> = selection.paths().iter().collect();
        stream::entries(input, |record| {
            let path = &record.entry.path;
            missing.retain(|wanted| !is_within(path, wanted));
            if self.wants(selection, path) {
                self.print_entry(record, out)
            } else {
                Ok(())
            }
        })?;
        match missing.first() {
            Some(path) => Err(Error::new(
                ErrorKind::NotFound,
                format!("could not find {} in the tar", quoted(path)),
            )),
            None => Ok(()),
        }
    }

    fn print_entry(&self, record: &Record, out: &mut dyn Write) -> Result<()> {
        if self.json {
            text::json(out, &EntryLine::new(record))
        } else {
            let line = shown_entry(record, self.form, self.human, self.columns);
            text::line(out, &line)
        }
    }

    /// Returns whether an entry is listed. Of a directory among the paths, only the entries directly in it are.
    fn wants(&self, selection: &Selection, path: &[u8]) -> bool {
        let is_near = |top: &EntryPath| {
            path == top || is_within(path, top) && !below(path, top).contains(&b'/')
        };
        let tops = selection.paths();
        selection.holds(path) && (self.recursive || tops.is_empty() || tops.iter().any(is_near))
    }
}

/// Returns the part of `path` below `top`, without a slash at its start.
fn below<'a>(path: &'a [u8], top: &[u8]) -> &'a [u8] {
    let rest = &path[top.len().min(path.len())..];
    rest.strip_prefix(b"/").unwrap_or(rest)
}

/// Returns the bytes of all objects of a listing.
pub(super) fn stored_bytes(files: &BTreeMap<String, BackupFiles>) -> u64 {
    let bytes = files
        .values()
        .flat_map(|files| files.sized().map(|(_, bytes)| bytes));
    bytes.fold(0, u64::saturating_add)
}

/// Returns a root with its annotations, and whether the backup is pinned.
fn annotated(objects: &dyn Objects, id: &str, mut root: Root) -> Result<(Root, bool)> {
    let notes = Annotations::read(objects, id)?;
    notes.apply(&mut root);
    Ok((root, notes.pinned))
}
