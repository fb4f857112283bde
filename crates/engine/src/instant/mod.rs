//! Instant restore: a tree can be used at once, and its content arrives while it is used.
//!
//! All files are made with their size, metadata and links, and their space is reserved. Whoever reads a file waits until
//! the part that it reads is there. Three processes do this: the command makes the tree (`begin`), the guardian answers
//! readers (`guardian`), and the worker fetches, checks and writes content (`worker`). A server that the command starts
//! inherits the event group.
//!
//! Guarantees: while one of them lives, no reader gets a zero that is not one. If all are gone, nothing looks usable. At
//! the end the tree is that of a plain restore, and nothing stays in its way.
//!
//! Does not belong here: the calls of the system (`platform::pre_content`), and which entries there are (`restore`).

mod begin;
mod content_source;
mod event_table;
mod fetch_queue;
mod filled_file;
mod guardian;
mod messages;
mod order;
mod partial_units;
mod pending;
mod placeholders;
mod plan_file;
mod progress;
mod readers;
mod roles;
mod server;
mod state_dir;
mod sync_cycle;
mod unit_map;
mod withheld;
mod worker;
mod worker_process;

use crate::restore::Restore;
pub use begin::{InstantOptions, ServedTree};
use content_source::ContentSource;
use event_table::EventTable;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::pre_content::{
    EventGroup,
    inherit::inheritable,
    standing::{set_niceness, stay},
};
use fullbore_repository::{open::open, select::BackupFilter};
use fullbore_storage::Location;
use guardian::Guardian;
use plan_file::InstantPlan;
pub use progress::InstantProgress;
use readers::RangeReaders;
pub use roles::{GuardianFds, InstantRole, WorkerFds, has_role};
use state_dir::StateDir;
use std::{
    ffi::OsStr,
    fs::File,
    io::Write,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    sync::atomic::AtomicBool,
};
pub use unit_map::Phase;
use unit_map::UnitMap;
use worker::Worker;

/// How late the kernel kills the processes if memory is short.
const GUARDIAN_SCORE: i32 = -1000;
/// Niceness of the guardian: each access waits for it, and it takes little of a processor.
const GUARDIAN_NICENESS: i32 = -15;
const WORKER_SCORE: i32 = -900;
/// What a guardian writes when it serves.
const SERVING: &str = "serving";
/// Lanes for what somebody waits for, and for the rest, where the repository is not on this host.
const FAR_LANES: (usize, usize) = (8, 16);
/// Lanes for what somebody waits for, where it is.
const NEAR_DEMAND: usize = 4;
/// Files that its lanes fill beside each other: the records of each are in memory.
const NEAR_BESIDE: usize = 4;

impl Restore {
    /// Runs the guardian of this restore until everything is there, or until `stop` is set.
    ///
    /// # Errors
    /// The system's; those before the tree is served are also given to the command that waits.
    pub fn guard(
        &self,
        fds: GuardianFds,
        options: &InstantOptions,
        stop: &AtomicBool,
    ) -> Result<()> {
        let _ = rustix::process::setsid();
        let _ = stay(GUARDIAN_SCORE);
        set_niceness(GUARDIAN_NICENESS);
        let mut ready = fds.ready;
        let _lock = fds.lock;
        let group = EventGroup::from(fds.group);
        let run = (|| {
            let state = StateDir::of(&self.to)?;
            let parts = InstantPlan::read(&state)?;
            let map = UnitMap::open(&state, &parts)?;
            let mut table = inheritable(&fds.events)
                .and_then(EventTable::of_fd)
                .map_err(begin::events_error)?;
            let _occupied = begin::occupy_numbers(&mut table)?;
            let readers = self.range_readers(options, &parts)?;
            let guardian = Guardian::new(
                (state, parts, map),
                (group, fds.events),
                (readers, options.patience),
            )?;
            guardian.run(stop, || say(&mut ready, SERVING))
        })();
        if let Err(error) = &run {
            say(&mut ready, &error.line());
        }
        run
    }

    fn range_readers(&self, options: &InstantOptions, plan: &InstantPlan) -> Result<RangeReaders> {
        let mut programs = options.by_range.clone();
        if let (true, Some(major)) = (options.start, plan.head.cluster) {
            let found = server::InstantServer::programs(major, options.bindir.as_deref())?;
            programs.push(found.path("postgres"));
        }
        RangeReaders::new(&programs)
            .map_err(|e| Error::io("could not find a program of --by-range", e))
    }

    /// Runs the worker of this restore. The process ends with it.
    ///
    /// # Errors
    /// Those of opening the backup; [`ErrorKind::Exists`] if another worker writes.
    pub fn fill(&self, fds: WorkerFds, options: &InstantOptions) -> Result<()> {
        let _ = stay(WORKER_SCORE);
        let state = StateDir::of(&self.to)?;
        let plan = InstantPlan::read(&state)?;
        let map = UnitMap::open(&state, &plan)?;
        let Some(_lock) = state.worker_lock()? else {
            let message = "cannot write content: another process does";
            return Err(Error::new(ErrorKind::Exists, message));
        };
        let source = OsStr::from_bytes(&plan.head.source.0).to_owned();
        let archive = open(&self.storages, &source, &BackupFilter::default())?;
        if archive.root.id != plan.head.backup {
            let message = format!(
                "cannot go on: {source:?} is not backup {:?}",
                plan.head.backup
            );
            return Err(Error::corrupt(message));
        }
        let is_near = Location::parse(&source)?.as_local().is_some();
        let (lanes, beside) = match is_near {
            true => ((NEAR_DEMAND, self.workers.get()), NEAR_BESIDE),
            // One file after the other: reads of a segment that follow each other are few requests.
            false => (FAR_LANES, 1),
        };
        let parts = (EventGroup::from(fds.group), File::from(fds.wake));
        let worker = Worker::new(
            (state, plan, map),
            parts,
            (
                ContentSource::new(archive, self.memory),
                options.rest_rate,
                beside,
            ),
        )?;
        worker.run(&File::from(fds.requests), lanes);
        Ok(())
    }
}

/// Tells the command that waits, which reads up to the end of the pipe.
fn say(ready: &mut OwnedFd, words: &str) {
    if let Ok(pipe) = ready.try_clone() {
        let _ = File::from(pipe).write_all(words.as_bytes());
    }
    // The number stays in use: an event of a dead process may have the same.
    if let Ok(null) = File::open("/dev/null") {
        let _ = rustix::io::dup2(&null, ready);
    }
}
