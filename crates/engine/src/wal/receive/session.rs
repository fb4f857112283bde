//! One connection: where to begin, the streams of its timelines, and gaps.

use super::{
    ReceiveEvent, WalReceive,
    line::ServerLine,
    open_segment::{FinishedSegment, OpenSegment},
    segment_store::{SegmentStore, store_segment},
    stream::{ReceiveCounts, Receiving},
};
use crate::wal::{
    SystemWal,
    push::{begun_before, system_name},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
    wal::{SegmentName, WalFileName},
};
use fullbore_platform::{debug, host_name};
use fullbore_postgres::{
    lsn::Lsn,
    replication::{ReplicationClient, ServerIdentity},
    timeline::Timelines,
};
use fullbore_repository::{
    open::read_repository,
    wal::{AcceptedGap, WalArchive},
};
use fullbore_storage::Storages;
use jiff::Timestamp;
use std::collections::BTreeSet;

/// What earlier connections have said about the server.
#[derive(Debug, Default)]
pub(super) struct KnownServer {
    system: Option<String>,
    timeline: u32,
    counts: ReceiveCounts,
}

impl KnownServer {
    /// Returns whether a server has answered.
    pub(super) fn is_known(&self) -> bool {
        self.system.is_some()
    }

    /// # Errors
    /// [`ErrorKind::Usage`] for another cluster; [`ErrorKind::Unreachable`] for a server that a failover has left behind.
    fn check(&mut self, identity: &ServerIdentity) -> Result<()> {
        let system = self
            .system
            .get_or_insert(identity.system_identifier.clone());
        if *system != identity.system_identifier {
            let message = "cannot go on: another cluster answers now";
            let why = format!("its system identifier is {}", identity.system_identifier);
            return Err(Error::new(ErrorKind::Usage, message).because(why));
        }
        if identity.timeline < self.timeline {
            let (old, new) = (identity.timeline, self.timeline);
            let message = format!("cannot go on from this server: it is on timeline {old}");
            return Err(Error::new(ErrorKind::Unreachable, message)
                .because(format!("timeline {new} was received before")));
        }
        self.timeline = identity.timeline;
        Ok(())
    }
}

/// A connection, and what is received by it.
struct ReceiveSession<'a> {
    plan: &'a WalReceive,
    client: ReplicationClient,
    identity: ServerIdentity,
    segment_bytes: u64,
    archive: WalArchive,
    line: ServerLine,
    /// The place from which the server keeps WAL for the slot.
    kept: Option<Lsn>,
}

/// Connects and receives. Returns after a gap was noted: the next session begins behind it.
///
/// # Errors
/// As [`WalReceive::run`]; [`ErrorKind::Unreachable`] if the server or the storage is away.
pub(super) fn run(
    plan: &WalReceive,
    storages: &Storages,
    known: &mut KnownServer,
    tell: &mut dyn FnMut(ReceiveEvent<'_>),
) -> Result<()> {
    let mut client =
        ReplicationClient::connect(&plan.server).map_err(|error| with_role(plan, error))?;
    let identity = client.identify()?;
    known.check(&identity)?;
    let segment_bytes = client.segment_bytes()?;
    let objects = storages.repository_at(&plan.to)?;
    read_repository(&*objects)?;
    let answers_late = objects.answers_late();
    let system: u64 = identity.system_identifier.parse().unwrap_or_default();
    let archive = WalArchive::new(objects, &system_name(system, plan.copy_name.as_deref()));
    let timelines = timelines(&mut client, &archive, identity.timeline)?;
    let kept = slot_place(plan, &mut client)?;
    let mut session = ReceiveSession {
        plan,
        line: ServerLine::new(timelines, segment_bytes),
        client,
        identity,
        segment_bytes,
        archive,
        kept,
    };
    let first = session.first()?;
    tell(ReceiveEvent::Begun {
        system: session.archive.system(),
        timeline: first.timeline,
        from: Lsn(first.start(segment_bytes)),
        answers_late,
    });
    session.receive(first, system, known, tell)
}

/// Adds the role that a server refused.
fn with_role(plan: &WalReceive, error: Error) -> Error {
    match error.kind {
        ErrorKind::Permission => error.detail(format!("the role is {:?}", plan.server.user)),
        _ => error,
    }
}

/// Stores the history of the server's timeline, and returns the timelines that lead to it.
fn timelines(
    client: &mut ReplicationClient,
    archive: &WalArchive,
    timeline: u32,
) -> Result<Timelines> {
    let history = match timeline {
        1 => Vec::new(),
        _ => store_history(client, archive, timeline)?,
    };
    let text = String::from_utf8_lossy(&history);
    Timelines::parse(&text, timeline).ok_or_else(|| {
        let message = format!("cannot read the history of timeline {timeline}");
        Error::new(ErrorKind::Unsupported, message)
    })
}

fn store_history(
    client: &mut ReplicationClient,
    archive: &WalArchive,
    timeline: u32,
) -> Result<Vec<u8>> {
    let history = client.timeline_history(timeline)?;
    let others = archive.put_small(WalFileName::History(timeline), &history)?;
    match others.is_empty() {
        true => Ok(history),
        false => Err(begun_before(archive, timeline, &history, &others)),
    }
}

/// Returns the place from which the server keeps WAL for the slot, if it says so.
fn slot_place(plan: &WalReceive, client: &mut ReplicationClient) -> Result<Option<Lsn>> {
    let has_slots = client.can_read_slots();
    match client.slot(&plan.slot)? {
        Some(state) if state.restart.is_some() => return Ok(state.restart),
        // It was never used, or has lost its WAL.
        Some(_) if plan.creates_slot && plan.accepts_gap => client.drop_slot(&plan.slot)?,
        Some(_) => return Ok(None),
        None if plan.creates_slot => {}
        None if has_slots => {
            let message = format!(
                "cannot receive WAL: there is no replication slot {:?}",
                plan.slot
            );
            return Err(
                Error::new(ErrorKind::NotFound, message).hint("--create-slot makes the slot")
            );
        }
        None => return Ok(None),
    }
    client.create_slot(&plan.slot)?;
    Ok(client.slot(&plan.slot)?.and_then(|state| state.restart))
}

impl ReceiveSession<'_> {
    /// Returns the first segment to receive, after whole segments that a killed receiver left in pieces were put together.
    fn first(&mut self) -> Result<SegmentName> {
        let wal = SystemWal::load(self.archive.clone(), Some(self.segment_bytes))?;
        let mut whole = wal.listing.segments();
        for segment in wal.whole_tails() {
            if self.join_pieces(&wal, segment)? {
                whole.insert(segment);
            }
        }
        self.delete_left_pieces(&wal, &whole);
        let missing = self.line.first_missing(&wal, self.kept);
        let server_end = self.identity.lsn;
        let begin = self.kept.unwrap_or(server_end);
        let first = missing.unwrap_or_else(|| self.line.segment_at(begin));
        let place = Lsn(first.start(self.segment_bytes));
        if place <= server_end {
            return Ok(first);
        }
        let message = format!("could not go on: the WAL of the server ends at {server_end}");
        Err(Error::new(ErrorKind::Unreachable, message)
            .because(format!("the repository has it up to {place}"))
            .hint("a standby that lags gets there; a copy of the cluster needs --as NAME"))
    }

    /// Returns false if this host may not read: then the pieces stay, and readers take them as the segment.
    fn join_pieces(&self, wal: &SystemWal, name: SegmentName) -> Result<bool> {
        let content = match wal.read_tail(name) {
            Err(error) if error.kind == ErrorKind::Permission => return Ok(false),
            content => content?,
        };
        let Some(content) = content else {
            return Ok(false);
        };
        let segment = FinishedSegment {
            name,
            segment_bytes: self.segment_bytes,
            content,
            pieces: Vec::new(),
        };
        store_segment(&self.archive, &segment, self.plan.level)?;
        Ok(true)
    }

    /// Deletes pieces of segments that a run has, if this host may: those that a receiver left that was killed.
    fn delete_left_pieces(&self, wal: &SystemWal, whole: &BTreeSet<SegmentName>) {
        let pieces = wal.listing.pieces.iter().map(|stored| &stored.piece);
        let left = pieces
            .filter(|piece| whole.contains(&piece.segment))
            .cloned();
        if let Err(error) = self.archive.delete_pieces(&left.collect::<Vec<_>>()) {
            debug(|| error.line());
        }
    }

    fn receive(
        &mut self,
        first: SegmentName,
        system: u64,
        known: &mut KnownServer,
        tell: &mut dyn FnMut(ReceiveEvent<'_>),
    ) -> Result<()> {
        let store = SegmentStore::start(self.archive.clone(), self.plan.level)?;
        let mut segment = first;
        loop {
            let mut receiving = Receiving::new(
                self.plan,
                &self.archive,
                &store,
                tell,
                &mut known.counts,
                OpenSegment::new(segment, self.segment_bytes, system),
            );
            let place = Lsn(segment.start(self.segment_bytes));
            let stream = self
                .client
                .stream(Some(&self.plan.slot), place, segment.timeline);
            let ended = stream.and_then(|mut stream| receiving.run(&mut stream));
            let reached = receiving.open.name;
            let end = match ended {
                Err(error) if error.kind == ErrorKind::Gone => {
                    return self.skip(reached, error, tell);
                }
                ended => ended?,
            };
            let next = SegmentName::at(end.next, end.at.0, self.segment_bytes);
            if end.next <= segment.timeline || end.at < place {
                let message = format!("cannot follow the server to timeline {}", end.next);
                return Err(Error::new(ErrorKind::Unsupported, message).because(format!(
                    "it left timeline {} at {}",
                    segment.timeline, end.at
                )));
            }
            // Before the first segment of the timeline: recovery finds the way by the history.
            store_history(&mut self.client, &self.archive, end.next)?;
            known.timeline = known.timeline.max(end.next);
            segment = next;
            tell(ReceiveEvent::Begun {
                system: self.archive.system(),
                timeline: segment.timeline,
                from: end.at,
                answers_late: false,
            });
        }
    }

    /// Goes on behind WAL that the server has removed, if the operator accepts that.
    fn skip(
        &self,
        from: SegmentName,
        error: Error,
        tell: &mut dyn FnMut(ReceiveEvent<'_>),
    ) -> Result<()> {
        let first = from.index(self.segment_bytes);
        let index_of = |place: Lsn| place.0 / self.segment_bytes;
        let kept = self.kept.filter(|kept| index_of(*kept) > first);
        let next = index_of(kept.unwrap_or(self.identity.lsn));
        if next <= first {
            return Err(self.lost_slot(error));
        }
        let last = Lsn((next - 1).saturating_mul(self.segment_bytes));
        let last_segment = self.line.segment_at(last);
        if !self.plan.accepts_gap {
            return Err(self.gap(from, last_segment, next - first, error));
        }
        let note = AcceptedGap {
            host: host_name(),
            accepted: Timestamp::now().as_second(),
            reason: error.line(),
        };
        self.archive.accept_gap(from, last_segment, &note)?;
        tell(ReceiveEvent::Skipped(from, last_segment));
        Ok(())
    }

    /// The server keeps nothing for the slot, and has not written a segment since.
    fn lost_slot(&self, error: Error) -> Error {
        let slot = &self.plan.slot;
        error.hint(format!(
            "remove the slot with `select pg_drop_replication_slot('{slot}')`, and begin with --create-slot; with --accept-gap too, it is \
             made anew by itself"
        ))
    }

    fn gap(&self, from: SegmentName, to: SegmentName, count: u64, error: Error) -> Error {
        let bytes = text::bytes(count.saturating_mul(self.segment_bytes));
        let message = format!(
            "cannot receive {from} to {to}: the server has removed this WAL, and the repository lacks it"
        );
        let gap = Error::new(ErrorKind::Gone, message)
            .detail(format!(
                "the gap has {}, {bytes}",
                text::counted(count, "segment")
            ))
            .detail(error.line());
        let slot = &self.plan.slot;
        gap.hint(format!(
            "--accept-gap notes it and goes on behind it (with --create-slot if slot {slot:?} was lost); make a new backup then; a larger \
             max_slot_wal_keep_size lets the server keep more for a slot"
        ))
    }
}
