//! The backup engine: opens the source, finds the base, runs the streams and commits the root.
//!
//! `source` and `postgres` define sources, `pipeline` moves frames, `sink` and `repo` store them.
//!
//! Belongs here: the order of the steps of a backup, and the options that only a backup has. Does
//! not belong here: the steps themselves.

pub mod changes;
pub(crate) mod division;
pub mod far_source;
pub mod file_service;
mod levels;
pub(crate) mod named_paths;
pub mod paths;
mod several;
mod sharing;
pub(crate) mod source;
pub(crate) mod streams;

use crate::fan_out::{FanOutLog, MemberEnd};
use crate::{
    plan::{SinkSpec, StageSpec, Tuning},
    stored_backup::StoredBackup,
    tape::TapeSpec,
    volumes::VolumeSpec,
};
use changes::{ChangeList, ChangeListener};
use fullbore_format::{
    digest::Algorithm,
    entry::EntryPath,
    error::{Error, ErrorKind, Result},
    page::{EntryState, SegmentId},
    root::{
        BackupOptions, EntryName, FORMAT, Live, MAX_NOT_CAPTURED, NotCaptured, Root, RunStats,
        VolumeFacts,
    },
    seal::seal,
    sizes,
    text::utc_second,
};
use fullbore_pipeline::{
    frame::Scanned,
    known::KnownContent,
    lay::{ErrorBudget, MakeRoot, RootUse, StreamLayout, StreamOutcome},
    sink::{Abilities, Destination, Partial},
    stage::{codec::Codec, level::LevelDial},
};
use fullbore_platform as platform;
use fullbore_platform::{
    metrics::{
        meter::{LimitVerdict, Meter},
        waits::Waits,
    },
    queue::run_both,
};
use fullbore_repository::archive::unnamed_losses;
use fullbore_repository::{
    archive::{Archive, object::OneFileObjects},
    base::{Base, ChosenBases, FoundBase, NewBackup, Unlike, WantedBase},
    compare::Compare,
    first_look::FirstLook,
    ids::{self, SourceMark},
    series_base::Shelf,
    shared_content::SharedContent,
};
use fullbore_storage::Storages;
use fullbore_tree::read::Own;
pub use several::MAX_DESTINATIONS;
pub use sharing::Dedup;
pub use source::Subject;
use source::{OpenOptions, OpenedSubject};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroU64,
    sync::{Arc, Mutex},
    time::Duration,
};
use streams::{Checkpoints, Streams};

/// The entries that a backup would store.
#[derive(Debug, Default)]
pub struct SourceCount {
    /// Number of regular files.
    pub files: u64,
    /// Number of entries of all kinds.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Number of entries that cannot be read, as far as the scan shows; no file is opened.
    pub unreadable: u64,
    /// The first unreadable entries.
    pub not_captured: Vec<NotCaptured>,
    /// Warnings: patterns that matched nothing, ignored cache marks, links that are stored as
    /// directories.
    pub warnings: Vec<String>,
    /// A line about names among the patterns that matched nothing.
    pub idle_names: Option<String>,
}

/// The source of a backup, its destination and its options.
#[derive(Debug, Clone)]
pub struct Backup {
    /// How storages are reached.
    pub storages: Storages,
    /// The source.
    pub subject: Subject,
    /// The destination.
    pub to: SinkSpec,
    /// Further repositories that get the same backup.
    pub also: Vec<SinkSpec>,
    /// Whether the destination repository must exist already.
    pub no_create: bool,
    /// Compression of frames.
    pub codec: Codec,
    /// Digest algorithm of files.
    pub digest: Algorithm,
    /// Host name to record instead of this host's.
    pub host: Option<String>,
    /// Tags of the backup.
    pub tags: BTreeMap<String, String>,
    /// The base to compare with.
    pub base: WantedBase,
    /// Whose content is referred to, besides that of the base.
    pub dedup: Dedup,
    /// Time between checkpoints, each of which makes the stored data durable so that the next
    /// backup can resume an interrupted one.
    pub checkpoint_interval: Duration,
    /// Whether large files are cut into chunks by their content.
    pub chunks: bool,
    /// Block size in bytes; `None` for the default of the source.
    pub block_bytes: Option<u64>,
    /// Maximum number of bytes read a second.
    pub max_rate: Option<NonZeroU64>,
    /// Entries that may be unreadable, at most; `None` for any number.
    pub most_errors: Option<u64>,
    /// Limits of memory, threads and sizes.
    pub tuning: Tuning,
}

/// The outcome of a backup.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The root of the backup.
    pub root: Root,
    /// The part of the machine that limited the speed.
    pub verdict: LimitVerdict,
    /// The reason why the previous backup is not the base, if it is not and a base was wanted.
    pub unlike: Option<Unlike>,
    /// Whether this backup made its repository.
    pub is_new_repository: bool,
    /// What became of the backup in each destination, if there are several.
    pub destinations: Vec<MemberEnd>,
    /// Whether the repository has backups of other sources, and this is the first one of its source.
    pub is_new_source: bool,
    /// The backups of other sources by which content was found that is not stored again.
    pub shared_with: Vec<String>,
    /// Damage to earlier backups that the base needs; the new backup stores the affected data
    /// again.
    pub damage: Vec<String>,
    /// Warnings: patterns that matched nothing, ignored cache marks, links that are stored as
    /// directories.
    pub warnings: Vec<String>,
    /// A line about names among the patterns that matched nothing.
    pub idle_names: Option<String>,
    /// The number of marked caches whose contents were left out, and the path of one of them.
    pub caches: Option<(u64, EntryPath)>,
}

impl Backup {
    /// Runs the backup. With several destinations it succeeds if one of them has the backup.
    ///
    /// # Errors
    /// Every error that makes the backup impossible; nothing is committed then. Files that could
    /// not be read are in the outcome.
    pub fn run(&self, meter: &Arc<Meter>) -> Result<Outcome> {
        if self.also.is_empty() {
            return self.run_once(meter, &mut None);
        }
        self.run_to_several(meter)
    }

    /// Runs the backup to one or several destinations. `log` gets the log of several ones once they
    /// were opened.
    fn run_once(&self, meter: &Arc<Meter>, log: &mut Option<Arc<FanOutLog>>) -> Result<Outcome> {
        let begun = jiff::Timestamp::now();
        let look = self.look()?;
        self.check_output()?;
        self.check_paths()?;
        self.check_also()?;
        self.check_compare()?;
        self.check_dedup()?;
        let options = self.open_options(&meter.waits);
        let own = options.own.clone();
        let name = |source: SourceMark<'_>| self.id(&look, begun, source);
        let mut subject = self.subject.open(Some(&name), options)?;
        let (id, time) = (subject.id.clone(), self.time(begun));
        meter.begin();
        self.fit_streams(&mut subject)?;
        let host = &subject.origin.host;
        let open = || match self.also.is_empty() {
            true => self.to.open(host, &id, &time, self.codec, &look),
            false => self.open_several(host, (&id, &time), &look, (subject.sources.len(), log)),
        };
        let (mut destination, chosen) = self.open_beside_bases(open, &subject, &look)?;
        let is_new_repository = destination.abilities().is_new;
        let found = chosen.and_then(|chosen| {
            let found = self.find_base(&mut *destination, &subject, chosen)?;
            subject.keep_name(found.cluster_name);
            let has_base = found.base.is_some();
            let shared = self.find_shared(&mut *destination, &subject, (&look, has_base))?;
            let mut base = found.base;
            if let Some((base, shared)) = base.as_mut().zip(shared.as_deref()) {
                base.keep_shared(shared.as_base());
            }
            let base = base.map(Arc::new);
            subject.begin(base.as_ref(), (self.base.compare, self.block_bytes()))?;
            if let Some(shared) = &shared {
                subject.share(shared);
            }
            let earlier = EarlierContent { base, shared };
            Ok((earlier, found.unlike, found.damage, found.is_new_source))
        });
        let (earlier, unlike, mut damage, is_new_source) = match found {
            Ok(found) => found,
            Err(error) => {
                destination.abort(false);
                return Err(error);
            }
        };
        let draft = Root {
            id,
            time,
            source: subject.origin.clone(),
            ..self.draft_root(earlier.base.as_deref())
        };
        let dial = matches!(self.codec, Codec::Auto).then(Arc::default);
        let run = BackupRun {
            backup: self,
            meter,
            dial,
            tuning: self.tuning_beside(&earlier, subject.sources.len()),
            subject,
            earlier,
            draft,
        };
        match run.store(&mut *destination, &own) {
            Ok((sealed, root)) => {
                destination.commit(&sealed)?;
                // Only now: pages of the base are read while the backup runs.
                damage.extend(run.earlier.base.iter().flat_map(|base| base.damage()));
                Ok(Outcome {
                    shared_with: run.earlier.shared_with(),
                    root,
                    verdict: meter.verdict(),
                    unlike,
                    is_new_repository,
                    destinations: Vec::new(),
                    is_new_source,
                    damage: damage.into_iter().collect(),
                    warnings: run.subject.warnings(),
                    idle_names: run.subject.idle_names(),
                    caches: run.subject.left_out_caches(),
                })
            }
            Err(error) => {
                let error = destination.explained(error);
                // A full storage gets its space back. After other errors, a later backup resumes
                // from the stored data.
                destination.abort(error.kind != ErrorKind::Full);
                Err(error)
            }
        }
    }

    /// Returns the time of the new backup; an export keeps the time of the stored backup.
    fn time(&self, begun: jiff::Timestamp) -> String {
        if let Subject::Stored(stored) = &self.subject {
            return stored.archive().root.time.clone();
        }
        utc_second(begun)
    }

    /// Drops followers if the memory does not suffice for their streams.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the memory does not suffice for the other streams either. This check
    /// comes before the destination is created.
    fn fit_streams(&self, subject: &mut OpenedSubject) -> Result<()> {
        if self.tuning.depths(subject.sources.len()).is_err() {
            // The files of a follower are also read at the end.
            subject.sources.retain(|source| !source.runs_alongside());
        }
        self.tuning.depths(subject.sources.len()).map(drop)
    }

    /// Returns the root as far as it is known before reading.
    fn draft_root(&self, base: Option<&Base>) -> Root {
        Root {
            format: FORMAT,
            bases: base.map(Base::ids).unwrap_or_default(),
            tool: format!("fullbore {}", env!("CARGO_PKG_VERSION")),
            boot: platform::boot_id(),
            left_out: self.subject.left_out(),
            tags: self.tags.clone(),
            options: self.options(),
            ..Root::default()
        }
    }

    /// Returns the limits of the pipeline, beside what is known of other sources.
    fn tuning_beside(&self, earlier: &EarlierContent, streams: usize) -> Tuning {
        let bytes = self.sharing_bytes(streams);
        let bytes = bytes.filter(|_| earlier.shared.is_some());
        self.tuning.less(bytes.unwrap_or(0))
    }

    /// Returns the sizes and labels of the streams.
    fn layout(&self, draft: &Root, abilities: &Abilities, has_shared: bool) -> StreamLayout {
        StreamLayout {
            backup: draft.id.clone(),
            is_incremental: !draft.bases.is_empty() || has_shared,
            lists_contents: abilities.objects && !self.subject.is_cluster(),
            repository: abilities.repository.clone(),
            codec: self.codec,
            segment_bytes: abilities.objects.then_some(self.tuning.segment_bytes),
            is_in_volumes: self.to.is_in_volumes(),
            ends_with_catalog: self.to.tape().is_some(),
            block_bytes: self.block_bytes(),
            errors: ErrorBudget::new(self.most_errors),
        }
    }

    /// Looks at the repository, if the destination is one.
    fn look(&self) -> Result<FirstLook> {
        let objects = self.to.storage();
        objects.map_or_else(
            || Ok(FirstLook::default()),
            |objects| FirstLook::take(&**objects),
        )
    }

    /// Opens the destination and chooses bases by a look at it; on another host at the same time,
    /// unless an earlier backup has left something that the opening removes.
    fn open_beside_bases(
        &self,
        open: impl FnOnce() -> Result<Box<dyn Destination>>,
        subject: &OpenedSubject,
        look: &FirstLook,
    ) -> Result<(Box<dyn Destination>, Result<ChosenBases>)> {
        let Some(objects) = self.to.storage() else {
            return Ok((open()?, Ok(ChosenBases::default())));
        };
        let choose = || {
            self.with_facts(subject, |like| {
                let not = self.not_in_all(look);
                ChosenBases::of(objects, &look.files, not, &self.base, like)
            })
        };
        if objects.answers_late() && look.has_no_intents() {
            let (chosen, destination) = run_both(true, choose, open);
            return Ok((destination?, chosen));
        }
        Ok((open()?, choose()))
    }

    /// Calls `use_facts` with the facts of the new backup that its base must have, too.
    fn with_facts<T>(
        &self,
        subject: &OpenedSubject,
        use_facts: impl FnOnce(&NewBackup<'_>) -> T,
    ) -> T {
        let facts = subject.cluster.as_ref().map(|cluster| cluster.facts());
        let options = self.options();
        let left_out = self.subject.left_out();
        use_facts(&NewBackup {
            origin: &subject.origin,
            cluster: facts.as_ref(),
            options: &options,
            left_out: &left_out,
            level: self.base.below_level,
        })
    }

    /// Finds the base among the earlier backups of the same source: in the repository, or in the catalog of volumes or tapes.
    fn find_base(
        &self,
        destination: &mut dyn Destination,
        subject: &OpenedSubject,
        chosen: ChosenBases,
    ) -> Result<FoundBase> {
        if let Some(spec) = self.to.volumes() {
            let shelf = Shelf::Volumes(&spec.prefix, spec.catalog.as_ref());
            return self.with_facts(subject, |like| {
                Base::find_in_series(&self.storages, shelf, &self.base, like)
            });
        }
        if let Some(spec) = self.to.tape() {
            let replaced = spec.replaced();
            let shelf = Shelf::Tapes {
                drive: spec.drive.name(),
                catalog: &spec.catalog,
                replaced: replaced.as_deref(),
            };
            let found = self.with_facts(subject, |like| {
                Base::find_in_series(&self.storages, shelf, &self.base, like)
            })?;
            spec.keep(found.base.as_ref().map(Base::tapes).unwrap_or_default());
            return Ok(found);
        }
        let Some(objects) = self.to.storage() else {
            return Ok(FoundBase::default());
        };
        self.with_facts(subject, |like| {
            Base::find(objects, &self.base, like, chosen, |ids| {
                destination.announce_bases(ids)
            })
        })
    }

    /// Counts the entries of the source. Reads directories, no files.
    ///
    /// # Errors
    /// Those of [`Backup::run`].
    pub fn count(&self) -> Result<SourceCount> {
        self.count_changes(None)
    }

    /// As [`Backup::count`]; a listener receives what differs from the last backup.
    ///
    /// # Errors
    /// As [`Backup::count`], those of the last backup, and those of the listener.
    pub fn count_changes(&self, say: Option<ChangeListener<'_>>) -> Result<SourceCount> {
        self.to.check(self.no_create)?;
        self.check_paths()?;
        let mut count = SourceCount::default();
        let subject = self.subject.open(
            None,
            OpenOptions {
                split: false,
                ..self.open_options(&Arc::default())
            },
        )?;
        let mut changes = say
            .map(|say| ChangeList::new(self, &subject, say))
            .transpose()?;
        for source in &subject.sources {
            for scanned in source.scan()? {
                let scanned = scanned?;
                if let Some(changes) = &mut changes {
                    changes.compare(&scanned)?;
                }
                let Scanned { entry, state, .. } = scanned;
                count.entries += 1;
                if state.is_stored() {
                    count.files += u64::from(entry.is_file());
                    sizes::add(&mut count.bytes, entry.size());
                }
                if let EntryState::Unreadable(reason) = state {
                    count.unreadable += 1;
                    if count.not_captured.len() < MAX_NOT_CAPTURED {
                        count.not_captured.push(NotCaptured {
                            path: EntryName(entry.path),
                            reason,
                        });
                    }
                }
            }
        }
        changes.map_or(Ok(()), ChangeList::finish)?;
        count.warnings = subject.warnings();
        count.idle_names = subject.idle_names();
        Ok(count)
    }

    fn open_options(&self, waits: &Arc<Waits>) -> OpenOptions {
        let split = matches!(self.to, SinkSpec::Repository(_) | SinkSpec::Null);
        let spool = self.to.spools();
        let host = self.host.clone().unwrap_or_else(platform::host_name);
        OpenOptions {
            host,
            split,
            spool,
            own: Own::default(),
            ahead_bytes: self.tuning.ahead_bytes(),
            waits: waits.clone(),
        }
    }

    /// Returns the ID of the new backup. In a repository, and in volumes with one prefix, it sorts after all others, even if
    /// the clock was set back; but the ID of an export has the moment of the stored backup.
    fn id(
        &self,
        look: &FirstLook,
        begun: jiff::Timestamp,
        source: SourceMark<'_>,
    ) -> Result<String> {
        let seed = RandomState::new().build_hasher().finish();
        let id = match self.to.storage() {
            Some(objects) => ids::next(&**objects, look, begun, source, seed),
            None => ids::alone(self.newest_in_series().as_deref(), begun, seed),
        };
        match &self.subject {
            Subject::Stored(stored) => Ok(exported_id(&stored.archive().root.id, &id)),
            _ => Ok(id),
        }
    }

    /// Returns the id of the newest backup in volumes under the same prefix, or on tapes, as the catalog of this host knows.
    fn newest_in_series(&self) -> Option<String> {
        if let Some(spec) = self.to.tape() {
            return spec.catalog.newest_id();
        }
        let series = self.to.volumes()?.catalog.as_ref()?;
        series.ids().pop()
    }

    /// Refuses to replace a file that is not a fullbore archive.
    fn check_output(&self) -> Result<()> {
        self.to.check(self.no_create)?;
        let target = match &self.to {
            SinkSpec::Sealed(inner, _) => inner,
            target => target,
        };
        let SinkSpec::File(path) = target else {
            return Ok(());
        };
        if !path.exists() {
            return Ok(());
        }
        let refused = match Archive::open_file(&self.storages, path) {
            Ok(Some(_)) => return Ok(()),
            Err(error)
                if error.kind == ErrorKind::Corrupt
                    && OneFileObjects::is_ours(&self.storages, path) =>
            {
                return Ok(());
            }
            Err(error) if error.kind != ErrorKind::Corrupt => error,
            Ok(None) | Err(_) => {
                let message = format!(
                    "cannot write to {}: it exists and is not a fullbore archive",
                    self.to.name()
                );
                Error::new(ErrorKind::Exists, message)
            }
        };
        Err(refused.hint("choose another --to, or move it out of the way"))
    }

    /// Refuses a source inside the destination repository.
    fn check_paths(&self) -> Result<()> {
        if let (Some(spec), Subject::Files(scope)) = (self.to.volumes(), &self.subject) {
            scope.check_is_not(spec.dir())?;
        }
        let local = self.to.storage().and_then(|objects| objects.as_local());
        match (local, &self.subject) {
            (Some(local), Subject::Files(scope)) => scope.check_outside(local.root()),
            _ => Ok(()),
        }
    }

    /// Refuses `--compare size` for a cluster: a server changes pages without changing the size of
    /// the file.
    fn check_compare(&self) -> Result<()> {
        if self.base.compare != Compare::Size || !matches!(self.subject, Subject::Cluster(_)) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Usage,
            "cannot compare the files of a cluster by size: a server changes files in place",
        )
        .hint("leave out --compare"))
    }

    fn options(&self) -> BackupOptions {
        BackupOptions {
            codec: self.codec.name().to_owned(),
            level: self.codec.level(),
            frame_bytes: self.tuning.frame_bytes.into(),
            segment_bytes: self.tuning.segment_bytes,
            block_bytes: self.block_bytes(),
            digest: self.digest,
            chunks: self.chunks,
        }
    }

    /// Returns the bytes of a file above which it is stored in pieces, so that it can continue on the next volume.
    fn whole_bytes(&self) -> Option<u64> {
        let volumes = self.to.volumes().map(VolumeSpec::whole_bytes);
        let bytes = volumes.or_else(|| self.to.tape().map(TapeSpec::whole_bytes))?;
        Some(bytes.max(self.tuning.frame_bytes.into()))
    }

    /// Returns the block size: by default 1 MiB, 8 KiB (a page) for a cluster; at most one frame,
    /// because a block never spans frames.
    fn block_bytes(&self) -> u64 {
        let block = if self.subject.is_cluster() {
            8 << 10
        } else {
            1 << 20
        };
        u64::from(self.tuning.frame_bytes).min(self.block_bytes.unwrap_or(block))
    }

    fn stages(
        &self,
        subject: &OpenedSubject,
        shared: Option<&Arc<SharedContent>>,
        dial: Option<&Arc<LevelDial>>,
    ) -> Vec<StageSpec> {
        let block_bytes = self.block_bytes();
        let crc32c = self.subject.is_cluster();
        let digest = StageSpec::Digest {
            algorithm: self.digest,
            block_bytes,
            chunks: self.chunks,
            crc32c,
        };
        let pages = subject
            .cluster
            .as_ref()
            .and_then(|cluster| cluster.page_check())
            .map(StageSpec::Pages);
        // It makes members of the pieces of files, too.
        let shared = shared.map(|shared| shared.clone() as Arc<dyn KnownContent>);
        let thin = (subject.is_compared || self.to.is_in_volumes() || shared.is_some()).then_some(
            StageSpec::Thin {
                block_bytes,
                shared,
            },
        );
        let compress = match dial {
            Some(dial) => StageSpec::CompressAuto(dial.clone()),
            None => StageSpec::Compress { codec: self.codec },
        };
        // `Thin` needs the digests, and leaves less to compress.
        pages
            .into_iter()
            .chain([digest])
            .chain(thin)
            .chain([compress])
            .collect()
    }
}

/// Content of earlier backups, which is not stored again.
#[derive(Default)]
struct EarlierContent {
    base: Option<Arc<Base>>,
    /// The content of other sources.
    shared: Option<Arc<SharedContent>>,
}

impl EarlierContent {
    fn shared_with(&self) -> Vec<String> {
        let shared = self.shared.iter();
        shared.flat_map(|shared| shared.used()).collect()
    }
}

/// A backup with an open source and a base, ready to be stored.
struct BackupRun<'a> {
    backup: &'a Backup,
    meter: &'a Arc<Meter>,
    /// The level of adaptive compression.
    dial: Option<Arc<LevelDial>>,
    subject: OpenedSubject,
    earlier: EarlierContent,
    /// The limits of its pipeline.
    tuning: Tuning,
    /// The root as far as it is known before reading.
    draft: Root,
}

impl BackupRun<'_> {
    /// Stores all streams. Returns the root, sealed and plain.
    fn store(&self, destination: &mut dyn Destination, own: &Own) -> Result<(Vec<u8>, Root)> {
        let abilities = destination.abilities();
        let archive_root = |stream: &StreamOutcome, of: RootUse| {
            if of == RootUse::Last {
                self.check()?;
            }
            let root = self.root(vec![stream.clone()]);
            seal(&self.in_volume(root, of))
        };
        let interim_root = |streams: Vec<StreamOutcome>| seal(&self.root(streams));
        let checkpoints = self.interim(destination).map(|write| Checkpoints {
            interval: self.backup.checkpoint_interval,
            write,
            root: &interim_root,
            laid: Mutex::default(),
        });
        let is_plain = self.backup.codec.is_plain_stream();
        let root: Option<MakeRoot<'_>> = if abilities.objects || is_plain {
            None
        } else {
            Some(&archive_root)
        };
        let sinks = (1..=self.subject.sources.len() as u32)
            .map(|number| destination.stream(number))
            .collect::<Result<Vec<_>>>()?;
        // Before the scan begins: a backup must not store its own destination.
        let _ = own.set(destination.places());
        let streams = Streams {
            tuning: &self.tuning,
            is_stdin: self.backup.subject.is_stdin(),
            whole_bytes: self.backup.whole_bytes(),
            max_rate: self.backup.max_rate,
            stages: self.backup.stages(
                &self.subject,
                self.earlier.shared.as_ref(),
                self.dial.as_ref(),
            ),
            dial: self.dial.clone(),
            layout: Arc::new(self.backup.layout(
                &self.draft,
                &abilities,
                self.earlier.shared.is_some(),
            )),
            meter: self.meter,
            root,
            checkpoints: checkpoints.as_ref(),
        };
        let outcomes = streams.run(&self.subject.sources, sinks)?;
        self.check()?;
        let mut root = self.in_volume(self.root(outcomes), RootUse::Last);
        let base = self.earlier.base.as_deref().and_then(Base::root);
        if let Some(base) = base.filter(|_| abilities.objects) {
            root.share_lists_of(base);
        }
        Ok((seal(&root)?, root))
    }

    /// Checks that all data came from the source as it was opened.
    fn check(&self) -> Result<()> {
        match (&self.backup.subject, &self.subject.cluster) {
            (Subject::Stored(stored), _) => stored.check(),
            (_, Some(cluster)) => cluster.check(),
            _ => Ok(()),
        }
    }

    /// Returns where roots of unfinished backups go, if checkpoints are possible.
    fn interim(&self, destination: &dyn Destination) -> Option<Partial> {
        // A copy becomes usable as a base only when it is complete.
        let is_copy = matches!(self.backup.subject, Subject::Stored(_));
        destination.partial().filter(|_| !is_copy)
    }

    /// Notes in a root which volume it stands in.
    fn in_volume(&self, root: Root, of: RootUse) -> Root {
        let facts = VolumeFacts {
            number: root.segments.last().map_or(1, |segment| segment.number),
            is_last: of == RootUse::Last,
            is_sealed: matches!(self.backup.to, SinkSpec::Sealed(..)),
        };
        let volume = self.backup.to.is_in_volumes().then_some(facts);
        Root { volume, ..root }
    }

    /// Returns the root for the streams so far.
    fn root(&self, streams: Vec<StreamOutcome>) -> Root {
        let mut root = complete_root(self.draft.clone(), streams, &self.earlier, self.meter);
        root.run.levels = self
            .dial
            .as_deref()
            .map(LevelDial::used)
            .unwrap_or_default();
        match &self.backup.subject {
            Subject::Stored(stored) => keep_capture_facts(root, stored),
            _ => Root {
                postgres: self.subject.cluster.as_ref().map(|cluster| cluster.facts()),
                ..root
            },
        }
    }
}

/// Completes the root from the finished streams.
fn complete_root(
    mut root: Root,
    laid: Vec<StreamOutcome>,
    content: &EarlierContent,
    meter: &Meter,
) -> Root {
    let mut earlier = EarlierSegments::default();
    for laid in laid {
        root.totals += &laid.totals;
        let kept = laid.kept.iter().copied().chain(std::iter::repeat(0));
        let own = laid.segments.iter().zip(kept);
        root.liveness.extend(own.map(|(segment, kept)| Live {
            data_bytes: kept,
            ..segment.fully_live()
        }));
        earlier.add(laid.live);
        root.segments.extend(laid.segments);
        root.pages.extend(laid.pages);
        root.not_captured.extend(laid.not_captured);
    }
    let earlier = earlier.measured(content);
    let base = content.base.as_ref();
    root.earlier_places = base.map_or_else(Vec::new, |base| base.places_of(&earlier));
    root.liveness.extend(earlier);
    root.not_captured.truncate(MAX_NOT_CAPTURED);
    let own_pages = root
        .pages
        .iter()
        .filter(|page| page.backup.is_empty() && page.manifest_offset.is_some());
    sizes::add(
        &mut root.totals.stored_bytes,
        sizes::sum(own_pages.map(|page| page.bytes)),
    );
    root.finished = utc_second(jiff::Timestamp::now());
    let verdict = meter.verdict();
    root.run = RunStats {
        seconds: verdict.seconds,
        limit: verdict.limit.name().to_owned(),
        shares: verdict.table(),
        levels: BTreeMap::new(),
    };
    root
}

/// The segments of earlier backups that the streams refer to, with the sums of their references.
#[derive(Default)]
struct EarlierSegments(BTreeMap<SegmentId, Live>);

impl EarlierSegments {
    /// Adds the references of one stream.
    fn add(&mut self, references: Vec<Live>) {
        for live in references {
            let sum = self.0.entry(live.id()).or_insert_with(|| Live {
                frames: 0,
                bytes: 0,
                ..live.clone()
            });
            sizes::add(&mut sum.frames, live.frames);
            sizes::add(&mut sum.bytes, live.bytes);
        }
    }

    /// Returns the segments with their sizes, which the earlier backups know.
    fn measured(self, content: &EarlierContent) -> Vec<Live> {
        let mut all: Vec<Live> = self.0.into_values().collect();
        if let Some(shared) = &content.shared {
            shared.measure(&mut all);
        }
        if let Some(base) = &content.base {
            base.measure(&mut all);
        }
        all
    }
}

/// Returns the ID of an export of the backup `stored`. It has the time of the capture; the rest of
/// the ID is new, because an ID names bytes and the exported bytes differ.
fn exported_id(stored: &str, new: &str) -> String {
    const TIMED: usize = "20261121T054501Z-k3".len();
    stored
        .get(..TIMED)
        .zip(new.get(TIMED..))
        .map_or(new.to_owned(), |(time, rest)| format!("{time}{rest}"))
}

/// Copies the facts of the capture from the stored backup: end time, boot, cluster, losses.
fn keep_capture_facts(root: Root, stored: &StoredBackup) -> Root {
    let captured = &stored.archive().root;
    let finished = captured.finished.clone();
    let boot = captured.boot.clone();
    let postgres = captured.postgres.clone();
    let mut root = Root {
        finished,
        boot,
        postgres,
        ..root
    };
    unnamed_losses::copy_losses(&mut root, captured);
    stored
        .lost_pages()
        .iter()
        .for_each(|page| unnamed_losses::record_page_loss(&mut root, &page.first.0, page.entries));
    root
}
