//! Forgets backups by name or by retention rules.
//!
//! A forgotten backup is no longer listed. The next prune frees the data that only forgotten
//! backups need, see [`crate::cli::verbs::prune_report`].

use super::prune_report::{Prune, amount};
use fullbore_format::text::{columns::fitted_row, local_time::recent_minute, source_text};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{NOTES, is_of_future},
    root::{BackupOptions, Root, SourceInfo},
    text,
};
use fullbore_platform::queue::run_each;
use fullbore_repository::{
    annotations::Annotations,
    exact::forgettable,
    open::read_repository,
    protocol,
    prune::{ObjectCount, Pruned, prune_forecast},
    retention::{RetentionCandidate, RetentionRules},
    root_index::IndexPlace,
    root_reader::DocumentReader,
    roots::{RootFacts, backup_files},
    select::BackupFilter,
    wal::WalRetention,
};
use fullbore_storage::{Objects, Storages, at_once};
use jiff::{Timestamp, Zoned, tz::TimeZone};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io::Write,
    sync::Arc,
};

/// Terminals with fewer columns get no WHEN in tables of actions: the id has the time.
pub(super) const WITH_TIMES: usize = 76;

/// The backups to forget, and the form of the output.
#[derive(Debug, Clone, Default)]
pub(super) struct Forget {
    /// How storages are reached.
    pub(super) storages: Storages,
    /// The repository.
    pub(super) repository: OsString,
    /// IDs of backups, or prefixes of IDs; if empty, the rules decide.
    pub(super) ids: Vec<String>,
    /// Selects the source if `latest` could be of several.
    pub(super) filter: BackupFilter,
    /// The retention rules.
    pub(super) rules: RetentionRules,
    /// Whether the rules apply to each source separately.
    pub(super) by_source: bool,
    /// Whether to print only what would be forgotten.
    pub(super) dry_run: bool,
    /// Whether to free the space at once.
    pub(super) prune: bool,
    /// How long that prune keeps archived WAL.
    pub(super) wal: WalRetention,
    /// Whether to print a line about the columns first.
    pub(super) has_header: bool,
    /// Columns of the terminal, into which lines are fitted; `None` for whole lines.
    pub(super) columns: Option<usize>,
    /// Whether to print JSON, one object a line.
    pub(super) json: bool,
    /// The sources whose backups the rules may forget; `None` for all.
    pub(super) sources: Option<BTreeSet<Identity>>,
}

/// The outcome of rules whose decisions are not printed.
#[derive(Debug, Default)]
pub(super) struct ForgottenByRules {
    /// The forgotten backups.
    pub(super) ids: Vec<String>,
    /// Backups that cannot be judged, and are kept.
    pub(super) damaged: Vec<(String, Error)>,
}

/// The backups that words name, before they are forgotten.
#[derive(Debug, Default)]
pub(super) struct NamedBackups {
    /// Their full ids, each once.
    pub(super) ids: Vec<String>,
    /// The sources that would have no backup afterwards.
    pub(super) emptied: Vec<String>,
}

/// The type of the lines of `forget --json`.
pub(super) const DECISION: &str = "decision";

/// The decision on one backup.
#[derive(Debug, Default, Serialize)]
struct Decision {
    r#type: &'static str,
    id: String,
    time: Option<String>,
    source: Option<SourceInfo>,
    source_text: Option<String>,
    bytes: Option<u64>,
    /// The reasons to keep the backup.
    reasons: Vec<String>,
    /// Whether the backup is forgotten, or would be in a dry run.
    forgotten: bool,
    dry_run: bool,
}

/// A backup as a candidate for the rules.
struct ListedBackup {
    root: Root,
    candidate: RetentionCandidate,
}

/// Groups of candidates, and backups that cannot be judged.
type Candidates = (BTreeMap<Identity, Vec<ListedBackup>>, Vec<(String, Error)>);

/// Groups of backups that are decided together, with the name of their source.
type Groups = Vec<(String, Vec<Decision>)>;

/// The identity of a source: a host, and its cluster or paths. A backup of unknown source forms a group
/// of its own.
pub(super) type Identity = (Option<String>, String);

impl Forget {
    /// Forgets the backups and prints a table of decisions with reasons. Returns the exit code: 4
    /// if roots are damaged, whose backups are then kept.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a pinned backup is named or the rules would keep no backup of a
    /// group; nothing is forgotten then. Errors of the system.
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<u8> {
        let objects = &self.storages.repository_at(&self.repository)?;
        read_repository(&**objects)?;
        let (mut groups, damaged) = if self.ids.is_empty() {
            self.by_rules(objects)?
        } else {
            (self.by_name(objects)?, Vec::new())
        };
        if !self.dry_run {
            self.forget(&**objects, &mut groups)?;
        }
        if self.json {
            groups
                .iter()
                .flat_map(|(_, decisions)| decisions)
                .try_for_each(|decision| text::json(out, decision))?;
        } else {
            self.print(&groups, out)?;
        }
        if self.prune && !self.dry_run {
            let prune = Prune {
                storages: self.storages.clone(),
                repository: self.repository.clone(),
                dry_run: false,
                json: self.json,
                wal: self.wal,
            };
            prune.run(out)?;
        } else if !self.json {
            self.print_freeable(&**objects, &groups, out)?;
        }
        for (id, error) in &damaged {
            let error = error.line();
            if self.json {
                let line = serde_json::json!({"type": DECISION, "id": id, "forgotten": false, "dry_run": self.dry_run, "error": error});
                text::json(out, &line)?;
            } else {
                text::line(out, &format!("{id}  kept: {error}"))?;
            }
        }
        Ok(if damaged.is_empty() { 0 } else { 4 })
    }

    /// Applies the rules, and prints nothing.
    ///
    /// # Errors
    /// As [`Forget::run`].
    pub(super) fn apply_rules(&self) -> Result<ForgottenByRules> {
        let objects = &self.storages.repository_at(&self.repository)?;
        let (mut groups, damaged) = self.by_rules(objects)?;
        self.forget(&**objects, &mut groups)?;
        let decisions = groups.into_iter().flat_map(|(_, group)| group);
        let forgotten = decisions.filter(|decision| decision.forgotten);
        Ok(ForgottenByRules {
            ids: forgotten.map(|decision| decision.id).collect(),
            damaged,
        })
    }

    /// Returns the backups that the rules keep, of those of the repository and of `others`, which
    /// are to be copied there. `objects` is the repository if it exists.
    ///
    /// # Errors
    /// As [`Forget::run`].
    pub(super) fn kept_with(
        &self,
        objects: Option<&Arc<dyn Objects>>,
        others: &[Root],
    ) -> Result<BTreeSet<String>> {
        let (kept, _) = self.decide_with(objects, others)?;
        Ok(kept)
    }

    /// Returns the backups of the repository that the rules would forget, if `others` were copied
    /// there.
    ///
    /// # Errors
    /// As [`Forget::run`].
    pub(super) fn not_kept(&self, others: &[Root]) -> Result<Vec<String>> {
        let objects = &self.storages.repository_at(&self.repository)?;
        let (kept, present) = self.decide_with(Some(objects), others)?;
        Ok(present.difference(&kept).cloned().collect())
    }

    /// Returns the backups that the rules keep, and those of the repository.
    fn decide_with(
        &self,
        objects: Option<&Arc<dyn Objects>>,
        others: &[Root],
    ) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
        let (mut groups, damaged) = match objects {
            Some(objects) => self.candidates(objects)?,
            None => Default::default(),
        };
        let listed = groups.values().flatten();
        let present: BTreeSet<String> = listed.map(|listed| listed.root.id.clone()).collect();
        let damaged: BTreeSet<String> = damaged.into_iter().map(|(id, _)| id).collect();
        let is_known = |root: &&Root| present.contains(&root.id) || damaged.contains(&root.id);
        for root in others.iter().filter(|root| !is_known(root)) {
            // A pin is a decision of one repository, and is not copied.
            let listed = candidate_with(root.clone(), false)?;
            let group = groups.entry(self.identity(root)?).or_default();
            group.push(listed);
        }
        let now = Timestamp::now();
        let mut kept = BTreeSet::new();
        for listed in groups.values_mut() {
            listed.sort_by(|a, b| a.root.id.cmp(&b.root.id));
            let (_, decisions) = self.decide(listed, now)?;
            let kept_ones = decisions
                .into_iter()
                .filter(|decision| !decision.forgotten)
                .map(|decision| decision.id);
            kept.extend(kept_ones);
        }
        Ok((kept, present))
    }

    /// Returns which backups `ids` names, so that the user can be asked about the last ones of a
    /// source.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] or [`ErrorKind::Usage`] if a word does not name one backup; errors of
    /// the storage.
    pub(super) fn named(&self) -> Result<NamedBackups> {
        let objects = &self.storages.repository_at(&self.repository)?;
        read_repository(&**objects)?;
        let mut ids = BTreeSet::new();
        for word in &self.ids {
            ids.insert(forgettable(objects, word, &self.filter)?);
        }
        let mut left: BTreeMap<Identity, (String, bool)> = BTreeMap::new();
        let place = IndexPlace::new(self.storages.index_dir());
        let mut reader = DocumentReader::new(&**objects, &place);
        reader.visit_listed(&backup_files(&**objects)?, &mut |id, facts| {
            // The source of a damaged backup is unknown.
            let Ok(root) = facts.and_then(RootFacts::root) else {
                return Ok(());
            };
            let source = || (source_text(&root.source), false);
            let kept = left.entry(identity_of(&root)?).or_insert_with(source);
            kept.1 |= !ids.contains(id);
            Ok(())
        })?;
        let emptied = left.into_values().filter(|(_, is_kept)| !is_kept);
        Ok(NamedBackups {
            ids: ids.into_iter().collect(),
            emptied: emptied.map(|(source, _)| source).collect(),
        })
    }

    /// Forgets the backups decided on, after the names of those that stay are durable.
    fn forget(&self, objects: &dyn Objects, groups: &mut Groups) -> Result<()> {
        let changed = groups
            .iter()
            .filter(|(_, group)| group.iter().any(|decision| decision.forgotten));
        for decision in changed.flat_map(|(_, group)| group) {
            if !decision.forgotten {
                protocol::settle(objects, &decision.id)?;
            }
        }
        let decisions = groups.iter_mut().flat_map(|(_, group)| group);
        let mut forgotten: Vec<&mut Decision> =
            decisions.filter(|decision| decision.forgotten).collect();
        for some in forgotten.chunks_mut(at_once(objects)) {
            let ids: Vec<String> = some.iter().map(|decision| decision.id.clone()).collect();
            let obstacles = run_each(&ids, |id| self.forget_one(objects, id));
            for (decision, obstacle) in some.iter_mut().zip(obstacles) {
                if let Some(reason) = obstacle? {
                    decision.forgotten = false;
                    decision.reasons = vec![reason];
                }
            }
        }
        Ok(())
    }

    /// Forgets a backup. Returns the reason if it must be kept.
    fn forget_one(&self, objects: &dyn Objects, id: &str) -> Result<Option<String>> {
        // The backup may have been pinned since the decision.
        match Annotations::read(objects, id) {
            Ok(notes) if notes.pinned => return Ok(Some("pinned during this run".to_owned())),
            Ok(_) => {}
            Err(error) => return Ok(Some(error.line())),
        }
        // A named ID may belong to the remains of an interrupted backup. A backup chosen by rules
        // may have been forgotten by another run since.
        if !protocol::forget(objects, id)? && !self.ids.is_empty() {
            protocol::write_off(objects, id)?;
        }
        Ok(None)
    }

    fn by_name(&self, objects: &Arc<dyn Objects>) -> Result<Groups> {
        let mut decisions = BTreeMap::new();
        for name in &self.ids {
            let id = forgettable(objects, name, &self.filter)?;
            if Annotations::read(&**objects, &id)?.pinned {
                let message = format!("cannot forget backup {id:?}: it is pinned");
                return Err(Error::new(ErrorKind::Usage, message).hint("`fullbore unpin` it first"));
            }
            let dry_run = self.dry_run;
            let decision = Decision {
                r#type: DECISION,
                id: id.clone(),
                reasons: vec![],
                forgotten: true,
                dry_run,
                ..Decision::default()
            };
            decisions.insert(id, decision);
        }
        Ok(vec![(String::new(), decisions.into_values().collect())])
    }

    /// Returns the decisions of the rules, and the backups that cannot be judged.
    fn by_rules(&self, objects: &Arc<dyn Objects>) -> Result<(Groups, Vec<(String, Error)>)> {
        if self.rules.is_empty() {
            let message = "cannot forget without a retention rule or the ID of a backup";
            return Err(Error::new(ErrorKind::Usage, message).hint(
                "for example --keep-daily 7 --keep-weekly 4; a rule with 0 keeps nothing and is none",
            ));
        }
        let (groups, damaged) = self.candidates(objects)?;
        if groups.is_empty() && damaged.is_empty() && !self.filter.is_empty() {
            return Err(self.filter.none_selected(objects)?);
        }
        let now = Timestamp::now();
        let mut groups = groups
            .into_values()
            .map(|listed| self.decide(&listed, now))
            .collect::<Result<Groups>>()?;
        groups.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok((groups, damaged))
    }

    /// Returns the backups among which the rules decide, oldest first, and those that cannot be
    /// judged.
    fn candidates(&self, objects: &Arc<dyn Objects>) -> Result<Candidates> {
        let mut groups: BTreeMap<Identity, Vec<ListedBackup>> = BTreeMap::new();
        let mut damaged = Vec::new();
        read_repository(&**objects)?;
        let files = backup_files(&**objects)?;
        let place = IndexPlace::new(self.storages.index_dir());
        let mut reader = DocumentReader::new(&**objects, &place);
        reader.visit_listed(&files, &mut |id, facts| {
            let root = facts.and_then(RootFacts::root);
            // Whether it was pinned since is looked up before it is forgotten.
            let noted = files.get(id).filter(|files| files.has(NOTES));
            let noted = noted.map(|_| &**objects);
            match root.and_then(|root| self.candidate(noted, id, root)) {
                Ok(Some(listed)) => groups
                    .entry(self.identity(&listed.root)?)
                    .or_default()
                    .push(listed),
                Ok(None) => {}
                Err(error) => damaged.push((id.to_owned(), error)),
            }
            Ok(())
        })?;
        Ok((groups, damaged))
    }

    /// Returns a backup as a candidate, unless it or its source is not among those that are wanted. Its notes are read if it has some.
    fn candidate(
        &self,
        noted: Option<&dyn Objects>,
        id: &str,
        root: Root,
    ) -> Result<Option<ListedBackup>> {
        if let Some(sources) = &self.sources
            && !sources.contains(&identity_of(&root)?)
        {
            return Ok(None);
        }
        // Without its root nothing says that it is one of those that are selected.
        if root.source.is_unknown() && !self.filter.is_empty() {
            return Ok(None);
        }
        let listed = candidate(noted, id, root)?;
        Ok(Some(listed).filter(|listed| self.filter.selects(&listed.root)))
    }

    /// Decides on the backups of one group. Returns the name of the group and the decisions.
    fn decide(&self, listed: &[ListedBackup], now: Timestamp) -> Result<(String, Vec<Decision>)> {
        let group = listed
            .last()
            .filter(|_| self.by_source)
            .map(|last| source_text(&last.root.source))
            .unwrap_or_default();
        let (counted, later): (Vec<_>, Vec<_>) = listed
            .iter()
            .partition(|listed| !is_of_future(&listed.root.id, now));
        let candidates: Vec<_> = counted
            .iter()
            .map(|listed| listed.candidate.clone())
            .collect();
        let mut reasons = self.rules.reasons(&candidates, now, &TimeZone::system());
        if !reasons.is_empty() && reasons.iter().all(Vec::is_empty) {
            return Err(nothing_kept_error(&group));
        }
        // They take no place of others. A person decides about them.
        reasons.extend(later.iter().map(|_| vec!["in the future".to_owned()]));
        let decisions = counted
            .into_iter()
            .chain(later)
            .zip(reasons)
            .map(|(listed, reasons)| Decision::new(&listed.root, reasons, self.dry_run))
            .collect();
        Ok((group, decisions))
    }

    fn identity(&self, root: &Root) -> Result<Identity> {
        if !self.by_source {
            return Ok(Identity::default());
        }
        identity_of(root)
    }

    fn print(&self, groups: &Groups, out: &mut dyn Write) -> Result<()> {
        let now = Zoned::now();
        if self.has_header {
            text::line(
                out,
                &decision_row(["ACTION", "BACKUP", "WHEN", "SIZE", "REASON"], self.columns),
            )?;
        }
        for (group, decisions) in groups {
            if !group.is_empty() {
                text::line(out, &fitted_row("", group, self.columns))?;
            }
            decisions
                .iter()
                .try_for_each(|decision| text::line(out, &decision.line(&now, self.columns)))?;
        }
        let all = groups.iter().flat_map(|(_, decisions)| decisions);
        let (gone, stay): (Vec<_>, Vec<_>) = all.partition(|decision| decision.forgotten);
        let gone = text::counted(gone.len() as u64, "backup");
        let would = if self.dry_run {
            "would be forgotten"
        } else {
            "forgotten"
        };
        let stay = if self.ids.is_empty() {
            format!(", {} kept", text::count(stay.len() as u64))
        } else {
            String::new()
        };
        text::line(out, &format!("{gone} {would}{stay}"))?;
        let notes = self.former_sources(groups);
        notes.iter().try_for_each(|note| text::line(out, note))
    }

    /// Returns notes about sources that the profile of this process had before its paths were changed.
    fn former_sources(&self, groups: &Groups) -> Vec<String> {
        let Some(own) = &self.filter.own else {
            return Vec::new();
        };
        let mut former: BTreeMap<String, u64> = BTreeMap::new();
        let decisions = groups.iter().flat_map(|(_, decisions)| decisions);
        for source in decisions
            .filter(|decision| !decision.forgotten)
            .filter_map(|decision| decision.source.as_ref())
        {
            if source.host == own.host && !own.is(source) {
                *former.entry(source_text(source)).or_default() += 1;
            }
        }
        let note = |(source, count): (String, u64)| {
            let backups = text::counted(count, "backup");
            format!(
                "note: {backups} of {source}: no source of this profile, and the rules always keep one; `fullbore forget REPO ID` forgets it"
            )
        };
        former.into_iter().map(note).collect()
    }

    /// Prints how much a prune frees now, or would free after a run that is not dry.
    fn print_freeable(
        &self,
        objects: &dyn Objects,
        groups: &Groups,
        out: &mut dyn Write,
    ) -> Result<()> {
        let decisions = groups.iter().flat_map(|(_, decisions)| decisions);
        let forgotten: BTreeSet<String> = decisions
            .filter(|decision| decision.forgotten)
            .map(|decision| decision.id.clone())
            .collect();
        // Where a root is damaged or lost, a prune frees nothing, and says why.
        let place = IndexPlace::new(self.storages.index_dir());
        let mut reader = DocumentReader::new(objects, &place);
        let Ok(pruned) = forecast_of(objects, &mut reader, &forgotten) else {
            let line = "`fullbore prune` frees what only forgotten backups need";
            return text::line(out, line);
        };
        let freed = pruned.freed();
        let freed = if freed == ObjectCount::default() {
            "nothing".to_owned()
        } else {
            amount(&freed)
        };
        let held = match pruned.held().bytes {
            0 => String::new(),
            held => format!(
                "; {} stay, because newer backups refer to it",
                text::bytes(held)
            ),
        };
        let frees = if self.dry_run {
            "would then free"
        } else {
            "frees"
        };
        text::line(out, &format!("`fullbore prune` {frees} {freed}{held}"))
    }
}

fn forecast_of(
    objects: &dyn Objects,
    reader: &mut DocumentReader<'_>,
    forgotten: &BTreeSet<String>,
) -> Result<Pruned> {
    prune_forecast(objects, reader, backup_files(objects)?, forgotten)
}

/// Returns the source that a backup is of.
pub(super) fn identity_of(root: &Root) -> Result<Identity> {
    if root.source.is_unknown() {
        return Ok((None, root.id.clone()));
    }
    match &root.postgres {
        // Another host cannot push out its backups by claiming the cluster.
        Some(cluster) => Ok((
            Some(cluster.system_identifier.clone()),
            root.source.host.clone(),
        )),
        None => {
            let bug = |e| Error::new(ErrorKind::Bug, "cannot write JSON").because(e);
            Ok((None, serde_json::to_string(&root.source).map_err(bug)?))
        }
    }
}

impl Decision {
    fn new(root: &Root, reasons: Vec<String>, dry_run: bool) -> Self {
        Self {
            r#type: DECISION,
            dry_run,
            id: root.id.clone(),
            time: Some(root.time.clone()),
            source: Some(root.source.clone()),
            source_text: Some(source_text(&root.source)),
            bytes: Some(root.totals.bytes),
            forgotten: reasons.is_empty(),
            reasons,
        }
    }

    fn line(&self, now: &Zoned, columns: Option<usize>) -> String {
        let when = self.time.as_ref().map(|time| recent_minute(time, now));
        let bytes = self.bytes.map(text::bytes);
        let action = if self.forgotten { "forget" } else { "keep" };
        let row = decision_row(
            [
                action,
                &self.id,
                &when.unwrap_or_default(),
                &bytes.unwrap_or_default(),
                &self.reasons.join(", "),
            ],
            columns,
        );
        row.trim_end().to_owned()
    }
}

fn decision_row([action, id, when, size, reason]: [&str; 5], columns: Option<usize>) -> String {
    match columns {
        Some(..WITH_TIMES) => format!("{action:<7} {id:<23} {size:>8}  {reason}"),
        _ => format!("{action:<7} {id:<23} {when:<16} {size:>8}  {reason}"),
    }
}

fn candidate(noted: Option<&dyn Objects>, id: &str, mut root: Root) -> Result<ListedBackup> {
    let read = noted.map(|objects| Annotations::read(objects, id));
    let notes = read.transpose()?.unwrap_or_default();
    notes.apply(&mut root);
    candidate_with(root, notes.pinned)
}

fn candidate_with(mut root: Root, pinned: bool) -> Result<ListedBackup> {
    let bad = |e: jiff::Error| {
        Error::corrupt(format!("the time of backup {:?} is invalid", root.id)).because(e)
    };
    let time: Timestamp = root.time.parse().map_err(bad)?;
    let complete = root.totals.is_complete();
    let empty = root.totals.bytes == 0;
    // The roots of many backups are in memory at the same time, so these large fields are
    // dropped.
    (root.segments, root.liveness, root.pages) = Default::default();
    (root.tool, root.boot, root.bases, root.left_out) = Default::default();
    root.options = BackupOptions::default();
    let candidate = RetentionCandidate {
        id: root.id.clone(),
        time,
        tags: root.tags.clone(),
        pinned,
        complete,
        empty,
    };
    Ok(ListedBackup { root, candidate })
}

fn nothing_kept_error(group: &str) -> Error {
    let owner = if group.is_empty() {
        String::new()
    } else {
        format!(" of {group}")
    };
    Error::new(
        ErrorKind::Usage,
        format!("cannot forget all backups{owner}: the rules keep none of them"),
    )
    .hint("add a rule that keeps one, such as --keep-last 1, or name the backups to forget")
}
