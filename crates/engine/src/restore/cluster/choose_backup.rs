//! Chooses the backup that recovery begins with: the last backup of the cluster in a repository
//! from which the server can reach its target.

use crate::restore::request::Restore;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{ClusterInfo, Root},
    text::source_text,
};
use fullbore_postgres::{
    lsn::Lsn,
    restore::{plan::ClusterOptions, recovery},
    timeline::{TimelineFork, Timelines, history_path},
};
use fullbore_repository::archive::small_file::small_file;
use fullbore_repository::{
    archive::Archive,
    open::{is_repository, list_backups, named, open, place},
    select::{BackupFilter, SourceList, check_later},
    wal::WalNeeds,
};
use fullbore_storage::Objects;
use jiff::Timestamp;
use std::sync::Arc;

/// Opens the chosen backup, for a restore `in_place` over an existing tree or not; without a
/// target, or with a named backup, the backup that FROM means.
///
/// # Errors
/// As [`choose_of_cluster`] and [`open`].
pub(crate) fn open_chosen(restore: &Restore, in_place: bool) -> Result<Archive> {
    match choose_of_cluster(restore, in_place)? {
        Some(archive) => Ok(archive),
        None => open(&restore.storages, &restore.from, &restore.filter),
    }
}

/// Chooses the backup of a cluster in a repository, if an option asks for a cluster and no backup
/// is named. If every backup ended after the target, the first is opened, and its plan reports it.
///
/// # Errors
/// [`ErrorKind::Usage`] if the cluster is ambiguous; as [`open`].
pub(crate) fn choose_of_cluster(restore: &Restore, in_place: bool) -> Result<Option<Archive>> {
    if !is_repository(&restore.from) || restore.postgres == ClusterOptions::default() {
        return Ok(None);
    }
    let repository = restore.storages.repository_at(&restore.from)?;
    let recovery = &restore.postgres.recovery;
    let mut all = ClusterBackups::all(&repository, &restore.filter)?;
    let Some((newest, cluster)) = all.members().next_back() else {
        return Ok(None);
    };
    let id = newest.id.clone();
    let system_identifier = cluster.system_identifier.clone();
    let count = all.backups.len();
    let mut sources = SourceList::default();
    all.backups.iter().for_each(|root| sources.add(root));
    all.retain_cluster(&system_identifier);
    let is_one = all.backups.len() == count;
    // The servers of one cluster share one history, so recovery can choose among their backups. In
    // place, one server must not replace another without being named.
    if in_place || !(recovery.selects_backup() && is_one) {
        restore.filter.must_be_one(&sources, &repository)?;
    }
    if recovery.selects_backup() && !is_one {
        let message = format!(
            "cannot tell which cluster is meant: {:?} has backups of several clusters",
            restore.from
        );
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("name a backup: @ID; `fullbore list` shows them"));
    }
    check_later(&repository, &id)?;
    let id = match all.choose(recovery) {
        Some(chosen) => all.check_single_history(chosen)?,
        None => id,
    };
    let chosen = named(&restore.from, &id);
    open(&restore.storages, chosen, &BackupFilter::default()).map(Some)
}

/// The backups of clusters in a repository, oldest first; mostly of one cluster. Unreadable backups
/// are left out.
pub(crate) struct ClusterBackups {
    repository: Arc<dyn Objects>,
    backups: Vec<Root>,
}

impl ClusterBackups {
    /// Returns the backups of the restored cluster; `None` if it does not come from a repository.
    pub(crate) fn of_cluster(restore: &Restore, cluster: &ClusterInfo) -> Option<Self> {
        let (location, _) = place(&restore.from).ok()?;
        let repository = restore.storages.objects(&location).ok()?;
        let mut backups = Self::all(&repository, &BackupFilter::default()).ok()?;
        backups.retain_cluster(&cluster.system_identifier);
        Some(backups)
    }

    fn all(repository: &Arc<dyn Objects>, filter: &BackupFilter) -> Result<Self> {
        let roots = list_backups(repository)?.filter_map(|(_, root)| root.ok());
        let clusters = roots.filter(|root| root.postgres.is_some());
        let selected = clusters
            .filter_map(|mut root| filter.selects_in(repository, &mut root).then_some(root));
        Ok(Self {
            repository: repository.clone(),
            backups: selected.collect(),
        })
    }

    /// Returns what each backup needs of the WAL.
    pub(crate) fn wal_needs(&self) -> impl Iterator<Item = WalNeeds> {
        self.backups.iter().filter_map(WalNeeds::of)
    }

    /// Keeps the backups of one cluster.
    fn retain_cluster(&mut self, system_identifier: &str) {
        let is_member = |root: &Root| {
            root.postgres
                .as_ref()
                .map(|cluster| cluster.system_identifier == system_identifier)
        };
        self.backups.retain(|root| is_member(root) == Some(true));
    }

    /// The backups with their cluster's facts.
    fn members(&self) -> impl DoubleEndedIterator<Item = (&Root, &ClusterInfo)> + Clone {
        self.backups
            .iter()
            .filter_map(|root| Some((root, root.postgres.as_ref()?)))
    }

    /// The backups of primaries on a timeline. A standby's backup is left out: it may lag behind.
    fn of_primaries(
        &self,
        timeline: u32,
    ) -> impl DoubleEndedIterator<Item = (&Root, &ClusterInfo)> {
        self.members()
            .filter(move |(_, cluster)| cluster.timeline == timeline && !cluster.standby)
    }

    /// Returns the backup that recovery begins with; `None` if any backup fits.
    fn choose(&self, recovery: &recovery::RecoveryOptions) -> Option<&Root> {
        if !recovery.selects_backup() {
            return None;
        }
        let way = self.wanted_history(recovery);
        let mut on_way = self
            .members()
            .filter(|(_, cluster)| leads_to_target(cluster, way.as_ref()));
        let can = |(root, cluster): &(&Root, &ClusterInfo)| {
            recovery.can_begin_with(cluster, root.captured_at())
        };
        let found = on_way.clone().rfind(can).or_else(|| on_way.next());
        found.map(|(root, _)| root)
    }

    /// Returns the ID of the chosen backup, after checking that no two diverged servers wrote its
    /// timeline: a copy that continued, or a server after a reset.
    ///
    /// WAL of one history, replayed on a backup of the other, silently leads to a state that never
    /// existed.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if two histories are found.
    fn check_single_history(&self, chosen: &Root) -> Result<String> {
        let timeline = chosen
            .postgres
            .as_ref()
            .map_or(0, |cluster| cluster.timeline);
        let all: Vec<_> = self.of_primaries(timeline).collect();
        let Some((one, other, why)) = (0..all.len())
            .rev()
            .find_map(|index| diverged_histories(all[index], &all[..index]))
        else {
            return Ok(chosen.id.clone());
        };
        let message = format!(
            "cannot choose a backup: {other} and {one} are from diverged histories of this cluster"
        );
        let why = format!("both are of timeline {timeline}, and {why}");
        let best = format!(
            "the last backup that may reach the target is @{}, of {}",
            chosen.id,
            source_text(&chosen.source)
        );
        Err(Error::new(ErrorKind::Usage, message)
            .because(why)
            .hint(format!(
                "name a backup, or forget those of the abandoned history; {best}"
            )))
    }

    /// Returns the timeline that recovery ends on, with its history; `None` if every backup's
    /// timeline leads there, as far as is known.
    fn wanted_history(&self, recovery: &recovery::RecoveryOptions) -> Option<(u32, Timelines)> {
        let timelines = || self.members().map(|(_, cluster)| cluster.timeline);
        let wanted = recovery.wanted_timeline(timelines())?;
        if timelines().all(|timeline| timeline == wanted) {
            return None;
        }
        let (root, _) = self
            .members()
            .rfind(|(_, cluster)| cluster.timeline == wanted)?;
        let archive = Archive::open_backup(&self.repository, &root.id).ok()?;
        let (_, history) = small_file(&archive, history_path(wanted).as_bytes()).ok()??;
        let timelines = Timelines::parse(&String::from_utf8_lossy(&history), wanted)?;
        Some((wanted, timelines))
    }

    /// Returns how a backup of this cluster fails to reach the wanted timeline, if it is known to
    /// fail.
    pub(crate) fn fork(&self, restore: &Restore, cluster: &ClusterInfo) -> Option<TimelineFork> {
        let (timeline, way) = self.wanted_history(&restore.postgres.recovery)?;
        if continues_from_backup(&way, cluster)? {
            return None;
        }
        let (newest, _) = self
            .members()
            .rfind(|(_, other)| continues_from_backup(&way, other) == Some(true))?;
        Some(TimelineFork {
            timeline,
            left: way.departure_from(cluster.timeline),
            newest: newest.id.clone(),
        })
    }

    /// Returns a note if the chosen backup comes from another server than the earlier backups of
    /// its timeline: a server that was moved, or a copy.
    pub(crate) fn other_server_note(
        &self,
        restore: &Restore,
        root: &Root,
        cluster: &ClusterInfo,
    ) -> Option<String> {
        let previous = self
            .of_primaries(cluster.timeline)
            .rfind(|(previous, _)| previous.id < root.id);
        let (previous, _) = previous.filter(|(previous, _)| previous.source != root.source)?;
        if !was_chosen(restore) || cluster.standby {
            return None;
        }
        let this = source_text(&root.source);
        let other = source_text(&previous.source);
        let is = &root.id;
        let was = &previous.id;
        Some(format!(
            "backup {is} is of {this}, and the earlier backup {was} is of {other}: unless that is \
                the same server, and it moved, name a backup"
        ))
    }

    /// Returns a note if the server continues on the timeline of later backups as if they did not
    /// exist.
    pub(crate) fn later_backups_note(&self, root: &Root, cluster: &ClusterInfo) -> Option<String> {
        let is_later = |(other, facts): &(&Root, &ClusterInfo)| {
            other.id > root.id && facts.timeline == cluster.timeline
        };
        let (later, _) = self.members().rfind(is_later)?;
        Some(format!(
            "the server will continue on timeline {} as if no later backup existed, and the last \
                of them is {}: if it replaces the original server, forget the later backups, as \
                recovery could begin with one; --target-immediate --target-action \
             promote begins a timeline of its own",
            cluster.timeline, later.id
        ))
    }

    /// Returns a note if the chosen backup is not the last one.
    pub(crate) fn choice_note(&self, restore: &Restore, root: &Root) -> Option<String> {
        let recovery = &restore.postgres.recovery;
        if !was_chosen(restore) || self.backups.last().is_none_or(|last| last.id <= root.id) {
            return None;
        }
        let id = &root.id;
        if recovery.needs_specific_backup() {
            return Some(format!(
                "backup {id} is the last one that can be recovered to the target"
            ));
        }
        let timeline =
            recovery.wanted_timeline(self.members().map(|(_, cluster)| cluster.timeline))?;
        let why = "later ones are of a timeline that was abandoned before they ended";
        Some(format!(
            "backup {id} is the last one that can reach timeline {timeline}; {why}; @ID selects \
                one of them"
        ))
    }
}

/// If it is unknown whether a backup reaches the timeline, it does not count.
fn leads_to_target(cluster: &ClusterInfo, way: Option<&(u32, Timelines)>) -> bool {
    way.is_none_or(|(_, way)| continues_from_backup(way, cluster).unwrap_or(false))
}

/// Returns whether fullbore chose the backup, because FROM names no backup and recovery has a
/// target.
fn was_chosen(restore: &Restore) -> bool {
    is_repository(&restore.from) && restore.postgres.recovery.selects_backup()
}

/// Returns a backup and an earlier one of its timeline that prove two histories, with the reason.
fn diverged_histories<'a>(
    (root, cluster): (&'a Root, &ClusterInfo),
    earlier: &[(&'a Root, &ClusterInfo)],
) -> Option<(&'a str, &'a str, &'static str)> {
    let last_where = |holds: &dyn Fn(&Root, &ClusterInfo) -> bool| {
        earlier
            .iter()
            .rev()
            .find(|(root, facts)| holds(root, facts))
    };
    if let Some((before, _)) =
        last_where(&|before, facts| starts_before_end_of(root, cluster, before, facts))
    {
        return Some((
            &root.id,
            &before.id,
            "the second began at a WAL location that the first had passed before",
        ));
    }
    let (before, _) = earlier
        .last()
        .filter(|(before, _)| before.source != root.source)?;
    last_where(&|before, _| before.source == root.source)?;
    Some((&root.id, &before.id, "two servers were backed up in turn"))
}

/// Returns whether a backup begins before the end of an earlier one that was complete by then.
fn starts_before_end_of(
    root: &Root,
    cluster: &ClusterInfo,
    before: &Root,
    earlier: &ClusterInfo,
) -> bool {
    let place = |text: &str| text.parse::<Lsn>().ok();
    let begin = place(&cluster.start_lsn).or_else(|| place(&cluster.stop_lsn));
    let time = |text: &str| text.parse::<Timestamp>().ok();
    let was_over = time(&before.finished)
        .zip(time(&root.time))
        .is_some_and(|(end, begin)| end < begin);
    was_over
        && begin
            .zip(place(&earlier.stop_lsn))
            .is_some_and(|(begin, end)| begin < end)
}

/// Returns whether the timelines continue from the end of a backup of this cluster; `None` if
/// unknown.
fn continues_from_backup(way: &Timelines, cluster: &ClusterInfo) -> Option<bool> {
    let stop: Option<Lsn> = cluster.stop_lsn.parse().ok();
    let is_last = way.continues_from(cluster.timeline, Lsn(u64::MAX));
    if is_last {
        Some(true)
    } else {
        stop.map(|stop| way.continues_from(cluster.timeline, stop))
    }
}
