//! Compares segments that were pushed with those of the same name that are there.
//!
//! Every push lists after it has stored: of two that store other content under one name, at least one sees the other.

use super::system::StoredBy;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::{SegmentName, WalRun},
};
use fullbore_platform::{debug, host_name};
use fullbore_postgres::{lsn::Lsn, wal_archive::first_difference};
use fullbore_repository::wal::{StoredRun, WalArchive};
use std::collections::BTreeMap;

/// A segment of which the repository has other content.
#[derive(Debug, Clone)]
pub(super) struct WalConflict {
    segment: SegmentName,
    /// Who stored the other content, if that can be read.
    other: Option<StoredBy>,
    /// The first record that differs, if both contents can be read.
    difference: Option<Lsn>,
    key: String,
}

impl WalConflict {
    /// The error of a push.
    pub(super) fn error(&self, archive: &WalArchive) -> Error {
        let (segment, system) = (self.segment, archive.system());
        let message = format!(
            "cannot archive {segment} of system {system}: other content of this name is there"
        );
        let reason = match &self.other {
            Some(other) => format!(
                "host {other} stored it, and this is {:?}: two servers write one timeline",
                host_name()
            ),
            None => format!(
                "another server wrote it, and this is {:?}: two servers write one timeline",
                host_name()
            ),
        };
        let error = Error::new(ErrorKind::Exists, message).because(reason);
        let error = match self.difference {
            Some(at) => error.detail(format!("the first difference is at {at}")),
            None => error,
        };
        error
            .detail(format!("both are kept; the other one is {}", archive.describe(&self.key)))
            .hint("stop the server that should not write; a copy of a cluster archives with --as NAME")
    }
}

/// Returns the conflicts of segments that were stored in `own`, whose digests are `digests`. `here` gives the content of a
/// segment, if it is on this host.
///
/// # Errors
/// The storage's.
pub(super) fn conflicts(
    archive: &WalArchive,
    here: &dyn Fn(SegmentName) -> Option<Vec<u8>>,
    own: &WalRun,
    digests: &BTreeMap<SegmentName, [u8; 32]>,
) -> Result<Vec<WalConflict>> {
    if own.is_partial {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for stored in archive.runs_beside(own.first)? {
        let is_beside = stored.run != *own && !stored.run.is_partial;
        if is_beside && stored.run.segments().any(|segment| own.covers(segment)) {
            compare(archive, here, &stored, digests, &mut found)?;
        }
    }
    Ok(found)
}

fn compare(
    archive: &WalArchive,
    here: &dyn Fn(SegmentName) -> Option<Vec<u8>>,
    stored: &StoredRun,
    digests: &BTreeMap<SegmentName, [u8; 32]>,
    found: &mut Vec<WalConflict>,
) -> Result<()> {
    let index = match archive.index(stored) {
        Err(error) if error.kind == ErrorKind::Permission => {
            return compare_unread(archive, here, stored, digests, found);
        }
        // A prune may have deleted it meanwhile, and `wal check` names damage: neither is a reason to keep WAL on the server.
        Err(error) if error.kind.is_loss() => {
            debug(|| error.line());
            return Ok(());
        }
        index => index?,
    };
    for (segment, member) in stored.run.segments().zip(&index.members) {
        let differs = digests
            .get(&segment)
            .is_some_and(|own| *own != member.digest);
        if !differs {
            continue;
        }
        let Compared::Differs(difference) = compare_records(archive, here, stored, segment)? else {
            continue;
        };
        found.push(WalConflict {
            segment,
            other: Some(StoredBy::of(&index)),
            difference,
            key: stored.run.to_string(),
        });
    }
    Ok(())
}

/// The records of two contents of a segment.
enum Compared {
    /// All are the same: the bytes differ behind them only.
    Same,
    /// The first that differs, if both contents can be read.
    Differs(Option<Lsn>),
}

fn compare_records(
    archive: &WalArchive,
    here: &dyn Fn(SegmentName) -> Option<Vec<u8>>,
    stored: &StoredRun,
    segment: SegmentName,
) -> Result<Compared> {
    let Some(own) = here(segment) else {
        return Ok(Compared::Differs(None));
    };
    let other = match archive.segment_of(stored, segment) {
        Err(error) if error.kind.is_loss() => return Ok(Compared::Differs(None)),
        other => other?,
    };
    Ok(match first_difference(&own, &other) {
        Some(at) => Compared::Differs(Some(at)),
        None => {
            debug(|| {
                format!(
                    "{segment} is there with other bytes behind the same records: {}",
                    stored.run
                )
            });
            Compared::Same
        }
    })
}

/// Compares with a run that this host cannot read, by the digest that its key would have if the content were the same. Without all
/// of its segments there is no answer, and `wal check` with a key gives it later.
fn compare_unread(
    archive: &WalArchive,
    here: &dyn Fn(SegmentName) -> Option<Vec<u8>>,
    stored: &StoredRun,
    digests: &BTreeMap<SegmentName, [u8; 32]>,
    found: &mut Vec<WalConflict>,
) -> Result<()> {
    let mut all = BTreeMap::new();
    for segment in stored.run.segments() {
        let known = digests.get(&segment).copied();
        let digest =
            known.or_else(|| here(segment).map(|content| *blake3::hash(&content).as_bytes()));
        let Some(digest) = digest else {
            debug(|| {
                format!(
                    "{} was not compared: {segment} is not here any more",
                    stored.run
                )
            });
            return Ok(());
        };
        all.insert(segment, digest);
    }
    let members = all.iter().map(|(segment, digest)| (*segment, digest));
    let digest = archive.digester().of_run(archive.system(), members, false);
    if digest != stored.run.digest {
        let segment = all
            .keys()
            .copied()
            .find(|segment| digests.contains_key(segment));
        found.extend(segment.map(|segment| WalConflict {
            segment,
            other: None,
            difference: None,
            key: stored.run.to_string(),
        }));
    }
    Ok(())
}

/// Returns the segments that have a conflict.
pub(super) fn has_conflict(conflicts: &[WalConflict], segment: SegmentName) -> bool {
    conflicts.iter().any(|conflict| conflict.segment == segment)
}

/// Returns the conflict of this segment.
pub(super) fn conflict_of(conflicts: &[WalConflict], segment: SegmentName) -> Option<&WalConflict> {
    conflicts
        .iter()
        .find(|conflict| conflict.segment == segment)
}
