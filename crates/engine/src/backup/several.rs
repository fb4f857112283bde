//! A backup to several repositories, of which any may fail.
//!
//! If the run fails because a destination failed that it needed, the backup is made again for those
//! that are left. Standard input cannot be read again.

use super::{Backup, Outcome, Subject};
use crate::{
    fan_out::{Completed, FanOut, FanOutLog, MemberEnd},
    plan::SinkSpec,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_pipeline::sink::Destination;
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::{
    first_look::FirstLook,
    roots::{BackupFiles, BackupState},
    writer::RepositoryWriter,
};
use fullbore_storage::{Objects, SealedObjects};
use std::{collections::HashSet, sync::Arc, time::Instant};

/// Destinations of one backup at most.
pub const MAX_DESTINATIONS: usize = 8;

/// The share of the memory, as a divisor, that all queues to repositories have.
const QUEUE_SHARE: u64 = 4;

impl Backup {
    /// Makes the backup for all destinations, and again for those that are left when a run failed
    /// because of one of them.
    pub(super) fn run_to_several(&self, meter: &Arc<Meter>) -> Result<Outcome> {
        let begun = Instant::now();
        let specs: Vec<&SinkSpec> = [&self.to].into_iter().chain(&self.also).collect();
        let mut ends: Vec<Option<MemberEnd>> = vec![None; specs.len()];
        loop {
            let left: Vec<usize> = (0..specs.len())
                .filter(|index| ends[*index].is_none())
                .collect();
            let mut log = None;
            let attempt =
                self.for_destinations(&left.iter().map(|index| specs[*index]).collect::<Vec<_>>())?;
            let result = attempt.run_once(meter, &mut log);
            let told = log.as_ref().map(|log| log.ends()).unwrap_or_default();
            for (index, end) in left.iter().zip(told) {
                ends[*index] = end;
            }
            let error = match result {
                Ok(mut outcome) => {
                    let is_new = outcome.is_new_repository;
                    outcome.destinations = ends
                        .into_iter()
                        .map(|end| end.unwrap_or_else(|| completed(is_new, &begun)))
                        .collect();
                    return Ok(outcome);
                }
                Err(error) => error,
            };
            if left.iter().all(|index| ends[*index].is_none()) && attempt.has_lost_first() {
                // The base is read from it: without it, the run could not go on.
                ends[left[0]] = Some(failed(&error, &begun));
            }
            let is_over = ends.iter().all(Option::is_some);
            let has_cause = left.iter().any(|index| ends[*index].is_some());
            if is_over || !has_cause || self.subject.is_stdin() {
                return Err(with_others(error, &specs, &ends));
            }
        }
    }

    /// The same backup, for these destinations.
    fn for_destinations(&self, specs: &[&SinkSpec]) -> Result<Self> {
        let Some((first, others)) = specs.split_first() else {
            return Err(Error::new(ErrorKind::Bug, "no destination is left"));
        };
        let mut backup = self.clone();
        backup.to = (*first).clone();
        backup.also = others.iter().map(|spec| (*spec).clone()).collect();
        if !others.is_empty() {
            backup.tuning.memory_bytes -= self.queue_bytes();
        }
        Ok(backup)
    }

    /// Bytes of the queues to all repositories.
    fn queue_bytes(&self) -> u64 {
        self.tuning.memory_bytes / QUEUE_SHARE
    }

    /// Returns whether the first destination does not answer any more.
    fn has_lost_first(&self) -> bool {
        let objects = self.to.storage();
        objects.is_none_or(|objects| FirstLook::take(&**objects).is_err())
    }

    /// Opens all destinations of so many streams, after a look at the first one.
    ///
    /// # Errors
    /// That of the first destination; [`ErrorKind::Usage`] for one that is no repository.
    pub(super) fn open_several(
        &self,
        host: &str,
        (id, time): (&str, &str),
        look: &FirstLook,
        (streams, log): (usize, &mut Option<Arc<FanOutLog>>),
    ) -> Result<Box<dyn Destination>> {
        let suffix = self.codec.suffix();
        let mut open: Vec<Box<dyn FnOnce() -> Result<RepositoryWriter> + Send + '_>> = Vec::new();
        for (index, spec) in [&self.to].into_iter().chain(&self.also).enumerate() {
            let Some(objects) = spec.storage().cloned() else {
                let message = format!("cannot write to {} beside others", spec.name());
                return Err(Error::new(ErrorKind::Usage, message)
                    .because("only a backup to repositories can have several destinations"));
            };
            let no_create = self.no_create;
            open.push(Box::new(move || {
                if index == 0 {
                    return RepositoryWriter::begin_after(look, objects, host, id, time, suffix);
                }
                spec.check(no_create)?;
                let look = FirstLook::take(&*objects)?;
                RepositoryWriter::begin_after(&look, objects, host, id, time, suffix)
            }));
        }
        // `for_destinations` has taken their memory from the lines.
        let queue_bytes = self.tuning.memory_bytes / (QUEUE_SHARE - 1) / streams.max(1) as u64;
        let (fan_out, of_run) = FanOut::begin(open, queue_bytes);
        *log = Some(of_run);
        Ok(Box::new(fan_out?))
    }

    /// Returns the backups that cannot be the base because a destination lacks them, and this host cannot read what it adds there or
    /// elsewhere: with a put key nothing is copied from one destination to another.
    pub(super) fn not_in_all(&self, look: &FirstLook) -> HashSet<String> {
        let stores: Vec<_> = [&self.to]
            .into_iter()
            .chain(&self.also)
            .filter_map(SinkSpec::storage)
            .collect();
        let can_read =
            |objects: &&Arc<dyn Objects>| objects.as_sealed().is_none_or(SealedObjects::reads);
        let can_copy = stores.iter().all(can_read);
        if self.also.is_empty() || can_copy {
            return HashSet::new();
        }
        // One that cannot be listed fails by itself.
        let others = stores.iter().skip(1);
        let listed: Vec<_> = others
            .filter_map(|objects| FirstLook::take(&***objects).ok())
            .collect();
        let is_in = |other: &FirstLook, id: &String| {
            other.files.get(id).and_then(BackupFiles::state) == Some(BackupState::Listed)
        };
        let ids = look.files.keys();
        ids.filter(|id| !listed.iter().all(|other| is_in(other, id)))
            .cloned()
            .collect()
    }

    /// Refuses further destinations inside the source.
    pub(super) fn check_also(&self) -> Result<()> {
        let Subject::Files(scope) = &self.subject else {
            return Ok(());
        };
        let stores = self.also.iter().filter_map(SinkSpec::storage);
        stores
            .filter_map(|objects| objects.as_local())
            .try_for_each(|local| scope.check_outside(local.root()))
    }
}

fn failed(error: &Error, begun: &Instant) -> MemberEnd {
    MemberEnd {
        result: Err(error.clone()),
        seconds: begun.elapsed().as_secs_f64(),
    }
}

/// The end of the only destination that was left, which succeeded.
fn completed(is_new: bool, begun: &Instant) -> MemberEnd {
    MemberEnd {
        result: Ok(Completed {
            is_new,
            copied_bytes: 0,
        }),
        seconds: begun.elapsed().as_secs_f64(),
    }
}

/// Adds the errors of the other destinations to the one that ended the backup.
fn with_others(error: Error, specs: &[&SinkSpec], ends: &[Option<MemberEnd>]) -> Error {
    let what = error.what.clone();
    let others = specs.iter().zip(ends).filter_map(|(spec, end)| {
        let failure = end.as_ref()?.result.as_ref().err()?;
        (failure.what != what).then(|| format!("{}: {}", spec.name(), failure.line()))
    });
    others.fold(error, Error::detail)
}
