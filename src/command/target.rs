//! The backup that recovery to a point begins with: of a repository the last one of the cluster that ended before it.

use super::{cluster::content, restore::Restore};
use crate::{
    error::{Error, Kind, Result},
    format::root::{Cluster, Root},
    postgres::{
        lsn::Lsn,
        restore::Options,
        timeline::{Timelines, history_of},
    },
    repo::open::{backup_ids, is_repository, list_backups, open},
    source::archive::Archive,
};
use std::path::Path;

/// Open it; without such a target, or if a backup is named, what FROM means.
///
/// # Errors
/// As [`open`]; [`Kind::Usage`] if it cannot be told which cluster is meant. If all ended later it is the last one, and what is planned with it says so.
pub(super) fn opened(restore: &Restore) -> Result<Archive> {
    early_enough(restore, open(&restore.from)?)
}

/// The same, if `last` is what FROM means.
///
/// # Errors
/// As [`open`].
pub(super) fn early_enough(restore: &Restore, last: Archive) -> Result<Archive> {
    let recovery = &restore.postgres.recovery;
    if !is_repository(&restore.from) || restore.postgres == Options::default() {
        return Ok(last);
    }
    let named = |id: &str| open(&format!("{}@{id}", restore.from));
    let all: Vec<_> = list_backups(Path::new(&restore.from))?.collect();
    let clusters = || all.iter().filter_map(|(id, root)| Some((id, root.as_ref().ok()?.postgres.as_ref()?)));
    let Some((id, cluster)) = clusters().next_back() else { return Ok(last) };
    let is_last = *id == last.root.id;
    if (recovery.is_choosy() || !is_last)
        && clusters().any(|(_, other)| other.system_identifier != cluster.system_identifier)
    {
        let what = format!("cannot tell which cluster is meant: {:?} has backups of several", restore.from);
        return Err(Error::new(Kind::Usage, what).hint("name a backup: @ID; `fullbore list` shows them"));
    }
    let last = if is_last { last } else { named(id)? };
    if !recovery.is_choosy() {
        return Ok(last);
    }
    let of_it = all.iter().filter_map(|(id, root)| {
        let root = root.as_ref().ok()?;
        let other = root.postgres.as_ref()?;
        (other.system_identifier == cluster.system_identifier).then_some((id, root, other))
    });
    let of_it: Vec<_> = of_it.collect();
    let way = match recovery.wanted_timeline(of_it.iter().map(|(.., other)| other.timeline)) {
        Some(timeline) => {
            let of_that = of_it.iter().rfind(|(.., other)| other.timeline == timeline);
            of_that.and_then(|(id, ..)| way_to(&named(id).ok()?, timeline))
        }
        None => None,
    };
    let may = |(_, root, other): &&(&String, &Root, &Cluster)| {
        // Of one of which it is not known nobody can tell whether a timeline leads on from there.
        let stop = other.stop_lsn.parse().unwrap_or(Lsn(u64::MAX));
        recovery.can_begin_with(other, root.captured())
            && way.as_ref().is_none_or(|way| way.leads_on(other.timeline, stop))
    };
    match of_it.iter().rfind(may) {
        Some((id, ..)) if **id != last.root.id => named(id),
        _ => Ok(last),
    }
}

/// The timelines on the way to one, as a backup of that has them.
fn way_to(archive: &Archive, timeline: u32) -> Option<Timelines> {
    let (_, history) = content(archive, history_of(timeline).as_bytes()).ok()??;
    Timelines::of(&String::from_utf8_lossy(&history), timeline)
}

/// What is to be said where it is not the last one.
pub(super) fn note(restore: &Restore, root: &Root) -> Option<String> {
    let ids = if is_repository(&restore.from) { backup_ids(Path::new(&restore.from)).ok()? } else { Vec::new() };
    let is_earlier = ids.last().is_some_and(|last| *last > root.id) && restore.postgres.recovery.is_choosy();
    is_earlier.then(|| format!("backup {} is the last one that can be recovered to the target", root.id))
}
