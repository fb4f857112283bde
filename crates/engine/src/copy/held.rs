//! Holds the first change of a copy that deletes, until its deletions are counted and allowed.
//!
//! Up to 65,536 differences wait in memory meanwhile. If there are more, both trees are compared a
//! second time: then most of the time goes into writing anyway.

use super::{
    attributes::AttributeReader,
    call::{CopyCall, CopyTarget, headers},
    compare::{Differences, in_order},
    kept::KeptPaths,
    listed_ahead::listed_ahead,
    options::{CopyWatch, TreeCopy},
    plan::CopyPlan,
    sources::CopySource,
    spool::PathSpool,
};
use fullbore_format::{
    entry::Entry,
    error::{Error, Result},
};
use fullbore_pipeline::{
    frame::Scanned,
    source::{Source, Stream},
};
use fullbore_tree::read::SourceTree;
use std::{path::Path, sync::Arc};

/// Differences that wait in memory, at most: about 30 MB.
const MAX_HELD: usize = 65_536;

/// Directories of a question.
const DIRECTORIES: usize = 1024;

/// Changes that wait with the differences.
#[derive(Debug, Default)]
pub(super) struct HeldChanges {
    /// Paths that are told, each after its sign.
    pub(super) told: PathSpool,
    /// Directories to make before anything in them.
    pub(super) directories: Vec<Entry>,
}

impl HeldChanges {
    /// Tells the paths, and makes the directories.
    ///
    /// # Errors
    /// Those of the target; the system's, about the temporary file.
    pub(super) fn release(self, plan: &CopyPlan) -> Result<()> {
        self.told.each_batch(|batch| {
            let told = batch.split(|c| *c == 0).filter_map(<[u8]>::split_first);
            told.for_each(|(sign, path)| plan.watch.entry(char::from(*sign), path));
            Ok(())
        })?;
        for directories in self.directories.chunks(DIRECTORIES) {
            plan.ask(CopyCall::Directories, &headers(directories)?)?;
        }
        Ok(())
    }
}

/// Both ends of a copy.
pub(super) struct CopyEnds<'a> {
    pub(super) source: &'a SourceTree,
    /// The scan of the source, if it has begun.
    pub(super) scan: Option<Stream<Scanned>>,
    pub(super) target: &'a Arc<dyn CopyTarget>,
    pub(super) watch: Arc<dyn CopyWatch>,
}

impl TreeCopy {
    /// Returns the differences between both ends, and the plan that they fill. If the copy deletes,
    /// the deletions are allowed before anything is changed.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) if more would be deleted than is
    /// allowed; those of both ends.
    pub(super) fn allowed_differences(
        &self,
        mut ends: CopyEnds<'_>,
        has_content: bool,
    ) -> Result<(Arc<CopyPlan>, Stream<Scanned>)> {
        let deletes = self.options.delete && !self.options.dry_run;
        if !deletes || !has_content {
            return self.compare(&mut ends, has_content, None);
        }
        let (plan, mut differences) =
            self.compare(&mut ends, true, Some(HeldChanges::default()))?;
        let held = differences.by_ref().take(MAX_HELD);
        let held = held.collect::<Result<Vec<Scanned>>>()?;
        let is_all = held.len() < MAX_HELD;
        if is_all {
            self.check_deletions(&plan)?;
            plan.release()?;
            return Ok((plan, Box::new(held.into_iter().map(Ok))));
        }
        drop(held);
        // Too many to hold in memory: the rest is only counted, and the copy finds all again.
        differences.try_for_each(|scanned| scanned.map(drop))?;
        self.check_deletions(&plan)?;
        ends.target.ask(CopyCall::Rewind, b"")?;
        self.compare(&mut ends, true, None)
    }

    fn compare(
        &self,
        ends: &mut CopyEnds<'_>,
        has_content: bool,
        held: Option<HeldChanges>,
    ) -> Result<(Arc<CopyPlan>, Stream<Scanned>)> {
        let options = self.options.clone();
        let kept = KeptPaths::new(&options)?;
        let plan = CopyPlan::new(options, ends.target.clone(), ends.watch.clone(), held);
        let scan = match ends.scan.take() {
            Some(scan) => scan,
            None => ends.source.scan()?,
        };
        let entries = match has_content {
            true => listed_ahead(ends.target)?,
            false => Box::new(std::iter::empty()),
        };
        let roots = self.from.iter().map(CopySource::root);
        let attributes = AttributeReader::of(roots.collect::<Result<_>>()?);
        let there = in_order(entries);
        let differences = Differences::new((scan, there), plan.clone(), attributes, kept);
        Ok((plan, Box::new(differences)))
    }

    /// Checks the deletions that a complete plan has.
    ///
    /// # Errors
    /// As [`DeletionLimit::check`](fullbore_tree::write::deletion_limit::DeletionLimit::check).
    pub(super) fn check_deletions(&self, plan: &CopyPlan) -> Result<()> {
        let planned = plan.planned_deletions();
        let target = self.to.as_deref();
        let name = target.map_or("the target".to_owned(), |destination| {
            format!("{destination:?}")
        });
        let checked = self.options.limit.check(planned, &name);
        checked.map_err(|error| match planned.is_source_empty {
            true => error,
            false => self.explain(error, target),
        })
    }

    /// Says that another program would have written below the target.
    fn explain(&self, error: Error, target: Option<&Path>) -> Error {
        let [source] = &self.from[..] else {
            return error;
        };
        let (Some(destination), Some(name)) = (target, source.path.file_name()) else {
            return error;
        };
        if !source.at.is_empty() {
            return error;
        }
        let named = destination.join(name);
        error.detail(format!(
            "the content of {:?} becomes that of {destination:?}, as with a slash after the source in rsync; to write to {named:?}, name it",
            source.path
        ))
    }
}
