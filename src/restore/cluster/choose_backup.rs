//! The backup that recovery begins with: of a repository the last one of the cluster from which the server comes to where it is to.

use crate::archive::small_file::small_file;
use crate::{
    archive::Archive,
    error::{Error, ErrorKind, Result},
    format::root::{ClusterInfo, Root},
    postgres::{
        lsn::Lsn,
        restore::{plan::ClusterOptions, recovery},
        timeline::{TimelineFork, Timelines, history_of},
    },
    repo::{
        open::{is_repository, list_backups, named, open, place},
        select::{BackupFilter, SourceList, check_later},
    },
    restore::Restore,
    text::source_text,
};
use jiff::Timestamp;
use std::path::{Path, PathBuf};

/// Opens it, for a restore `in_place` over a tree that is there or not; if nothing is recovered to, or a backup is named, the backup that FROM means.
///
/// # Errors
/// As [`of_cluster`] and [`open`].
pub(crate) fn opened(restore: &Restore, in_place: bool) -> Result<Archive> {
    match of_cluster(restore, in_place)? {
        Some(archive) => Ok(archive),
        None => open(&restore.from, &restore.filter),
    }
}

/// The backup of a cluster in a repository, if an option asks for a cluster and no backup is named. If all ended later than the
/// target it is the first one, and what is planned with it says so.
///
/// # Errors
/// [`ErrorKind::Usage`] if it is not clear which cluster is meant; as [`open`].
pub(crate) fn of_cluster(restore: &Restore, in_place: bool) -> Result<Option<Archive>> {
    if !is_repository(&restore.from) || restore.postgres == ClusterOptions::default() {
        return Ok(None);
    }
    let (repository, recovery) = (Path::new(&restore.from), &restore.postgres.recovery);
    let mut all = ClusterBackups::all(repository, &restore.filter)?;
    let Some((newest, cluster)) = all.members().next_back() else {
        return Ok(None);
    };
    let (id, system_identifier) = (newest.id.clone(), cluster.system_identifier.clone());
    let count = all.backups.len();
    let mut sources = SourceList::default();
    all.backups.iter().for_each(|root| sources.add(root));
    all.retain(&system_identifier);
    let is_one = all.backups.len() == count;
    // Servers of one cluster have one history, in which recovery finds its way; but no server takes the place of another unasked.
    if in_place || !(recovery.chooses() && is_one) {
        restore.filter.must_be_one(&sources, repository)?;
    }
    if recovery.chooses() && !is_one {
        let what = format!(
            "cannot tell which cluster is meant: {:?} has backups of several",
            restore.from
        );
        return Err(Error::new(ErrorKind::Usage, what)
            .hint("name a backup: @ID; `fullbore list` shows them"));
    }
    check_later(repository, &id)?;
    let id = match all.beginning(recovery) {
        Some(chosen) => all.must_be_of_one_past(chosen)?,
        None => id,
    };
    open(named(&restore.from, &id), &BackupFilter::default()).map(Some)
}

/// The backups of clusters in a repository, oldest first; mostly of one. What cannot be read is not among them.
pub(crate) struct ClusterBackups {
    repository: PathBuf,
    backups: Vec<Root>,
}

impl ClusterBackups {
    /// Those of the cluster that is restored; `None` if it does not come from a repository.
    pub(crate) fn of(restore: &Restore, cluster: &ClusterInfo) -> Option<Self> {
        let (repository, _) = place(&restore.from).ok()?;
        let mut kin = Self::all(&repository, &BackupFilter::default()).ok()?;
        kin.retain(&cluster.system_identifier);
        Some(kin)
    }

    fn all(repository: &Path, filter: &BackupFilter) -> Result<Self> {
        let roots = list_backups(repository)?.filter_map(|(_, root)| root.ok());
        let clusters = roots.filter(|root| root.postgres.is_some());
        let selected = clusters
            .filter_map(|mut root| filter.selects_in(repository, &mut root).then_some(root));
        Ok(Self {
            repository: repository.into(),
            backups: selected.collect(),
        })
    }

    fn retain(&mut self, system_identifier: &str) {
        let of = |root: &Root| {
            root.postgres
                .as_ref()
                .map(|cluster| cluster.system_identifier == system_identifier)
        };
        self.backups.retain(|root| of(root) == Some(true));
    }

    fn members(&self) -> impl DoubleEndedIterator<Item = (&Root, &ClusterInfo)> + Clone {
        self.backups
            .iter()
            .filter_map(|root| Some((root, root.postgres.as_ref()?)))
    }

    /// Those of servers that wrote this timeline; a standby may be behind its primary.
    fn of_primaries(
        &self,
        timeline: u32,
    ) -> impl DoubleEndedIterator<Item = (&Root, &ClusterInfo)> {
        self.members()
            .filter(move |(_, cluster)| cluster.timeline == timeline && !cluster.standby)
    }

    /// The one that recovery begins with; `None` if it may be any.
    fn beginning(&self, recovery: &recovery::RecoveryOptions) -> Option<&Root> {
        if !recovery.chooses() {
            return None;
        }
        let way = self.way(recovery);
        // Of one of which it is not known nobody can tell whether a timeline leads on from there.
        let leads = |cluster: &ClusterInfo| {
            way.as_ref()
                .is_none_or(|(_, way)| leads_on(way, cluster).unwrap_or(false))
        };
        let mut on_way = self.members().filter(|(_, cluster)| leads(cluster));
        let can = |(root, cluster): &(&Root, &ClusterInfo)| {
            recovery.can_begin_with(cluster, root.captured_at())
        };
        let found = on_way.clone().rfind(can).or_else(|| on_way.next());
        found.map(|(root, _)| root)
    }

    /// Its id, if nothing shows that servers of two pasts wrote its timeline: a copy that went on, or the server after it was set back.
    /// WAL of the one brings what the other has to no state that ever was, and nobody notices.
    ///
    /// # Errors
    /// [`Kind::Usage`].
    fn must_be_of_one_past(&self, chosen: &Root) -> Result<String> {
        let timeline = chosen
            .postgres
            .as_ref()
            .map_or(0, |cluster| cluster.timeline);
        let all: Vec<_> = self.of_primaries(timeline).collect();
        let Some((one, other, why)) = (0..all.len())
            .rev()
            .find_map(|at| of_two_pasts(all[at], &all[..at]))
        else {
            return Ok(chosen.id.clone());
        };
        let what = format!(
            "cannot tell which past of the cluster is meant: backups {other} and {one} are of two"
        );
        let why = format!("both are of timeline {timeline}, and {why}");
        let best = format!(
            "the last one that may lead to the target is @{}, of {}",
            chosen.id,
            source_text(&chosen.source)
        );
        Err(Error::new(ErrorKind::Usage, what)
            .because(why)
            .hint(format!(
                "name a backup, or forget those of the past that was given up; {best}"
            )))
    }

    /// The timeline that recovery ends on, and all on the way there; `None` if that of each backup leads there, as far as is known.
    fn way(&self, recovery: &recovery::RecoveryOptions) -> Option<(u32, Timelines)> {
        let timelines = || self.members().map(|(_, cluster)| cluster.timeline);
        let wanted = recovery.wanted_timeline(timelines())?;
        if timelines().all(|timeline| timeline == wanted) {
            return None;
        }
        let (root, _) = self
            .members()
            .rfind(|(_, cluster)| cluster.timeline == wanted)?;
        let archive = Archive::open_backup(&self.repository, &root.id).ok()?;
        let (_, history) = small_file(&archive, history_of(wanted).as_bytes()).ok()??;
        Some((
            wanted,
            Timelines::of(&String::from_utf8_lossy(&history), wanted)?,
        ))
    }

    /// How a backup of this cluster is not on that way, if it is known that it is not.
    pub(crate) fn fork(&self, restore: &Restore, cluster: &ClusterInfo) -> Option<TimelineFork> {
        let (timeline, way) = self.way(&restore.postgres.recovery)?;
        if leads_on(&way, cluster)? {
            return None;
        }
        let (newest, _) = self
            .members()
            .rfind(|(_, other)| leads_on(&way, other) == Some(true))?;
        Some(TimelineFork {
            timeline,
            left: way.left(cluster.timeline),
            newest: newest.id.clone(),
        })
    }

    /// What is to be said where the backup that was chosen is of another server than those before it on its timeline: of one that was
    /// moved, or of a copy.
    pub(crate) fn note_of_another(
        &self,
        restore: &Restore,
        root: &Root,
        cluster: &ClusterInfo,
    ) -> Option<String> {
        let before = self
            .of_primaries(cluster.timeline)
            .rfind(|(before, _)| before.id < root.id);
        let (before, _) = before.filter(|(before, _)| before.source != root.source)?;
        (was_chosen(restore) && !cluster.standby).then(|| {
            let (this, other) = (source_text(&root.source), source_text(&before.source));
            let (is, was) = (&root.id, &before.id);
            format!(
                "backup {is} is of {this}, and backup {was} before it was of {other}: if that is not the same server that was \
                 moved, name a backup"
            )
        })
    }

    /// What is to be said where the server goes on along the timeline of a backup as if later ones had not been made.
    pub(crate) fn note_of_later(&self, root: &Root, cluster: &ClusterInfo) -> Option<String> {
        let is_later = |(other, of): &(&Root, &ClusterInfo)| {
            other.id > root.id && of.timeline == cluster.timeline
        };
        let (later, _) = self.members().rfind(is_later)?;
        Some(format!(
            "the server goes on along timeline {} as if no later backup had been made, and the last of them is {}: if it takes the \
             place of the one that was backed up, forget them, as recovery could begin with one; --target-immediate --target-action \
             promote begins a timeline of its own",
            cluster.timeline, later.id
        ))
    }

    /// What is to be said where it is not the last one that was chosen.
    pub(crate) fn note(&self, restore: &Restore, root: &Root) -> Option<String> {
        let recovery = &restore.postgres.recovery;
        if !was_chosen(restore) || self.backups.last().is_none_or(|last| last.id <= root.id) {
            return None;
        }
        let id = &root.id;
        if recovery.is_choosy() {
            return Some(format!(
                "backup {id} is the last one that can be recovered to the target"
            ));
        }
        let timeline =
            recovery.wanted_timeline(self.members().map(|(_, cluster)| cluster.timeline))?;
        let why = "later ones are of a timeline that was left before they ended";
        Some(format!(
            "backup {id} is the last one on the way to timeline {timeline}; {why}, @ID takes one of them"
        ))
    }
}

/// Was the backup that is restored not named, but chosen for where the server is to come to?
fn was_chosen(restore: &Restore) -> bool {
    is_repository(&restore.from) && restore.postgres.recovery.chooses()
}

/// A backup, and one of the earlier ones of its timeline by which it shows that they are of two pasts, with the reason.
fn of_two_pasts<'a>(
    (root, cluster): (&'a Root, &ClusterInfo),
    earlier: &[(&'a Root, &ClusterInfo)],
) -> Option<(&'a str, &'a str, &'static str)> {
    let last_where = |is_it: &dyn Fn(&Root, &ClusterInfo) -> bool| {
        earlier.iter().rev().find(|(root, of)| is_it(root, of))
    };
    if let Some((before, _)) = last_where(&|before, of| begins_too_early(root, cluster, before, of))
    {
        return Some((
            &root.id,
            &before.id,
            "the second began at a place in the WAL that the first had passed before",
        ));
    }
    let (before, _) = earlier
        .last()
        .filter(|(before, _)| before.source != root.source)?;
    last_where(&|before, _| before.source == root.source)?;
    Some((&root.id, &before.id, "two servers were backed up in turn"))
}

/// Does a backup begin before the place where one ended that was over by then?
fn begins_too_early(
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

/// Does a way lead on from where a backup of this cluster ended? `None` if that is not known.
fn leads_on(way: &Timelines, cluster: &ClusterInfo) -> Option<bool> {
    let stop: Option<Lsn> = cluster.stop_lsn.parse().ok();
    let is_last = way.leads_on(cluster.timeline, Lsn(u64::MAX));
    if is_last {
        Some(true)
    } else {
        stop.map(|stop| way.leads_on(cluster.timeline, stop))
    }
}
