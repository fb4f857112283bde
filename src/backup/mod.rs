//! The engine of a backup: opens the source, finds the base, runs the streams, commits the root.
//!
//! What a source is belongs to `source` and `postgres`, how frames flow to `pipeline`, where they are stored to `sink` and `repo`.

pub(crate) mod division;
pub(crate) mod named_paths;
pub mod paths;
pub(crate) mod source;
pub(crate) mod streams;

use crate::archive::unnamed_losses;
use crate::{
    archive::{Archive, object::OneFileObjects},
    error::{Error, ErrorKind, Result},
    format::{
        digest::Algorithm,
        page::{EntryState, SegmentId},
        root::{
            BackupOptions, EntryName, FORMAT, Live, MAX_NOT_CAPTURED, NotCaptured, Root, RunStats,
        },
        seal::seal,
        sizes,
    },
    frame::Scanned,
    metrics::{
        meter::{LimitVerdict, Meter},
        waits::Waits,
    },
    pipeline::lay::{Laid, MakeRoot, StreamLayout},
    plan::{SinkSpec, StageSpec, Tuning},
    platform::{self, Tricks},
    repo::{
        base::{Base, Like, Unlike, WantedBase},
        compare::Compare,
        ids,
    },
    sink::{Abilities, Destination},
    source::{backup::StoredBackup, tree::Own},
    stage::codec::Codec,
};
pub use source::Subject;
use source::{OpenOptions, OpenedSubject};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroU64,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};
use streams::{Checkpoints, Streams};

/// What a backup would be of.
#[derive(Debug, Default)]
pub struct SourceCount {
    /// Regular files.
    pub files: u64,
    /// Everything.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// What cannot be looked into, as far as that is known before files are read.
    pub unreadable: u64,
    /// The first of them.
    pub not_captured: Vec<NotCaptured>,
    /// Warnings: patterns that matched nothing, marks that do not count, links that are stored as directories.
    pub warnings: Vec<String>,
}

/// What to back up, how, and where to.
#[derive(Debug, Clone)]
pub struct Backup {
    /// Of what.
    pub subject: Subject,
    /// Where to.
    pub to: SinkSpec,
    /// How frames are compressed.
    pub codec: Codec,
    /// How files are digested.
    pub digest: Algorithm,
    /// Whose it is said to be, if not this host's.
    pub host: Option<String>,
    /// What the operator calls it.
    pub tags: BTreeMap<String, String>,
    /// What it is compared with.
    pub base: WantedBase,
    /// How often what is stored so far is made durable, so that the next backup can go on if this one is cut off.
    pub checkpoint_interval: Duration,
    /// Are large files cut in chunks by their content?
    pub chunks: bool,
    /// Bytes of a block; `None`: what suits the subject.
    pub block_bytes: Option<u64>,
    /// Bytes that are read in a second, at most.
    pub max_rate: Option<NonZeroU64>,
    /// How much of the machine it may use.
    pub tuning: Tuning,
}

/// What a backup came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its root.
    pub root: Root,
    /// What limited it.
    pub verdict: LimitVerdict,
    /// Why it is not compared with the backup before it, if that is not what was asked for.
    pub unlike: Option<Unlike>,
    /// What is damaged or missing of the backups that it was compared with; what it needs of that was stored again.
    pub damage: Vec<String>,
    /// Warnings: patterns that matched nothing, marks that do not count, links that are stored as directories.
    pub warnings: Vec<String>,
}

/// What it is compared with, or why with nothing; what is damaged of earlier backups.
type Found = (Option<Arc<Base>>, Option<Unlike>, BTreeSet<String>);

impl Backup {
    /// Run it.
    ///
    /// # Errors
    /// Whatever makes the backup impossible; nothing is committed then. What could not be read is in the outcome.
    pub fn run(&self, meter: &Arc<Meter>) -> Result<Outcome> {
        let begun = jiff::Timestamp::now();
        let id = self.id(begun)?;
        let time = begun.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let (id, time) = match &self.subject {
            Subject::Stored(stored) => exported(&stored.archive().root, &id),
            _ => (id, time),
        };
        self.check_output()?;
        self.check_paths()?;
        self.check_compare()?;
        let way = self.way(&meter.waits);
        let own = way.own.clone();
        let mut subject = self.subject.open(Some(&id), way)?;
        meter.begin();
        if self.tuning.depths(subject.sources.len()).is_err() {
            subject.sources.retain(|source| !source.accompanies()); // what it has comes at the end as well
        }
        self.tuning.depths(subject.sources.len())?; // what cannot work leaves no trace
        let mut destination = self.to.open(&id, &time, self.codec, self.tuning.tricks)?;
        let (base, unlike, mut damage) = match self.find_base(&mut *destination, &subject) {
            Ok(found) => found,
            Err(error) => {
                destination.abort(false);
                return Err(error);
            }
        };
        if let Some(base) = &base {
            subject.compare(base, self.base.compare);
        }
        let draft = Root {
            id,
            time,
            source: subject.origin.clone(),
            ..self.draft(base.as_deref())
        };
        let abilities = destination.abilities();
        let layout = Arc::new(self.layout(&draft, &abilities));
        let complete = |laid| {
            let root = complete(draft.clone(), laid, base.as_deref(), meter);
            match &self.subject {
                Subject::Stored(stored) => as_it_was(root, stored),
                _ => Root {
                    postgres: subject.cluster.as_ref().map(|cluster| cluster.facts()),
                    ..root
                },
            }
        };
        let check = || match (&self.subject, &subject.cluster) {
            (Subject::Stored(stored), _) => stored.check(),
            (_, Some(cluster)) => cluster.check(),
            _ => Ok(()),
        };
        let sealed = |laid: &Laid| check().and_then(|()| seal(&complete(vec![laid.clone()])));
        let partial = |laid: Vec<Laid>| seal(&complete(laid));
        // A copy is no base for the next backup before it is complete.
        let interim = destination
            .partial()
            .filter(|_| !matches!(self.subject, Subject::Stored(_)));
        let checkpoints = interim.map(|write| Checkpoints {
            interval: self.checkpoint_interval,
            write,
            root: &partial,
            laid: Mutex::default(),
        });
        let root: Option<MakeRoot<'_>> = if abilities.objects || self.codec.is_plain_stream() {
            None
        } else {
            Some(&sealed)
        };
        let sinks = (1..=subject.sources.len() as u32)
            .map(|number| destination.stream(number))
            .collect::<Result<Vec<_>>>();
        let _ = own.set(destination.places());
        let (tuning, is_stdin, stages) =
            (&self.tuning, self.subject.is_stdin(), self.stages(&subject));
        let checkpoints = checkpoints.as_ref();
        let max_rate = self.max_rate;
        let streams = Streams {
            tuning,
            is_stdin,
            max_rate,
            stages,
            layout,
            meter,
            root,
            checkpoints,
        };
        let laid = sinks.and_then(|sinks| streams.run(&subject.sources, sinks));
        let done = laid.and_then(|laid| {
            check()?;
            let root = complete(laid);
            Ok((seal(&root)?, root))
        });
        match done {
            Ok((bytes, root)) => {
                destination.commit(&bytes)?;
                damage.extend(base.iter().flat_map(|base| base.damage()));
                let (verdict, warnings) = (meter.verdict(), subject.warnings());
                Ok(Outcome {
                    root,
                    verdict,
                    unlike,
                    damage: damage.into_iter().collect(),
                    warnings,
                })
            }
            Err(error) => {
                destination.abort(error.kind != ErrorKind::Full);
                Err(error)
            }
        }
    }

    /// What is known of it before anything is read.
    fn draft(&self, base: Option<&Base>) -> Root {
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

    /// How it is cut and labelled.
    fn layout(&self, draft: &Root, abilities: &Abilities) -> StreamLayout {
        StreamLayout {
            backup: draft.id.clone(),
            is_incremental: !draft.bases.is_empty(),
            repository: abilities.repository.clone(),
            codec: self.codec,
            segment_bytes: abilities.objects.then_some(self.tuning.segment_bytes),
            block_bytes: self.block_bytes(),
            manifest_bytes: AtomicU64::new(0),
        }
    }

    /// What an earlier backup of the same source is, if this one goes where one may be.
    fn find_base(
        &self,
        destination: &mut dyn Destination,
        subject: &OpenedSubject,
    ) -> Result<Found> {
        let SinkSpec::Repository(path) = &self.to else {
            return Ok((None, None, BTreeSet::new()));
        };
        let (facts, options) = (
            subject.cluster.as_ref().map(|cluster| cluster.facts()),
            self.options(),
        );
        let left_out = self.subject.left_out();
        let like = Like {
            origin: &subject.origin,
            cluster: facts.as_ref(),
            options: &options,
            left_out: &left_out,
        };
        let (base, damage) = Base::find(path, &self.base, &like, |ids| destination.refer(ids))?;
        let unlike = if base.is_none() && !self.base.full {
            Base::unlike(path, &like)
        } else {
            None
        };
        Ok((base.map(Arc::new), unlike, damage))
    }

    /// What it would be of. Nothing is read but directories.
    ///
    /// # Errors
    /// As [`Backup::run`].
    pub fn count(&self) -> Result<SourceCount> {
        self.check_paths()?;
        let mut count = SourceCount::default();
        let subject = self.subject.open(
            None,
            OpenOptions {
                split: false,
                ..self.way(&Arc::default())
            },
        )?;
        for source in &subject.sources {
            for scanned in source.scan()? {
                let Scanned { entry, state, .. } = scanned?;
                count.entries += 1;
                count.files += u64::from(entry.is_file());
                sizes::add(&mut count.bytes, entry.size());
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
        count.warnings = subject.warnings();
        Ok(count)
    }

    fn way(&self, waits: &Arc<Waits>) -> OpenOptions {
        let split = matches!(self.to, SinkSpec::Repository(_) | SinkSpec::Null);
        let (spool, tricks) = (self.to == SinkSpec::Stdout, self.tuning.tricks);
        let host = self.host.clone().unwrap_or_else(platform::host_name);
        OpenOptions {
            host,
            split,
            spool,
            tricks,
            own: Own::default(),
            waits: waits.clone(),
        }
    }

    /// In a repository it sorts behind all others, whatever the clock says.
    fn id(&self, begun: jiff::Timestamp) -> Result<String> {
        let seed = RandomState::new().build_hasher().finish();
        match &self.to {
            SinkSpec::Repository(path) => ids::next(path, begun, seed),
            _ => Ok(ids::after(None, begun, seed)),
        }
    }

    /// An archive is replaced only by another: what else has that name is not ours to remove.
    fn check_output(&self) -> Result<()> {
        let SinkSpec::File(path) = &self.to else {
            return Ok(());
        };
        if !path.exists() {
            return Ok(());
        }
        let refused = match Archive::open_file(path) {
            Ok(Some(_)) => return Ok(()),
            Err(error) if error.kind == ErrorKind::Corrupt && OneFileObjects::is_ours(path) => {
                return Ok(());
            }
            Err(error) if error.kind != ErrorKind::Corrupt => error,
            Ok(None) | Err(_) => {
                let what = format!(
                    "cannot write to {}: it exists and is no fullbore archive",
                    self.to.name()
                );
                Error::new(ErrorKind::Exists, what)
            }
        };
        Err(refused.hint("choose another --to, or move it out of the way"))
    }

    /// Nothing of a repository is part of a backup that goes there.
    fn check_paths(&self) -> Result<()> {
        match (&self.to, &self.subject) {
            (SinkSpec::Repository(path), Subject::Files(scope)) => scope.keep_out_of(path),
            _ => Ok(()),
        }
    }

    /// A page that a server writes changes no file's size.
    fn check_compare(&self) -> Result<()> {
        if self.base.compare != Compare::Size || !matches!(self.subject, Subject::Cluster(_)) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Usage,
            "cannot compare the files of a cluster by their size: a server changes them in place",
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

    /// 1 MiB, of a cluster a page, or a frame if that is less: a block never spans frames.
    fn block_bytes(&self) -> u64 {
        let block = if self.subject.is_cluster() {
            8 << 10
        } else {
            1 << 20
        };
        u64::from(self.tuning.frame_bytes).min(self.block_bytes.unwrap_or(block))
    }

    fn stages(&self, subject: &OpenedSubject) -> Vec<StageSpec> {
        let (block_bytes, crc32c) = (self.block_bytes(), self.subject.is_cluster());
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
        let thin = subject
            .is_compared
            .then_some(StageSpec::Thin { block_bytes });
        let compress = StageSpec::Compress { codec: self.codec };
        pages
            .into_iter()
            .chain([digest])
            .chain(thin)
            .chain([compress])
            .collect()
    }
}

/// The root, now that all streams are known.
fn complete(mut root: Root, laid: Vec<Laid>, base: Option<&Base>, meter: &Meter) -> Root {
    let verdict = meter.verdict();
    let mut earlier: BTreeMap<SegmentId, Live> = BTreeMap::new();
    for laid in laid {
        root.totals += &laid.totals;
        let kept = laid.kept.iter().copied().chain(std::iter::repeat(0));
        let own = laid.segments.iter().zip(kept);
        root.liveness.extend(own.map(|(segment, kept)| Live {
            data_bytes: kept,
            ..segment.live()
        }));
        for live in laid.live {
            let sum = earlier.entry(live.id()).or_insert_with(|| Live {
                frames: 0,
                bytes: 0,
                ..live.clone()
            });
            sizes::add(&mut sum.frames, live.frames);
            sizes::add(&mut sum.bytes, live.bytes);
        }
        root.segments.extend(laid.segments);
        root.pages.extend(laid.pages);
        root.not_captured.extend(laid.not_captured);
    }
    let mut earlier: Vec<Live> = earlier.into_values().collect();
    if let Some(base) = base {
        base.measure(&mut earlier);
    }
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
    root.finished = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    root.run = RunStats {
        seconds: verdict.seconds,
        limit: verdict.limit.name().to_owned(),
        shares: verdict.table(),
    };
    root
}

/// Id and time of what a stored backup becomes: the time is still that of the capture, and the id says so; but it is another
/// one, as an id names bytes and these will be others.
fn exported(root: &Root, new: &str) -> (String, String) {
    const TIMED: usize = "20261121T054501Z-k3".len();
    let id = root
        .id
        .get(..TIMED)
        .zip(new.get(TIMED..))
        .map_or(new.to_owned(), |(time, rest)| format!("{time}{rest}"));
    (id, root.time.clone())
}

/// What was captured, and when, is what it was.
fn as_it_was(root: Root, stored: &StoredBackup) -> Root {
    let of = &stored.archive().root;
    let (finished, boot, postgres) = (of.finished.clone(), of.boot.clone(), of.postgres.clone());
    let mut root = Root {
        finished,
        boot,
        postgres,
        ..root
    };
    unnamed_losses::copy_losses(&mut root, of);
    stored
        .lost_pages()
        .iter()
        .for_each(|page| unnamed_losses::record_page_loss(&mut root, &page.first.0, page.entries));
    root
}

/// May nothing be tried that the system could refuse?
pub fn tricks(no_tricks: bool) -> Tricks {
    if no_tricks {
        Tricks::Never
    } else {
        Tricks::Auto
    }
}
