//! The process that answers: it reads the events of the group, asks the worker for what they need, and answers each
//! when its units are there.
//!
//! It opens no marked file, decodes nothing, and reaches no repository, so it waits for nothing but events and its
//! worker. While it lives, nobody reads a zero that is not one: a killed worker is replaced, and the events that wait
//! stay its own.

use super::{
    event_table::{EventTable, OrphanEvent},
    pending::{PendingAccess, PendingState},
    plan_file::InstantPlan,
    readers::{AccessNeed, RangeReaders, is_gone, is_thread_of},
    state_dir::StateDir,
    unit_map::{MapNumber, Phase, UnitMap},
    withheld::FedFile,
    worker_process::WorkerProcess,
};
use fullbore_format::{
    entry::Time,
    error::{Error, Result},
};
use fullbore_platform::{
    dir::{open_root, stat_fd},
    durable,
    pre_content::{
        Access, AccessAnswer, AccessEvent, EventGroup,
        inherit::{borrow_number, close_number},
        waiting::WaitingCall,
    },
    write,
};
use fullbore_tree::incomplete::INCOMPLETE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::HashMap,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering::Acquire},
    time::{Duration, Instant},
};

/// Time after which a request is sent again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time between two looks while something waits or is fed.
const BUSY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// Time between two looks otherwise.
const IDLE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 300_000_000,
};

/// The guardian of one restore.
pub(super) struct Guardian {
    pub(super) state: StateDir,
    pub(super) plan: InstantPlan,
    pub(super) map: UnitMap,
    pub(super) group: EventGroup,
    pub(super) table: EventTable,
    pub(super) readers: RangeReaders,
    /// Time without progress after which an access fails; `None` for ever.
    pub(super) patience: Option<Duration>,
    by_inode: HashMap<(u64, u64), u32>,
    fed: Vec<FedFile>,
    pending: Vec<PendingAccess>,
    /// Events of a dead process of which nothing is known but the number.
    unknown: Vec<OrphanEvent>,
    worker: WorkerProcess,
    /// Wakes by the worker, and since when somebody waits without another one.
    progress: (u64, Option<Instant>),
}

impl Guardian {
    /// Takes over a group, with the events that a dead guardian may have left in the table.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(
        (state, plan, map): (StateDir, InstantPlan, UnitMap),
        (group, events): (EventGroup, OwnedFd),
        (readers, patience): (RangeReaders, Option<Duration>),
    ) -> Result<Self> {
        let failed = |e| Error::io("could not take over the events", e);
        let mut table = EventTable::of_fd(events).map_err(failed)?;
        let files = plan.files.iter().zip(0..);
        let by_inode = files.map(|(file, index)| ((file.dev, file.inode), index));
        let by_inode = by_inode.collect();
        let worker = WorkerProcess::new(&state);
        let mut guardian = Self {
            fed: Vec::new(),
            pending: Vec::new(),
            unknown: Vec::new(),
            progress: (0, None),
            by_inode,
            worker,
            state,
            plan,
            map,
            group,
            table: EventTable::new().map_err(failed)?,
            readers,
            patience,
        };
        let orphans = table.orphans();
        guardian.table = table;
        guardian.adopt(orphans);
        for withheld in &guardian.plan.head.withheld {
            let opened = FedFile::open(&guardian.state.target, withheld, &guardian.group)?;
            guardian.fed.extend(opened);
        }
        Ok(guardian)
    }

    /// Makes the events of a dead guardian its own.
    fn adopt(&mut self, orphans: Vec<OrphanEvent>) {
        self.map.add(MapNumber::Retaken, orphans.len() as u64);
        for orphan in orphans {
            let planned = orphan
                .wanted
                .and_then(|wanted| Some((wanted, self.plan.files.get(wanted.file as usize)?)));
            let Some((wanted, planned)) = planned else {
                self.unknown.push(orphan);
                continue;
            };
            // The waiting call is not noted, so the worst of it is assumed.
            let need = if wanted.first > wanted.last {
                AccessNeed::DurableWhole
            } else {
                AccessNeed::DurableBytes
            };
            let unit = super::plan_file::UNIT_BYTES;
            let count = (wanted.last + 1)
                .saturating_sub(wanted.first)
                .saturating_mul(unit);
            let range = (wanted.first.saturating_mul(unit), count);
            let mut access = PendingAccess::new((orphan.number, wanted.file), planned, need, range);
            access.slot = orphan.slot;
            access.is_own = false;
            access.note_change(&self.map);
            self.pending.push(access);
        }
    }

    /// Serves until everything is there, or until `stop` is set. `ready` is called when the worker serves.
    ///
    /// # Errors
    /// Those of the system that leave nothing to serve with, and of the first worker.
    pub(super) fn run(mut self, stop: &AtomicBool, ready: impl FnOnce()) -> Result<()> {
        self.map
            .set_number(MapNumber::Guardian, std::process::id().into());
        let mut ready = Some(ready);
        self.start_worker()?;
        while !stop.load(Acquire) {
            self.wait()?;
            if self.worker.is_serving()
                && let Some(ready) = ready.take()
            {
                ready();
            }
            self.settle();
            match self.worker.ended() {
                None => {}
                Some(0) => return self.finish(),
                Some(code) if ready.is_some() => return Err(self.first_failure(code)),
                Some(code) => {
                    eprintln!("note: the worker ended with code {code}; another one goes on");
                }
            }
            if self.worker.is_due() {
                self.start_worker()?;
            }
            self.watch_worker();
        }
        self.stop()
    }

    fn first_failure(&self, code: i32) -> Error {
        let why = self.state.last_log_line();
        let error = Error::io(
            "could not serve the restored files",
            io::Error::other(format!("the worker ended with code {code}")),
        );
        why.into_iter().fold(error, Error::detail)
    }

    fn start_worker(&mut self) -> Result<()> {
        let started = self.worker.start(&self.group);
        started.map_err(|e| Error::io("could not start the worker", e))?;
        self.map.add(MapNumber::Workers, 1);
        self.map
            .set_number(MapNumber::Worker, self.worker.id().into());
        for access in &mut self.pending {
            access.ask_again();
        }
        Ok(())
    }

    /// Waits for events, for the worker, or for the time of the next look. Takes the events.
    fn wait(&mut self) -> Result<()> {
        let is_busy = !self.pending.is_empty() || self.fed.iter().any(FedFile::is_fed);
        let time = if is_busy || !self.worker.is_serving() {
            &BUSY
        } else {
            &IDLE
        };
        let has_events = {
            let mut waits = Vec::with_capacity(2);
            if self.table.has_room() {
                waits.push(PollFd::new(&self.group, PollFlags::IN));
            }
            if let Some(wake) = self.worker.wake() {
                waits.push(PollFd::from_borrowed_fd(wake, PollFlags::IN));
            }
            match poll(&mut waits, Some(time)) {
                Err(rustix::io::Errno::INTR) | Ok(0) => false,
                Err(e) => return Err(Error::io("could not wait for events", e)),
                Ok(_) => self.table.has_room() && !waits[0].revents().is_empty(),
            }
        };
        self.worker.drain();
        if has_events {
            self.take_events()?;
        }
        Ok(())
    }

    fn take_events(&mut self) -> Result<()> {
        let events = match self.table.read(&self.group) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Vec::new(),
            events => events.map_err(|e| Error::io("could not read events", e))?,
        };
        for event in events {
            self.take_event(event);
        }
        self.table.settle_read();
        Ok(())
    }

    fn take_event(&mut self, event: AccessEvent) {
        self.map.add(MapNumber::Events, 1);
        if is_thread_of(self.worker.id(), event.thread) {
            return self.answer_now(event, AccessAnswer::Allow);
        }
        // A killed worker writes no more, so its last access is no change by another program.
        let stat = borrow_number(event.number, |fd| stat_fd(fd));
        let (Ok(stat), false) = (stat, is_gone(event.thread)) else {
            return self.answer_now(event, AccessAnswer::Fail);
        };
        let id = (stat.dev, stat.inode);
        if let Some(file) = self.by_inode.get(&id) {
            return self.take_access(event, *file);
        }
        let is_open = event.access == Access::Open;
        let fed = self.fed.iter_mut().find(|fed| fed.id == id);
        // A marked file that is not in the plan cannot be filled.
        let is_right = fed.is_some_and(|fed| is_open || fed.feed().is_ok());
        let answer = if is_right {
            AccessAnswer::Allow
        } else {
            AccessAnswer::Fail
        };
        self.answer_now(event, answer);
    }

    fn take_access(&mut self, event: AccessEvent, file: u32) {
        let call = WaitingCall::of(event.thread);
        let is_range_reader = self.readers.has(event.thread);
        let (need, range) = match event.access {
            Access::Open => match AccessNeed::of_open(is_range_reader, call) {
                None => return self.answer_now(event, AccessAnswer::Allow),
                Some(need) => (need, (0, 0)),
            },
            Access::Range { offset, count } => {
                let need = AccessNeed::of_range(count, is_range_reader, call);
                (need, (offset, count))
            }
        };
        let planned = &self.plan.files[file as usize];
        let mut access = PendingAccess::new((event.number, file), planned, need, range);
        access.note_change(&self.map);
        match access.look(&self.plan, &self.map) {
            PendingState::Answer(answer) => self.answer_now(event, answer),
            PendingState::Waits => self.keep(access),
        }
    }

    fn keep(&mut self, mut access: PendingAccess) {
        let wanted = access.wanted();
        // There is room: events are only read then.
        if let Some(slot) = self.table.note(access.number, Some(wanted)) {
            access.slot = slot;
        }
        let units = (wanted.last + 1).saturating_sub(wanted.first);
        self.map.add(MapNumber::Asked, units);
        self.pending.push(access);
    }

    fn answer_now(&self, event: AccessEvent, answer: AccessAnswer) {
        self.answer(event.number, answer);
        close_number(event.number);
    }

    fn answer(&self, number: i32, answer: AccessAnswer) {
        match self.group.answer(number, answer) {
            // The reader was killed.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => {}
            Err(e) => eprintln!("note: could not answer an event: {e}"),
            Ok(()) => {}
        }
    }

    /// Answers what can be answered, asks the worker for the rest, and ends what waited too long.
    fn settle(&mut self) {
        let mut waiting = Vec::new();
        for mut access in std::mem::take(&mut self.pending) {
            match access.look(&self.plan, &self.map) {
                PendingState::Answer(answer) => self.end(access, answer),
                PendingState::Waits if access.is_late(self.patience) => {
                    let path = &self.plan.files[access.file as usize].path.0;
                    let path = fullbore_format::error::quoted(path);
                    eprintln!("note: no content came for {path}: its reader gets an error");
                    self.end(access, AccessAnswer::Fail);
                }
                PendingState::Waits => {
                    self.ask(&mut access);
                    waiting.push(access);
                }
            }
        }
        self.pending.append(&mut waiting);
        for fed in &mut self.fed {
            if let Err(error) = fed.settle() {
                eprintln!("note: could not empty a file: {error}");
            }
        }
    }

    fn ask(&self, access: &mut PendingAccess) {
        for request in access.requests(&self.map, AGAIN) {
            self.worker.send(request);
        }
    }

    fn end(&mut self, access: PendingAccess, answer: AccessAnswer) {
        self.answer(access.number, answer);
        self.table.forget(access.slot);
        if access.is_own {
            close_number(access.number);
        }
    }

    /// Kills a worker that does nothing although somebody waits: another one may do better.
    fn watch_worker(&mut self) {
        let wakes = self.worker.wakes();
        let (before, stalled) = self.progress;
        let since = stalled.filter(|_| wakes == before);
        let since = since.or_else(|| (!self.pending.is_empty()).then(Instant::now));
        self.progress = (wakes, since);
        let Some((patience, since)) = self.patience.zip(since) else {
            return;
        };
        if since.elapsed() > patience * 2 {
            eprintln!("note: the worker makes no progress, and is ended");
            self.worker.kill();
            self.progress.1 = None;
        }
    }

    /// Ends an incomplete restore: nothing of it may look usable afterwards.
    fn stop(mut self) -> Result<()> {
        self.worker.kill();
        for fed in &self.fed {
            let emptied = fed.empty();
            emptied.map_err(|e| Error::io("could not empty a file", e))?;
        }
        if self.plan.head.cluster.is_none() && !self.state.hidden.exists() {
            // A server keeps the group and waits; other readers would be let go, and read zeros.
            for access in std::mem::take(&mut self.pending) {
                self.end(access, AccessAnswer::Fail);
            }
            let renamed = fs::rename(&self.state.target, &self.state.hidden);
            renamed.map_err(|e| self.state.error("hide the target of", e))?;
        }
        let synced = self.map.sync();
        synced.map_err(|e| self.state.error("sync the units in", e))?;
        self.map.set_phase(Phase::Stopped);
        Ok(())
    }

    /// Ends a complete restore: everything is there and durable but what was withheld.
    fn finish(mut self) -> Result<()> {
        self.settle();
        for fed in &self.fed {
            let finished = fed.finish(&self.group);
            finished.map_err(|e| Error::io("could not complete a file of the cluster", e))?;
        }
        let top = self.finish_top();
        top.map_err(|e| Error::io(format!("could not complete {:?}", self.state.target), e))?;
        self.answer_rest()?;
        self.map.set_phase(Phase::Whole);
        self.state.remove()
    }

    fn finish_top(&self) -> io::Result<()> {
        let target = &self.state.target;
        match fs::remove_file(target.join(INCOMPLETE)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let top = open_root(target)?;
        if self.plan.head.cluster.is_none() {
            let (seconds, nanos) = self.plan.head.top_mtime;
            write::set_times_fd(&top, Time { seconds, nanos })?;
        }
        durable::sync_dir(top.as_fd())
    }

    /// Lets everything go on that still waits: no file is marked any more.
    fn answer_rest(&mut self) -> Result<()> {
        for access in std::mem::take(&mut self.pending) {
            self.end(access, AccessAnswer::Allow);
        }
        for orphan in std::mem::take(&mut self.unknown) {
            self.answer(orphan.number, AccessAnswer::Allow);
            self.table.forget(orphan.slot);
        }
        loop {
            let mut waits = [PollFd::new(&self.group, PollFlags::IN)];
            let now = Timespec::default();
            if poll(&mut waits, Some(&now)).unwrap_or(0) == 0 {
                return Ok(());
            }
            let events = self.table.read(&self.group);
            let events = events.map_err(|e| Error::io("could not read events", e))?;
            for event in events {
                self.answer_now(event, AccessAnswer::Allow);
            }
            self.table.settle_read();
        }
    }
}
